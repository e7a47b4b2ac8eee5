"""One list of wrappers everywhere: toolgym.make, Gymnasium, registered ids, rollouts, classes of tools."""

from __future__ import annotations

import json
from functools import partial

import gymnasium
import pytest

import toolgym
from toolgym.envs import ToolVectorEnv, tool_class
from toolgym.envs.library.code_interpreter import CodeInterpreterEnv
from toolgym.envs.served.catalog import load_env
from toolgym.envs.tasks.arithmetic import ArithmeticTasks
from toolgym.rollout import (
    RunConfig,
    SamplingParams,
    load_tokenizer,
    open_engine,
    replay,
    rollout,
    run_episode,
    tiny_policy_path,
)
from toolgym.rollout.recording import recorded
from toolgym.rollout.runner.local import Runner
from toolgym.tools.errors import ConfigError, UnknownArgumentError, UnknownNameError
from toolgym.wrappers import Compact, Compose, TruncateResults, TurnLimit

ID = "CodeInterpreter-v0"
BAD = "<tool_call>no JSON</tool_call>"
WRITTEN = [
    {"name": "toolgym.wrappers:TruncateResults", "kwargs": {"max_chars": 30}},
    {"name": "toolgym.wrappers:TurnLimit", "kwargs": {"max_turns": 2}},
]
FORMS = {
    "functions": [partial(TruncateResults, max_chars=30), lambda env: TurnLimit(env, 2)],
    "written": WRITTEN,
    "composed": Compose(WRITTEN[0], partial(TurnLimit, max_turns=2)),
    "composed in a list": [Compose(*WRITTEN)],
    "named": ["tests.wrappers.test_lists:short"],
}


def short(env):
    return TurnLimit(TruncateResults(env, 30), 2)


@pytest.fixture(params=FORMS)
def wrappers(request):
    return FORMS[request.param]


async def test_make_puts_them_around_in_their_order(wrappers):
    async with toolgym.make(ID, wrappers=wrappers, max_turns=5) as env:
        assert (type(env), type(env.env), type(env.unwrapped)) == (TurnLimit, TruncateResults, CodeInterpreterEnv)
        assert (env.max_turns, env.unwrapped.max_turns) == (2, 5)
        await env.reset(seed=0)
        assert not (await env.step(BAD)).done
        assert (await env.step(BAD)).truncated


def test_gymnasium_makes_them_too(wrappers):
    env = gymnasium.make(ID, wrappers=wrappers)
    try:
        env.reset(seed=0)
        assert env.step(BAD)[2:4] == (False, False)
        *_, terminated, truncated, info = env.step(BAD)
        assert (terminated, truncated, info["stop_reason"]) == (False, True, "max_turns")
        assert isinstance(env.unwrapped.base_env, TurnLimit)
    finally:
        env.close()


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync"])
def test_gymnasiums_vector_env_has_them_around_each_env(wrappers, mode):
    envs = gymnasium.make_vec(ID, num_envs=2, vectorization_mode=mode, env_wrappers=wrappers)
    try:
        assert isinstance(envs, ToolVectorEnv) == (mode != "sync")
        envs.reset(seed=0)
        assert not envs.step((BAD, BAD))[3].any()
        assert envs.step((BAD, "#### 1"))[3].tolist() == [True, False]
    finally:
        envs.close()


def test_an_id_may_have_them(registry, wrappers):
    toolgym.register(
        "Short-v0", "toolgym.envs.library.code_interpreter:CodeInterpreterEnv", kwargs={"wrappers": wrappers}
    )
    assert isinstance(toolgym.make("Short-v0"), TurnLimit)
    assert isinstance(toolgym.make("Short-v0", wrappers=[]), CodeInterpreterEnv)
    envs = gymnasium.make_vec("Short-v0", num_envs=1)
    try:
        assert isinstance(envs.envs[0], TurnLimit)
    finally:
        envs.close()


async def test_a_rollout_and_an_episode_have_them(wrappers):
    config = RunConfig(sampling=SamplingParams(max_new_tokens=60), seed=0)
    async with open_engine("tiny") as engine:
        [one] = await rollout(ID, engine, num_tasks=1, env_kwargs={"wrappers": wrappers}, config=config)
    assert one.error is None
    assert len(one.turns) <= 2
    tokenizer = load_tokenizer(tiny_policy_path())
    bad = [*tokenizer.encode(BAD), tokenizer.eos_token_id]

    async def generate(request):
        return bad, [-0.1] * len(bad)

    [task] = ArithmeticTasks().take(1)
    one = await run_episode(ID, task, generate, tokenizer=tokenizer, env_kwargs={"wrappers": wrappers})
    assert (one.stop_reason, len(one.turns)) == ("max_turns", 2)


