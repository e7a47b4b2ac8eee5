"""Recording and replaying: what a replay gives is what was recorded, and it touches nothing else."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import subprocess
import sys
import time

import pytest

from toolgym.cli import main
from toolgym.envs import ArithmeticTasks, CodeInterpreterEnv, Task, ToolEnv
from toolgym.rollout import (
    CassetteEngine,
    CutToolResults,
    KeepToolResults,
    Limits,
    RecordingEngine,
    RecordingRunner,
    RunConfig,
    SamplingParams,
    Summarize,
    TransformersEngine,
    read_trajectories,
    replay,
    tiny_policy_path,
)
from toolgym.rollout.cassette import Cassette, CassetteMissError, CassetteWriter, describe_error, make_error, scrub
from toolgym.rollout.engines import FinishReason, Generation, OpenAICompatible, PauseMode
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.playing import current_episode, playing
from toolgym.rollout.recording import config_from_json, tokenizer_fingerprint
from toolgym.rollout.replaying import first_difference
from toolgym.rollout.tokenizer import load_tokenizer
from toolgym.tools import BaseTool, ToolResult
from toolgym.tools.deadline import DeadlineError
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError, UnknownNameError
from toolgym.wrappers import TruncateResults

SAMPLING = SamplingParams(max_new_tokens=96)


def tasks(*questions, **kwargs):
    return [Task(({"role": "user", "content": text},), ground_truth="6", id=text, **kwargs) for text in questions]


def call(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


# ---------------------------------------------------------------------- a whole run


def forbid(monkeypatch):
    """Make everything fail that a replay must not touch."""

    def touched(*args, **kwargs):
        raise AssertionError("a replay touched what it must not")

    for target in (
        "toolgym.rollout.engines.transformers.TransformersEngine.start",
        "toolgym.rollout.engines.transformers.TransformersEngine.generate",
        "toolgym.tools.code_interpreter.CodeInterpreterTool.__init__",
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


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, tokenizer):
    """A run of the tiny policy with the real engine and the real sandbox, unseeded, and its recording."""
    path = tmp_path_factory.mktemp("recorded") / "run.jsonl"
    # The metrics of the tool, its run time for one, cannot be had again by chance.
    config = RunConfig(group_size=3, max_concurrent=8, sampling=SAMPLING)

    async def record():
        async with TransformersEngine(tiny_policy_path()) as engine:
            runner = RecordingRunner(path, "CodeInterpreter-v0", engine, tokenizer, config, tokenizer_source="tiny")
            return await runner.run(ArithmeticTasks(split="test").take(6))

    return path, asyncio.run(record())


def bare(trajectory):
    """A trajectory's JSON without its random id and the wall times."""
    value = trajectory.to_json()
    for name in ("id", "started_at", "seconds"):
        del value[name]
    for turn in value["turns"]:
        del turn["engine_seconds"], turn["env_seconds"]
        for record in turn["tool_calls"]:
            del record["seconds"]
    return json.dumps(value)


@pytest.mark.parametrize("max_concurrent", [1, 18])
async def test_a_run_is_replayed_byte_for_byte_without_engine_and_sandbox(
    recorded, tokenizer, monkeypatch, max_concurrent
):
    path, done = recorded
    forbid(monkeypatch)
    config = RunConfig(group_size=3, max_concurrent=max_concurrent, sampling=SAMPLING)
    result = await replay(path, tokenizer, config=config)
    assert result.equal
    assert (result.compared, result.misses, result.unfinished, result.not_made) == (18, [], [], [])
    assert [bare(one) for one in result.trajectories] == [bare(one) for one in done]
    assert any(record.status == "ok" for one in done for record in one.tool_calls)
    assert len({one.response_text for one in done}) > 6  # episodes of a group differ, without any seed


async def test_the_config_is_that_of_the_recording(recorded, tokenizer):
    cassette = Cassette.load(recorded[0])
    assert cassette.ended
    result = await replay(cassette, tokenizer)
    assert result.equal
    assert result.trajectories[0].sampling["max_new_tokens"] == 96
    assert len(cassette.trajectories) == result.compared == 18


