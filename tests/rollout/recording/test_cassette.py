"""The file of a recording: whole, cut off, edited, of another version, and without secrets."""

from __future__ import annotations

import random

import pytest

from toolgym.rollout import replay
from toolgym.rollout.engines import OpenAICompatible
from toolgym.rollout.recording.cassette import Cassette, CassetteWriter
from toolgym.rollout.recording.engine import RecordingEngine
from toolgym.rollout.recording.outcome import describe_error, make_error
from toolgym.rollout.recording.secrets import scrub
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import ConfigError, EngineUnavailableError, UnknownNameError


def test_an_edit_is_noticed_and_the_line_named(recording, edited, edit):
    copy = edited(recording[0], edit)
    lines, changed = (file.read_text().split("\n") for file in (recording[0], copy))
    first = next(n for n, (before, other) in enumerate(zip(lines, changed, strict=False), start=1) if before != other)
    with pytest.raises(ConfigError, match=rf"line {first}: .*changed or removed.*allow_edited"):
        Cassette.load(copy)


async def test_an_edited_result_shows_where_it_first_makes_a_difference(recording, tokenizer, edited):
    copy = edited(recording[0], "a result")
    result = await replay(Cassette.load(copy, allow_edited=True), tokenizer)
    assert not result.equal
    [difference] = result.differences
    assert difference.where == "messages[3].content"
    assert difference.replayed == '"9' + difference.recorded[1:]
    [missed] = result.misses
    assert missed.startswith(f"{difference.episode}: ")
    assert "Nearest is line" in missed
    assert "prompt ids, of which the first" in missed
    broken = next(trajectory for trajectory in result.trajectories if trajectory.failed)
    assert broken.stop_reason == "engine_failed"
    assert "CassetteMissError" in broken.error.message


async def test_an_edited_trajectory_differs(recording, tokenizer, edited):
    copy = edited(recording[0], "a trajectory")
    result = await replay(Cassette.load(copy, allow_edited=True), tokenizer)
    assert [difference.where for difference in result.differences] == ["score"]
    assert result.misses == []


async def test_a_recording_that_was_cut_off_is_used_as_far_as_it_goes(recording, tokenizer, tmp_path, caplog):
    raw = recording[0].read_bytes()
    copy = tmp_path / "cut.jsonl"
    source = random.Random(0)
    for _ in range(8):
        copy.write_bytes(raw[: source.randrange(len(raw) // 4, len(raw) - 200)])
        result = await replay(copy, tokenizer)
        assert result.equal
        assert not Cassette.load(copy).ended
        assert result.compared + len(result.unfinished) == 18
        assert result.unfinished
        for trajectory in result.trajectories:
            if (trajectory.task_index, trajectory.sample_index) in result.unfinished and trajectory.failed:
                assert "CassetteMissError" in trajectory.error.message
    assert "was cut off" in caplog.text


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no whole line"),
        ("hello\n", "not a recording"),
        ('{"kind":"header"}\n', "not a recording"),
        ('{"format_version": 1, "input": ""}\n', "not a recording"),
        ("\x00\xff\n", "not a recording"),
    ],
)
def test_other_files_are_refused(tmp_path, text, match):
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        Cassette.load(path)


@pytest.mark.parametrize("version", [3, 5])
def test_another_version_of_the_format_is_refused(tmp_path, version):
    path = tmp_path / "other.jsonl"
    CassetteWriter(path).close()
    text = path.read_text().replace('"version":4', f'"version":{version}')
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"version {version} .*this library reads 4 only"):
        Cassette.load(path, allow_edited=True)


def test_a_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "run.jsonl").touch()
    with pytest.raises(UnknownNameError, match="did you mean 'run.jsonl'"):
        Cassette.load(tmp_path / "runs.jsonl")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"config_left_out":', '"left_out":'),
        ('"history":"append"', '"history":"forget"'),
        ('"context":[]', '"context":[{"policy":"Forget"}]'),
        ('"stop_token_ids":[],', ""),
        ('"number":0', '"number":"zero"'),
        ('"params":{', '"params":[], "other":{'),
        ('{"kind":"generate"', '{"kind":"generate","x":' + "[" * 100_000),
    ],
)
async def test_whatever_was_edited_is_a_clear_error(recording, tokenizer, tmp_path, old, new):
    lines = recording[0].read_text().splitlines(keepends=True)
    place = next(place for place, line in enumerate(lines) if old in line)
    lines[place] = lines[place].replace(old, new, 1)
    copy = tmp_path / "edited.jsonl"
    copy.write_text("".join(lines))
    with pytest.raises(ConfigError, match=r"not a line of a recording|not one of this library"):
        await replay(Cassette.load(copy, allow_edited=True), tokenizer)


# ---------------------------------------------------------------------- errors and secrets


def test_a_deadline_is_remade_with_its_seconds():
    error = make_error(describe_error(DeadlineError(1.5, stuck=True)))
    assert isinstance(error, DeadlineError)
    assert (error.seconds, error.stuck, str(error)) == (1.5, True, str(DeadlineError(1.5, stuck=True)))


async def test_an_engines_key_is_not_written(tmp_path):
    path = tmp_path / "engine.jsonl"
    engine = OpenAICompatible("http://127.0.0.1:9", api_key="sesame", vocab_size=9, context_length=9)
    with pytest.raises(EngineUnavailableError):
        async with RecordingEngine(engine, path):
            pass
    assert "sesame" not in path.read_text()


def test_scrubbing_leaves_other_text_alone():
    for text in ("http://host:80/a@b", "mail a@b.c", "the bearer of news", "3 > 2"):
        assert scrub(text) in (text, "the bearer [redacted] news")
    assert scrub("a postgres://u:p@h/d b") == "a postgres://[redacted]@h/d b"
    assert scrub(scrub("Bearer abc")) == "Bearer [redacted]"
