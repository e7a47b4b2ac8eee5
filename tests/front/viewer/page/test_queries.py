"""The query language in the page, case by case as the library has it."""

from __future__ import annotations

import pytest

from tests.front.viewer.page.runs import odd_run
from toolgym.tools.errors import ConfigError
from toolgym.viewer.page.write import write_page
from toolgym.viewer.query import FLAGS, NUMBERS, TEXTS, Query
from toolgym.viewer.run_index import RunIndex

pytestmark = pytest.mark.asyncio(loop_scope="package")

CASES = [
    "", "reward<0.5", "reward=0.75", "reward!=1", "turns>=2 step=1", "tokens>30 tokens<=33", "number<5",
    "reward>-inf", "stop!=answered", "stop=ENGINE", "env=codeinterpreter blame=engine", "env=",
    "role=policy id=said", "tool=malformed", "tool=*", "tool!=*", "tool!=malformed_json", "failed", "!failed",
    "success !branch", "branch", "unreadable", "validate", 'error="closed the connection"', "APPLES",
    '"How many apples"', "absent", "42.", "said", '"He said"', "</think>", "<", "1/2", "ÖKONOMIE", "Ökonomie", "–",
    "[1", r"/apples and finds \d+/", r"/print\(\d+/", "/^code_interpreter$/", "/×/", '/said "Ö/', r"/C:\\temp/",
    "/(?i)APPLES/", "/(?P<n>apples)/", "/x*/", "fail", "infra_failure", "code", "call_0",
    "user", "arithmetic", r'/print\("/', "10", "sort:reward", "sort:-reward", "sort:task", "sort:-turns failed",
    "sort:-seconds", "sort:id reward>=0.25", "sort:-error", "reward<0.5 reward>0.1 sort:-number",
]  # fmt: skip

WRONG = ["reward<high", "reward=", "rewrd<1", "env<5", "tool>ok", "/(/", "sort:rewar", "sort:"]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = odd_run(tmp_path_factory.mktemp("odd"))
    index = RunIndex(folder).read_all()
    write_page(index, folder / "run.html")
    return index


async def test_every_case_selects_the_same_rows_in_the_same_order(page, index):
    await page.open((index.path / "run.html").as_uri())
    for case in CASES:
        query = Query.parse(case)
        expected = [row.number for row in query.ordered(list(query.select(index)))]
        numbers = await page.eval(f"await run.select({case!r}, new AbortController().signal)")
        assert numbers == expected, case
    selected = [len(list(Query.parse(case).select(index))) for case in CASES]
    assert sum(0 < count < len(index) for count in selected) > len(CASES) * 0.7


async def test_every_mistake_is_one_there_too_and_is_shown(page, index):
    await page.open((index.path / "run.html").as_uri())
    for case in WRONG:
        with pytest.raises(ConfigError) as error:
            Query.parse(case)
        await page.eval(f"$('filter').value = {case!r}; search({case!r})")
        await page.until(f"query === {case!r} && !$('filter-error').hidden")
        shown = await page.text("#filter-error")
        assert shown[:20] == str(error.value)[:20], case
        await page.filter("")
        assert await page.eval("$('filter-error').hidden")


async def test_both_know_the_same_names(page, index):
    await page.open((index.path / "run.html").as_uri())
    assert await page.eval("[NUMBERS, TEXTS, Object.keys(FLAGS)]") == [list(NUMBERS), list(TEXTS), list(FLAGS)]