async def test_the_recorded_trajectories_are_those_of_the_run(recorded):
    path, done = recorded
    cassette = Cassette.load(path)
    for one in done:
        assert cassette.trajectories[one.group_id, one.sample] == json.loads(json.dumps(one.to_json()))


# ---------------------------------------------------------------------- edits, ends


def edited(path, tmp_path, change):
    """A copy of a recording with its lines changed, digests left as they are."""
    lines = path.read_text().split("\n")
    copy = tmp_path / "edited.jsonl"
    copy.write_text("\n".join(change(lines)))
    return copy


def find(lines, *texts):
    return next(place for place, line in enumerate(lines) if all(text in line for text in texts))


def swap(lines, place, old, new):
    assert old in lines[place]
    return [*lines[:place], lines[place].replace(old, new, 1), *lines[place + 1 :]]


EDITS = {
    "a reply": lambda lines: swap(lines, find(lines, '"generate"'), '"cached_tokens":', '"cached_tokens":1'),
    "a result": lambda lines: swap(lines, find(lines, '"execute"', '"text":"'), '"text":"', '"text":"9'),
    "a trajectory": lambda lines: swap(lines, find(lines, '"kind":"trajectory"'), '"score":', '"score":1'),
    "a removed line": lambda lines: [*lines[:9], *lines[10:]],
    "two lines swapped": lambda lines: [*lines[:9], lines[10], lines[9], *lines[11:]],
    "a blank": lambda lines: swap(lines, 5, '{"kind"', '{ "kind"'),
    "the header": lambda lines: swap(lines, 0, '"library":"', '"library":"1'),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_noticed_and_the_line_named(recorded, tmp_path, name):
    copy = edited(recorded[0], tmp_path, EDITS[name])
    lines, changed = (file.read_text().split("\n") for file in (recorded[0], copy))
    first = next(n for n, (one, other) in enumerate(zip(lines, changed, strict=False), start=1) if one != other)
    with pytest.raises(ConfigError, match=rf"line {first}: .*changed or removed.*allow_edited"):
        Cassette.load(copy)


async def test_an_edited_result_shows_where_it_first_makes_a_difference(recorded, tokenizer, tmp_path):
    copy = edited(recorded[0], tmp_path, EDITS["a result"])
    result = await replay(Cassette.load(copy, allow_edited=True), tokenizer)
    assert not result.equal
    [difference] = result.differences
    assert difference.where == "messages[3].content"
    assert difference.replayed == '"9' + difference.recorded[1:]
    [missed] = result.misses
    place = f"group {difference.episode.group_id}, sample {difference.episode.sample}"
    assert missed.startswith(place)
    assert "Nearest is line" in missed
    assert "prompt ids, of which the first" in missed
    broken = next(one for one in result.trajectories if one.failed)
    assert broken.error.kind == "engine"
    assert "CassetteMissError" in broken.error.message


async def test_an_edited_trajectory_differs(recorded, tokenizer, tmp_path):
    copy = edited(recorded[0], tmp_path, EDITS["a trajectory"])
    result = await replay(Cassette.load(copy, allow_edited=True), tokenizer)
    assert [one.where for one in result.differences] == ["score"]
    assert result.misses == []


async def test_a_recording_that_was_cut_off_is_used_as_far_as_it_goes(recorded, tokenizer, tmp_path, caplog):
    raw = recorded[0].read_bytes()
    copy = tmp_path / "cut.jsonl"
    source = random.Random(0)
    for _ in range(8):
        copy.write_bytes(raw[: source.randrange(len(raw) // 4, len(raw) - 200)])
        result = await replay(copy, tokenizer)
        assert result.equal
        assert not Cassette.load(copy).ended
        assert result.compared + len(result.unfinished) == 18
        assert result.unfinished
        for one in result.trajectories:
            if (one.group_id, one.sample) in result.unfinished and one.failed:
                assert "CassetteMissError" in one.error.message
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


def test_another_version_of_the_format_is_refused(tmp_path):
    path = tmp_path / "later.jsonl"
    with CassetteWriter(path) as tape:
        tape._digest = ""
    text = path.read_text().replace('"version":1', '"version":2')
    path.write_text(text)
    with pytest.raises(ConfigError, match="version 2 .*this library reads 1"):
        Cassette.load(path, allow_edited=True)


def test_a_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "run.jsonl").touch()
    with pytest.raises(UnknownNameError, match="did you mean 'run.jsonl'"):
        Cassette.load(tmp_path / "runs.jsonl")


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path, tokenizer, scripted):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot record"):
        RecordingRunner(tmp_path / "file" / "run.jsonl", "CodeInterpreter-v0", scripted(lambda *_: ""), tokenizer)


# ---------------------------------------------------------------------- an engine by itself


PARAMS = SamplingParams(max_new_tokens=50)


async def ask(engine, *prompts, params=PARAMS):
    return [await engine.generate(ids, params, request_id=str(n)) for n, ids in enumerate(prompts)]


async def test_equal_requests_get_their_replies_in_order(scripted, tmp_path):
    said = iter(["one", "two", ("three", FinishReason.ABORT), ("", FinishReason.LENGTH)])
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: next(said)), path) as engine:
        assert (engine.vocab_size, engine.context_length, engine.weight_version) == (512, 4096, "7")
        before = await ask(engine, *[[5, 6]] * 4)
    async with CassetteEngine(path) as engine:
        assert (engine.vocab_size, engine.context_length, engine.weight_version) == (512, 4096, "7")
        assert await ask(engine, *[[5, 6]] * 4) == before
        with pytest.raises(CassetteMissError, match=r"recorded 4 time\(s\), and is asked once more"):
            await ask(engine, [5, 6])
    assert before[2].finish_reason is FinishReason.ABORT
    assert before[3] == Generation((), (), FinishReason.LENGTH, (), 3)


