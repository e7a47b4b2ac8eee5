"""Recorded runs: whatever a tool, an env or the engine does is recorded, and replayed equal."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from tests.actors import call
from toolgym.envs import CodeInterpreterEnv, Task, ToolEnv
from toolgym.rollout import EpisodeLimits, RunConfig, Runner, SamplingParams, replay
from toolgym.rollout.engines import FinishReason
from toolgym.rollout.job import EpisodeKey, enter_episode
from toolgym.rollout.recording import recorded
from toolgym.rollout.recording.cassette import Cassette, CassetteMissError
from toolgym.rollout.recording.recorder import config_from_json
from toolgym.rollout.recording.secrets import scrub
from toolgym.rollout.recording.tools import ReplayedTool
from toolgym.rollout.tokens import CutToolResults, KeepToolResults, Summarize
from toolgym.tools import BaseTool, ToolResult
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError, ForkNotSupportedError
from toolgym.tools.parsers import get_parser
from toolgym.wrappers import TruncateResults


def tasks(*questions, **kwargs):
    return [Task(({"role": "user", "content": text},), ground_truth="6", id=text, **kwargs) for text in questions]


async def record(path, env, engine, questions, *, config=None, **kwargs):
    """Record a run; returns its trajectories."""
    with recorded(Runner(env, engine, config=config, **kwargs), questions, path) as runner:
        return await runner.run(questions)


class ConnectionLostError(Exception):
    """A client's own, which a replay does not know."""


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
            case "disconnect":
                try:
                    raise OSError("10.0.0.7 is down")
                except OSError as error:
                    raise ConnectionLostError("http://10.0.0.7 after 5 attempts") from error
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


@pytest.fixture
def record_and_replay(tmp_path, tokenizer, bare):
    async def play(engine, broken=None, config=None, **env_kwargs):
        path = tmp_path / "run.jsonl"
        tool = Odd(broken=broken)
        config = config or RunConfig(group_size=2, sampling=SamplingParams(max_new_tokens=300))
        questions = tasks("a", "b")

        def odd_env():
            return ToolEnv([tool], questions, **env_kwargs)

        def untouchable():
            return ToolEnv([Untouchable(tool.tool_schema)], questions, **env_kwargs)

        done = await record(path, odd_env, engine, questions, config=config)
        result = await replay(path, tokenizer, env=untouchable)
        assert result.equal, str(result.differences[0])
        assert result.misses == []
        assert [bare(one) for one in result.trajectories] == [scrub(bare(one)) for one in done]
        assert tool.created == tool.released
        return done, tool, path

    return play


@pytest.mark.parametrize(
    ("do", "status", "text"),
    [
        ("work", "ok", "call "),
        ("raise", "error", "KeyError: call "),
        ("exit", "error", "ExitError: SystemExit: 3"),
        ("hang", "timeout", "did not finish within 0.3 seconds"),
        ("refuse to stop", "timeout", "did not finish within 0.3 seconds"),
        ("cancel itself", "error", "SelfCancelledError"),
        ("infra", "sandbox_error", "[down]"),
        ("disconnect", "error", "not available now"),
        ("give nonsense", "error", "a tool must return ToolResult"),
        ("surrogate", "ok", "?"),
    ],
)
async def test_whatever_a_tool_does_is_replayed(record_and_replay, scripted, do, status, text):
    engine = scripted(says(call("odd", do=do), "done"))
    # The one that must overrun its deadline soon does; on a busy machine, the others must not.
    seconds = 0.3 if status == "timeout" else 60.0
    done, tool, _ = await record_and_replay(engine, tool_timeout=seconds)
    assert tool.calls == 4
    for one in done:
        [record] = one.tool_calls
        assert record.status == status
        assert text in record.text
        assert record.infra_failure is (do in ("infra", "disconnect"))


async def test_equal_calls_of_one_turn_get_their_own_results(record_and_replay, scripted):
    turn = "\n".join([call("odd", do="work")] * 3)
    done, tool, _ = await record_and_replay(scripted(says(turn, turn, "done")))
    assert tool.calls == 24
    for one in done:
        assert len({record.text for record in one.tool_calls}) == 6


@pytest.mark.parametrize(("broken", "reason"), [("create", "reset_failed"), ("calc_reward", "tool_failed")])
async def test_an_env_that_fails_is_replayed(record_and_replay, scripted, broken, reason):
    done, _, path = await record_and_replay(scripted(says("done")), broken=broken)
    assert {one.stop_reason for one in done} == {reason}
    assert "sesame" not in path.read_text()


