"""Any env as verifiers' taskset `toolgym-v1`: its loader, its env server over ZMQ, its interception and its traces."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tomllib
from pathlib import Path

import pytest

from tests.rollout.adapters.slime_router_stand_in import call_then_answer
from tests.rollout.adapters.sums import Sums, code_interpreter
from toolgym import register
from toolgym.envs import ArithmeticTasks, ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout import tiny_policy_path
from toolgym.tools.errors import ConfigError, MissingExtraError, SandboxUnavailableError, UnknownNameError

TIMEOUT = 240.0


def test_without_verifiers_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    for name in [name for name in sys.modules if name.startswith(("toolgym.rollout.adapters.verifiers", "toolgym_v1"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match="pip install '?verifiers"):
        import toolgym_v1  # noqa: F401


try:
    import verifiers.v1 as vf
except ImportError:
    vf = None
else:
    from verifiers.v1.serve.client import EnvClient
    from verifiers.v1.serve.server import EnvServer
    from verifiers.v1.utils import loaders

needs_verifiers = pytest.mark.skipif(vf is None, reason="verifiers is not installed")


class Broken(ToolEnv):
    """An env whose sandbox is gone."""

    def __init__(self):
        super().__init__([code_interpreter], ArithmeticTasks())

    def respond(self, turn):
        raise SandboxUnavailableError("no disk")


register("tests/Broken-v0", Broken)

ROW = {
    "prompt": [
        {"role": "system", "content": "Compute."},
        {"role": "user", "content": "What is 1+1?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "code_interpreter", "arguments": {"code": "(1+1)"}},
                }
            ],
        },
        {"role": "tool", "content": "2", "tool_call_id": "a"},
        {"role": "assistant", "content": "#### 2"},
        {"role": "user", "content": "What is 2*3?"},
    ],
    "reward_model": {"ground_truth": "6", "style": "rule"},
    "data_source": "sums",
    "extra_info": {"index": 7, "level": [1, None]},
}


SHORT = {**ROW, "prompt": [ROW["prompt"][0], ROW["prompt"][-1]]}
"""The same without a call in its prompt."""


def config(text):
    return loaders.resolve_env_config(tomllib.loads(text))


@needs_verifiers
def test_verifiers_loader_finds_all_three_by_one_id():
    read = config("""
        [taskset]
        id = "toolgym-v1"
        env = "tests/Sums-v0"
        env_kwargs = { max_turns = 3 }
        [agent.harness]
        id = "toolgym-v1"
        limits = { episode_timeout = 60 }
    """)
    env = loaders.load_environment(read)
    assert type(env).__name__ == "ToolgymEnv"
    assert type(env.taskset).__name__ == "ToolgymTaskset"
    assert isinstance(read.agent.runtime, vf.SubprocessConfig)
    assert read.agent.harness.limits == {"episode_timeout": 60.0}
    again = loaders.resolve_env_config(json.loads(read.model_dump_json()))
    loaders.load_environment(again)  # as an env server gets it
    assert loaders.default_harness_id("toolgym-v1") == "toolgym-v1"
    bare = loaders.taskset_config_type("toolgym-v1").model_validate({"id": "toolgym-v1"})  # as verifiers' CLI begins
    with pytest.raises(ConfigError, match="which env"):
        next(iter(loaders.load_taskset(bare)))


@needs_verifiers
async def test_tasks_come_from_the_env_or_a_file_and_lose_nothing(tmp_path):
    own = loaders.load_taskset(config('taskset = { id = "toolgym-v1", env = "tests/Sums-v0" }').taskset)
    assert not own.bounded
    first = [task.data for task in own.take(3)]
    assert [task.data for task in own.take(3)] == first
    assert len({data.id for data in first}) == 3
    assert own.take(3).shuffle(seed=1).bounded

    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({"prompt": ROW["prompt"][-1:]}) + "\n")
    settings = {"id": "toolgym-v1", "env": "tests/Sums-v0", "file": str(path)}
    tasks = list(loaders.load_taskset(config(f"taskset = {json.dumps(settings).replace(': ', '= ')}").taskset))
    assert [task.data.id for task in tasks] == ["7", "2"]
    data = type(tasks[0].data).model_validate(json.loads(tasks[0].data.model_dump_json()))  # as it goes over the wire
    assert data.task() == Task.from_row(ROW)
    assert data.task().row == ROW
    assert data.prompt[2].tool_calls[0].arguments == '{"code": "(1+1)"}'
    told = tasks[0].with_system_prompt("Be brief.").data.task()
    assert [message["role"] for message in told.messages] == [message["role"] for message in ROW["prompt"]]
    assert told.messages[0]["content"] == "Be brief."


@needs_verifiers
def test_the_docs_sources_load():
    page = (Path(__file__).parents[3] / "docs/trainers.md").read_text("utf-8")
    written = page.partition("## prime-rl and verifiers")[2].partition("```toml\n")[2].partition("```")[0]
    read = tomllib.loads(written)["orchestrator"]
    train, evaluation = read["train"]["source"][0]["env"], read["eval"]["source"][0]["env"]
    for given, max_turns in ((train, 8), (evaluation, None)):
        env = loaders.load_environment(loaders.resolve_env_config(given))
        [task] = env.taskset.take(1)
        assert task.data.env == "CodeInterpreter-v0"
        assert task.data.env_kwargs.get("max_turns") == max_turns


@needs_verifiers
def test_mistakes_are_errors():
    taskset = 'taskset = { id = "toolgym-v1", env = "tests/Sums-v0" }\n'
    with pytest.raises(UnknownNameError, match="did you mean 'tests/Sums-v0'"):
        next(iter(loaders.load_taskset(config(taskset.replace("Sums", "Sum")).taskset)))
    with pytest.raises(UnknownNameError, match="no split 'nosuch'"):
        next(iter(loaders.load_taskset(config(taskset.replace(" }", ', split = "nosuch" }')).taskset)))
    with pytest.raises(ConfigError, match="has no use for disabled_tools"):
        loaders.load_environment(
            config(taskset + 'agent.harness = { id = "toolgym-v1", disabled_tools = ["code_interpreter"] }')
        )
    with pytest.raises(ValueError, match="episode_timeot"):
        config(taskset + 'agent.harness = { id = "toolgym-v1", limits = { episode_timeot = 3 } }')


# ------------------------------------------------------------------ episodes in the env server


class Server:
    """verifiers' env server in this process, and its client."""

    def __init__(self, engine, url, client, env):
        self.engine, self.env, self._client = engine, env, client
        self._model = vf.TrainClientConfig(
            base_url=f"{url}/v1",
            api_key_var="NO_KEY",
            renderer={"name": "qwen3", "enable_thinking": False},
            renderer_model_name=str(tiny_policy_path()),
        )

    async def play(self, row=SHORT, **sampling):
        """The trace of one episode."""
        data = {**next(iter(self.env.taskset)).data.model_dump(mode="json"), "row": row}
        sampled = vf.SamplingConfig(**{"temperature": 1.0, "max_tokens": 64, **sampling})
        async with asyncio.timeout(TIMEOUT):
            episode = await self._client.run(self._model, "policy", sampled, data)
        [trace] = episode.traces
        return trace


