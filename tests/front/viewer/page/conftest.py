from __future__ import annotations

import pytest
import pytest_asyncio

from tests.front.viewer.page.browser import CHROMIUM, chromium
from tests.front.viewer.page.runs import DEMO
from toolgym.viewer.page.write import write_page
from toolgym.viewer.run_index import RunIndex


@pytest.fixture(autouse=True)
def no_report(request, monkeypatch):
    """Leaves the report out of the pages that a test writes, unless the test is about it: its plots take a second."""
    if "report" not in request.node.name:
        monkeypatch.setattr("toolgym.viewer.page.write.report", lambda index: {"problem": "left out of this test"})


@pytest.fixture(scope="package")
def demo(tmp_path_factory):
    """The address of the demo's page."""
    path = tmp_path_factory.mktemp("demo") / "run.html"
    write_page(RunIndex(DEMO), path)
    return path.as_uri()


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def tab():
    """One tab of Chromium for all tests."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    async with chromium() as page:
        yield page


@pytest_asyncio.fixture(loop_scope="package")
async def page(tab):
    """The tab, as large as a screen. Nothing may go wrong in it, and nothing be asked for but the page."""
    await tab.size(1280, 800)
    await tab.prefer("light")
    yield tab
    await tab.eval("document.documentElement.dataset.end = 1")
    assert tab.complaints == []
    assert [address for address in tab.requests if not address.startswith(("file://", "http://127.0.0.1:"))] == []