async def test_a_miss_names_the_nearest_request_and_what_differs(scripted, tmp_path):
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: "x"), path) as engine:
        await ask(engine, [1, 2, 3, 4], [9, 9])
    engine = CassetteEngine(path)
    with pytest.raises(CassetteMissError, match="first 2 are the same; then id 3 was recorded and 7 is asked"):
        await ask(engine, [1, 2, 7, 4])
    with pytest.raises(CassetteMissError, match="line 3: 4 prompt ids; the shorter of the two"):
        await ask(engine, [1, 2, 3])
    hot = dataclasses.replace(PARAMS, temperature=1.5)
    with pytest.raises(CassetteMissError, match=r"line 4: temperature 1.0 was recorded and 1.5 is asked"):
        await ask(engine, [9, 9], params=hot)
    with playing(3, 1), pytest.raises(CassetteMissError, match=r"^group 3, sample 1: .*there is none of this one"):
        await ask(engine, [9, 9])
    assert len(engine.cassette.misses) == 4
    with pytest.raises(CassetteMissError, match="holds no request at all"):
        await ask(CassetteEngine(Cassette(path)), [1])


async def test_the_order_of_arrival_does_not_matter(scripted, tmp_path):
    source = random.Random(1)
    path = tmp_path / "engine.jsonl"

    async def one(engine, episode, delay):
        await asyncio.sleep(delay)
        with playing(*episode):
            return await ask(engine, [1, 2], [1, 2, 3], [1, 2])

    async def everyone(engine):
        delays = [source.random() / 50 for _ in range(40)]
        jobs = [one(engine, divmod(n, 4), delay) for n, delay in enumerate(delays)]
        return await asyncio.gather(*jobs)

    async with RecordingEngine(scripted(lambda *_: str(source.random())), path) as engine:
        before = await everyone(engine)
    for _ in range(3):
        assert await everyone(CassetteEngine(path)) == before


@pytest.mark.parametrize(
    "error",
    [
        EngineError("it broke"),
        EngineUnavailableError("nothing answers"),
        ConfigError("wrong"),
        KeyError("name"),
        OSError(28, "No space left"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        json.JSONDecodeError("bad", "doc", 0),
        type("HerOwnError", (Exception,), {})("odd \ud800 text"),
        ExceptionGroup("several", [ValueError("one")]),
    ],
)
async def test_an_error_is_raised_again_with_its_class_and_text(scripted, tmp_path, error):
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: error), path) as engine:
        with pytest.raises(type(error)):
            await ask(engine, [5])
    with pytest.raises(Exception) as caught:
        await ask(CassetteEngine(path), [5])
    assert (type(caught.value).__name__, str(caught.value)) == (type(error).__name__, str(error))
    if isinstance(error, EngineError | OSError | KeyError):
        assert isinstance(caught.value, type(error))


