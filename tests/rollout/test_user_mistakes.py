"""What a user passes by mistake is an error that says what was expected, what came, and what to do."""

from __future__ import annotations

import logging

import pytest

import toolgym
from toolgym.envs import TaskList, TaskSource, ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout import (
    EpisodeLimits,
    RunConfig,
    Runner,
    SamplingParams,
    SGLangServer,
    TransformersEngine,
    make_batch,
    open_engine,
    rollout,
    tiny_policy_path,
)
from toolgym.tools import tool
from toolgym.tools.errors import ConfigError, EngineError, UnknownArgumentError

TASK = Task(({"role": "user", "content": "q"},), id="q")
ROW = {"prompt": [{"role": "user", "content": "q"}]}


@tool
def echo(text: str) -> str:
    """Say it again."""
    return text


def env():
    return ToolEnv([echo], [TASK])


class Rows(TaskSource):
    def sample(self, rng):
        return ROW


# ---------------------------------------------------------------------- engines


@pytest.mark.parametrize("make", [lambda: TransformersEngine(tiny_policy_path()), lambda: SGLangServer("http://a:1")])
async def test_an_engine_that_was_not_started_is_told_at_once(make, tokenizer, caplog):
    with pytest.raises(EngineError, match=r"await engine\.start\(\)"):
        await rollout(env, make(), [TASK] * 3, tokenizer=tokenizer)
    assert caplog.records == []


async def test_a_closed_engine_is_told_at_once(tokenizer, caplog):
    async with open_engine("tiny") as engine:
        pass
    with pytest.raises(EngineError, match="closed"):
        await rollout(env, engine, [TASK] * 3)
    assert sum(one.levelno >= logging.WARNING for one in caplog.records) <= 1


@pytest.mark.parametrize("engine", ["http://a:30000", "models/qwen", tiny_policy_path()])
async def test_a_path_where_an_engine_belongs_is_told_how_to_open_it(engine):
    with pytest.raises(ConfigError) as error:
        await rollout(env, engine, [TASK])
    assert f"`await open_engine({str(engine)!r})` gives one" in str(error.value)


async def test_an_opening_that_was_not_awaited_is_no_engine():
    with pytest.raises(ConfigError, match="engine must be an Engine .*await open_engine"):
        await rollout(env, open_engine("tiny"), [TASK])


# ---------------------------------------------------------------------- tasks


@pytest.mark.parametrize("tasks", [[ROW], [TASK, ROW], "tasks.jsonl", TASK, {"q": TASK}, 3, iter([TASK])])
async def test_what_are_no_tasks(scripted, tasks):
    for given in ({}, {"num_tasks": 2}):
        with pytest.raises(ConfigError, match="task"):
            await rollout(env, scripted(lambda *_: "done"), tasks, **given)


async def test_a_source_that_gives_no_tasks(scripted):
    with pytest.raises(ConfigError, match="Task.from_row"):
        await rollout(env, scripted(lambda *_: "done"), Rows(), num_tasks=2)
    with pytest.raises(ConfigError, match="Task.from_row"):
        await ToolEnv([], Rows()).reset()


@pytest.mark.parametrize("tasks", [[ROW], "tasks.jsonl", iter([TASK]), {"q": TASK}, 3])
def test_an_env_whose_tasks_are_none(tasks):
    with pytest.raises(ConfigError, match="Task"):
        ToolEnv([], tasks)


async def test_a_list_that_holds_something_else_too():
    env = ToolEnv([], [TASK, *[ROW] * 999])
    with pytest.raises(ConfigError, match="Task.from_row"):
        await env.reset(seed=0)


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", True])
@pytest.mark.parametrize("tasks", [None, [TASK], TaskList([TASK])])
async def test_a_number_of_tasks_that_is_none(scripted, tasks, count):
    with pytest.raises(ConfigError, match="num_tasks must be a whole number, at least 1"):
        await rollout(env, scripted(lambda *_: "done"), tasks, num_tasks=count)


