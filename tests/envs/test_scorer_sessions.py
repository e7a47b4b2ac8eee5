"""A scorer has a deadline of its own, and looks at what the policy left in the tools' sessions."""

from __future__ import annotations

import asyncio

import pytest

from tests.actors import call
from toolgym.envs import EpisodeFailedError, StopReason, Task, ToolEnv
from toolgym.tools import BaseTool, CodeInterpreterTool, StatefulTool, ToolSchema, ToolSession
from toolgym.tools.errors import ConfigError, EpisodeError

TASK = Task(({"role": "user", "content": "go"},), id="t")


class Notes(ToolSession):
    def __init__(self, tool):
        self.tool, self.lines = tool, []

    async def execute(self, parameters, **execute_kwargs):
        self.lines.append(parameters["line"])
        return "noted"

    async def reward(self, **calc_reward_kwargs):
        await asyncio.sleep(self.tool.reward_seconds)
        return 0.25

    async def fork(self):
        twin = Notes(self.tool)
        twin.lines = [*self.lines]
        return twin

    async def close(self):
        self.lines.clear()


class NotesTool(StatefulTool):
    default_schema = ToolSchema("notes", "", {"type": "object", "properties": {"line": {"type": "string"}}})
    reward_seconds = 0.0

    async def open(self, **create_kwargs):
        return Notes(self)


class Plain(BaseTool):
    default_schema = ToolSchema("plain")

    async def execute(self, instance_id, parameters, **execute_kwargs):
        return "ok"


async def count_lines(outcome):
    await asyncio.sleep(0)
    return len(outcome.session("notes").lines)


async def test_a_scorer_reads_a_session_which_is_closed_after_it():
    seen = []

    def scorer(outcome):
        seen.append(outcome.session("notes"))
        return len(seen[0].lines)

    async with ToolEnv([NotesTool(), Plain()], [TASK], scorer=scorer) as env:
        await env.reset()
        await env.step(call("notes", line="a") + call("notes", line="b"))
        assert (await env.step("done")).info["metrics"]["score"] == 2
    assert seen[0].lines == []


async def test_each_fork_is_scored_by_its_own_session():
    async with ToolEnv([NotesTool()], [TASK], scorer=count_lines) as env:
        await env.reset()
        await env.step(call("notes", line="a"))
        async with await env.fork() as twin:
            await twin.step(call("notes", line="b"))
            assert (await twin.step("done")).info["metrics"]["score"] == 2
        assert (await env.step("done")).info["metrics"]["score"] == 1


@pytest.mark.parametrize("name", ["plain", "bash"])
async def test_a_tool_without_a_session_is_named(name):
    async with ToolEnv([NotesTool(), Plain()], [TASK], scorer=lambda outcome: outcome.session(name)) as env:
        await env.reset()
        with pytest.raises(EpisodeFailedError, match=f"'{name}'; tools that have one: notes") as caught:
            await env.step("done")
    assert caught.value.stop_reason is StopReason.SCORE_FAILED
    assert isinstance(caught.value.__cause__, ConfigError)


async def test_a_released_instance_has_no_session():
    tool = NotesTool()
    instance = await tool.create()
    assert tool.session_of(instance).lines == []
    await tool.release(instance)
    with pytest.raises(EpisodeError, match="no instance"):
        tool.session_of(instance)


async def test_a_scorer_runs_a_program_where_the_policys_ran():
    async def scorer(outcome):
        sandbox = await outcome.session("code_interpreter").sandbox_session()
        cell = await sandbox.run_cell("print(answer, open('left.txt').read())")
        return float(cell.stdout == "41 x\n")

    code = "answer = 41\nopen('left.txt', 'w').write('x')"
    async with ToolEnv([CodeInterpreterTool()], [TASK], scorer=scorer, owns_tools=True) as env:
        await env.reset()
        await env.step(call("code_interpreter", code=code))
        assert (await env.step("done")).reward == 1.0


async def test_a_scorer_opens_the_sandbox_session_where_no_program_was_run():
    async def scorer(outcome):
        sandbox = await outcome.session("code_interpreter").sandbox_session()
        return float((await sandbox.run_cell("1 + 1")).result)

    async with ToolEnv([CodeInterpreterTool()], [TASK], scorer=scorer, owns_tools=True) as env:
        await env.reset()
        assert (await env.step("done")).reward == 2.0


async def test_programs_that_run_by_themselves_leave_nothing_for_a_scorer():
    async def scorer(outcome):
        await outcome.session("code_interpreter").sandbox_session()

    async with ToolEnv([CodeInterpreterTool({"stateful": False})], [TASK], scorer=scorer, owns_tools=True) as env:
        await env.reset()
        with pytest.raises(EpisodeFailedError, match="stateful code interpreter"):
            await env.step("done")


async def test_a_slow_scorer_is_no_slow_tool():
    async def scorer(outcome):
        await asyncio.sleep(0.5)
        return 1.0

    async with ToolEnv([NotesTool()], [TASK], scorer=scorer, tool_timeout=0.2) as env:
        await env.reset()
        assert (await env.step("done")).info["metrics"]["score"] == 1.0


async def test_a_scorer_that_overruns_its_deadline_fails_the_episode():
    async def scorer(outcome):
        await asyncio.sleep(60)

    tool = NotesTool()
    instance = await tool.create()
    tool.create = lambda: asyncio.sleep(0, instance)
    async with ToolEnv([tool], [TASK], scorer=scorer, score_timeout=0.1) as env:
        await env.reset()
        with pytest.raises(EpisodeFailedError, match=r"0\.1 seconds") as caught:
            await env.step("done")
        with pytest.raises(EpisodeError, match="no instance"):  # it was released
            tool.session_of(instance)
    assert caught.value.stop_reason is StopReason.SCORE_TIMEOUT


@pytest.mark.parametrize(("seconds", "in_time"), [(0.4, True), (60, False)])
async def test_a_tools_reward_has_the_time_of_a_scorer(seconds, in_time):
    tool = NotesTool()
    tool.reward_seconds = seconds
    async with ToolEnv([tool], [TASK], tool_timeout=0.2, score_timeout=60 if in_time else 0.3) as env:
        await env.reset()
        if in_time:
            assert (await env.step("done")).reward == 0.25
        else:
            with pytest.raises(EpisodeFailedError, match=r"0\.3 seconds"):
                await env.step("done")


def test_a_deadline_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="score_timeout"):
        ToolEnv([], [TASK], score_timeout=0)