@contextlib.asynccontextmanager
async def serving(policy=call_then_answer, env="tests/Sums-v0", agent=""):
    from renderers.base import load_tokenizer

    from tests.rollout.adapters.verifiers_stand_in import Engine

    engine = Engine(load_tokenizer(str(tiny_policy_path())), policy)
    async with engine.serve() as url:
        read = config(f'taskset = {{ id = "toolgym-v1", env = "{env}" }}\n{agent}')
        server = EnvServer(read, "tcp://127.0.0.1:0")
        running = asyncio.create_task(server.run())
        client = EnvClient(server.address)
        try:
            yield Server(engine, url, client, server.env)
        finally:
            await client.close()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@needs_verifiers
async def test_the_trace_has_exactly_the_tokens_that_went_over_the_wire():
    async with serving() as server:
        trace = await server.play(top_p=0.9)
        (first, called), (second, answered) = server.engine.asked
    assert (trace.ok, trace.reward, trace.num_turns, trace.stop_condition) == (True, 1.25, 2, "agent_completed")
    [branch] = trace.branches
    assert branch.token_ids == second + answered
    assert second[: len(first + called)] == first + called
    between = len(second) - len(first + called)
    mask = [False] * len(first) + [True] * len(called) + [False] * between + [True] * len(answered)
    assert branch.sampled_mask == mask
    told = [-0.5 - n / 64 for ids in (called, answered) for n in range(len(ids))]
    assert [value for value, own in zip(branch.logprobs, mask, strict=True) if own] == told
    assert [node.logprobs for node in trace.nodes if node.sampled] == [told[: len(called)], told[len(called) :]]
    assert [node.message.role for node in trace.nodes] == ["system", "user", "assistant", "tool", "assistant"]
    assert trace.tool_messages[-1].content == "6"
    assert {one["top_p"] for one in server.engine.sampling} == {0.9}
    assert trace.task.data.model_extra["row"] == SHORT