def test_a_deadline_is_remade_with_its_seconds():
    made = make_error(describe_error(DeadlineError(1.5, stuck=True)))
    assert isinstance(made, DeadlineError)
    assert (made.seconds, made.stuck, str(made)) == (1.5, True, str(DeadlineError(1.5, stuck=True)))


async def test_a_cancelled_request_is_recorded_as_that(scripted, tmp_path):
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: 30), path, deadline=1.0) as engine:
        task = asyncio.create_task(ask(engine, [1]))
        while engine.engine.seen == {}:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.1):
                await ask(engine, [2])
    engine = CassetteEngine(path)
    with pytest.raises(CassetteMissError, match="the recording stopped while this request was on its way"):
        await ask(engine, [1])
    with pytest.raises(DeadlineError, match=r"within 1 seconds"):
        await ask(engine, [2])


async def test_the_cassette_engine_pauses_and_closes(scripted, tmp_path):
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: "x"), path) as engine:
        await ask(engine, [1], [2])
        await engine.abort("unknown")
        await engine.pause(PauseMode.ABORT)
        await engine.resume()
    engine = CassetteEngine(path)
    await engine.pause()
    task = asyncio.create_task(ask(engine, [1]))
    await asyncio.sleep(0.05)
    assert not task.done()
    await engine.resume()
    assert len(await task) == 1
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await ask(engine, [2])


async def test_a_recording_without_an_engine_says_so(tmp_path):
    path = tmp_path / "empty.jsonl"
    CassetteWriter(path).close()
    with pytest.raises(EngineError, match="says nothing of an engine"):
        _ = CassetteEngine(path).context_length


# ---------------------------------------------------------------------- tools, and everything that fails


class Odd(BaseTool):
    """Does what its argument says; each call counts."""

    def __init__(self, name="odd", broken=None):
        parameters = {"type": "object", "properties": {"do": {"type": "string"}}, "required": ["do"]}
        super().__init__(
            {"api_key": "sesame"},
            {"type": "function", "function": {"name": name, "description": "Odd.", "parameters": parameters}},
        )
        self.broken = broken
        self.calls = 0
        self.created = self.released = 0

    async def create(self, instance_id=None, **create_kwargs):
        if self.broken == "create":
            raise ConnectionError("https://user:sesame@host is down")
        self.created += 1
        return await super().create(instance_id)

    async def execute(self, instance_id, parameters, **execute_kwargs):
        self.calls += 1
        match parameters["do"]:
            case "raise":
                raise KeyError(f"call {self.calls}")
            case "exit":
                raise SystemExit(3)
            case "hang":
                await asyncio.sleep(60)
            case "refuse to stop":
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.sleep(60)
                return ToolResult("too late")
            case "cancel itself":
                raise asyncio.CancelledError
            case "infra":
                return ToolResult("[down]", 0.0, {"status": "sandbox_error", "infra_failure": True})
            case "give nonsense":
                return 17
            case "surrogate":
                return ToolResult("\ud83d", 0.25, {"odd": {1, 2}, "nan": float("nan")})
        return ToolResult(f"call {self.calls} at {time.time()}", self.calls / 7, {"n": self.calls})

    async def calc_reward(self, instance_id, **calc_reward_kwargs):
        if self.broken == "calc_reward":
            raise RuntimeError("no reward")
        return self.calls / 3

    async def release(self, instance_id, **release_kwargs):
        self.released += 1


class Untouchable(BaseTool):
    """In a replay's place of `Odd`: nothing of it may be called."""

    def __init__(self, schema):
        super().__init__({}, schema)

    async def create(self, instance_id=None, **create_kwargs):
        pytest.fail("touched")

    async def execute(self, instance_id, parameters, **execute_kwargs):
        pytest.fail("touched")

    async def calc_reward(self, instance_id, **calc_reward_kwargs):
        pytest.fail("touched")

    async def release(self, instance_id, **release_kwargs):
        pytest.fail("touched")


