"""`Workspace`: the tools of an episode share one session."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from toolgym.envs import Task, ToolEnv
from toolgym.tools import BashTool, CodeInterpreterTool, EditorTool, Workspace
from toolgym.tools.errors import SandboxUnsupportedError, SessionLostError
from toolgym.tools.message import assistant, tool_call
from toolgym.tools.sandbox import ProcessSandbox
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.shared import SharedSandbox
from toolgym.tools.sessions.tool_scope import current_scope, tool_scope

FORKS = pytest.mark.skipif("namespaces" not in probe()["levels"], reason="forks need namespaces")
TASK = Task(({"role": "user", "content": "work"},))


class Counting(SharedSandbox):
    """Keeps the sessions that it opened."""

    def __init__(self):
        super().__init__()
        self.opened = []

    async def open_session(self, request):
        session = await super().open_session(request)
        self.opened.append(session)
        return session

    @property
    def living(self):
        return [session for session in self.opened if session.alive]


@pytest_asyncio.fixture
async def sandbox():
    async with Counting() as sandbox:
        yield sandbox


@pytest.fixture
def env(sandbox):
    workspace = Workspace(sandbox)
    tools = [BashTool(sandbox=workspace), EditorTool(sandbox=workspace), CodeInterpreterTool(sandbox=workspace)]
    return ToolEnv(tools, [TASK])


def action(*calls):
    return assistant("", [tool_call(name, arguments, id=f"c{at}") for at, (name, arguments) in enumerate(calls)])


async def say(env, *calls):
    return [message["content"] for message in (await env.step(action(*calls))).obs]


WRITE = ("editor", {"command": "create", "path": "a.txt", "file_text": "1\n"})
READ = ("bash", {"command": "cat a.txt"})


async def test_the_tools_of_an_episode_find_the_same_files(env, sandbox):
    async with env:
        await env.reset()
        assert sandbox.opened == []
        await say(env, WRITE)
        assert await say(env, READ, ("code_interpreter", {"code": "open('a.txt').read()"})) == ["1", "'1\\n'"]
        assert len(sandbox.opened) == 1
        await env.reset()
        assert sandbox.living == []
        assert "No such file" in (await say(env, READ))[0]
    assert (len(sandbox.opened), sandbox.living) == (2, [])


async def test_calls_of_one_turn_open_one_session(env, sandbox):
    async with env:
        await env.reset()
        await say(env, READ, WRITE, ("code_interpreter", {"code": "1"}))
        assert len(sandbox.opened) == 1


async def test_episodes_at_the_same_time_see_nothing_of_each_other(sandbox):
    workspace = Workspace(sandbox)
    tools = [BashTool(sandbox=workspace), EditorTool(sandbox=workspace)]
    envs = [ToolEnv(tools, [TASK]) for _ in range(4)]
    for env in envs:
        await env.reset()

    async def play(number, env):
        await say(env, ("editor", {"command": "create", "path": "a.txt", "file_text": f"{number}\n"}))
        return await say(env, READ)

    assert await asyncio.gather(*(play(*one) for one in enumerate(envs))) == [["0"], ["1"], ["2"], ["3"]]
    assert len(sandbox.opened) == 4
    for env in envs:
        await env.close()
    assert sandbox.living == []


@FORKS
async def test_a_fork_of_the_env_copies_the_session_once(env, sandbox):
    async with env:
        await env.reset()
        await say(env, WRITE, ("code_interpreter", {"code": "x = 1"}))
        async with await env.fork() as twin, await env.fork() as other:
            await say(twin, ("bash", {"command": "echo 2 > a.txt; export Y=2"}))
            assert await say(twin, READ, ("code_interpreter", {"code": "x, open('a.txt').read()"})) == [
                "2",
                "(1, '2\\n')",
            ]
            shown = await say(twin, ("editor", {"command": "view", "path": "a.txt"}))
            assert shown == ["     1\t2"]
            assert await say(other, READ) == ["1"]
            assert await say(env, READ) == ["1"]
            assert len(env.tools["bash"].sandbox._shared) == 3
        assert len(env.tools["bash"].sandbox._shared) == 1
    assert env.tools["bash"].sandbox._shared == {}


async def test_a_session_that_ended_is_opened_again_for_all(env, sandbox):
    async with env:
        await env.reset()
        await say(env, WRITE, READ)
        await sandbox.opened[0].close()
        said = await say(env, READ, ("editor", {"command": "view", "path": "a.txt"}))
        assert all("session was lost before" in text for text in said)
        assert len(sandbox.opened) == 2
        assert "session was lost" not in (await say(env, READ))[0]


async def test_a_handle_that_is_closed_leaves_the_session_to_the_others(sandbox):
    workspace = Workspace(sandbox)
    with tool_scope("one"):
        first, second = await workspace.session(), await workspace.session()
    assert first.id == second.id
    await first.close()
    await first.close()
    assert not first.alive
    with pytest.raises(SessionLostError):
        await first.read_file("x")
    await second.write_file("x", b"1")
    await second.close()
    assert sandbox.living == []


async def test_outside_of_an_episode_sessions_are_their_callers_own(sandbox):
    workspace = Workspace(sandbox)
    assert current_scope() is None
    async with await workspace.session() as first, await workspace.session() as second:
        assert first.id != second.id


async def test_a_session_that_cannot_be_opened_leaves_nothing(sandbox):
    workspace = Workspace(sandbox)
    with tool_scope("one"), pytest.raises(ValueError, match="memory_mb"):
        await workspace.session(memory_mb=-1)
    assert workspace._shared == {}
    with tool_scope("one"):
        opening = asyncio.create_task(workspace.session())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert workspace._shared == {}
    assert sandbox.living == []


async def test_tools_with_the_same_options_share_a_workspace_that_the_last_one_closes():
    memory = {"memory_limit_mb": 123}
    one, two, other = BashTool({"timeout": 3, **memory}), EditorTool(memory), BashTool({"memory_limit_mb": 124})
    assert one.sandbox is two.sandbox
    assert one.sandbox is not other.sandbox
    await one.close()
    assert await two.sandbox.has_sessions()
    instance = await two.create()
    assert (await two.execute(instance, {"command": "view", "path": "."})).metrics["status"] == "ok"
    await two.close()
    await two.close()
    again = BashTool(memory)
    assert again.sandbox is not two.sandbox
    await again.close()
    await other.close()


def test_a_sandbox_without_sessions_is_refused():
    with pytest.raises(SandboxUnsupportedError, match="toolgym serve sandbox"):
        Workspace(ProcessSandbox())