@needs_verifiers
async def test_a_cut_turn_and_a_budget_of_verifiers_end_the_episode_with_the_reward_until_then():
    async with serving() as server:
        trace = await server.play(max_tokens=3)
        assert (trace.ok, trace.reward, trace.num_turns, trace.is_truncated) == (True, 0.0, 1, True)
    async with serving(agent="agent.max_turns = 1") as server:
        trace = await server.play()
        assert (trace.ok, trace.reward, trace.num_turns) == (True, 0.25, 1)
        assert (trace.stop_condition, trace.is_truncated) == ("max_turns", True)


@needs_verifiers
async def test_what_breaks_off_has_no_reward_and_says_why():
    async with serving(policy=lambda seen: 500) as server:
        trace = await server.play()
        assert (trace.ok, trace.rewards, trace.last_error.type) == (False, {}, "ProviderError")
        assert "cuda died" in trace.last_error.message
    async with serving(policy=lambda seen: "#### 6", env="tests/Broken-v0") as server:
        trace = await server.play()
        assert (trace.ok, trace.rewards, trace.last_error.type) == (False, {}, "HarnessError")
        assert "no disk" in trace.last_error.message
    async with serving(agent="agent.timeout.rollout = 0.000001") as server:
        trace = await server.play()
        assert (trace.ok, trace.rewards, trace.last_error.type) == (False, {"reward": None}, "TaskError")
        assert "a deadline of verifiers broke it off" in trace.last_error.message


@needs_verifiers
async def test_a_conversation_that_became_too_long_is_the_models_doing():
    def long(seen):
        return '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "1" }}\n</tool_call>' + "x" * 3000

    async with serving(policy=long) as server:
        trace = await server.play(max_tokens=4000)
    assert (trace.ok, trace.reward, trace.num_turns) == (True, 0.25, 1)
    assert "maximum context length" in trace.calls[-1].error.message


class Watched(Sums):
    closed = 0

    async def close(self):
        type(self).closed += 1
        await super().close()


register("tests/Watched-v0", Watched)


@needs_verifiers
async def test_a_run_that_prime_rl_gives_up_closes_its_env():
    async with serving(policy=lambda seen: 60.0, env="tests/Watched-v0") as server:
        playing = asyncio.create_task(server.play())
        async with asyncio.timeout(TIMEOUT):
            while not server.engine.headers:
                await asyncio.sleep(0.01)
            Watched.closed = 0  # one env told what its tasks are
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            while not Watched.closed:
                await asyncio.sleep(0.01)
    assert Watched.closed == 1


@needs_verifiers
async def test_episodes_play_at_the_same_time():
    async with serving() as server:
        traces = await asyncio.gather(*(server.play() for _ in range(8)))
    assert [(trace.ok, trace.reward, trace.num_branches) for trace in traces] == [(True, 1.25, 1)] * 8
    assert len({headers["X-Session-ID"] for headers in server.engine.headers}) == 8
