"""The rows of a run as they are selected step by step, and charts of them."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from toolgym.rollout.trajectory.file import TrajectoryWriter, read_trajectories
from toolgym.tools.errors import ConfigError
from toolgym.viewer.query import Query, sorted_by, toggled
from toolgym.viewer.run_index import Row, RunIndex
from toolgym.viewer.selection import Selection, charts

DEMO = Path(__file__).parents[3] / "front/viewer/demo"


def finished(selection):
    stop_at = time.monotonic() + 20
    while not selection.finished:
        selection.step(0.01)
        assert time.monotonic() < stop_at
    return selection


def test_rows_come_while_the_run_is_read_and_in_the_order_of_the_query():
    index = RunIndex(DEMO)
    selection = Selection(index, Query.parse("turns>=2 sort:-tokens"))
    assert selection.step(0)
    assert 0 < len(index) < 45
    assert not selection.finished
    finished(selection)
    every = RunIndex(DEMO).read_all()
    query = Query.parse("turns>=2 sort:-tokens")
    assert [row.id for row in selection.rows] == [row.id for row in query.ordered(list(query.select(every)))]
    assert not selection.step(0)


def test_another_query_selects_anew_and_a_growing_file_adds_to_it(tmp_path):
    lines = (DEMO / "0.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "0.jsonl"
    path.write_bytes(b"".join(lines[:4]))
    selection = finished(Selection(RunIndex(path)))
    assert len(selection.rows) == 4
    selection.ask(Query.parse("sample=1"))
    assert selection.step()
    assert [row.sample for row in selection.rows] == [1]
    with path.open("ab") as file:
        file.write(b"".join(lines[4:8]))
    assert selection.step()
    assert [row.sample for row in selection.rows] == [1, 1]


def test_a_file_that_another_run_replaced_is_an_error_that_says_so(tmp_path):
    path = tmp_path / "0.jsonl"
    lines = (DEMO / "0.jsonl").read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1])
    index = RunIndex(path).read_all()
    path.write_bytes(lines[2])
    with pytest.raises(ConfigError, match="has become shorter"):
        index.read()
    with pytest.raises(ConfigError, match=f"{path}, byte"):
        index.trajectory(index.rows[1])


def test_lines_with_half_a_character_or_nan_are_read(tmp_path):
    first = next(iter(read_trajectories(DEMO / "0.jsonl")))
    message = {"role": "user", "content": "half \ud83d of one"}
    with TrajectoryWriter(tmp_path / "run.jsonl") as writer:
        writer.write(dataclasses.replace(first, messages=(message, *first.messages), metrics={"loss": float("nan")}))
    row = {"input": "a \ud83d", "output": "b", "score": 1.0, "step": 1, "acc": float("nan")}
    (tmp_path / "verl.jsonl").write_text(json.dumps(row) + "\n")
    index = RunIndex(tmp_path).read_all()
    assert [row.readable for row in index.rows] == [True, True]
    assert index.trajectory(index.rows[0]).messages[0] == message
    assert len(list(Query.parse("/half . of/").select(index))) == 1


def test_a_text_beyond_ascii_is_found_where_json_escaped_it(tmp_path):
    (tmp_path / "1.jsonl").write_text(json.dumps({"input": "schön", "output": "", "score": 0}) + "\n")
    assert len(list(Query.parse("schön").select(RunIndex(tmp_path).read_all()))) == 1


def rows(*rewards, **values):
    return [Row(number, 0, 0, 0, reward=reward, **values) for number, reward in enumerate(rewards)]


def test_a_bar_counts_the_rows_that_its_terms_select():
    every = rows(*(place / 100 for place in range(100)), stop="answered")
    shown = every[:30]
    for name, bars in charts(every, shown).items():
        assert sum(bar.rows for bar in bars) == (0 if name == "calls" else 100)
        for bar in bars:
            query = Query.parse(bar.terms)
            assert len([row for row in every if all(holds(row) for holds in query.rows)]) == bar.rows
            assert len([row for row in shown if all(holds(row) for holds in query.rows)]) == bar.shown
    assert len(charts(every, shown)["reward"]) == 8


def test_few_rewards_have_a_bar_each_and_none_has_none():
    bars = charts(rows(0.0, 1.0, 1.0, float("nan")), [])["reward"]
    assert [(bar.label, bar.rows, bar.shown) for bar in bars] == [("0", 1, 0), ("1", 2, 0)]
    assert charts(rows(float("nan")), [])["reward"] == []
    near = charts(rows(1.0, *(1.0 + place * 1e-9 for place in range(1, 20))), [])["reward"]
    assert sum(bar.rows for bar in near) == 20


def test_problems_are_counted_and_quoted():
    every = [*rows(0.0, problems=("two words", "timeout")), *rows(1.0, problems=("timeout",))]
    bars = charts(every, every)["calls"]
    assert [(bar.label, bar.rows) for bar in bars] == [("timeout", 2), ("two words", 1)]
    assert all(Query.parse(bars[1].terms).rows[0](row) == (row is every[0]) for row in every)


@pytest.mark.parametrize(
    ("query", "terms", "after"),
    [
        ("", "stop=length", "stop=length"),
        ("failed stop=answered", "stop=length", "failed stop=length"),
        ("failed stop=length", "stop=length", "failed"),
        ("reward>=0.1 reward<0.2 word", "reward>=0.2 reward<0.3", "word reward>=0.2 reward<0.3"),
        ('tool="two words" a', "tool=x", "a tool=x"),
    ],
)
def test_terms_come_instead_of_those_about_the_same(query, terms, after):
    assert toggled(query, terms) == after


def test_an_order_is_downwards_then_upwards_then_none():
    first = sorted_by("failed", "turns")
    second = sorted_by(first, "turns")
    assert (first, second, sorted_by(second, "turns")) == ("failed sort:-turns", "failed sort:turns", "failed")
    assert sorted_by(first, "step") == "failed sort:-step"


def test_advantages_are_those_of_the_group():
    index = RunIndex(DEMO).read_all()
    row = next(row for row in index.rows if row.reward == 1 and not row.parent)
    advantages = index.advantages(row)
    assert advantages.keys() == {member.number for member in index.group(row)}
    assert advantages[row.number] > 0
    failed = next(row for row in index.rows if row.failed)
    assert index.advantages(failed)[failed.number] is None