# ---------------------------------------------------------------------- names of arguments


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: rollout(env, None, num_task=3), "rollout takes no argument 'num_task', did you mean 'num_tasks'?"),
        (lambda: Runner(env, None, confg=None), "Runner takes no argument 'confg', did you mean 'config'?"),
        (lambda: RunConfig(group_sise=3), "RunConfig takes no argument 'group_sise', did you mean 'group_size'?"),
        (lambda: RunConfig(trainingstep=3), "did you mean 'training_step'?"),
        (lambda: EpisodeLimits(engine_time_out=3), "did you mean 'engine_timeout'?"),
        (lambda: SamplingParams(max_tokens=3), "did you mean 'max_new_tokens'?"),
        (lambda: ToolEnv([], [TASK], max_turn=3), "ToolEnv takes no argument 'max_turn', did you mean 'max_turns'?"),
        (lambda: make_batch([], pad_token=3), "did you mean 'pad_token_id'?"),
        (lambda: toolgym.make("CodeInterpreter-v0", max_turn=3), "did you mean 'max_turns'?"),
        (lambda: toolgym.make("CodeInterpreter-v0", tool_confg={}), "did you mean 'tool_config'?"),
        (lambda: toolgym.make("CodeInterpreter-v0", zzzzz=3), "CodeInterpreterEnv takes no argument 'zzzzz'."),
    ],
)
def test_a_misspelt_argument_names_the_nearest(call, said):
    with pytest.raises(UnknownArgumentError) as error:
        call()
    assert said in str(error.value)


def test_an_env_of_ones_own_names_the_nearest_too():
    def make_env(difficulty=1):
        return env()

    toolgym.register("Misspelt-v0", make_env, replace=True)
    with pytest.raises(UnknownArgumentError, match="make_env takes no argument 'dificulty', did you mean 'difficulty'"):
        toolgym.make("Misspelt-v0", dificulty=2)
    assert isinstance(toolgym.make("Misspelt-v0", difficulty=2), ToolEnv)


# ---------------------------------------------------------------------- kinds of arguments


def plain(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ToolEnv([plain], [TASK]), "a tool must be a BaseTool .*@toolgym.tool"),
        (lambda: ToolEnv(echo, [TASK]), "tools must be a list of tools"),
        (lambda: ToolEnv([], [TASK], max_turns="4"), "max_turns must be a whole number, at least 1, got '4'"),
        (lambda: ToolEnv([], [TASK], max_parallel_calls=2.5), "max_parallel_calls must be a whole number"),
        (lambda: ToolEnv([], [TASK], parser=3), "parser must be a parser's name or a function, got 3"),
        (lambda: ToolEnv([], [TASK], scorer=lambda: 1.0), "a scorer takes an Outcome, or a text and a Task"),
        (lambda: ToolEnv([], [TASK], scorer=lambda a, b, c: 1.0), "a scorer takes an Outcome, or a text and a Task"),
        (lambda: ToolEnv([], [TASK], scorer=1.0), "which cannot be called"),
        (lambda: RunConfig(group_size="4"), "group_size must be a whole number, at least 1, got '4'"),
        (lambda: RunConfig(seed="x"), "seed must be a whole number or None, got 'x'"),
        (lambda: RunConfig(sampling={}), "sampling must be of type SamplingParams"),
        (lambda: EpisodeLimits(engine_timeout="5"), "engine_timeout must be a positive number of seconds, got '5'"),
        (lambda: EpisodeLimits(max_prompt_tokens=1.5), "max_prompt_tokens must be a whole number"),
        (lambda: SamplingParams(max_new_tokens="5"), "max_new_tokens must be a whole number"),
        (lambda: SamplingParams(max_new_tokens=5, temperature="1"), "temperature must be a number"),
        (lambda: SamplingParams(max_new_tokens=5, seed="1"), "seed must be a whole number or None"),
        (lambda: SamplingParams(max_new_tokens=5, stop_token_ids=7), "stop_token_ids must be a tuple of token ids"),
        (lambda: SamplingParams(max_new_tokens=5, stop_token_ids=("x",)), "stop_token_ids must be a tuple"),
    ],
)
def test_an_argument_of_the_wrong_kind(call, said):
    with pytest.raises(ConfigError, match=said):
        call()


@pytest.mark.parametrize(
    "action",
    [
        3, None, [], {"role": "user", "content": "x"}, {"role": "assistant"}, b"x",
        {"role": "assistant", "content": "x", "tool_calls": 3},
        {"role": "assistant", "content": "x", "tool_calls": ["echo"]},
        {"role": "assistant", "content": "x", "tool_calls": [{"function": "echo"}]},
    ],
)  # fmt: skip
async def test_an_action_of_the_wrong_kind(action):
    async with env() as made:
        await made.reset()
        with pytest.raises(ConfigError, match="an action is a|tool_calls of a|a tool call of a"):
            await made.step(action)
