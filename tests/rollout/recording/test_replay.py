"""Replaying: what a replay gives is what was recorded, and it touches nothing else."""

from __future__ import annotations

import json

import pytest

from toolgym.rollout import RunConfig, SamplingParams, replay, tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.recording import RecordingEngine
from toolgym.rollout.recording.cassette import Cassette
from toolgym.rollout.recording.recorder import tokenizer_fingerprint
from toolgym.rollout.recording.replay import first_difference
from toolgym.tools.errors import ConfigError

SAMPLING = SamplingParams(max_new_tokens=96)


def forbid(monkeypatch):
    """Make everything fail that a replay must not touch."""

    def touched(*args, **kwargs):
        raise AssertionError("a replay touched what it must not")

    for target in (
        "toolgym.rollout.engines.embedded.transformers.TransformersEngine.start",
        "toolgym.rollout.engines.embedded.transformers.TransformersEngine._generate",
        "toolgym.tools.library.code_interpreter.CodeInterpreterTool.__init__",
        "toolgym.tools.sandbox.shared.SharedSandbox.__init__",
        "toolgym.tools.sandbox.shared.SharedSandbox.run",
        "toolgym.tools.sandbox.shared.SharedSandbox.session",
        "toolgym.tools.sandbox.process.ProcessSandbox.run",
        "subprocess.Popen.__init__",
        "os.fork",
        "socket.socket.connect",
        "aiohttp.ClientSession.__init__",
    ):
        monkeypatch.setattr(target, touched)


@pytest.mark.parametrize("max_concurrent", [1, 18])
async def test_a_run_is_replayed_byte_for_byte_without_engine_and_sandbox(
    recording, tokenizer, monkeypatch, bare, max_concurrent
):
    path, done = recording
    forbid(monkeypatch)
    config = RunConfig(group_size=3, max_concurrent=max_concurrent, sampling=SAMPLING)
    result = await replay(path, tokenizer, config=config)
    assert result.equal
    assert (result.compared, result.misses, result.unfinished, result.not_made) == (18, [], [], [])
    assert [bare(one) for one in result.trajectories] == [bare(one) for one in done]
    assert any(record.status == "ok" for one in done for record in one.tool_calls)
    assert len({one.response_text for one in done}) > 6  # episodes of a group differ, without any seed


async def test_the_config_is_that_of_the_recording(recording, tokenizer):
    cassette = Cassette.load(recording[0])
    assert cassette.ended
    result = await replay(cassette, tokenizer)
    assert result.equal
    assert result.trajectories[0].sampling["max_new_tokens"] == 96
    assert len(cassette.trajectories) == result.compared == 18


async def test_the_recorded_trajectories_are_those_of_the_run(recording):
    path, done = recording
    cassette = Cassette.load(path)
    for one in done:
        assert cassette.trajectories[one.task_index, one.sample_index]["policy"] == json.loads(
            json.dumps(one.to_json())
        )


# ---------------------------------------------------------------------- what a replay needs


async def test_another_tokenizer_or_template_is_refused(recording, tmp_path):
    other = load_tokenizer(tiny_policy_path())
    other("warm", truncation=True, max_length=2, padding="max_length")  # what a call leaves behind does not matter
    assert (await replay(recording[0], other)).equal
    other.chat_template += " "
    with pytest.raises(ConfigError, match="another chat template .*'tiny'"):
        await replay(recording[0], other)
    other = load_tokenizer(tiny_policy_path())
    other.add_tokens(["<new>"])
    with pytest.raises(ConfigError, match="another tokenizer"):
        await replay(recording[0], other)
    assert (
        tokenizer_fingerprint(other)["chat_template"]
        == tokenizer_fingerprint(load_tokenizer(tiny_policy_path()))["chat_template"]
    )


async def test_a_recording_of_an_engine_alone_is_no_run(scripted, tokenizer, tmp_path):
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: "x"), path) as engine:
        await engine.generate([1], SAMPLING, request_id="0")
    with pytest.raises(ConfigError, match="holds no run"):
        await replay(path, tokenizer)


# ---------------------------------------------------------------------- comparing


@pytest.mark.parametrize(
    ("one", "other", "where"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"id": "x", "seconds": 1.0, "started_at": 2}, {"id": "y", "seconds": 2.0, "started_at": 3}, None),
        (
            {"turns": [{"env_seconds": 1, "tool_calls": [{"seconds": 1}]}]},
            {"turns": [{"env_seconds": 2, "tool_calls": [{"seconds": 3}]}]},
            None,
        ),
        ({"metrics": {"seconds": 1}}, {"metrics": {"seconds": 2}}, "metrics.seconds"),
        ({"a": 1}, {"a": 1.0}, "a"),
        ({"a": 0.0}, {"a": -0.0}, "a"),
        ({"a": float("nan")}, {"a": float("nan")}, None),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, "a (length)"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "a[1]"),
        ({"a": 1}, {}, "a"),
        ({}, {"b": 1}, "b"),
        ({"input": "x", "turns": [{"text": "a"}]}, {"input": "y", "turns": [{"text": "b"}]}, "turns[0].text"),
    ],
)
def test_the_first_difference(one, other, where):
    found = first_difference(one, other)
    assert (found[0] if found else None) == where


def test_a_difference_late_in_a_long_text_is_shown():
    one = {"output": "x" * 5000 + "a" + "y" * 5000}
    _, recorded, replayed = first_difference(one, {"output": one["output"].replace("a", "b")})
    assert "xay" in recorded
    assert "xby" in replayed
    assert len(recorded) < 300