async def test_an_engine_that_fails_is_replayed(record_and_replay, scripted):
    said = iter([call("odd", do="work"), EngineUnavailableError("gone"), "done", ("cut", FinishReason.ABORT)])
    config = RunConfig(
        group_size=2,
        max_concurrent=1,
        sampling=SamplingParams(max_new_tokens=300),
        limits=EpisodeLimits(max_resumes=0),
    )
    done, _, _ = await record_and_replay(scripted(lambda *_: next(said, "#### 6")), config=config)
    assert [one.error.message if one.error else None for one in done] == [
        "EngineUnavailableError: gone",
        None,
        None,
        None,
    ]
    assert [one.stop_reason for one in done] == ["engine_failed", "answered", "aborted", "answered"]


async def test_an_engine_that_overran_its_deadline_does_not_take_the_time_again(
    tmp_path, tokenizer, scripted, monkeypatch
):
    limits = EpisodeLimits(engine_timeout=0.5)
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), limits=limits)
    path = tmp_path / "run.jsonl"
    [one] = await record(path, "CodeInterpreter-v0", scripted(lambda *_: 600), tasks("a"), config=config)
    assert (one.failed, one.stop_reason) == (True, "engine_timeout")

    async def without_deadline(coroutine, seconds):
        return await coroutine

    monkeypatch.setattr("toolgym.rollout.episode.episode.with_deadline", without_deadline)
    async with asyncio.timeout(60):
        assert (await replay(path, tokenizer)).equal


async def test_an_episode_that_its_own_deadline_ended_ends_so_again(tmp_path, tokenizer, scripted):
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), limits=EpisodeLimits(episode_timeout=1.5))
    path = tmp_path / "run.jsonl"
    [one] = await record(path, "CodeInterpreter-v0", scripted(lambda *_: 600), tasks("a"), config=config)
    assert one.stop_reason == "episode_timeout"
    assert (await replay(path, tokenizer)).equal


async def test_rows_of_any_shape_are_recorded_without_their_secrets(tmp_path, tokenizer, scripted):
    prompt = [{"role": "user", "content": "q"}]
    rows = [
        {"prompt": prompt, "reward_model": {"ground_truth": [6, "six"]}},
        {"prompt": prompt, "extra_info": {"interaction_kwargs": {"api_key": "sesame"}, "split": "train"}},
    ]
    asked = [Task.from_row(row, id=f"line {number}") for number, row in enumerate(rows)]
    path = tmp_path / "run.jsonl"
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300))
    done = await record(path, "CodeInterpreter-v0", scripted(says("#### 6")), asked, config=config)
    assert [(one.reward, one.task_id) for one in done] == [(1.0, "line 0"), (0.0, "line 1")]
    assert "sesame" not in path.read_text()
    assert (await replay(path, tokenizer)).equal


async def test_a_run_that_was_stopped_leaves_its_recording(tmp_path, tokenizer, scripted):
    path = tmp_path / "run.jsonl"
    config = RunConfig(max_concurrent=1, sampling=SamplingParams(max_new_tokens=300))
    said = iter(["#### 6", "#### 6", 600])
    questions = tasks("a", "b", "c", "d")
    engine = scripted(lambda *_: next(said))
    plain = Runner("CodeInterpreter-v0", engine, config=config)
    with recorded(plain, questions, path) as runner:
        stream = runner.stream(questions)
        finished = [await anext(stream), await anext(stream)]
        async with asyncio.timeout(60):
            while len(engine.seen) < 3:
                await asyncio.sleep(0.01)
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
    done = await record(path, fragile, scripted(says("#### 6")), tasks("a"), config=config)
    assert [one.stop_reason for one in done] == ["answered", "env_create_failed"]
    assert [one.failed for one in done] == [False, True]
    result = await replay(path, tokenizer, env=CodeInterpreterEnv)
    assert (result.equal, result.compared, result.not_made) == (True, 1, [(0, 1)])


async def test_a_wrapped_env_is_recorded_inside(tmp_path, tokenizer, scripted, monkeypatch):
    def wrapped():
        return TruncateResults(CodeInterpreterEnv(), max_chars=40)

    path = tmp_path / "run.jsonl"
    engine = scripted(says(call("code_interpreter", code="print('x' * 500)"), "done"))
    [one] = await record(path, wrapped, engine, tasks("a"))
    assert "x" * 500 in path.read_text()
    assert "x" * 500 not in one.response_text
    monkeypatch.setattr("toolgym.tools.sandbox.shared.SharedSandbox.session", None)
    assert (await replay(path, tokenizer, env=wrapped)).equal


