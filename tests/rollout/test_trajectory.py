"""Trajectories on disk: there and back, killed runs, and files that are something else."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.rollout.trajectory.file import TrajectoryWriter, read_trajectories
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, Turn
from toolgym.tools.errors import ConfigError, UnknownNameError


def trajectory(**changes):
    record = ToolCallRecord("call_0", "f", {"x": [1, None]}, "error", "text", 0.5, 0.25, True, {"n": 1})
    return dataclasses.replace(
        Trajectory(
            id="abc",
            env_id="E-v0",
            task_id="t",
            source="s",
            group_id="run-3",
            task_index=3,
            sample_index=1,
            messages=({"role": "user", "content": "ü"},),
            tools=({"type": "function", "function": {"name": "f"}},),
            sequences=(
                TokenSequence(
                    [1, 2],
                    (
                        Segment.policy([3, 4], [-0.1, -1 / 3], ["1", "2"], {"experts": np.array([[7, 8], [9, 7]])}),
                        Segment.env([5]),
                        Segment.policy([6], [-2.5e-7], ["2"], {"experts": np.array([[1, 2]], dtype=np.uint8)}),
                    ),
                ),
            ),
            reward=0.5,
            stop_reason=StopReason.ENV_FAILED,
            turns=(Turn("hi", "stop", 2, 2, 1, 1, (record,), 0.5, 0.1, 0.2, seed=2**62), Turn("x", "stop", 5, 1)),
            ground_truth="6",
            error=Failure("it broke", 1),
            sampling={"temperature": 0.7},
            metrics={"score": 1.0},
            prompt_text="p",
            response_text="r",
            started_at=12.5,
            seconds=3.25,
            training_step=9,
            validate=True,
            role="judge",
            parent="abb",
            branch_turn=1,
        ),
        **changes,
    )


def test_everything_is_derived_from_the_segments():
    one = trajectory()
    assert one.response_ids.tolist() == [3, 4, 5, 6]
    assert one.response_mask.tolist() == [1, 1, 0, 1]
    assert one.logprobs.tolist() == [-0.1, -1 / 3, 0.0, -2.5e-7]
    assert one.weight_versions == ["1", "2", None, "2"]
    assert one.policy_tokens == 3
    assert one.failed
    assert one.problems == ["turn 0: f: error (infrastructure)", "turn 1: env_failed: it broke"]
    assert (one.engine_seconds, one.env_seconds) == (0.1, 0.2)


def test_there_and_back_is_equal():
    one = trajectory()
    assert Trajectory.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_several_sequences_have_no_one_prompt():
    one = trajectory()
    many = dataclasses.replace(one, sequences=(*one.sequences, TokenSequence([1], one.segments, "template")))
    assert many.policy_tokens == 6
    assert Trajectory.from_json(json.loads(json.dumps(many.to_json()))) == many
    for name in ("sequence", "prompt_ids", "segments", "response_ids", "response_mask", "logprobs", "weight_versions"):
        with pytest.raises(ConfigError, match="has 2 token sequences"):
            getattr(many, name)
    none = dataclasses.replace(one, sequences=())
    assert (len(none.prompt_ids), len(none.response_ids), none.policy_tokens) == (0, 0, 0)
    assert (none.response_mask.tolist(), none.logprobs.tolist(), none.weight_versions) == ([], [], [])


def test_any_ground_truth_survives():
    for truth in (["a", "b"], {"target": [1, 2.5]}, 3, 0.1, True, None):
        back = Trajectory.from_json(json.loads(json.dumps(trajectory(ground_truth=truth).to_json())))
        assert (back.ground_truth, type(back.ground_truth)) == (truth, type(truth))


def test_the_keys_of_verls_dump_are_there():
    row = trajectory().to_json()
    assert {k: row[k] for k in ("input", "output", "gts", "score", "step")} == {
        "input": "p",
        "output": "r",
        "gts": "6",
        "score": 0.5,
        "step": 9,
    }


def test_a_segment_needs_one_of_each_per_policy_token():
    runs = (("0", 2),)
    for bad in [
        ([1, 2], True, [-1.0], runs), ([1], False, [-1.0]), ([1], True, [-1.0]), ([1, 2], True, [[-1.0, -1.0]], runs),
        ([1, 2], True, [-1.0, -1.0], (("0", 3),)), ([1, 2], True, [-1.0, -1.0], (("0", 3), ("1", -1))),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match="logprobs"):
            Segment(*bad)
    for ids in ([1.5], [-1], [2**31], [[1]], ["1"], 3, [True]):
        with pytest.raises(ConfigError, match="token ids must be"):
            Segment.env(ids)
    for said, aligned in [
        ("3, ", np.zeros((3, 2))),
        ("payload 'x' of 2", np.float64(0)),
        ("integers", np.array(["a", "b"])),
    ]:
        with pytest.raises(ConfigError, match=said):
            Segment([1, 2], True, [-1.0, -1.0], runs, {"x": aligned})
    with pytest.raises(ConfigError, match="env has no payloads"):
        Segment([1, 2], False, aligned={"x": np.zeros(2)})


def policy_segment(count, start=0):
    """Tokens that each have their own number in everything that belongs to them."""
    numbers = np.arange(start, start + count)
    payloads = {"experts": np.stack([numbers, numbers], axis=1).astype(np.int16), "entropy": numbers.astype(np.float32)}
    return Segment.policy(numbers, -1.0 * numbers, [str(number // 3) for number in numbers], payloads)


@given(st.integers(0, 12), st.integers(-14, 14), st.integers(-14, 14), st.integers(0, 12))
def test_slicing_and_merging_keep_everything_with_its_token(count, start, stop, cut):
    whole = policy_segment(count)
    part = whole[start:stop]
    kept = list(range(count))[start:stop]
    assert part.token_ids.tolist() == kept
    assert part.logprobs.tolist() == [-number for number in kept]
    assert part.weight_versions == tuple(str(number // 3) for number in kept)
    assert part.aligned["experts"].tolist() == [[number, number] for number in kept]
    assert part.aligned["entropy"].dtype == np.float32
    assert Segment.merge([whole[:cut], whole[cut:]]) == whole
    assert Segment.merge([whole]) == whole
    assert len(whole[cut:]) == max(0, count - cut)


def test_what_cannot_be_merged_or_sliced_is_refused():
    one = policy_segment(3)
    without = dataclasses.replace(one, aligned={"entropy": one.aligned["entropy"]})
    with pytest.raises(ConfigError, match="3 of the policy's tokens have no payload 'experts'"):
        Segment.merge([one, without])
    other = dataclasses.replace(one, aligned={**one.aligned, "experts": np.zeros((3, 4), dtype=np.int16)})
    with pytest.raises(ConfigError, match=r"different forms: int16 \['tokens', 2\], int16 \['tokens', 4\]"):
        Segment.merge([one, other])
    for bad in ([], [one, Segment.env([1])]):
        with pytest.raises(ConfigError, match="all the policy's or all the env's"):
            Segment.merge(bad)
    with pytest.raises(ConfigError, match="without a step"):
        one[::2]


def test_sampling_masks_of_different_widths_are_filled_up():
    """The parts of a resumed turn may have kept more or fewer ids at most."""
    narrow = Segment.policy([5, 6], [-1.0, -1.0], ["0", "0"], {"sampling_mask": np.array([[5, 7], [6, -1]], np.int32)})
    wide = Segment.policy([8], [-1.0], ["1"], {"sampling_mask": np.array([[8, 9, 4]], np.int32)})
    whole = Segment.merge([narrow, wide])
    assert whole.aligned["sampling_mask"].tolist() == [[5, 7, -1], [6, -1, -1], [8, 9, 4]]
    assert whole.aligned["sampling_mask"].dtype == np.int32
    assert Segment.merge([wide, narrow[2:]]) == wide
    other = dataclasses.replace(wide, aligned={"sampling_mask": np.zeros((1, 3), np.int64)})
    with pytest.raises(ConfigError, match="different forms"):
        Segment.merge([narrow, other])
    flags = dataclasses.replace(wide, aligned={"sampling_mask": np.zeros((1, 3), np.bool_)})
    with pytest.raises(ConfigError, match="different forms"):
        Segment.merge([dataclasses.replace(narrow, aligned={"sampling_mask": np.zeros((2, 2), np.bool_)}), flags])


def test_segments_are_compared_whole_and_cannot_be_changed():
    one = policy_segment(3)
    assert one == policy_segment(3)
    assert hash(one) == hash(policy_segment(3))
    assert one != policy_segment(4)
    assert one != dataclasses.replace(one, logprobs=[0, -1, -2.5])
    assert one != dataclasses.replace(one, version_runs=(("0", 2), ("1", 1)))
    assert one != dataclasses.replace(one, aligned={})
    assert one != dataclasses.replace(one, aligned={**one.aligned, "entropy": np.arange(3.0)})  # another dtype
    assert one != 3
    assert TokenSequence([1], (one,)) == TokenSequence(np.array([1]), (one,))
    assert hash(TokenSequence([1], (one,))) == hash(TokenSequence([1], (one,)))
    assert TokenSequence([1], (one,)) != TokenSequence([1], (one,), "template")
    assert TokenSequence([1], (one,)) != 3
    for array in (one.token_ids, one.logprobs, one.aligned["experts"], TokenSequence([1], ()).prompt_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int64, np.uint16, np.float16, np.float32, np.float64, ">i4"])
def test_payloads_and_logprobs_survive_json_to_the_last_bit(dtype):
    values = np.array([[0, 1], [1, 0]]).astype(dtype)
    one = Segment.policy([1, 2], [-0.1, -5e-324], ["a", "a"], {"x": values})
    back = Segment.from_json(json.loads(json.dumps(one.to_json())))
    assert back == one
    assert back.aligned["x"].dtype == np.dtype(dtype).newbyteorder("=")
    assert one.to_json()["version_runs"] == [{"version": "a", "tokens": 2}]


def varied():
    """Trajectories that differ in all that may differ in one file."""
    one = trajectory()
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": arguments}}
        for number, arguments in enumerate(({"x": 1}, {"x": "a"}, {}))
    ]
    records = [
        ToolCallRecord("a", "f", arguments, "ok", "read", metrics=metrics)
        for arguments, metrics in (
            ({"x": "a"}, {"n": 1}), ({"x": [1]}, {"n": "a"}), ({}, {}), (None, {"n": None}), ({"x": {"y": 1}}, {})
        )
    ]  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"d": default}}} for default in (1, "a")]
    bare = TokenSequence([1, 2, 9], (Segment.policy([7], [-1.5], ["3"]), Segment.env([8])), "template")
    long = Turn("I call the tool now, and then I see.", "stop", 1, 1, tool_calls=(*records,), reward=None)
    answered = {"error": None, "stop_reason": StopReason.ANSWERED}
    return [
        one,
        dataclasses.replace(one, **answered, response_text="r" + long.text, turns=(long, Turn("x", "stop", 1, 1))),
        dataclasses.replace(one, sequences=(*one.sequences, bare), metrics={"score": 1}, parent=None, branch_turn=None),
        dataclasses.replace(one, sequences=(), turns=(), tools=(), messages=(), metrics={}, sampling={}, settings={}),
        dataclasses.replace(
            one,
            tools=(*tools,),
            messages=(*one.messages, {"role": "assistant", "content": "", "tool_calls": calls}),
            settings={"history": "append", "limits.max_prompt_tokens": "null"},
        ),
    ]


@pytest.mark.parametrize("first", range(5))
def test_a_file_has_one_type_in_each_field_for_readers_of_tables(tmp_path, first):
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    arrow, parquet = pytest.importorskip("pyarrow.json"), pytest.importorskip("pyarrow.parquet")
    path, made = tmp_path / "t.jsonl", varied()
    made = [*made[first:], *made[:first]]
    with TrajectoryWriter(path) as writer:
        for one in made:
            writer.write(one)
    table = arrow.read_json(path)
    assert table.num_rows == 5
    parquet.write_table(table, tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet").to_pylist() == table.to_pylist()
    wanted = [turn.text for one in made for turn in one.turns]
    assert [turn["text"] for row in table["turns"].to_pylist() for turn in row] == wanted
    frame = pandas.read_json(path, lines=True)
    assert [turn["text"] for turns in frame["turns"] for turn in turns] == wanted
    rows = datasets.Dataset.from_json(str(path), cache_dir=str(tmp_path / "cache"))
    assert [turn["text"] for turns in rows["turns"] for turn in turns] == wanted


def test_failures_are_neither_trained_on_nor_counted():
    def answers(**changes):
        asked = trajectory(error=None, **changes)
        return asked.trainable, asked.in_group_statistics, asked.usable

    assert (trajectory().trainable, trajectory().in_group_statistics, trajectory().usable) == (False, False, False)
    assert answers(stop_reason=StopReason.ANSWERED) == (True, True, True)
    for cut in (StopReason.ABORTED, StopReason.STRAGGLER):
        assert answers(stop_reason=cut) == (True, False, False)
    assert answers(stop_reason=StopReason.BUDGET, sequences=()) == (False, True, False)


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
        ("{}\n", "expected a trajectory of format version 4, got None"),
        (json.dumps({**trajectory().to_json(), "format_version": 3}) + "\n", "line 1: .* of format version 4, got 3"),
        ("[]\n", "expected a JSON object"),
        ("nonsense\n", "line 1"),
        (json.dumps({**trajectory().to_json(), "sequences": 3}) + "\n", "not a trajectory"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            list(read_trajectories(path))
    with pytest.raises(UnknownNameError, match="did you mean 'trajectories.jsonl'"):
        list(read_trajectories(tmp_path / "trajectory.jsonl"))


def test_a_broken_line_in_the_middle_is_said_and_can_be_skipped(tmp_path, caplog):
    path = tmp_path / "t.jsonl"
    with TrajectoryWriter(path) as writer:
        for name in "abc":
            writer.write(trajectory(id=name))
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for broken in (second[:-40] + b"\n", b"\xff\n", b"[]\n", b"{}\n"):
        path.write_bytes(first + broken + third)
        with pytest.raises(ConfigError, match=r"line 2: .*skip_broken=True"):
            list(read_trajectories(path))
        caplog.clear()
        assert [one.id for one in read_trajectories(path, skip_broken=True)] == ["a", "c"]
        assert "line 2 is skipped: " in caplog.text


def test_a_file_takes_trajectories_alone(tmp_path):
    with TrajectoryWriter(tmp_path / "t.jsonl") as writer:
        with pytest.raises(ConfigError, match="expected a toolgym Trajectory, got 3"):
            writer.write(3)
        assert writer.count == 0


def test_what_a_full_disk_did_not_take_is_written_when_there_is_room_again(tmp_path):
    path = tmp_path / "t.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with TrajectoryWriter(path) as writer:
        writer.write(trajectory(id="a"))
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
            for name in "bc":
                with pytest.raises(ConfigError, match="cannot append .* after 1 trajectories"):
                    writer.write(trajectory(id=name))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [one.id for one in read_trajectories(path)] == ["a"]
    assert writer.count == 3
    assert [one.id for one in read_trajectories(path)] == ["a", "b", "c"]


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


def test_a_text_may_be_a_function_which_is_called_once_and_when_it_is_read():
    calls = []

    def decoded():
        calls.append(1)
        return "text"

    made = trajectory(prompt_text=decoded, response_text=lambda: "reply")
    assert calls == []
    assert [made.prompt_text, made.prompt_text, made.response_text] == ["text", "text", "reply"]
    assert calls == [1]
    assert made == trajectory(prompt_text="text", response_text="reply")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.prompt_text = "other"


def test_the_texts_go_along_to_another_process_and_into_changed_copies():
    made = trajectory(prompt_text=lambda: "text", response_text=lambda: "reply")
    assert pickle.loads(pickle.dumps(made)).prompt_text == "text"
    assert copy.deepcopy(trajectory(prompt_text=lambda: "text")).prompt_text == "text"
    assert dataclasses.replace(made, reward=1.0).response_text == "reply"
    assert dataclasses.asdict(made)["prompt_text"] == "text"
    assert Trajectory.from_json(made.to_json()).response_text == "reply"


def test_without_texts_they_are_empty():
    bare = {one.name: getattr(trajectory(), one.name) for one in dataclasses.fields(Trajectory)}
    del bare["prompt_text"], bare["response_text"]
    assert (Trajectory(**bare).prompt_text, Trajectory.prompt_text) == ("", "")


def test_numbers_that_json_has_not_are_written_as_null():
    call = ToolCallRecord("1", "tool", {}, "ok", "", reward=math.nan, metrics={"part": math.inf, "ok": 1})
    turns = (Turn("", "stop", 0, 0, tool_calls=(call,)),)
    odd = trajectory(
        metrics={"score/part": math.nan, "deep": [{"x": -math.inf}], "ok": np.float64(0.5), "np": np.float32("nan")},
        ground_truth={"low": -math.inf, "text": "NaN"},
        turns=turns,
    )

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    line = json.dumps(odd.to_json())
    value = json.loads(line, parse_constant=refuse)
    assert value["metrics"] == {"score/part": None, "deep": [{"x": None}], "ok": 0.5, "np": None}
    assert value["gts"] == {"low": None, "text": "NaN"}
    again = Trajectory.from_json(value)
    assert math.isnan(again.tool_calls[0].reward)
    assert again.tool_calls[0].metrics == {"part": None, "ok": 1}
    assert again.metrics["ok"] == 0.5
