"""Wrappers change one thing and pass everything else on."""

from __future__ import annotations

import json

import pytest

from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools import BaseTool, ToolSchema, tool
from toolgym.tools.errors import ConfigError, ForkNotSupportedError
from toolgym.wrappers import TruncateResults, Wrapper


@tool
def repeat(text: str, times: int) -> str:
    """Repeat.

    Args:
        text: what
        times: how often
    """
    return text * times


def make():
    return ToolEnv([repeat], [Task(({"role": "user", "content": "x" * 50},))])


def call(**arguments):
    return f"<tool_call>{json.dumps({'name': 'repeat', 'arguments': arguments})}</tool_call>"


async def test_a_plain_wrapper_changes_nothing():
    async with Wrapper(make()) as env:
        await env.reset(seed=0)
        assert (await env.step(call(text="ab", times=3))).obs[0]["content"] == "ababab"
        assert [schema.name for schema in env.tool_schemas] == ["repeat"]
        assert (await env.step("done")).terminated


async def test_the_task_is_that_of_the_env_inside():
    env = Wrapper(make())
    assert env.task is None
    _, info = await env.reset()
    assert env.task is info["task"]
    await env.close()


async def test_a_fork_is_wrapped_the_same_way():
    async with TruncateResults(make(), 5, side="left") as env:
        await env.reset(seed=0)
        async with await env.fork() as twin:
            assert (type(twin), twin.max_chars) == (TruncateResults, 5)
            assert twin.unwrapped is not env.unwrapped
            assert (await twin.step(call(text="abcdefghij", times=1))).obs[0]["content"].startswith("abcde [...")
            assert (await twin.step("done")).terminated
        assert not (await env.step(call(text="ab", times=1))).done

    class Rooted(BaseTool):
        """A tool that does not implement fork."""

        default_schema = ToolSchema("rooted")

        async def execute(self, instance_id, parameters, **kwargs):
            return "here"

    async with Wrapper(ToolEnv([Rooted()], [Task(({"role": "user", "content": "x"},))])) as env:
        await env.reset()
        with pytest.raises(ForkNotSupportedError, match="'rooted'"):
            await env.fork()


async def test_attributes_are_never_stale():
    env = Wrapper(Wrapper(make()))
    env.unwrapped.max_turns = 99
    assert env.max_turns == 99
    assert not hasattr(env, "no_such_thing")


@pytest.mark.parametrize(
    ("side", "text"),
    [
        ("left", "abcde [... 5 characters left out ...]"),
        ("right", "[... 5 characters left out ...] fghij"),
        ("middle", "abc [... 5 characters left out ...] ij"),
    ],
)
async def test_results_are_cut_where_asked(side, text):
    async with TruncateResults(make(), 5, side=side) as env:
        obs, _ = await env.reset(seed=0)
        assert obs[0]["content"] == "x" * 50  # tasks are left alone
        assert (await env.step(call(text="abcdefghij", times=1))).obs[0]["content"] == text
        assert (await env.step(call(text="abcde", times=1))).obs[0]["content"] == "abcde"


def test_wrong_arguments():
    with pytest.raises(ConfigError, match="max_chars"):
        TruncateResults(make(), 0)
    with pytest.raises(ConfigError, match="side"):
        TruncateResults(make(), 5, side="top")