def says(*turns):
    """A policy that says one thing after the other, told by how many answers of tools it has seen."""

    def script(prompt, request_id):
        return turns[min(prompt.count("<|im_start|>assistant") - 1, len(turns) - 1)]

    return script


async def record_and_replay(tmp_path, tokenizer, engine, broken=None, config=None, **env_kwargs):
    path = tmp_path / "run.jsonl"
    tool = Odd(broken=broken)
    config = config or RunConfig(group_size=2, sampling=SamplingParams(max_new_tokens=300))
    questions = tasks("a", "b")

    def odd_env():
        return ToolEnv([tool], questions, **env_kwargs)

    def untouchable():
        return ToolEnv([Untouchable(tool.tool_schema)], questions, **env_kwargs)

    done = await RecordingRunner(path, odd_env, engine, tokenizer, config).run(questions)
    result = await replay(path, tokenizer, env=untouchable)
    assert result.equal, str(result.differences[0])
    assert result.misses == []
    assert [bare(one) for one in result.trajectories] == [scrub(bare(one)) for one in done]
    assert tool.created == tool.released
    return done, tool, path


@pytest.mark.parametrize(
    ("do", "status", "text"),
    [
        ("work", "ok", "call "),
        ("raise", "error", "KeyError: 'call "),
        ("exit", "error", "ExitError: SystemExit: 3"),
        ("hang", "timeout", "did not finish within 0.3 seconds"),
        ("refuse to stop", "timeout", "did not finish within 0.3 seconds"),
        ("cancel itself", "error", "SelfCancelledError"),
        ("infra", "sandbox_error", "[down]"),
        ("give nonsense", "error", "a tool must return ToolResult"),
        ("surrogate", "ok", "?"),
    ],
)
async def test_whatever_a_tool_does_is_replayed(tmp_path, tokenizer, scripted, do, status, text):
    engine = scripted(says(call("odd", do=do), "done"))
    # The one that must overrun its deadline soon does; on a busy machine, the others must not.
    seconds = 0.3 if status == "timeout" else 60.0
    done, tool, _ = await record_and_replay(tmp_path, tokenizer, engine, tool_timeout=seconds)
    assert tool.calls == 4
    for one in done:
        [record] = one.tool_calls
        assert record.status == status
        assert text in record.text
        assert record.infra_failure is (do == "infra")


async def test_equal_calls_of_one_turn_get_their_own_results(tmp_path, tokenizer, scripted):
    turn = "\n".join([call("odd", do="work")] * 3)
    done, tool, _ = await record_and_replay(tmp_path, tokenizer, scripted(says(turn, turn, "done")))
    assert tool.calls == 24
    for one in done:
        assert len({record.text for record in one.tool_calls}) == 6


@pytest.mark.parametrize(("broken", "kind"), [("create", "reset"), ("calc_reward", "env")])
async def test_an_env_that_fails_is_replayed(tmp_path, tokenizer, scripted, broken, kind):
    done, _, path = await record_and_replay(tmp_path, tokenizer, scripted(says("done")), broken=broken)
    assert {one.error.kind for one in done} == {kind}
    assert "sesame" not in path.read_text()


async def test_an_engine_that_fails_is_replayed(tmp_path, tokenizer, scripted):
    said = iter([call("odd", do="work"), EngineUnavailableError("gone"), "done", ("cut", FinishReason.ABORT)])
    config = RunConfig(
        group_size=2,
        max_concurrent=1,
        sampling=SamplingParams(max_new_tokens=300),
        limits=Limits(max_resumes=0),
    )
    done, _, _ = await record_and_replay(tmp_path, tokenizer, scripted(lambda *_: next(said, "#### 6")), config=config)
    assert [one.error.message if one.error else None for one in done] == [
        "EngineUnavailableError: gone",
        None,
        None,
        None,
    ]
    assert [one.stop_reason for one in done] == ["error", "answered", "aborted", "answered"]


async def test_an_engine_that_overran_its_deadline_does_not_take_the_time_again(
    tmp_path, tokenizer, scripted, monkeypatch
):
    limits = Limits(engine_timeout=0.5)
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), limits=limits)
    path = tmp_path / "run.jsonl"
    runner = RecordingRunner(path, "CodeInterpreter-v0", scripted(lambda *_: 30), tokenizer, config)
    [one] = await runner.run(tasks("a"))
    assert (one.error.kind, one.stop_reason) == ("engine_timeout", "timeout")

    async def without_deadline(coroutine, seconds):
        return await coroutine

    monkeypatch.setattr("toolgym.rollout.episode.with_deadline", without_deadline)
    async with asyncio.timeout(60):
        assert (await replay(path, tokenizer)).equal


