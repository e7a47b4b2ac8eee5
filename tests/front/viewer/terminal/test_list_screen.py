"""The list of a run: its keys, its filter, its charts, on wide and narrow screens, of whole and broken files."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.front.viewer.terminal.viewing import DEMO, lines_of, shown, until, viewing
from toolgym.viewer.query import Query
from toolgym.viewer.run_index import RunIndex


@pytest.mark.parametrize(("size", "columns"), [((80, 24), "seconds"), ((130, 40), "calls"), ((200, 50), "id")])
async def test_a_screen_shows_the_columns_that_fit_and_the_charts(size, columns):
    async with viewing(size=size) as (app, _):
        text = shown(app)
        assert "demo   45 of 45 episodes" in text
        titles, first, *_ = lines_of(app.first.rows)
        assert columns in titles
        assert "arithmetic" in first
        assert all(len(line) <= size[0] for line in text.splitlines())
        assert "malformed_json" in "\n".join(str(block.title[0].text) for block in app.first.charts.blocks)
        beside = app.first.charts.region.y == app.first.rows.region.y
        assert beside == (size[0] >= 110)


async def test_keys_move_the_cursor_and_the_list_scrolls():
    async with viewing(size=(80, 24)) as (app, pilot):
        rows = app.first.rows
        for keys, place in [("down", 1), ("j", 2), ("up", 1), ("k", 0), ("end", 44), ("home", 0), ("up", 0)]:
            await pilot.press(keys)
            assert rows.cursor == place
        await pilot.press("pagedown")
        assert rows.cursor == rows.size.height - 2
        await pilot.press("pagedown", "pagedown")
        top = rows.scroll_offset.y
        assert top < rows.cursor < top + rows.size.height
        assert app.first.rows.row.task[:6] in lines_of(rows)[rows.cursor - top + 1]
        await pilot.press("pageup", "pageup", "pageup")
        assert rows.cursor == 0


async def test_n_goes_from_failure_to_failure():
    async with viewing() as (app, pilot):
        rows = app.first.rows
        places = [place for place, row in enumerate(rows.rows) if row.failed or row.problems]
        assert len(places) == 5
        for place in [*places, places[-1]]:
            await pilot.press("n")
            assert rows.cursor == place
        await pilot.press("N")
        assert rows.cursor == places[-2]


async def test_the_filter_selects_while_it_is_typed_and_says_what_is_wrong():
    async with viewing() as (app, pilot):
        await pilot.press("slash", *"failed")
        await until(pilot, lambda: "2 of 45" in shown(app))
        assert app.focused is app.first.filter
        app.first.filter.value += " rewrd=1"
        await until(pilot, lambda: "did you mean 'reward'" in shown(app))
        assert len(app.first.rows.rows) == 2
        await pilot.press("enter")
        assert app.focused is app.first.rows
        await pilot.press("escape")
        await until(pilot, lambda: len(app.first.rows.rows) == 45)
        assert "did you mean" not in shown(app)
        await pilot.press("slash")
        app.first.filter.value = "/apples and finds/"
        await pilot.press("escape")
        expected = list(Query.parse("/apples and finds/").select(RunIndex(DEMO).read_all()))
        await until(pilot, lambda: len(app.first.rows.rows) == len(expected))
        assert app.focused is app.first.rows


async def test_capital_letters_sort_downwards_upwards_and_not_at_all():
    async with viewing(size=(160, 30)) as (app, pilot):
        for key, figure in {
            "R": "reward",
            "T": "turns",
            "K": "tokens",
            "S": "seconds",
            "P": "step",
            "C": "calls",
        }.items():
            await pilot.press(key)
            assert app.first.filter.value == f"sort:-{figure}"
        for key, order, title in [("C", "sort:calls", "calls↑"), ("C", "", "calls "), ("R", "sort:-reward", "reward↓")]:
            await pilot.press(key)
            assert app.first.filter.value == order
            expected = [row.number for row in Query.parse(order).ordered(list(app.opened.index.rows))]
            await until(pilot, lambda: [row.number for row in app.first.rows.rows] == expected)  # noqa: B023
            assert title in lines_of(app.first.rows)[0]


async def test_the_cursor_stays_on_its_row_when_the_order_changes():
    async with viewing() as (app, pilot):
        app.first.rows.go(7)
        row = app.first.rows.row
        await pilot.press("K")
        await until(pilot, lambda: app.first.rows.sort == "-tokens")
        assert app.first.rows.row is row
        assert app.first.rows.cursor != 7


async def test_a_bar_of_the_charts_filters_and_again_no_more():
    async with viewing() as (app, pilot):
        await pilot.press("tab")
        assert app.focused is app.first.charts
        await pilot.press("down", "down", "enter")  # the heading, 0, 1
        await until(pilot, lambda: len(app.first.rows.rows) == 20)
        assert app.first.filter.value == "reward=1.0"
        assert {row.reward for row in app.first.rows.rows} == {1.0}
        assert "0 of 25" in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.first.rows.rows) == 45)


async def test_the_mouse_selects_opens_sorts_and_filters():
    async with viewing() as (app, pilot):
        rows = app.first.rows
        await pilot.click(rows, offset=(10, 3))
        assert rows.cursor == 2
        titles = lines_of(rows)[0]
        await pilot.click(rows, offset=(titles.index("tokens"), 0))
        assert app.first.filter.value == "sort:-tokens"
        await pilot.click("#charts", offset=(4, 4))
        await until(pilot, lambda: app.first.filter.value.startswith("sort:-tokens stop="))
        before = app.screen
        await until(pilot, lambda: "selecting" not in shown(app))
        await pilot.click(rows, offset=(10, rows.cursor - rows.scroll_offset.y + 1))
        await until(pilot, lambda: app.screen is not before)


async def test_y_copies_the_id_and_r_shows_the_line_laid_out():
    async with viewing() as (app, pilot):
        await pilot.press("down", "y")
        assert app.clipboard == app.first.rows.rows[1].id
        await pilot.press("r")
        await until(pilot, lambda: '"format_version": 4' in shown(app))
        await pilot.press("y")
        assert json.loads(app.clipboard)["id"] == app.first.rows.row.id
        await pilot.press("escape")
        assert app.screen is app.first


async def test_help_lists_every_key_of_the_screen():
    async with viewing(size=(80, 24)) as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: "Keys" in shown(app))
        text = app.screen.query_one("TextView").blocks[0].text
        for binding in [*app.first.BINDINGS, *app.BINDINGS, *app.first.rows.BINDINGS]:
            assert binding.description in text
        await pilot.press("question_mark", "escape")
        assert app.screen is app.first


async def test_a_first_filter_holds_from_the_start():
    async with viewing(query="failed") as (app, _):
        assert app.first.filter.value == "failed"
        assert len(app.first.rows.rows) == 2


async def test_a_file_that_grows_is_followed(tmp_path):
    lines = (DEMO / "0.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "0.jsonl"
    path.write_bytes(lines[0] + lines[1][:100])
    async with viewing(tmp_path) as (app, pilot):
        assert len(app.first.rows.rows) == 1
        with path.open("ab") as file:
            file.write(lines[1][100:])
        app.opened.wake.set()
        await until(pilot, lambda: len(app.first.rows.rows) == 2)
        path.write_bytes(lines[0])
        app.opened.wake.set()
        await until(pilot, lambda: "has become shorter" in shown(app))


async def test_lines_that_cannot_be_read_are_rows_that_say_why(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"score": broken\n' + (DEMO / "0.jsonl").read_bytes()[:9000])
    async with viewing(path, size=(200, 30)) as (app, pilot):
        assert "JSON is malformed" in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: "it cannot be read" in shown(app))
        for key in "12345":
            await pilot.press(key)
            assert "malformed" in shown(app)
        await pilot.press("r")
        await until(pilot, lambda: '{"score": broken' in shown(app))
        await pilot.press("escape", "g")
        await until(pilot, lambda: "they cannot be compared" in shown(app))


async def test_verls_dumps_open(tmp_path):
    rows = [
        {"input": f"user\n{n // 2}", "output": f"answer {n}", "gts": "42", "score": n / 2, "step": 3} for n in range(4)
    ]
    (tmp_path / "3.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copy(DEMO / "0.jsonl", tmp_path / "10.jsonl")
    async with viewing(tmp_path) as (app, pilot):
        assert len(app.first.rows.rows) == 20
        await pilot.press("enter")
        await until(pilot, lambda: "answer 0" in shown(app))
        await pilot.press("2")
        await until(pilot, lambda: "no token ids were recorded" in shown(app))
        await pilot.press("4")
        assert "42" in shown(app)
        await pilot.press("g")
        await until(pilot, lambda: "answer 1" in shown(app))
        assert "2 members" in shown(app)


async def test_a_last_line_without_its_end_is_told(tmp_path):
    text = (DEMO / "0.jsonl").read_bytes()
    (tmp_path / "0.jsonl").write_bytes(text[: text.index(b"\n") + 101])
    async with viewing(tmp_path) as (app, _):
        assert "1 of 1 episodes   and 100 bytes of a line without its end" in shown(app)
