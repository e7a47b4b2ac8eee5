"""The documentation site in a browser: nothing is missing, nothing comes from elsewhere; search, light and dark."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from aiohttp import web

from tests.front.viewer.page.browser import CHROMIUM, chromium

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import docs_site  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("zensical") is None, reason="the extra docs is not installed"),
]


@pytest.fixture(scope="module")
def site():
    assert docs_site.build(ROOT) == []
    return ROOT / "site"


@pytest.fixture
async def url(site):
    """The address of a server that has the site."""

    async def answer(request):
        path = site / request.match_info["path"]
        path = path / "index.html" if path.is_dir() else path
        return web.FileResponse(path) if path.exists() else web.FileResponse(site / "404.html", status=404)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


def test_a_reader_that_is_a_model_gets_every_page_as_text(site):
    listed = (site / "llms.txt").read_text()
    assert "Ten minutes" in listed
    assert listed.count("/api/toolgym.rollout.runner/index.md") == listed.count("/viewer/index.md") == 1
    assert "## Where drift comes from" in (site / "llms-full.txt").read_text()


@pytest.fixture
async def page():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    async with chromium() as tab:
        yield tab


async def visit(page, address):
    await page.call("Page.navigate", url=address)
    await page.until(f"location.href === '{address}' && document.readyState === 'complete'")


async def test_pages_load_from_one_host_without_a_complaint(url, page):
    for path in ("", "start/", "concepts/", "trainers/", "api/toolgym.rollout.runner/"):
        await visit(page, url + path)
        assert await page.text("h1")
    assert [asked for asked in page.requests if not asked.startswith((url, "data:", "blob:"))] == []
    assert page.complaints == []
    await visit(page, url + "no/such/page/")
    assert await page.text("h1") == "There is no such page"


async def test_the_search_finds_a_section(url, page):
    """The results may stand in a shadow tree."""
    results = """(() => [document, ...[...document.querySelectorAll("*")].map((node) => node.shadowRoot)]
        .filter(Boolean).flatMap((root) => [...root.querySelectorAll("a")]).map((link) => link.href))()"""
    section = f"{results}.some((address) => address.includes('/runner/') && address.includes('#stragglers'))"
    await visit(page, url)
    assert not await page.eval(section)
    await page.eval("document.querySelector('.md-search__button').click()")
    await page.until("document.activeElement !== document.body")
    await page.call("Input.insertText", text="stragglers")
    await page.until(section)


async def test_a_drawing_follows_the_switch_between_light_and_dark(url, page):
    ink = "getComputedStyle(document.querySelector('svg.drawing text')).fill"
    await page.prefer("light")
    await visit(page, url + "concepts/")
    light = await page.eval(ink)
    await page.eval("document.body.setAttribute('data-md-color-scheme', 'slate')")
    assert (light, await page.eval(ink)) == ("rgb(31, 35, 40)", "rgb(230, 237, 243)")


async def test_a_page_is_no_wider_than_a_phone(url, page):
    await page.size(390, 800, mobile=True)
    for path in ("", "concepts/", "trainers/", "templates/", "api/toolgym.rollout/"):
        await visit(page, url + path)
        assert await page.eval("document.documentElement.scrollWidth") <= 390, path
