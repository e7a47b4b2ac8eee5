"""An episode that its own policy made impossible to score is worth 0; one that the infrastructure broke fails."""

from __future__ import annotations

import asyncio

import pytest

from tests.actors import call, until
from tests.hostile.let_off.programs import BOMB
from toolgym.envs import End, EpisodeFailedError, PolicyFaultError, StopReason, Task, ToolEnv
from toolgym.envs.failure import policy_fault
from toolgym.tools import BaseTool, BashTool, ToolSchema
from toolgym.tools.errors import SandboxError, SandboxUnavailableError
from toolgym.tools.sandbox import LocalSandbox, SharedSandbox

TASK = Task(({"role": "user", "content": "go"},), id="t")

BROKEN_SESSIONS = {
    "kills everything later": "(sleep 0.2; kill -9 -1) >/dev/null 2>&1 &",
    "stops everything": "(sleep 0.2; kill -STOP -1) >/dev/null 2>&1 &",
    "uses up the processes": f"(python3 -c '{BOMB}' </dev/null >/dev/null 2>&1 &) ; true",
    "makes a link of the answer": "ln -s /etc/hostname answer.txt",
    "makes a loop of links": "ln -s a b; ln -s b a; ln -s a answer.txt",
    "makes a folder of the answer": "mkdir -p answer.txt/answer.txt",
    "makes a pipe of the answer": "mkfifo answer.txt",
    "makes a socket of the answer": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('answer.txt')\"",
    "forbids reading the answer": "echo 42 > answer.txt; chmod 000 answer.txt",
    "leaves no answer": "true",
    "leaves an answer of a terabyte": "truncate -s 1T answer.txt",
}


async def read_answer(outcome):
    session = await outcome.session("bash").sandbox_session()
    return float((await session.read_file("answer.txt")).strip() == b"42")


async def score(sandbox, command, scorer=read_answer, **options):
    async with ToolEnv([BashTool(sandbox=sandbox)], [TASK], scorer=scorer, owns_tools=True, **options) as env:
        await env.reset()
        await env.step(call("bash", command=command))
        await asyncio.sleep(0.5 if "sleep 0." in command else 0)
        return await env.step("done")


@pytest.fixture
async def sandbox():
    async with SharedSandbox() as sandbox:
        yield sandbox


async def test_an_honest_answer_is_read(sandbox):
    result = await score(sandbox, "echo 42 > answer.txt")
    assert (result.reward, "score/broken_by_policy" in result.info["metrics"]) == (1.0, False)


@pytest.mark.parametrize("name", BROKEN_SESSIONS)
async def test_a_policy_that_breaks_its_session_scores_0(sandbox, name, monkeypatch):
    monkeypatch.setattr("toolgym.tools.sessions.session_check.CHECK_TIMEOUT", 5.0)
    result = await score(sandbox, BROKEN_SESSIONS[name], score_timeout=2.0)
    assert (result.reward, result.stop_reason) == (0.0, StopReason.ANSWERED)
    if name not in ("makes a link of the answer", "uses up the processes", "leaves an answer of a terabyte"):
        assert result.info["metrics"]["score/broken_by_policy"] == 1.0


async def test_a_sandbox_that_fails_for_everyone_fails_the_episode(sandbox, monkeypatch):
    async def scorer(outcome):
        session = await outcome.session("bash").sandbox_session()
        monkeypatch.setattr(sandbox, "open_session", unavailable)
        await session.close()
        return await read_answer(outcome)

    async def unavailable(request):
        raise SandboxUnavailableError("the machine is gone")

    with pytest.raises(EpisodeFailedError) as caught:
        await score(sandbox, "echo 42 > answer.txt", scorer)
    assert caught.value.stop_reason is StopReason.SANDBOX_FAILED


async def test_a_template_process_that_dies_fails_the_episode():
    async with LocalSandbox() as sandbox:

        async def scorer(outcome):
            session = await outcome.session("bash").sandbox_session()
            session._template.kill()
            await until(lambda: not session.alive)
            return await read_answer(outcome)

        with pytest.raises(EpisodeFailedError) as caught:
            await score(sandbox, "echo 42 > answer.txt", scorer)
    assert caught.value.stop_reason is StopReason.SANDBOX_FAILED


