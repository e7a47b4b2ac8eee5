"""ATIF: valid by its package and by our own checks, with the exact tokens of each turn."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.front.exports.conftest import DEMO
from toolgym.envs.types import StopReason
from toolgym.exports.atif import as_atif
from toolgym.exports.writing import UNPARSED, Tally
from toolgym.rollout.trajectory.file import TrajectoryWriter

atif = pytest.importorskip("atif", reason="needs the extra export")


def read(folder):
    values = [json.loads(path.read_text()) for path in folder.iterdir()]
    return {value["trajectory_id"]: value for value in values}


def agent_steps(value):
    return [step for step in value["steps"] if "metrics" in step]


def test_the_demo_becomes_a_valid_file_for_each_trajectory(export, demo, tmp_path):
    code, out, _ = export(DEMO, "--to", "atif", "--out", tmp_path / "atif")
    assert (code, out.splitlines()[1:]) == (
        0,
        ["left out: nothing", "atif cannot hold: payloads of tokens (entropy) (44)"],
    )
    values = read(tmp_path / "atif")
    assert len(values) == len(demo) == 45
    for trajectory in demo:
        value = values[trajectory.id]
        atif.Trajectory.model_validate(value)
        assert value["extra"]["reward"] == trajectory.reward
        assert value["agent"]["model_name"] == "tiny"
        sequence = trajectory.sequences[0]
        whole = [*sequence.prompt_ids, *sequence.response_ids]
        for step, turn in zip(agent_steps(value), trajectory.turns, strict=True):
            metrics = step["metrics"]
            assert metrics["prompt_token_ids"] == whole[: turn.prompt_tokens]
            assert metrics["completion_token_ids"] == whole[turn.prompt_tokens :][: turn.generated_tokens]
        exported = [p for step in agent_steps(value) for p in step["metrics"]["logprobs"]]
        assert exported == sequence.logprobs[sequence.response_mask == 1].tolist()


def test_refused_calls_failures_and_branches_of_the_demo(export, demo, tmp_path):
    assert export(DEMO, "--to", "atif", "--out", tmp_path / "atif")[0] == 0
    values = read(tmp_path / "atif")
    refused = next(t for t in demo if any(call.name == "" for call in t.tool_calls))
    [call] = [call for step in values[refused.id]["steps"] for call in step.get("tool_calls", ()) if
              call["function_name"] == UNPARSED]  # fmt: skip
    assert (call["arguments"], call["extra"]["status"]) == ({}, "malformed_json")
    failed = next(t for t in demo if t.failed)
    assert values[failed.id]["extra"]["error"]["message"] == failed.error.message
    assert values[failed.id]["extra"]["stop_reason"] == "engine_failed"
    branches = [t for t in demo if t.parent]
    assert branches
    for branch in branches:
        copied = [step.get("is_copied_context", False) for step in agent_steps(values[branch.id])]
        assert copied == [number < branch.branch_turn for number in range(len(branch.turns))]


def test_what_a_tool_said_is_in_the_step_that_called_it(demo):
    trajectory = next(t for t in demo if len(t.turns) > 1)
    value = as_atif(trajectory, "m", Tally())
    first, *_ = agent_steps(value)
    [result] = first["observation"]["results"]
    assert result == {"source_call_id": "call_0", "content": trajectory.turns[0].tool_calls[0].text}
    assert [step["source"] for step in value["steps"]] == ["system", "user", *["agent"] * len(trajectory.turns)]
    assert [step["step_id"] for step in value["steps"]] == [*range(1, len(value["steps"]) + 1)]


def test_every_kind_of_trajectory_is_valid_and_keeps_each_sampled_token_once(kinds, kinds_file, export, tmp_path):
    code, out, _ = export(kinds_file, "--to", "atif", "--out", tmp_path / "atif", "--json")
    assert code == 0
    tally = json.loads(out)
    assert tally["written"] == len(kinds) == len(list((tmp_path / "atif").iterdir()))
    assert tally["lost"]["log-probabilities that are no finite numbers"] == 1
    for trajectory in kinds:
        value = as_atif(trajectory, "m", Tally())
        atif.Trajectory.model_validate(value)
        assert value["steps"]
        for metrics in (step["metrics"] for step in agent_steps(value)):
            assert len(metrics.get("prompt_token_ids", ())) in (0, metrics["prompt_tokens"])
            for name in ("completion_token_ids", "logprobs"):  # the package does not compare their lengths
                assert len(metrics.get(name, ())) in (0, metrics["completion_tokens"])
        exported = [i for step in agent_steps(value) for i in step["metrics"].get("completion_token_ids", ())]
        sampled = [i for s in trajectory.sequences for part in s.policy_segments for i in part.token_ids.tolist()]
        if sum(turn.generated_tokens for turn in trajectory.turns) == len(sampled):
            assert exported == sampled, trajectory.id


def test_a_context_that_begins_anew_is_told_and_each_step_has_its_own(kinds):
    [trajectory] = [t for t in kinds if t.id == "anew"]
    value = as_atif(trajectory, "m", Tally())
    assert "begins anew" in value["notes"]
    first, second = agent_steps(value)
    assert "begins_context" not in first["extra"]
    assert second["extra"]["begins_context"] == "env"
    assert (first["metrics"]["prompt_token_ids"], second["metrics"]["prompt_token_ids"]) == ([5, 6, 7], [5, 8])
    assert second["extra"]["sequence"] == 1


def test_thoughts_and_what_a_user_said_between_turns(kinds):
    [trajectory] = [t for t in kinds if t.id == "thought"]
    steps = as_atif(trajectory, "m", Tally())["steps"]
    assert [(step["source"], step["message"]) for step in steps] == [
        ("user", "x"), ("agent", "a"), ("user", "and?"), ("agent", "b")
    ]  # fmt: skip
    assert steps[1]["reasoning_content"] == "hm"


def test_turns_that_count_other_tokens_have_no_ids_and_that_is_told(demo):
    trajectory = next(t for t in demo if len(t.turns) == 2)
    wrong = dataclasses.replace(trajectory.turns[0], generated_tokens=trajectory.turns[0].generated_tokens + 1)
    tally = Tally()
    value = as_atif(dataclasses.replace(trajectory, turns=(wrong, trajectory.turns[1])), "m", tally)
    assert all("completion_token_ids" not in step["metrics"] for step in agent_steps(value))
    assert tally.lost["token ids of turns that count others than their sequence"] == 2


def test_an_episode_that_failed_before_a_message_is_left_out(export, demo, tmp_path):
    failed = next(trajectory for trajectory in demo if trajectory.failed)
    bare = dataclasses.replace(failed, messages=(), sequences=(), turns=(), stop_reason=StopReason.ENV_CREATE_FAILED)
    with TrajectoryWriter(tmp_path / "run.jsonl") as writer:
        writer.write(bare)
        writer.write(demo[0])
    code, out, _ = export(tmp_path / "run.jsonl", "--to", "atif", "--out", tmp_path / "atif")
    assert (code, "left out: failed before a message, and ATIF wants a step (1)" in out) == (0, True)
    assert list(read(tmp_path / "atif")) == [demo[0].id]


def test_names_of_files_are_the_ids_and_stay_in_the_folder(kinds_file, kinds, export, tmp_path):
    assert export(kinds_file, "--to", "atif", "--out", tmp_path / "a" / "b")[0] == 0
    names = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert {"anew.json", "_._.._infinite.json", "t0.json", "t0-2.json"} <= names
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