async def test_an_episode_that_its_own_deadline_ended_ends_so_again(tmp_path, tokenizer, scripted):
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), limits=Limits(episode_timeout=1.5))
    path = tmp_path / "run.jsonl"
    runner = RecordingRunner(path, "CodeInterpreter-v0", scripted(lambda *_: 30), tokenizer, config)
    [one] = await runner.run(tasks("a"))
    assert one.error.kind == "episode_timeout"
    assert (await replay(path, tokenizer)).equal


async def test_a_run_that_was_stopped_leaves_its_recording(tmp_path, tokenizer, scripted):
    path = tmp_path / "run.jsonl"
    config = RunConfig(max_concurrent=1, sampling=SamplingParams(max_new_tokens=300))
    said = iter(["#### 6", "#### 6", 30])
    runner = RecordingRunner(path, "CodeInterpreter-v0", scripted(lambda *_: next(said)), tokenizer, config)
    stream = runner.stream(tasks("a", "b", "c", "d"))
    finished = [await anext(stream), await anext(stream)]
    await asyncio.sleep(0.1)  # the third is being asked
    await stream.aclose()
    cassette = Cassette.load(path)
    assert not cassette.ended
    result = await replay(cassette, tokenizer)
    assert (result.compared, result.equal, len(finished)) == (2, True, 2)
    assert result.unfinished == [(2, 0), (3, 0)]
    assert any("the recording stopped while" in missed for missed in result.misses)


async def test_an_env_that_could_not_be_made_is_not_compared(tmp_path, tokenizer, scripted):
    made = []

    def fragile():
        made.append(1)
        if len(made) == 2:
            raise OSError("no")
        return CodeInterpreterEnv()

    path = tmp_path / "run.jsonl"
    config = RunConfig(group_size=2, sampling=SamplingParams(max_new_tokens=300))
    done = await RecordingRunner(path, fragile, scripted(says("#### 6")), tokenizer, config).run(tasks("a"))
    assert [one.error.kind if one.error else None for one in done] == [None, "env_create"]
    result = await replay(path, tokenizer, env=CodeInterpreterEnv)
    assert (result.equal, result.compared, result.not_made) == (True, 1, [(0, 1)])


async def test_a_wrapped_env_is_recorded_inside(tmp_path, tokenizer, scripted, monkeypatch):
    def wrapped():
        return TruncateResults(CodeInterpreterEnv(), max_chars=40)

    path = tmp_path / "run.jsonl"
    engine = scripted(says(call("code_interpreter", code="print('x' * 500)"), "done"))
    [one] = await RecordingRunner(path, wrapped, engine, tokenizer).run(tasks("a"))
    assert "x" * 500 in path.read_text()
    assert "x" * 500 not in one.response_text
    monkeypatch.setattr("toolgym.tools.sandbox.shared.SharedSandbox.session", None)
    assert (await replay(path, tokenizer, env=wrapped)).equal


async def test_a_tool_call_that_was_not_recorded_says_what_was(tmp_path, tokenizer, scripted):
    engine = scripted(says(call("odd", do="work"), "done"))
    _, _, path = await record_and_replay(tmp_path, tokenizer, engine)
    cassette = Cassette.load(path)
    from toolgym.rollout.recorded_tools import ReplayedTool

    replayed = ReplayedTool(cassette.tools[0], cassette)
    with (
        playing(0, 1),
        pytest.raises(CassetteMissError, match=r"odd.execute with {'do': 'play'} is not in .*{'do': 'work'}"),
    ):
        await replayed.execute("x", {"do": "play"})


def test_code_outside_of_episodes_belongs_to_none():
    assert current_episode() is None
    with playing(2, 3):
        assert current_episode() == (2, 3)
    assert current_episode() is None


# ---------------------------------------------------------------------- secrets


