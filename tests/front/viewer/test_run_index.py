"""The index of a run: its rows, its files as they grow, and what cannot be read."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from pathlib import Path

import pytest

from toolgym.rollout.recording.cassette import CassetteWriter
from toolgym.rollout.trajectory.file import read_trajectories
from toolgym.rollout.trajectory.summary import succeeded
from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.viewer.query import Query
from toolgym.viewer.run_index import RunIndex
from toolgym.viewer.tokens import TokenTexts, tokens_of

DEMO = Path(__file__).parents[3] / "front/viewer/demo"


def test_a_row_says_of_a_trajectory_what_the_trajectory_says():
    index = RunIndex(DEMO).read_all()
    trajectories = [*read_trajectories(DEMO / "0.jsonl"), *read_trajectories(DEMO / "1.jsonl")]
    assert len(index) == len(trajectories) > 40
    for row, trajectory in zip(index.rows, trajectories, strict=True):
        assert index.trajectory(row) == trajectory
        assert (row.id, row.env, row.task) == (trajectory.id, trajectory.env_id, trajectory.task_id)
        assert (row.reward, row.success, row.step) == (
            trajectory.reward,
            succeeded(trajectory),
            trajectory.training_step,
        )
        assert (row.stop, row.failed, row.counted) == (
            trajectory.stop_reason, trajectory.failed, trajectory.in_group_statistics
        )  # fmt: skip
        assert row.problems == tuple({record.status: 0 for record in trajectory.tool_calls if record.status != "ok"})
        assert (row.tokens, row.turns) == (trajectory.policy_tokens, len(trajectory.turns))
        assert (row.parent, row.branch_turn) == (trajectory.parent, trajectory.branch_turn)
    failed = [row for row in index.rows if row.failed]
    assert [row.error.split(":")[0] for row in failed] == ["EngineError"] * 2


def test_a_recording_in_a_runs_folder_is_no_part_of_its_trajectories(tmp_path):
    shutil.copy(DEMO / "0.jsonl", tmp_path)
    before = len(RunIndex(tmp_path).read_all())
    path = tmp_path / "recording.jsonl"
    with contextlib.closing(CassetteWriter(path)) as recording:
        recording.write("engine", name="any")
    assert len(RunIndex(tmp_path).read_all()) == before
    with pytest.raises(ConfigError, match="it is a recording, which `toolgym replay` plays"):
        RunIndex(path)


def test_the_members_of_a_group_and_the_branches_of_a_trajectory_are_found():
    index = RunIndex(DEMO).read_all()
    child = next(row for row in index.rows if row.parent)
    parent = index.rows[index.by_id[child.parent]]
    assert (parent.group, parent.parent) == (child.group, None)
    members = index.group(child)
    assert [member.sample for member in members] == list(range(len(members)))
    assert {member.group for member in members} == {child.group}


def test_a_file_that_grows_is_read_on_and_half_a_line_waits_for_its_end(tmp_path):
    lines = (DEMO / "0.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "0.jsonl"
    path.write_bytes(lines[0] + lines[1][:500])
    index = RunIndex(tmp_path).read_all()
    assert len(index) == 1
    with path.open("ab") as file:
        file.write(lines[1][500:] + lines[2].rstrip(b"\n"))  # the last one lacks only its end
    (tmp_path / "1.jsonl").write_bytes(lines[3])
    index.read()
    assert [row.start for row in index.rows] == [0, len(lines[0]), len(lines[0] + lines[1]), 0]
    assert index.bytes_read == index.size
    assert [index.line(row).rstrip() for row in index.rows] == [line.rstrip() for line in lines[:4]]


def test_reading_stops_for_the_time_and_goes_on():
    index, reads = RunIndex(DEMO), 0
    while index.read(seconds=0):
        reads += 1
    assert reads == len(index) == len(RunIndex(DEMO).read_all())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json", "JSON is malformed"),
        ("[1]", "Expected `object`"),
        ('{"score": 1}', "neither a trajectory of toolgym nor a row of verl"),
        ('{"score": 1, "format_version": 1}', "format version 1, and this library reads 4"),
        ('{"score": 1, "format_version": 4, "stop_reason": "new"}', "'new' is not a valid StopReason"),
        (
            '{"score": "high", "format_version": 4, "stop_reason": "answered"}',
            "expected a finite number as `score`, got high",
        ),
        ('{"score": 1, "input": "he', "JSON is malformed"),
    ],
)
def test_a_line_that_is_no_trajectory_is_a_row_that_says_why(tmp_path, line, why):
    path = tmp_path / "run.jsonl"
    path.write_text(line + "\n\n" + (DEMO / "0.jsonl").read_text())
    index = RunIndex(path).read_all()
    assert why in index.rows[0].error
    assert math.isnan(index.rows[0].reward)
    assert [row.readable for row in index.rows[:2]] == [False, True]
    with pytest.raises(ConfigError):
        index.trajectory(index.rows[0])


def test_a_half_of_a_surrogate_pair_in_a_text_makes_no_line_unreadable(tmp_path):
    value = json.loads((DEMO / "0.jsonl").read_text().splitlines()[0])
    value["messages"][-1]["content"] = value["id"] = "half \ud83d of it"
    (tmp_path / "1.jsonl").write_text(json.dumps(value))  # without the line's end: it is whole nevertheless
    index = RunIndex(tmp_path).read_all()
    assert [(row.id, row.readable) for row in index.rows] == [("half ? of it", True)]
    assert index.trajectory(index.rows[0]).messages[-1]["content"] == "half \ud83d of it"
    assert [len(list(Query.parse(text).select(index))) for text in ("/of it/", "/of that/")] == [1, 0]


def test_verls_dumps_open_and_the_rollouts_of_a_prompt_are_a_group(tmp_path):
    rows = [
        {"input": f"user\n{n // 2}", "output": f"answer {n}", "gts": "42", "score": n / 2, "step": 3, "acc": 0.5}
        for n in range(4)
    ]
    (tmp_path / "3.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copy(DEMO / "0.jsonl", tmp_path / "10.jsonl")
    index = RunIndex(tmp_path).read_all()
    assert [row.step for row in index.rows[:5]] == [3, 3, 3, 3, 0]  # files by number, not by name
    assert [len(index.group(row)) for row in index.rows[:4]] == [2] * 4
    trajectory = index.trajectory(index.rows[3])
    assert [message["content"] for message in trajectory.messages] == ["user\n1", "answer 3"]
    assert (trajectory.reward, trajectory.ground_truth, trajectory.metrics) == (1.5, "42", {"acc": 0.5})
    assert list(tokens_of(trajectory)) == []


@pytest.mark.parametrize("score", ["NaN", "null", '"high"', None])
def test_verls_rows_open_whatever_their_score_is_and_their_other_columns_hold(tmp_path, score):
    named = {"turns": 3, "error": "none", "role": ["x"], "id": 7, "metrics": "m", "validate": "no", "messages": 5}
    line = json.dumps({"input": "2+2?", "output": None, **named, "step": None})
    (tmp_path / "1.jsonl").write_text(line if score is None else f'{line[:-1]}, "score": {score}}}')
    [row] = RunIndex(tmp_path).read_all().rows
    assert (row.readable, row.failed, row.turns, row.step, row.error) == (True, False, 0, 0, "")
    assert math.isnan(row.reward)
    index = RunIndex(tmp_path).read_all()
    assert index.trajectory(row).metrics == named
    assert [message["content"] for message in index.trajectory(row).messages] == ["2+2?", ""]
    counts = [len(list(Query.parse(text).select(index))) for text in ("2+2", "none", "x", "reward>0", "reward<=0")]
    assert counts == [1, 1, 0, 0, 0]


def test_a_compressed_file_is_an_error_that_says_so(tmp_path):
    (tmp_path / "run.jsonl.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(ConfigError, match="unpack it first"):
        RunIndex(tmp_path / "run.jsonl.gz")


def test_a_path_without_trajectories_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no \*\.jsonl in it"):
        RunIndex(tmp_path)
    (tmp_path / "demo-out").mkdir()
    with pytest.raises(UnknownNameError, match="did you mean 'demo-out'"):
        RunIndex(tmp_path / "demo_out")


def test_tokens_are_those_of_the_sequences_with_all_that_is_known_of_them():
    index = RunIndex(DEMO).read_all()
    texts = TokenTexts(DEMO)
    assert texts.known
    for row in index.rows:
        trajectory = index.trajectory(row)
        tokens = list(tokens_of(trajectory))
        behind = [token for token in tokens if token.kind != "prompt"]
        assert [token.id for token in behind] == trajectory.response_ids.tolist()
        assert [int(token.kind == "policy") for token in behind] == trajectory.response_mask.tolist()
        policy = [token for token in tokens if token.kind == "policy"]
        assert all(token.logprob <= 0 <= token.values["entropy"] for token in policy)
        assert {token.version for token in policy} <= {f"step-{row.step}"}
        assert "".join(texts.text(token.id) for token in tokens) == trajectory.prompt_text + trajectory.response_text


def test_without_a_tokenizer_the_ids_stand_for_the_texts(tmp_path):
    shutil.copy(DEMO / "0.jsonl", tmp_path)
    texts = TokenTexts(tmp_path)
    assert (texts.known, texts.text(7)) == (False, "[7]")
    assert "--tokenizer" in texts.why_not
    (tmp_path / "run.json").write_text('{"options": {"engine": "/no/such/model"}}')
    assert "/no/such/model" in TokenTexts(tmp_path).why_not


def test_a_line_with_what_only_pythons_json_has_is_readable(tmp_path):
    line = (DEMO / "0.jsonl").read_bytes().splitlines()[0].decode()
    value = json.loads(line)
    value["metrics"]["score"] = float("nan")
    value["messages"][0]["content"] = "\ud800"
    (tmp_path / "0.jsonl").write_text(json.dumps(value) + "\n")
    index = RunIndex(tmp_path).read_all()
    [row] = index.rows
    assert (row.readable, row.success, row.id) == (True, False, value["id"])
    assert index.trajectory(row).messages[0]["content"] == "\ud800"
