"""Forks of an env: the same state, then each its own way; and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from toolgym.envs import CodeInterpreterEnv, Task, ToolEnv
from toolgym.tools import StatefulTool, ToolSchema, ToolSession
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import EpisodeError, ForkNotSupportedError

TASKS = [Task(({"role": "user", "content": str(n)},), ground_truth=str(n), id=str(n)) for n in range(50)]


class Tally(ToolSession):
    """Adds up; `stop` is what happens when it is forked."""

    def __init__(self, tool, total=0):
        self.tool, self.total, self.closed = tool, total, 0
        tool.opened.append(self)

    async def execute(self, parameters, **execute_kwargs):
        self.total += parameters["by"]
        return str(self.total)

    async def reward(self, **calc_reward_kwargs):
        return self.total / 8

    async def fork(self):
        if self.tool.stop == "raise":
            return await super().fork()
        if self.tool.stop == "hang":
            await asyncio.Event().wait()
        if self.tool.stop == "late":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        return Tally(self.tool, self.total)

    async def close(self):
        self.closed += 1


class TallyTool(StatefulTool):
    def __init__(self, name="add", stop=""):
        parameters = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
        super().__init__({}, ToolSchema(name, "", parameters))
        self.stop, self.opened = stop, []

    async def open(self, **create_kwargs):
        return Tally(self)


def call(by, name="add"):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'by': by}})}</tool_call>"


async def test_a_fork_goes_on_from_the_same_state_on_its_own():
    tally = TallyTool()
    env = ToolEnv([tally], TASKS, max_turns=4)
    await env.reset(seed=1)
    await env.step(call(2))
    twin = await env.fork()
    assert (twin.task, twin.messages, twin.turns) == (env.task, env.messages, 1)
    assert (await env.step(call(10))).obs[0]["content"] == "12"
    result = await twin.step(call(100))
    assert (result.obs[0]["content"], result.obs[0]["tool_call_id"]) == ("102", "call_1")
    assert [message["content"] for message in env.messages[-1:]] == ["12"]
    assert ((await env.step("done")).reward, (await twin.step("done")).reward) == (1.5, 12.75)
    assert (await env.reset())[0] == (await twin.reset())[0]  # chance goes on from the same state as well
    await env.close()
    assert [session.closed for session in tally.opened] == [1, 1, 1, 0]
    await twin.close()
    assert [session.closed for session in tally.opened] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("stop", "error", "said"),
    [
        ("raise", ForkNotSupportedError, "the tool 'second' cannot be forked: Tally does not implement fork"),
        ("hang", DeadlineError, "0.2 seconds"),
        ("late", DeadlineError, "0.2 seconds"),
    ],
)
async def test_a_fork_that_fails_leaves_nothing_behind_and_the_env_as_it_was(stop, error, said):
    first, second = TallyTool(), TallyTool("second", stop)
    env = ToolEnv([first, second], TASKS, tool_timeout=0.2)
    await env.reset(seed=1)
    await env.step(call(2))
    with pytest.raises(error, match=said):
        await env.fork()
    assert [session.closed for session in first.opened] == [0, 1]
    assert [session.closed for session in second.opened] == ([0, 1] if stop == "late" else [0])
    assert (await env.step(call(1))).obs[0]["content"] == "3"
    await env.close()
    assert [session.closed for session in [*first.opened, *second.opened]] == [1] * (4 if stop == "late" else 3)


async def test_a_fork_that_is_cancelled_leaves_nothing_behind():
    first, second = TallyTool(), TallyTool("second", "hang")
    env = ToolEnv([first, second], TASKS)
    await env.reset(seed=1)
    fork = asyncio.create_task(env.fork())
    while len(first.opened) < 2:
        await asyncio.sleep(0)
    fork.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fork
    assert [session.closed for session in first.opened] == [0, 1]
    await env.close()


async def test_only_an_episode_under_way_can_be_forked():
    env = ToolEnv([TallyTool()], TASKS)
    with pytest.raises(EpisodeError, match="under way"):
        await env.fork()
    await env.reset()
    await env.step("done")
    with pytest.raises(EpisodeError, match="under way"):
        await env.fork()


async def test_the_code_interpreter_forks_variables_and_files(end_lingering):
    def code(text):
        return f"<tool_call>{json.dumps({'name': 'code_interpreter', 'arguments': {'code': text}})}</tool_call>"

    env = CodeInterpreterEnv(TASKS)
    await env.reset(seed=0)
    early = await env.fork()  # before the first call there is no session
    await env.step(code("x = [1]\nopen('note', 'w').write('mine')"))
    twin = await env.fork()
    assert (await twin.step(code("x.append(2); print(x, open('note').read())"))).obs[0]["content"] == "[1, 2] mine"
    assert (await env.step(code("x"))).obs[0]["content"] == "[1]"
    assert "NameError" in (await early.step(code("x"))).obs[0]["content"]
    await env.close()  # the tool is closed with the last of them
    await env.close()
    assert (await twin.step(code("len(x)"))).obs[0]["content"] == "2"
    local = next(iter(twin.tools.values())).sandbox.local
    await twin.close()
    assert local.template_ids != []
    await early.close()
    end_lingering()
    assert local.template_ids == []
