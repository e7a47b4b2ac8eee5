"""Trajectories on disk: there and back, killed runs, and files that are something else."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgym.envs.base import StopReason
from toolgym.envs.tool_env import ToolCallRecord
from toolgym.rollout.trajectory import Failure, Segment, TokenSequence, Trajectory, Turn
from toolgym.rollout.trajectory_file import TrajectoryWriter, read_trajectories
from toolgym.tools.errors import ConfigError, UnknownNameError


def trajectory(**changes):
    record = ToolCallRecord("call_0", "f", {"x": [1, None]}, "error", "text", 0.5, 0.25, True, {"n": 1})
    return dataclasses.replace(
        Trajectory(
            id="abc",
            env_id="E-v0",
            task_id="t",
            source="s",
            group_id=3,
            sample=1,
            messages=({"role": "user", "content": "ü"},),
            tools=({"type": "function", "function": {"name": "f"}},),
            sequences=(
                TokenSequence(
                    (1, 2),
                    (
                        Segment((3, 4), True, (-0.1, -1 / 3), ("1", "2")),
                        Segment((5,), False),
                        Segment((6,), True, (-2.5e-7,), ("2",)),
                    ),
                ),
            ),
            reward=0.5,
            stop_reason=StopReason.ANSWERED,
            turns=(Turn("hi", "stop", 2, 2, 1, 1, (record,), 0.5, 0.1, 0.2), Turn("x", "stop", 5, 1)),
            ground_truth="6",
            error=Failure("env", "it broke", 1),
            sampling={"temperature": 0.7},
            metrics={"score": 1.0},
            prompt_text="p",
            response_text="r",
            started_at=12.5,
            seconds=3.25,
            step=9,
        ),
        **changes,
    )


def test_everything_is_derived_from_the_segments():
    one = trajectory()
    assert one.response_ids == [3, 4, 5, 6]
    assert one.response_mask == [1, 1, 0, 1]
    assert one.logprobs == [-0.1, -1 / 3, 0.0, -2.5e-7]
    assert one.weight_versions == ["1", "2", None, "2"]
    assert one.policy_tokens == 3
    assert one.failed
    assert one.problems == ["turn 0: f: error (infrastructure)", "turn 1: env: it broke"]
    assert (one.engine_seconds, one.env_seconds) == (0.1, 0.2)


def test_there_and_back_is_equal():
    one = trajectory()
    assert Trajectory.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_several_sequences_have_no_one_prompt():
    one = trajectory()
    many = dataclasses.replace(one, sequences=(*one.sequences, TokenSequence((1,), one.segments, "template")))
    assert many.policy_tokens == 6
    assert Trajectory.from_json(json.loads(json.dumps(many.to_json()))) == many
    for name in ("sequence", "prompt_ids", "segments", "response_ids", "response_mask", "logprobs", "weight_versions"):
        with pytest.raises(ConfigError, match="has 2 token sequences"):
            getattr(many, name)
    none = dataclasses.replace(one, sequences=())
    assert (none.prompt_ids, none.response_ids, none.policy_tokens) == ((), [], 0)


def test_files_of_version_1_are_read():
    one = trajectory()
    row = one.to_json() | {"format_version": 1}
    [only] = row.pop("sequences")
    row |= {"prompt_ids": only["prompt_ids"], "segments": only["segments"]}
    for turn in row["turns"]:
        for added in ("sequence", "resumes", "truncated", "closing_tokens"):
            del turn[added]
    assert Trajectory.from_json(row) == one
    empty = row | {"prompt_ids": [], "segments": []}
    assert Trajectory.from_json(empty).sequences == ()


def test_the_keys_of_verls_dump_are_there():
    row = trajectory().to_json()
    assert {k: row[k] for k in ("input", "output", "gts", "score", "step")} == {
        "input": "p",
        "output": "r",
        "gts": "6",
        "score": 0.5,
        "step": 9,
    }


def test_a_segment_needs_one_logprob_per_policy_token():
    for bad in [((1, 2), True, (-1.0,), ("0", "0")), ((1,), False, (-1.0,), ()), ((1,), True, (-1.0,), ())]:
        with pytest.raises(ConfigError, match="logprobs"):
            Segment(*bad)


def test_a_file_holds_each_as_soon_as_it_is_written(tmp_path):
    path = tmp_path / "deep" / "t.jsonl"
    with TrajectoryWriter(path) as writer:
        for number in range(3):
            writer.write(trajectory(id=str(number)))
            assert [one.id for one in read_trajectories(path)] == [str(n) for n in range(number + 1)]
    writer.close()
    assert writer.count == 3


@given(st.text())
def test_any_text_survives(text):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        one = trajectory(response_text=text, messages=({"role": "user", "content": text},))
        with TrajectoryWriter(path) as writer:
            writer.write(one)
            writer.write(one)
        assert list(read_trajectories(path)) == [one, one]


def test_a_line_that_a_killed_run_cut_is_skipped_and_said(tmp_path, caplog):
    path = tmp_path / "t.jsonl"
    with TrajectoryWriter(path) as writer:
        writer.write(trajectory())
        writer.write(trajectory())
    path.write_text(path.read_text()[:-40])
    assert len(list(read_trajectories(path))) == 1
    assert "line 2 was cut off" in caplog.text


def test_a_line_may_also_be_cut_within_a_character(tmp_path):
    path = tmp_path / "t.jsonl"
    with TrajectoryWriter(path) as writer:
        writer.write(trajectory())
        writer.write(trajectory(response_text="é"))
    written = path.read_bytes()
    path.write_bytes(written[: written.rindex("é".encode()) + 1])
    assert len(list(read_trajectories(path))) == 1


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    for text, said in [
        ("{}\n", "format version"),
        ("[]\n", "expected a JSON object"),
        ("nonsense\n", "line 1"),
        (json.dumps({**trajectory().to_json(), "sequences": 3}) + "\n", "not a trajectory"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            list(read_trajectories(path))
    with pytest.raises(UnknownNameError, match="did you mean 'trajectories.jsonl'"):
        list(read_trajectories(tmp_path / "trajectory.jsonl"))


def test_a_full_disk_is_said_and_what_was_written_stays():
    with pytest.raises(ConfigError, match="cannot append"), TrajectoryWriter("/dev/full") as writer:
        writer.write(trajectory())
    writer = TrajectoryWriter("/dev/full")
    with pytest.raises(ConfigError, match="cannot append"):
        writer.write(trajectory())
    with pytest.raises(ConfigError, match="cannot finish"):
        writer.close()


def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write trajectories"):
        TrajectoryWriter(tmp_path / "file" / "t.jsonl")