def test_a_class_of_tools_has_them(wrappers):
    made = tool_class(ID, wrappers=wrappers)
    with made() as env:
        env.reset(prompt=[{"role": "user", "content": "?"}], reward_model={"ground_truth": "1"})
        assert "left out" in env.code_interpreter(code="print('x' * 100)")
        env.code_interpreter(code="1")
        assert "the episode is over, max_turns" in env.code_interpreter(code="1")


async def test_a_server_of_envs_has_them():
    served = await load_env(ID, json.loads(json.dumps({"wrappers": WRITTEN})), answer_tool=None, endless=1)
    async with served.make() as env:
        assert isinstance(env, TurnLimit)


async def test_a_recording_holds_them_where_they_are_written(tmp_path):
    config = RunConfig(sampling=SamplingParams(max_new_tokens=60), seed=0)
    tasks = ArithmeticTasks().take(1)
    async with open_engine("tiny") as engine:
        runner = Runner(ID, engine, env_kwargs={"wrappers": WRITTEN}, config=config)
        with recorded(runner, tasks, tmp_path / "run.jsonl") as recording:
            await recording.run(tasks)
        tokenizer = engine.tokenizer
        runner = Runner(ID, engine, env_kwargs={"wrappers": FORMS["functions"]}, config=config)
        with pytest.raises(ConfigError, match="plain JSON"), recorded(runner, tasks, tmp_path / "other.jsonl"):
            pass
    result = await replay(tmp_path / "run.jsonl", tokenizer=tokenizer)
    assert (result.compared, result.differences) == (1, [])


def test_compaction_is_refused_by_callers_that_only_add_to_a_conversation():
    compact = [partial(Compact, max_tokens=100, tokenizer=len)]
    with pytest.raises(ConfigError, match="the caller of a class of tools only adds to a conversation"):
        tool_class(ID, wrappers=compact)


async def test_compaction_is_refused_by_servers_of_envs():
    compact = [partial(Compact, max_tokens=100, tokenizer=len), partial(TurnLimit, max_turns=3)]
    with pytest.raises(ConfigError, match="a client of a server of envs only adds"):
        await load_env(ID, {"wrappers": compact}, answer_tool=None, endless=1)


@pytest.mark.parametrize(
    ("wrappers", "error", "said"),
    [
        ("toolgym.wrappers:TurnLimit", ConfigError, "wrappers must be a list"),
        (5, ConfigError, "wrappers must be a list"),
        ([5], ConfigError, "a wrapper is a function from an env to an env"),
        ([{"kwargs": {}}], ConfigError, "a wrapper is a function from an env to an env"),
        ([{"name": "toolgym.wrappers:TurnLimit", "args": []}], ConfigError, "a wrapper is a function"),
        ([{"name": "toolgym.wrappers:TurnLimit", "kwargs": 3}], ConfigError, "a wrapper is a function"),
        ([TurnLimit], ConfigError, "missing a required argument: 'max_turns'.*functools.partial"),
        (["toolgym.wrappers:TurnLimits"], UnknownNameError, "did you mean 'TurnLimit'"),
        (["toolgym.wraps:TurnLimit"], UnknownNameError, "no module 'toolgym.wraps'"),
        (
            [{"name": "toolgym.wrappers:TurnLimit", "kwargs": {"max_turn": 3}}],
            UnknownArgumentError,
            "did you mean 'max_turns'",
        ),
        ([lambda env: None], ConfigError, "must give a toolgym BaseEnv, it gave None"),
        ([partial(TurnLimit, max_turns=0)], ConfigError, "max_turns must be a whole number"),
    ],
)
def test_what_is_no_wrapper_is_said_clearly(wrappers, error, said):
    with pytest.raises(error, match=said):
        toolgym.make(ID, wrappers=wrappers)


class Closes(CodeInterpreterEnv):
    closed = 0

    async def close(self):
        Closes.closed += 1
        await super().close()


def no_env_is_left(registry):
    toolgym.register("Closes-v0", Closes)
    before = Closes.closed
    with pytest.raises(ConfigError, match="max_turns"):
        toolgym.make("Closes-v0", wrappers=[partial(TruncateResults, max_chars=5), partial(TurnLimit, max_turns=0)])
    assert Closes.closed == before + 1


def test_a_wrapper_that_raises_leaves_no_env_behind(registry):
    no_env_is_left(registry)


async def test_nor_where_an_event_loop_runs(registry):
    no_env_is_left(registry)