class Forking(ToolEnv):
    """Forks itself at its first step, and lets the fork go first."""

    async def step(self, action):
        if not hasattr(self, "twin"):
            self.twin, self.said = None, ""
            try:
                self.twin = await self.fork()
            except ForkNotSupportedError as error:
                self.said = f"{type(error).__name__}: {error}"
            else:
                self.said = (await self.twin.step(action)).obs[-1]["content"]
                await self.twin.close()
        result = await super().step(action)
        result.info["metrics"]["said"] = self.said
        return result


class Forkable(Odd):
    async def fork(self, instance_id):
        self.created += 1
        return f"{instance_id} again"


@pytest.mark.parametrize(("kind", "said"), [(Forkable, "call 1 at "), (Odd, "cannot be forked")])
async def test_a_fork_is_replayed(tmp_path, tokenizer, scripted, bare, kind, said):
    tool = kind()
    path = tmp_path / "run.jsonl"
    engine = scripted(says(call("odd", do="work"), "done"))
    [one] = await record(path, lambda: Forking([tool], tasks("a")), engine, tasks("a"))
    assert one.error is None
    assert said in one.metrics["said"]
    assert tool.created == tool.released
    result = await replay(path, tokenizer, env=lambda: Forking([Untouchable(tool.tool_schema)], tasks("a")))
    assert result.equal, str(result.differences[0])
    assert [bare(again) for again in result.trajectories] == [bare(one)]


async def test_a_tool_call_that_was_not_recorded_says_what_was(record_and_replay, scripted):
    engine = scripted(says(call("odd", do="work"), "done"))
    _, _, path = await record_and_replay(engine)
    cassette = Cassette.load(path)
    replayed = ReplayedTool(next(iter(cassette.tools.values()))[0], cassette)
    enter_episode(EpisodeKey(0, 1))
    with pytest.raises(CassetteMissError, match=r"odd.execute with {'do': 'play'} is not in .*{'do': 'work'}"):
        await replayed.execute("x", {"do": "play"})


# ---------------------------------------------------------------------- what a recording holds


async def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path, scripted):
    (tmp_path / "file").touch()
    engine = scripted(lambda *_: "")
    with pytest.raises(ConfigError, match="cannot record"):
        await record(tmp_path / "file" / "run.jsonl", "CodeInterpreter-v0", engine, tasks("a"))
    assert engine.seen == {}


async def test_secrets_are_not_written(tmp_path, tokenizer, scripted):
    engine = scripted(says(call("odd", do="raise"), EngineError("POST http://me:sesame@host: Bearer sesame refused")))
    path = tmp_path / "run.jsonl"
    kwargs = {"odd": {"execute_kwargs": {"api_key": "sesame", "nested": {"authToken": "sesame"}, "max_tokens": 4}}}
    questions = tasks("a", tools_kwargs=kwargs)

    def env():
        return ToolEnv([Odd()], questions)

    [one] = await record(path, env, engine, questions)
    assert "sesame" in one.error.message
    text = path.read_text()
    assert "sesame" not in text
    assert text.count("[redacted]") >= 4
    assert '"max_tokens":4' in text
    assert (await replay(path, tokenizer, env=env)).equal


async def test_what_a_recording_cannot_hold_is_asked_for(tmp_path, tokenizer, scripted):
    path = tmp_path / "run.jsonl"
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), template_kwargs={"odd": {1, 2}})
    await record(path, CodeInterpreterEnv, scripted(says("#### 6")), tasks("a"), config=config)
    with pytest.raises(ConfigError, match=r"template_kwargs.*config="):
        await replay(path, tokenizer, env=CodeInterpreterEnv)
    with pytest.raises(ConfigError, match=r"'CodeInterpreterEnv': pass it as env="):
        await replay(path, tokenizer, config=config)
    assert (await replay(path, tokenizer, env=CodeInterpreterEnv, config=config)).equal


async def test_payloads_of_the_engine_are_part_of_the_recording(record_and_replay, scripted):
    engine = scripted(says(call("odd", do="work"), "#### 6"))
    engine.aligned = lambda request_id, ids: {"routed_experts": np.array(ids, dtype=np.uint16)[:, None]}
    done, _, _ = await record_and_replay(engine)
    policy = [segment for one in done for segment in one.segments if segment.is_policy]
    assert all(np.array_equal(segment.aligned["routed_experts"][:, 0], segment.token_ids) for segment in policy)