async def test_files_that_went_with_a_lost_template_process_are_no_fault_of_the_policy():
    async with (
        LocalSandbox() as sandbox,
        ToolEnv([tool := BashTool(sandbox=sandbox)], [TASK], scorer=read_answer) as env,
    ):
        await env.reset()
        await env.step(call("bash", command="echo 42 > answer.txt"))
        (session,) = tool._sessions.values()
        before = await session.sandbox_session()
        before._template.kill()
        await until(lambda: not before.alive)
        await env.step(call("bash", command="true"))  # in a new session
        with pytest.raises(EpisodeFailedError) as caught:
            await env.step("done")
        await tool.close()
    assert caught.value.stop_reason is StopReason.SANDBOX_FAILED


async def test_a_scorer_of_its_own_fault_fails_the_episode(sandbox):
    async def scorer(outcome):
        await (await outcome.session("bash").sandbox_session()).exec(["true"])
        raise SandboxError("my own server is down")

    with pytest.raises(EpisodeFailedError) as caught:
        await score(sandbox, "true", scorer)
    assert caught.value.stop_reason is StopReason.SANDBOX_FAILED


async def test_a_scorer_may_blame_the_policy():
    def scorer(outcome):
        raise PolicyFaultError("the answer is too long for the judge")

    async with ToolEnv([], [TASK], scorer=scorer) as env:
        await env.reset()
        result = await env.step("x" * 100_000)
    assert (result.reward, result.stop_reason) == (0.0, StopReason.ANSWERED)
    assert result.info["metrics"]["score/broken_by_policy"] == 1.0


async def test_a_turn_that_no_user_can_read_ends_the_episode_unscored():
    class Chat(ToolEnv):
        def respond(self, turn):
            if len(turn.content) > 10:
                raise PolicyFaultError("too long for the user's model")
            return End()

    async with Chat([], [TASK], scorer=lambda outcome: 1.0) as env:
        await env.reset()
        result = await env.step("x" * 100)
        await env.reset()
        short = await env.step("x")
    assert (result.reward, result.stop_reason, short.reward) == (0.0, StopReason.ANSWERED, 1.0)
    assert result.info["metrics"]["score/broken_by_policy"] == 1.0


class Blamed(BaseTool):
    default_schema = ToolSchema("blamed")

    async def execute(self, instance_id, parameters, **execute_kwargs):
        return "ok"

    async def calc_reward(self, instance_id, **kwargs):
        raise PolicyFaultError("its files are gone")


async def test_calc_reward_may_blame_the_policy():
    async with ToolEnv([Blamed()], [TASK], scorer=lambda outcome: 0.5) as env:
        await env.reset()
        result = await env.step("done")
    assert (result.reward, result.info["metrics"]["reward/blamed"]) == (0.5, 0.0)
    assert result.info["metrics"]["score/broken_by_policy"] == 1.0


async def test_the_control_decides_whose_fault_it_is():
    async def succeeds():
        return "ok"

    async def fails():
        raise ConnectionError("down")

    error = ValueError("400: too many tokens")
    fault = await policy_fault(error, succeeds, "the judge's model refused the answer")
    assert isinstance(fault, PolicyFaultError)
    assert fault.__cause__ is error
    assert "the judge's model refused the answer" in str(fault)
    assert await policy_fault(error, fails, "the judge's model refused the answer") is None
    assert await policy_fault(error, lambda: asyncio.sleep(9), "the judge's model hung", timeout=0.05) is None


NEST = """
import os
for depth in range(1500):
    os.mkdir("d")
    os.chdir("d")
open("deep.txt", "w").close()
"""


async def test_a_walk_lists_folders_that_are_nested_deeper_than_pythons_recursion(sandbox):
    async with await sandbox.session() as session:
        await session.run_cell("import os; home = os.getcwd()")
        cell = await session.run_cell(f"{NEST}\nos.chdir(home); open('z', 'w').close(); os.mkdir('a')")
        assert cell.error is None
        names = [info.name for info in await session.walk()]
    assert names[:3] == ["a", "d", "z"]
    assert max(names, key=len) == "d/" * 1500 + "deep.txt"