async def test_secrets_are_not_written(tmp_path, tokenizer, scripted):
    engine = scripted(says(call("odd", do="raise"), EngineError("POST http://me:sesame@host: Bearer sesame refused")))
    path = tmp_path / "run.jsonl"
    kwargs = {"odd": {"execute_kwargs": {"api_key": "sesame", "nested": {"authToken": "sesame"}, "max_tokens": 4}}}
    questions = tasks("a", tools_kwargs=kwargs)

    def env():
        return ToolEnv([Odd()], questions)

    [one] = await RecordingRunner(path, env, engine, tokenizer).run(questions)
    assert "sesame" in one.error.message
    text = path.read_text()
    assert "sesame" not in text
    assert text.count("[redacted]") >= 4
    assert '"max_tokens":4' in text
    assert (await replay(path, tokenizer, env=env)).equal


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


# ---------------------------------------------------------------------- what a replay needs


async def test_another_tokenizer_or_template_is_refused(recorded, tmp_path):
    other = load_tokenizer(tiny_policy_path())
    other("warm", truncation=True, max_length=2, padding="max_length")  # what a call leaves behind does not matter
    assert (await replay(recorded[0], other)).equal
    other.chat_template += " "
    with pytest.raises(ConfigError, match="another chat template .*'tiny'"):
        await replay(recorded[0], other)
    other = load_tokenizer(tiny_policy_path())
    other.add_tokens(["<new>"])
    with pytest.raises(ConfigError, match="another tokenizer"):
        await replay(recorded[0], other)
    assert (
        tokenizer_fingerprint(other)["chat_template"]
        == tokenizer_fingerprint(load_tokenizer(tiny_policy_path()))["chat_template"]
    )


async def test_what_a_recording_cannot_hold_is_asked_for(tmp_path, tokenizer, scripted):
    path = tmp_path / "run.jsonl"
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), template_kwargs={"odd": {1, 2}})
    await RecordingRunner(path, CodeInterpreterEnv, scripted(says("#### 6")), tokenizer, config).run(tasks("a"))
    with pytest.raises(ConfigError, match=r"template_kwargs.*config="):
        await replay(path, tokenizer, env=CodeInterpreterEnv)
    with pytest.raises(ConfigError, match=r"'CodeInterpreterEnv': pass it as env="):
        await replay(path, tokenizer, config=config)
    assert (await replay(path, tokenizer, env=CodeInterpreterEnv, config=config)).equal


async def test_context_policies_are_part_of_the_recording(tmp_path, tokenizer, scripted):
    context = [CutToolResults(64, head=0.25), KeepToolResults(1, placeholder="gone")]
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), history="template", context=context)
    calls = [call("odd", do="work", number=number) for number in (1, 2, 3)]
    done, _, path = await record_and_replay(tmp_path, tokenizer, scripted(says(*calls, "#### 6")), config=config)
    assert {one.cause for trajectory in done for one in trajectory.sequences} == {"start", "KeepToolResults"}
    run = Cassette.load(path).run
    assert run["config_left_out"] == []
    assert config_from_json(run["config"]).context_policies == tuple(context)


class MyPolicy(KeepToolResults):
    """One of the user's, of which a recording cannot know what else it does."""


@pytest.mark.parametrize("policy", [Summarize(asyncio.sleep), MyPolicy(1)])
async def test_context_policies_of_the_users_are_asked_for(tmp_path, tokenizer, scripted, policy):
    path = tmp_path / "run.jsonl"
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), context=policy)
    await RecordingRunner(path, "CodeInterpreter-v0", scripted(says("#### 6")), tokenizer, config).run(tasks("a"))
    with pytest.raises(ConfigError, match=r"\(context\).*replay\(\.\.\., config="):
        await replay(path, tokenizer)
    assert (await replay(path, tokenizer, config=config)).equal


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
async def test_whatever_was_edited_is_a_clear_error(recorded, tokenizer, tmp_path, old, new):
    lines = recorded[0].read_text().splitlines(keepends=True)
    place = next(place for place, line in enumerate(lines) if old in line)
    lines[place] = lines[place].replace(old, new, 1)
    edited = tmp_path / "edited.jsonl"
    edited.write_text("".join(lines))
    with pytest.raises(ConfigError, match=r"not a line of a recording|not one of this library"):
        await replay(Cassette.load(edited, allow_edited=True), tokenizer)