async def test_context_policies_are_part_of_the_recording(record_and_replay, scripted):
    context = [CutToolResults(64, head=0.25), KeepToolResults(1, placeholder="gone")]
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), history="template", context=context)
    calls = [call("odd", do="work", number=number) for number in (1, 2, 3)]
    done, _, path = await record_and_replay(scripted(says(*calls, "#### 6")), config=config)
    assert {one.start_reason for trajectory in done for one in trajectory.sequences} == {"start", "KeepToolResults"}
    run = Cassette.load(path).run
    assert run["config_left_out"] == []
    assert config_from_json(run["config"]).context_policies == tuple(context)


class MyPolicy(KeepToolResults):
    """One of the user's, of which a recording cannot know what else it does."""


@pytest.mark.parametrize("policy", [Summarize(asyncio.sleep), MyPolicy(1)])
async def test_context_policies_of_the_users_are_asked_for(tmp_path, tokenizer, scripted, policy):
    path = tmp_path / "run.jsonl"
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), context=policy)
    await record(path, "CodeInterpreter-v0", scripted(says("#### 6")), tasks("a"), config=config)
    with pytest.raises(ConfigError, match=r"\(context\).*replay\(\.\.\., config="):
        await replay(path, tokenizer)
    assert (await replay(path, tokenizer, config=config)).equal


async def test_one_file_holds_one_run(tmp_path, tokenizer, scripted):
    path = tmp_path / "run.jsonl"
    with recorded(Runner(CodeInterpreterEnv, scripted(says("#### 6"))), tasks("a"), path) as runner:
        await runner.run(tasks("a"))
        with pytest.raises(ConfigError, match="holds one run"):
            await runner.run(tasks("a"))
    cassette = Cassette.load(path)
    assert (cassette.ended, len(cassette.trajectories)) == (True, 1)
    assert (await replay(cassette, tokenizer, env=CodeInterpreterEnv)).equal


async def test_arguments_that_are_not_plain_are_refused(tmp_path, scripted):
    engine = scripted(says(""))
    path = tmp_path / "run.jsonl"
    with pytest.raises(ConfigError, match="plain JSON"):
        await record(path, "CodeInterpreter-v0", engine, tasks("a"), env_kwargs={"scorer": len})
    assert not path.exists()


async def test_arguments_of_the_env_are_kept(tmp_path, tokenizer, scripted):
    path = tmp_path / "run.jsonl"
    kwargs = {"max_turns": 2, "tool_config": {"default_timeout": 5}, "tasks": tasks("a")}
    engine = scripted(says(call("code_interpreter", code="1")))
    [one] = await record(path, "CodeInterpreter-v0", engine, tasks("a"), env_kwargs=kwargs)
    assert one.stop_reason == "max_turns"
    assert Cassette.load(path).run["env_kwargs"] == {"max_turns": 2}
    assert (await replay(path, tokenizer)).equal


async def test_the_parser_is_part_of_the_recording(tmp_path, tokenizer, scripted):
    """The template shows Hermes' format; the turns are written, and recorded, in Mistral's."""
    path = tmp_path / "run.jsonl"
    engine = scripted(says('[TOOL_CALLS]code_interpreter[ARGS]{"code": "1"}', "#### 6"))
    config = RunConfig(parser="mistral")
    [one] = await record(path, "CodeInterpreter-v0", engine, tasks("a"), config=config)
    assert [record.id for record in one.tool_calls] == ["call00000"]
    assert (await replay(path, tokenizer)).equal


async def test_a_parser_that_is_a_function_is_asked_for(tmp_path, tokenizer, scripted):
    path = tmp_path / "run.jsonl"
    config = RunConfig(parser=get_parser("hermes"))
    engine = scripted(says(call("code_interpreter", code="1"), "#### 6"))
    [one] = await record(path, "CodeInterpreter-v0", engine, tasks("a"), config=config)
    assert [record.name for record in one.tool_calls] == ["code_interpreter"]
    assert Cassette.load(path).run["config_left_out"] == ["parser"]
    with pytest.raises(ConfigError, match=r"\(parser\).*replay\(\.\.\., config="):
        await replay(path, tokenizer)
    assert (await replay(path, tokenizer, config=config)).equal
