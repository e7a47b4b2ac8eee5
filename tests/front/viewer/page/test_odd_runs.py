"""The page of runs that mean harm, are no trajectories, or are large, in a real Chromium."""

from __future__ import annotations

import json

import pytest

from tests.front.viewer.page.runs import DEMO, HOSTILE, LINES, address_of, changed, hostile, odd_run, write_run
from toolgym.viewer.page import write as write_module
from toolgym.viewer.page.write import write_page
from toolgym.viewer.run_index import RunIndex

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.mark.long
async def test_a_megabyte_of_signs_that_turn_or_hide_texts_is_drawn_within_seconds(page, tmp_path):
    value = changed(1, id="big")
    value["messages"][1]["content"] = "a\0b\u2028c\u200fd\u061c " * 100_000
    await page.open(f"{address_of(tmp_path, value, changed(2))}#row=big")
    assert "a\\u0000b\\u2028c\\u200fd\\u061c" in await page.text(".message.user")
    for view in ("group", "json"):
        await page.eval(f"began = performance.now(); go({{ view: '{view}' }})")
        await page.until(f"$('panel').dataset.view === '{view}' && $('panel').offsetHeight")
        assert await page.eval("performance.now() - began") < 15_000  # it was a minute


async def test_hostile_texts_are_shown_and_do_nothing(page, tmp_path):
    await page.open(address_of(tmp_path, hostile(), f"{HOSTILE}\0"))
    assert await page.eval("run.rows[0].id") == HOSTILE.replace("\ud800", "?")
    for view in ("conversation", "tokens", "timings", "group", "json"):
        await page.eval(f"go({{ row: run.rows[0].id, view: '{view}' }})")
        await page.until(f"$('panel').dataset.view === '{view}' && $('panel').children.length")
    await page.eval("go({ view: 'conversation' })")
    await page.until("$('panel').dataset.view === 'conversation'")
    text = await page.text("#panel")
    assert "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>" in text
    assert "\\u001b[31mred" in text
    assert "\\u202egnp.exe \\ud800 &amp;" in text
    assert await page.eval("window.pwned === undefined && !document.querySelector('img, iframe')")
    assert page.requests == [(tmp_path / "run.html").as_uri()]


DRAWING = (
    "<h1>a board</h1><svg width=20 height=20><circle r=9 fill=red /></svg><script>parent.pwned = 1</script>"
    "<img src=x onerror='parent.pwned = 1'><img src='http://127.0.0.1:9/x'><a target=_top href='about:blank'>x</a>"
)


class DrawnEnv:
    """An env's class, as far as a page looks at it."""

    @staticmethod
    def render_html(trajectory):
        return DRAWING + trajectory.task_id


async def test_an_envs_drawing_can_neither_run_nor_load(page, tmp_path, registry):
    registry.register("drawn-in-a-frame", DrawnEnv)
    address = address_of(tmp_path, changed(1, env_id="drawn-in-a-frame"), changed(2))
    await page.open(f"{address}#row={LINES[1]['id']}")
    await page.press("v")
    await page.until("document.querySelector('iframe')")
    await page.eval("new Promise((resume) => setTimeout(resume, 300))")
    frame = "document.querySelector('iframe')"
    assert await page.eval(f"[{frame}.srcdoc, {frame}.contentDocument, window.pwned]") == [
        DRAWING + LINES[1]["task_id"], None, None,
    ]  # fmt: skip
    assert page.requests[0] == address
    assert [request for request in page.requests[1:] if request != "about:srcdoc"] == []
    assert all("violates" in complaint or "Blocked" in complaint for complaint in page.complaints)
    page.complaints.clear()
    await page.eval(f"go({{ row: '{LINES[2]['id']}' }})")
    await page.until(f"view.row.id === '{LINES[2]['id']}'")
    assert "Drawing" not in await page.text("#tabs")  # that env draws nothing


async def test_lines_with_numbers_that_are_none_are_shown(page, tmp_path):
    value = changed(1, metrics={"loss": "~NaN", "most": "~Infinity"})
    value["sequences"][0]["segments"][0]["logprobs"][0] = "~NaN"
    line = json.dumps(value).replace('"~NaN"', "NaN").replace('"~Infinity"', "Infinity")
    await page.open(f"{address_of(tmp_path, line)}#row={value['id']}")
    if await page.eval("view.row.stop !== 'unreadable'"):
        assert "NaN" in await page.eval("document.querySelector('.about').textContent")
        for view in ("tokens", "json"):
            await page.eval(f"go({{ view: '{view}' }})")
            await page.until(f"$('panel').dataset.view === '{view}'")
            assert "NaN" in await page.text("#panel")


