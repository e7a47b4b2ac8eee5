"""A run as a trace of model calls for simulators: what waits for what, and which blocks are the same."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from tests.front.exports.conftest import DEMO
from tests.rollout.adapters.golden import policy
from toolgym.envs.types import StopReason
from toolgym.exports.mooncake import write
from toolgym.exports.writing import Options, Tally
from toolgym.rollout.models.images import PlacedImage
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, Turn

FIELDS = {
    "request_id": str, "session_id": str, "input_length": int, "output_length": int, "hash_ids": list,
    "output_token_ids": list, "timestamp": float, "wait_for": list, "delay": float, "tool_wait_ms": float,
}  # fmt: skip
"""Those fields of `AgenticMooncakeRow` (NVIDIA Dynamo, `data-gen/src/mooncake.rs`) that we write."""


def turn(tokens, *, sequence=0, env_seconds=0.0, engine_seconds=1.0):
    return Turn("x", "stop", 0, tokens, sequence=sequence, env_seconds=env_seconds, engine_seconds=engine_seconds)


def trajectory(name, sequences, turns, **changes):
    return Trajectory(
        id=name, env_id="e", task_id="t", source="s", group_id="g", task_index=0, sample_index=0, messages=(), tools=(),
        sequences=tuple(sequences), turns=tuple(turns), reward=0.0, stop_reason=StopReason.ANSWERED, **changes,
    )  # fmt: skip


def two_turns(name, prompt, answer=(10, 11, 12), result=(20, 21), last=(13, 14), **changes):
    """An episode of two turns: a call that took two seconds, and an answer."""
    sequence = TokenSequence(np.array(prompt), (policy(*answer), Segment.env([*result]), policy(*last)))
    return trajectory(name, [sequence], [turn(len(answer), env_seconds=2.0), turn(len(last))], **changes)


@pytest.fixture
def traced(tmp_path):
    """Writes trajectories as a trace with blocks of four tokens; returns its rows and the tally."""

    def trace(*trajectories, **options):
        tally, path = Tally(), tmp_path / "trace.jsonl"
        write(trajectories, path, Options("policy", path, **{"block": 4, **options}), tally)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        known = set()
        for row in rows:
            assert all(type(value) is FIELDS[name] for name, value in row.items())
            assert len(row["hash_ids"]) == -(-row["input_length"] // options.get("block", 4))
            assert len(row["output_token_ids"]) == row["output_length"] > 0
            assert ("timestamp" in row) != ("wait_for" in row)
            assert known.issuperset(row.get("wait_for", ()))
            assert row["request_id"] not in known
            known.add(row["request_id"])
        return rows, tally

    return trace


def in_blocks(row, size=4):
    """The context of a call and its answer as a simulator makes it: a token is the id of its block."""
    prompt = [row["hash_ids"][place // size] for place in range(row["input_length"])]
    return prompt, prompt + row["output_token_ids"]


def test_a_turn_waits_for_the_one_before_and_its_tools(traced):
    rows, tally = traced(two_turns("a", range(6), started_at=100.5), began_at=100.0)
    assert [(row["request_id"], row["session_id"]) for row in rows] == [("a:0", "a"), ("a:1", "a")]
    assert [(row["input_length"], row["output_length"]) for row in rows] == [(6, 3), (11, 2)]
    assert rows[0]["timestamp"] == 500.0
    assert (rows[1]["wait_for"], rows[1]["delay"], rows[1]["tool_wait_ms"]) == (["a:0"], 0.0, 2000.0)
    assert (tally.written, dict(tally.left_out), dict(tally.lost)) == (2, {}, {})


def test_the_next_turn_finds_the_answer_in_the_cache(traced):
    (first, second), _ = traced(two_turns("a", range(6)))
    _, cached = in_blocks(first)
    prompt, _ = in_blocks(second)
    assert prompt[: len(cached)] == cached


def test_ids_of_full_blocks_are_equal_where_all_tokens_up_to_them_are(traced):
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 9], [9, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4], [5, 6, 7, 8]]
    rows, _ = traced(*(two_turns(str(number), prompt) for number, prompt in enumerate(prompts)))
    first = [row for row in rows if "timestamp" in row]
    for prompt, row in zip(prompts, first, strict=True):
        for other, its in zip(prompts, first, strict=True):
            for blocks in range(1, 1 + min(len(prompt), len(other)) // 4):
                same = prompt[: 4 * blocks] == other[: 4 * blocks]
                assert (row["hash_ids"][blocks - 1] == its["hash_ids"][blocks - 1]) == same


def test_scale_repeats_each_token_and_keeps_what_is_shared(traced):
    episodes = two_turns("a", range(6)), two_turns("b", [*range(5), 9])
    rows, _ = traced(*episodes, scale=4)
    assert [row["input_length"] for row in rows] == [24, 44, 24, 44]
    assert [row["output_length"] for row in rows] == [12, 8, 12, 8]
    assert rows[0]["hash_ids"][:5] == rows[2]["hash_ids"][:5]
    assert rows[0]["hash_ids"][5] != rows[2]["hash_ids"][5]


def test_a_context_that_begins_anew_waits_too_and_shares_what_it_still_has(traced):
    sequences = (
        TokenSequence(np.array([1, 2, 3, 4, 5]), (policy(6, 7, 8),)),
        TokenSequence(np.array([1, 2, 3, 4, 9, 9]), (policy(7,),), "env"),
    )  # fmt: skip
    rows, _ = traced(trajectory("a", sequences, [turn(3, env_seconds=0.5), turn(1, sequence=1)]))
    assert (rows[1]["wait_for"], rows[1]["tool_wait_ms"], rows[1]["input_length"]) == (["a:0"], 500.0, 6)
    assert rows[0]["hash_ids"][0] == rows[1]["hash_ids"][0]
    assert rows[0]["hash_ids"][1] != rows[1]["hash_ids"][1]


@pytest.mark.parametrize("order", [("parent", "branch", "twig"), ("twig", "branch", "parent")])
def test_branches_wait_for_the_turn_that_they_branched_from(traced, order):
    episodes = {
        "parent": two_turns("parent", range(8)),
        "branch": two_turns("branch", range(8), last=(15, 16), parent="parent", branch_turn=1),
        "twig": two_turns("twig", range(8), last=(17,), parent="branch", branch_turn=1),
    }
    rows, tally = traced(*(episodes[name] for name in order))
    waits = {row["request_id"]: row.get("wait_for") for row in rows}
    assert waits == {"parent:0": None, "parent:1": ["parent:0"], "branch:1": ["parent:0"], "twig:1": ["parent:0"]}
    assert {row["tool_wait_ms"] for row in rows if "wait_for" in row} == {2000.0}
    assert not tally.left_out


def test_a_branch_without_its_parent_plays_the_turns_that_it_has_from_it(traced):
    branch = two_turns("branch", range(8), parent="parent", branch_turn=1)
    rows, _ = traced(branch, two_turns("twig", range(8), parent="branch", branch_turn=1))
    assert [(row["request_id"], row.get("wait_for")) for row in rows] == [
        ("branch:0", None), ("branch:1", ["branch:0"]), ("twig:1", ["branch:0"]),
    ]  # fmt: skip


def test_unfinished_episodes_are_played_as_far_as_they_got(traced):
    broken = dataclasses.replace(
        two_turns("a", range(6)), stop_reason=StopReason.TOOL_FAILED, error=Failure("broken", 1)
    )
    sequence = TokenSequence(np.array(range(6)), (policy(10, 11), Segment.env([20]), policy(12)))
    aborted = trajectory("b", [sequence], [turn(2, env_seconds=1.0), turn(0, env_seconds=0.25), turn(1)])
    rows, tally = traced(broken, aborted)
    assert [row["request_id"] for row in rows] == ["a:0", "a:1", "b:0", "b:2"]
    assert (rows[3]["wait_for"], rows[3]["tool_wait_ms"]) == (["b:0"], 1250.0)
    assert not tally.left_out


def test_images_share_a_prefix_only_if_they_are_the_same(traced):
    def seen(name, url):
        return trajectory(
            name,
            [TokenSequence(np.array([1, 7, 7, 7, 7, 2]), (policy(3),), images=(PlacedImage(url, 1, 4),))],
            [turn(1)],
        )

    cat, again, dog = "data:image/png;base64,AA==", "data:image/png;base64,AA==", "data:image/png;base64,BB=="
    rows, tally = traced(seen("a", cat), seen("b", again), seen("c", dog))
    assert rows[0]["hash_ids"] == rows[1]["hash_ids"]
    assert rows[0]["hash_ids"][0] != rows[2]["hash_ids"][0]
    assert dict(tally.lost) == {"work of encoding images": 3}


def test_what_cannot_be_played_is_left_out_by_name(traced):
    whole = two_turns("a", range(6))
    rows, tally = traced(
        trajectory("empty", [], []),
        trajectory("cut", [TokenSequence(np.array([1, 2]), ())], [turn(0)]),
        dataclasses.replace(whole, id="other", turns=(turn(9), turn(2))),
        trajectory("bare", [TokenSequence(np.array([], np.int32), (policy(1),))], [turn(1)]),
        whole,
        whole,
    )
    assert [row["request_id"] for row in rows] == ["a:0", "a:1"]
    assert dict(tally.left_out) == {
        "nothing was sampled": 2,
        "turns count other tokens than their sequences have": 1,
        "a prompt without tokens": 1,
        "another one has the same id": 1,
    }


def test_the_command_writes_a_run_from_its_first_start_on(export, demo, tmp_path):
    path = tmp_path / "trace.jsonl"
    code, out, _ = export(DEMO, "--to", "mooncake", "--out", path, "--scale", "2")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    turns = [turn for episode in demo for turn in episode.turns[episode.branch_turn or 0 :] if turn.generated_tokens]
    assert (code, len(rows), f"{len(turns)} rows of 45 trajectories, as mooncake" in out) == (0, len(turns), True)
    assert min(row["timestamp"] for row in rows if "timestamp" in row) == pytest.approx(0.0, abs=50.0)
    assert sum(row["output_length"] for row in rows) == 2 * sum(turn.generated_tokens for turn in turns)


def test_scale_is_for_mooncake_alone(export, tmp_path):
    code, _, err = export(DEMO, "--to", "verl", "--out", tmp_path / "v", "--scale", "2")
    assert code != 0
    assert "--scale is for --to mooncake" in err
