"""Members of a group side by side."""

from __future__ import annotations

import dataclasses

from tests.front.viewer.terminal.viewing import DEMO, lines_of, shown, until, viewing
from toolgym.rollout.trajectory.file import TrajectoryWriter, read_trajectories
from toolgym.viewer.terminal.group_screen import SideBySide, differences
from toolgym.viewer.terminal.text_view import TextView


def texts(block, width=43):
    return ["".join(part.text for part in line) for line in block.lines(width)]


async def test_two_members_are_side_by_side_from_where_they_differ():
    async with viewing() as (app, pilot):
        app.first.rows.go(2)
        await pilot.press("g")
        await until(pilot, lambda: "equal messages: 2" in shown(app))
        await until(pilot, lambda: "advantage +0.866" in shown(app))
        members = [line for line in lines_of(app.screen.query_one("#members")) if "sample" in line]
        assert len(members) == 4
        assert [line[1:3] for line in members] == [" b", "  ", "a ", "  "]
        assert sum("+0.866" in line for line in members) == 2
        assert "#### 878" in shown(app)
        await pilot.press("down", "b")  # the other one with the same reward
        await until(pilot, lambda: "#### 878" not in shown(app))
        members = [line for line in lines_of(app.screen.query_one("#members")) if "sample" in line]
        assert [line[1:3] for line in members] == ["  ", "  ", "a ", " b"]
        await pilot.press("a")
        await until(pilot, lambda: "equal messages: 5" in shown(app))
        await pilot.press("tab")
        assert app.focused.id == "diff"
        await pilot.press("tab", "enter")
        await until(pilot, lambda: getattr(app.screen, "trajectory", None) is not None)
        assert app.screen.row.sample == 3
        await pilot.press("escape", "escape")
        assert app.screen is app.first


async def test_an_episode_without_a_group_is_compared_with_itself(tmp_path):
    first = next(iter(read_trajectories(DEMO / "0.jsonl")))
    with TrajectoryWriter(tmp_path / "run.jsonl") as writer:
        writer.write(dataclasses.replace(first, group_id="alone"))
    async with viewing(tmp_path, size=(80, 24)) as (app, pilot):
        await pilot.press("g")
        await until(pilot, lambda: "equal messages" in shown(app))
        assert "1 members" in shown(app)


def test_only_what_differs_is_in_colour():
    left = [("user", "q"), ("assistant", "same\nold\nend")]
    right = [("user", "q"), ("assistant", "same\nnew\nmore\nend"), ("tool", "extra")]
    equal, changed, added = differences(left, right)
    assert equal.text == "user: q"
    assert texts(changed)[1:] == [
        "same                 │ same                ",
        "old                  │ new                 ",
        "                     │ more                ",
        "end                  │ end                 ",
    ]
    styles = [str(line[2].style) for line in changed.lines(43)[1:]]
    assert styles == ["dim", "green", "green", "dim"]
    assert texts(added)[0] == "– │ tool"


def test_long_lines_are_broken_on_both_sides_and_nothing_is_lost():
    block = SideBySide([], "a" * 50, right="漢" * 30)
    lines = texts(block)[1:]
    assert "".join(line[:20].strip() for line in lines) == "a" * 50
    assert "".join(line[23:].strip() for line in lines) == "漢" * 30


def test_differences_of_large_texts_take_little_time():
    import time

    left = [("tool", "\n".join(f"{n % 50} equal" for n in range(20_000)))]
    right = [("tool", "\n".join(f"{n % 50} equal" for n in range(1, 20_000)))]
    start = time.process_time()
    block = differences(left, right)[0]
    assert len(block.lines(80)) > 19_000
    assert time.process_time() - start < 5


def test_a_view_without_blocks_takes_keys():
    view = TextView()
    view.action_move(1)
    view.action_choose()