async def test_rows_of_verl_are_shown_whatever_their_other_columns_hold(page, tmp_path):
    named = {"turns": 3, "tools": "t", "sequences": 4, "messages": 5, "error": {"a": 1}, "metrics": "m", "peers": 2}
    folder = write_run(tmp_path, {"input": "2+2?", "output": None, "score": None, **named})
    write_page(RunIndex(folder), folder / "run.html")
    for view in ("conversation", "tokens", "timings", "group"):
        await page.open((folder / "run.html").as_uri() + f"#row=0&view={view}")
        await page.until("view?.row.at === 0")
        assert "cannot be drawn" not in await page.text("#panel"), view


async def test_lines_that_are_no_trajectories_and_verls_are_shown(page, tmp_path):
    folder = odd_run(tmp_path)
    write_page(RunIndex(folder), folder / "run.html")
    await page.open((folder / "run.html").as_uri())
    await page.filter("unreadable")
    assert await page.eval("order.length") == 3
    await page.press("j", "j", "Enter")
    await page.until("view?.row.stop === 'unreadable'")
    assert "This line is no trajectory" in await page.text("#panel")
    assert "<!-- </script> no json at all" in await page.text("#panel pre")
    await page.press("Escape")
    await page.filter("step=7")
    await page.press("j", "Enter")
    await page.until("view?.row.step === 7")
    assert "What is 6 × 7?" in await page.text("#panel")
    await page.press("t")
    await page.until("$('panel').dataset.view === 'tokens'")
    assert "no token ids" in await page.text("#panel")
    await page.press("g")
    await page.until("document.querySelector('.diff')")
    assert "2 of 2 members" in await page.text("#panel")


async def test_a_view_that_a_line_has_nothing_for_says_so_and_the_others_are_drawn(page, tmp_path):
    value = changed(1, sequences="none")
    await page.open(f"{address_of(tmp_path, value)}#row={value['id']}&view=tokens")
    assert "cannot be drawn" in await page.text("#panel")
    assert "not a trajectory of toolgym" in await page.text("#summary")
    await page.press("c")
    await page.until("document.querySelector('.message')")


async def test_without_a_tokenizer_ids_stand_for_texts(page, tmp_path):
    address = address_of(tmp_path, LINES[1])
    (tmp_path / "run.json").unlink()
    write_page(RunIndex(tmp_path), tmp_path / "run.html")
    await page.open(f"{address}#row={LINES[1]['id']}&view=tokens")
    assert "--tokenizer" in await page.text("#panel")
    assert await page.text(".token") == str(LINES[1]["sequences"][0]["prompt_ids"][0])


async def test_a_selection_says_so_and_names_members_that_are_absent(page, tmp_path):
    summary = write_page(RunIndex(DEMO), tmp_path / "run.html", query="sort:-reward step=0", limit_bytes=30_000)
    assert (summary.rows > 2, summary.rows + summary.left_out) == (True, sum(line["step"] == 0 for line in LINES))
    await page.open((tmp_path / "run.html").as_uri())
    assert f"the first {summary.rows} of {summary.rows + summary.left_out} of “sort:-reward step=0”" in await page.text(
        "#count"
    )
    await page.press("j", "Enter")
    await page.until("view")
    await page.press("g")
    await page.until("$('panel').innerText.includes('not in this page')")


async def test_a_packed_page_opens_as_well(page, tmp_path, monkeypatch):
    monkeypatch.setattr(write_module, "PACKED_FROM", 1000)
    write_page(RunIndex(DEMO), tmp_path / "run.html")
    assert LINES[1]["id"].encode() not in (tmp_path / "run.html").read_bytes().split(b'id="data-lines"')[1]
    await page.open(f"{(tmp_path / 'run.html').as_uri()}#row={LINES[1]['id']}")
    assert LINES[1]["messages"][1]["content"] in await page.text("#panel")


@pytest.mark.long
async def test_20_mb_open_within_seconds_and_are_searched(page, tmp_path):
    rows = [changed(n % len(LINES), id=f"{n:x}") for n in range(20_000_000 // 5_600)]
    index = RunIndex(write_run(tmp_path, *rows)).read_all()
    assert index.size > 19_000_000
    write_page(index, tmp_path / "run.html")
    await page.open((tmp_path / "run.html").as_uri())
    assert await page.eval("performance.now()") < 5_000
    assert len(await page.filter("apples")) == sum("apples" in json.dumps(row) for row in rows)
