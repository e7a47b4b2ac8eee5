"""One trajectory: its views and their keys, and text that would harm a terminal."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import numpy as np
import pytest

from tests.front.viewer.terminal.viewing import DEMO, lines_of, opened, shown, until, viewing
from toolgym.envs.types import ToolCallRecord
from toolgym.rollout.trajectory.file import TrajectoryWriter, read_trajectories
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.viewer.run_index import RunIndex
from toolgym.viewer.terminal.app import RunViewer
from toolgym.viewer.terminal.pages import arguments_text, conversation, laid_out, times, tree
from toolgym.viewer.terminal.text_view import TextView, harmless, wrapped
from toolgym.viewer.terminal.token_view import TABLE, TokenView

NASTY = "\x1b[31mred\x1b]52;c;aGk=\x07 \u202egnp.exe [bold]markup[/bold] \ud83d \x9b2J \t|"


@pytest.fixture(scope="module")
def first():
    return next(iter(read_trajectories(DEMO / "0.jsonl")))


def written(path, *trajectories):
    with TrajectoryWriter(path / "run.jsonl") as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
    return path / "run.jsonl"


async def test_number_keys_and_tab_show_the_views():
    async with viewing() as (app, pilot):
        screen = await opened(pilot, 2)
        assert "→ code_interpreter" in shown(app)
        assert "ok  0.0" in shown(app)
        for key, text in [("3", "in all"), ("4", "may be trained on"), ("5", "this one"), ("1", "answered, reward 1")]:
            await pilot.press(key)
            assert text in shown(app)
        await pilot.press("5", "tab", "shift+tab")
        assert screen.view == "conversation"
        await pilot.press("4")
        await pilot.click("#views", offset=(3, 0))
        assert screen.view == "conversation"
        await pilot.press("escape")
        assert app.screen is app.first


@pytest.mark.parametrize("size", [(80, 24), pytest.param((160, 50), marks=pytest.mark.long)])
async def test_every_view_fits_the_screen(size):
    async with viewing(size=size) as (_, pilot):
        screen = await opened(pilot, 2)
        for key in "12345":
            await pilot.press(key)
            views = [view for view in screen.query("LineView") if view.display]
            assert [view.region.width for view in views] == [size[0]]
            assert all(view.render_line(y).cell_length <= size[0] for view in views for y in range(view.size.height))


async def test_keys_go_on_through_the_list_its_failures_and_the_group():
    async with viewing() as (app, pilot):
        screen = await opened(pilot, 0)
        numbers = []
        for key in ["right_square_bracket", "right_square_bracket", "left_square_bracket", "n", "N", "m", "m", "M"]:
            await pilot.press(key)
            numbers.append(screen.row.number)
        assert numbers == [1, 2, 1, 5, 5, 6, 7, 6]
        assert app.first.rows.cursor == 5
        await until(pilot, lambda: screen.trajectory and screen.trajectory.id == screen.row.id)


async def test_the_advantage_of_the_group_is_shown():
    async with viewing() as (app, pilot):
        screen = await opened(pilot, 2)
        await until(pilot, lambda: "advantage +0.866" in shown(app))
        assert screen.advantage == app.opened.index.advantages(screen.row)[screen.row.number]
        await pilot.press("4")
        assert "0.866" in lines_of(screen.query_one(TextView))[4]


async def test_a_field_of_another_kind_is_said_in_place_of_the_page(tmp_path, first):
    value = first.to_json() | {"messages": [{"role": "user\x1b", "content": None}]}
    (tmp_path / "run.jsonl").write_text(json.dumps(value) + "\n")
    async with viewing(tmp_path) as (app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: "it cannot be shown" in shown(app))
        await pilot.press("4")
        assert "may be trained on" in shown(app)


async def test_enter_in_the_tree_opens_a_branch():
    async with viewing() as (app, pilot):
        child = next(row for row in app.opened.index.rows if row.parent)
        screen = await opened(pilot, child.number)
        await pilot.press("5")
        lines = [line for line in lines_of(screen.query_one(TextView)) if line.strip()]
        assert "└─ " in lines[1]
        assert f"left at turn {child.branch_turn}" in lines[1]
        assert "this one" in lines[1]
        await pilot.press("enter")
        await until(pilot, lambda: screen.trajectory and screen.trajectory.id == child.parent)
        assert screen.view == "conversation"


def test_a_tree_has_all_generations_and_ends_where_ids_go_in_circles(tmp_path, first):
    def branch(id, parent, turn=1):
        return dataclasses.replace(first, id=id, parent=parent, branch_turn=None if parent is None else turn)

    members = [branch("a", None), branch("b", "a"), branch("c", "b", 2), branch("d", "a", 3), branch("x", "lost\x1b")]
    index = RunIndex(written(tmp_path, *members, branch("p", "q"), branch("q", "p"))).read_all()
    for number in range(4):
        assert [block.key.id for block in tree(index, index.rows[number])] == ["a", "b", "c", "d"]
    assert "lost␛ is not in these files" in tree(index, index.rows[4])[0].title[0].text
    assert {block.key.id for block in tree(index, index.rows[5]) if block.key} == {"p", "q"}


def test_a_tree_may_be_thousands_of_branches_deep(tmp_path):
    rows = [{"format_version": 4, "score": 1, "id": f"{n}", "group_id": "g", "stop_reason": "answered",
             "parent": f"{n - 1}" if n else None} for n in range(3_000)]  # fmt: skip
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = RunIndex(tmp_path).read_all()
    blocks = tree(index, index.rows[-1])
    assert [block.key.id for block in blocks] == [row["id"] for row in rows]
    assert blocks[-1].title[0].text.endswith("└─ ")
    assert len(blocks[-1].title[0].text) < 80


async def test_long_results_are_folded_and_none_of_their_text_is_lost(tmp_path, first):
    text = "\n".join(f"line {n} " + "x" * 90 for n in range(12_000))  # more than a megabyte
    messages = [dict(message) for message in first.messages]
    messages.insert(2, {"role": "tool", "content": text, "tool_call_id": "call_0", "name": "shell"})
    path = written(tmp_path, dataclasses.replace(first, messages=tuple(messages)))
    async with viewing(path, size=(80, 24)) as (app, pilot):
        screen = await opened(pilot)
        view = screen.query_one(TextView)
        assert f"of {len(text):,} characters in 12,000 lines (Enter unfolds)" in shown(app)
        assert "line 11999" not in shown(app)
        view.go(2)
        await pilot.press("enter")
        texts = ["".join(part.text for part in line).strip() for line in view._lines[2]]
        assert "".join(texts[1:]).replace(" ", "") == text.replace("\n", "").replace(" ", "")
        await pilot.press("end")
        assert "reward" in shown(app)
        await pilot.press("up")
        for _ in range(20):
            if "line 11999" in shown(app):
                break
            await pilot.press("up")
        assert "line 11999" in shown(app)
        await pilot.press("f")
        assert not any(block.folded for block in view.blocks)
        await pilot.press("f")
        assert all(block.folded for block in view.blocks)


async def test_down_reads_through_a_long_text_line_by_line(tmp_path, first):
    messages = ({"role": "user", "content": "\n".join(map(str, range(60)))}, {"role": "user", "content": "behind"})
    async with viewing(written(tmp_path, dataclasses.replace(first, messages=messages)), size=(80, 24)) as (_, pilot):
        view = (await opened(pilot)).query_one(TextView)
        seen = set()
        for _ in range(70):
            seen |= {line.strip(" ▌") for line in lines_of(view)}
            view.action_move(1)
        assert {str(number) for number in range(60)} | {"behind"} <= seen
        assert view.cursor == 2
        view.action_page(-1)
        view.action_page(-1)
        view.action_page(-1)
        view.action_page(-1)
        assert view.scroll_offset.y == 0


async def test_text_that_a_terminal_would_obey_is_written_out(tmp_path, first):
    turn = dataclasses.replace(
        first.turns[0], tool_calls=(ToolCallRecord("call_0", NASTY, {NASTY: NASTY}, "ok", NASTY),)
    )
    call = {"id": "call_0", "type": "function", "function": {"name": NASTY, "arguments": {NASTY: NASTY}}}
    messages = (
        {"role": "user", "content": NASTY},
        {"role": "assistant", "content": NASTY, "reasoning_content": NASTY, "tool_calls": [call]},
        {"role": "tool", "content": NASTY, "tool_call_id": "call_0", "name": NASTY},
    )
    nasty = dataclasses.replace(
        first, id=NASTY, env_id=NASTY, task_id=NASTY, messages=messages, turns=(turn,), metrics={NASTY: 1}
    )
    async with viewing(written(tmp_path, nasty, first)) as (app, pilot):
        texts = [shown(app)]
        await opened(pilot)
        for key in ["1", "3", "4", "5", "y", "g", "question_mark", "escape", "r"]:
            await pilot.press(key)
            texts.append(shown(app))
        await pilot.pause()
        text = "\n".join(texts)
        assert not set(text) & set("\x1b\x07\x9b\u202e\ud83d\t")
        assert "␛[31mred␛]52;c;aGk=␇" in text
        assert "[bold]markup[/bold] \\ud83d \\u009b2J" in text
        app.export_screenshot()


def test_harmless_text_keeps_all_else():
    assert harmless("täglich 漢字 🙂\nnext\tend") == "täglich 漢字 🙂\nnext    end"
    assert harmless("\r\x00\x7f") == "␍␀␡"


@pytest.mark.parametrize("text", ["", "a", "a b " * 100, "x" * 300, "漢" * 100 + "a", "ä " * 90, "one\n\ntwo\n"])
def test_wrapped_lines_hold_all_of_the_text_and_fit(text):
    from rich.cells import cell_len

    lines = wrapped(text, 20)
    assert all(cell_len(line) <= 20 for line in lines)
    assert "".join(lines) == text.replace("\n", "")


def test_a_conversation_shows_reasoning_refused_calls_cuts_and_failures(first):
    refused = ToolCallRecord("call_0", "", None, "malformed_json", "no JSON", infra_failure=False)
    turns = (
        dataclasses.replace(first.turns[0], tool_calls=(refused,)),
        dataclasses.replace(first.turns[0], truncated=True, finish_reason="length", tool_calls=()),
    )
    messages = (
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "", "reasoning_content": "thoughts"},
        {"role": "tool", "content": "no JSON", "tool_call_id": "call_0"},
        {"role": "assistant", "content": "half"},
    )
    blocks = conversation(dataclasses.replace(first, messages=messages, turns=turns))
    titles = ["".join(part.text for part in block.title) for block in blocks]
    assert titles[1].endswith("reasoning")
    assert "malformed_json" in titles[2]
    assert titles[3].endswith("cut: length")
    assert [block.text for block in blocks[:4]] == ["question", "thoughts", "no JSON", "half"]


def test_arguments_are_shown_as_they_are_and_json_with_numbers_in_a_line():
    assert arguments_text({"code": "a\nb", "n": 2}) == "code:\na\nb\nn: 2"
    assert arguments_text(None) == "null"
    assert laid_out("not json") == "not json"
    assert laid_out(json.dumps({"ids": [1, 2.5, -3e-5], "t": "x"})) == '{\n "ids": [ 1, 2.5, -3e-05 ],\n "t": "x"\n}'


def test_times_are_bars_of_one_scale(first):
    turns = [
        dataclasses.replace(first.turns[0], engine_seconds=3.0, env_seconds=1.0, queue_seconds=0.0, tool_calls=()),
        dataclasses.replace(first.turns[0], engine_seconds=1.0, env_seconds=0.0, queue_seconds=1.0, tool_calls=()),
    ]
    blocks = times(dataclasses.replace(first, turns=tuple(turns), seconds=7.0))
    lines = ["".join(part.text for part in block.title) for block in blocks]
    assert "engine 4.000 s" in lines[0]
    assert "rest 1.000 s" in lines[0]
    assert [lines[1].count(sign) for sign in "█▓▒"] == [24, 8, 0]
    assert [lines[2].count(sign) for sign in "█▓▒"] == [8, 0, 8]
    assert len(times(dataclasses.replace(first, turns=()))) == 1


async def test_token_view_shows_each_token_with_all_that_is_known_of_it():
    async with viewing() as (app, pilot):
        screen = await opened(pilot, 2)
        await pilot.press("2")
        await until(pilot, lambda: "<tool_call>" in shown(app), seconds=60)
        await until(pilot, lambda: screen.advantage is not None)
        view = screen.query_one(TokenView)
        token = view.tokens[view.cursor]
        assert token.kind == "policy"
        row = next(line for line in lines_of(view) if line.startswith(f"{view.cursor:>6}"))
        for part in (str(token.id), "1  policy", f"{token.logprob:.3f}", f"{token.values['entropy']:.3g}", "0.866"):
            assert part in row
        assert row.endswith("step-0")
        start = view.cursor
        for key, place in [("right", start + 1), ("l", start + 2), ("left", start + 1), ("h", start), ("home", 0)]:
            await pilot.press(key)
            assert view.cursor == place
        assert "0  prompt" in lines_of(view)[-view.size.height :][-7]
        await pilot.press("p")
        assert view.cursor == start
        await pilot.press("p")
        second = view.cursor
        assert "#### 24" in "\n".join(lines_of(view)[: -TABLE - 1])
        assert view.tokens[second].turn == 1
        await pilot.press("P")
        assert view.cursor == start
        await pilot.press("down")
        assert view.cursor > start
        await pilot.press("up")
        assert view.cursor == start
        await pilot.press("end")
        assert view.cursor == len(view.tokens) - 1
        for colour in ["entropy", "version", "kind", "logprob"]:
            await pilot.press("c")
            assert view.colour == colour
            assert colour in lines_of(view)[0]
        await pilot.click(view, offset=(2, 2))
        assert view._lines[1][0][0] <= view.cursor <= view._lines[1][-1][0]


async def test_without_a_tokenizer_ids_stand_for_the_texts(tmp_path, first):
    async with viewing(written(tmp_path, first)) as (app, pilot):
        await opened(pilot)
        await pilot.press("2")
        await until(pilot, lambda: "ids only" in shown(app))
        assert ["--tokenizer" in note.message for note in app._notifications] == [True]
        assert f"[{first.prompt_ids[0]}]" in shown(app)


async def test_a_tokenizer_that_is_not_there_ends_the_viewer_with_its_error(tmp_path):
    app = RunViewer(RunIndex(DEMO), tokenizer=str(tmp_path / "none"))
    async with app.run_test():
        for _ in range(6_000):
            if app.opened.error is not None:
                break
            await asyncio.sleep(0.01)
    assert "none" in str(app.opened.error)


@pytest.mark.long
async def test_32_000_tokens_in_several_sequences_are_laid_out_and_walked_through(tmp_path, first):
    random = np.random.default_rng(0)

    def sequence(size):
        ids = random.integers(0, 500, size)
        versions = ["1"] * (size // 2) + ["2"] * (size - size // 2)
        aligned = {"entropy": random.random(size).astype(np.float32), "router": random.random((size, 2))}
        return TokenSequence(ids[:100], (Segment.policy(ids, -random.random(size), versions, aligned),))

    path = written(tmp_path, dataclasses.replace(first, sequences=(sequence(16_000), sequence(16_000))))
    async with viewing(path, size=(80, 24)) as (app, pilot):
        screen = await opened(pilot)
        await pilot.press("2")
        view = screen.query_one(TokenView)
        await until(pilot, lambda: len(view.tokens) == 32_200)
        assert view.colour == "logprob"
        await pilot.press("end")
        assert view.cursor == 32_199
        assert str(32_199) in shown(app)
        assert list(view._ranges) == ["entropy"]
        covered = [place for line in view._lines for place, _ in line]
        assert sorted(set(covered)) == list(range(32_200))
        firsts = {line[0][0] for line in view._lines}
        assert 16_100 in firsts  # a sequence begins a line
        await pilot.press("P")
        assert view.tokens[view.cursor].sequence == 1
        await pilot.press("P")
        assert view.cursor == 100


async def test_a_line_of_megabytes_begins_folded_as_json(tmp_path):
    (tmp_path / "0.jsonl").write_text(json.dumps({"input": "word " * 500_000, "output": "the end", "score": 1}) + "\n")
    async with viewing(tmp_path) as (app, pilot):
        await pilot.press("r")
        await until(pilot, lambda: "(Enter unfolds)" in shown(app))
        await pilot.press("enter", "end")
        await until(pilot, lambda: "(Enter unfolds)" not in shown(app))
        assert "the end" in app.screen.query_one(TextView).blocks[0].text