async def test_a_recording_of_an_engine_alone_is_no_run(scripted, tokenizer, tmp_path):
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: "x"), path) as engine:
        await ask(engine, [1])
    with pytest.raises(ConfigError, match="holds no run"):
        await replay(path, tokenizer)


async def test_one_file_holds_one_run(tmp_path, tokenizer, scripted):
    runner = RecordingRunner(tmp_path / "run.jsonl", CodeInterpreterEnv, scripted(says("#### 6")), tokenizer)
    await runner.run(tasks("a"))
    with pytest.raises(ConfigError, match="holds one run"):
        await runner.run(tasks("a"))
    runner.close()


def test_arguments_that_are_not_plain_are_refused(tmp_path, tokenizer, scripted):
    engine = scripted(says(""))
    path = tmp_path / "run.jsonl"
    with pytest.raises(ConfigError, match="plain JSON"):
        RecordingRunner(path, "CodeInterpreter-v0", engine, tokenizer, env_kwargs={"scorer": len})
    assert not path.exists()
    with pytest.raises(ConfigError, match="env_kwargs go with an env id"):
        RecordingRunner(path, CodeInterpreterEnv, engine, tokenizer, env_kwargs={"max_turns": 2})


async def test_arguments_of_the_env_are_kept(tmp_path, tokenizer, scripted):
    path = tmp_path / "run.jsonl"
    kwargs = {"max_turns": 2, "tool_config": {"default_timeout": 5}, "tasks": tasks("a")}
    engine = scripted(says(call("code_interpreter", code="1")))
    [one] = await RecordingRunner(path, "CodeInterpreter-v0", engine, tokenizer, env_kwargs=kwargs).run(tasks("a"))
    assert one.stop_reason == "max_turns"
    assert Cassette.load(path).run["env_kwargs"] == {"max_turns": 2}
    assert (await replay(path, tokenizer)).equal


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


async def test_it_is_an_engine_like_any_other():
    assert issubclass(CassetteEngine, Engine)
    assert issubclass(RecordingEngine, Engine)


# ---------------------------------------------------------------------- the command


def run(*arguments, cwd):
    env = {**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "toolgym", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, env=env, check=False, cwd=cwd,
    )  # fmt: skip


@pytest.mark.slow
def test_the_command_records_and_replays(tmp_path):
    done = run(
        "rollout", "--tasks", 2, "--group-size", 2, "--max-new-tokens", 96, "--record", "run.jsonl", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    again = run("replay", "run.jsonl", "--out", "again.jsonl", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "4 of 4 episodes of CodeInterpreter-v0 are equal byte for byte" in again.stdout
    first, second = (
        sorted(read_trajectories(tmp_path / name), key=lambda one: (one.group_id, one.sample))
        for name in ("rollout-out/trajectories.jsonl", "again.jsonl")
    )
    assert [bare(one) for one in first] == [bare(one) for one in second]

    edited(tmp_path / "run.jsonl", tmp_path, EDITS["a result"])
    different = run("replay", "edited.jsonl", "--allow-edited", cwd=tmp_path)
    assert different.returncode == 1
    assert "messages[3].content\n  recorded " in different.stdout
    assert "not recorded: group " in different.stdout
    assert "3 of 4 episodes" in different.stdout
    assert "Traceback" not in different.stderr


def test_the_command_names_what_is_wrong(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.jsonl").write_text("hello\n")
    for arguments, message in ((["runs.jsonl"], "did you mean 'run.jsonl'"), (["run.jsonl"], "not a recording")):
        monkeypatch.setattr("sys.argv", ["toolgym", "replay", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "run.jsonl", "--out", "./run.jsonl"],
        ["rollout", "--out", ".", "--record", "trajectories.jsonl"],
        ["rollout", "--out", ".", "--record", "there/../batch.safetensors"],
    ],
)
def test_one_file_is_not_written_twice(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "run.jsonl").write_text("kept")
    monkeypatch.setattr("sys.argv", ["toolgym", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "name another file" in capsys.readouterr().err
    assert (tmp_path / "run.jsonl").read_text() == "kept"
