"""`create_kwargs` of tools that work in a session: files, a command, and options of the session."""

from __future__ import annotations

import base64

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.tools import BashTool, CodeInterpreterTool, EditorTool, Workspace
from toolgym.tools.errors import ConfigError, SandboxUnsupportedError, UnknownArgumentError
from toolgym.tools.message import assistant, tool_call, user
from toolgym.tools.sandbox import ProcessSandbox
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.shared import SharedSandbox

NAMESPACES = pytest.mark.skipif("namespaces" not in probe()["levels"], reason="needs namespaces")


class Counting(SharedSandbox):
    """Keeps the sessions that it opened."""

    def __init__(self):
        super().__init__()
        self.opened = []

    async def open_session(self, request):
        self.opened.append(await super().open_session(request))
        return self.opened[-1]


def task(**create_kwargs):
    return Task(
        (user("work"),), tools_kwargs={name: {"create_kwargs": kwargs} for name, kwargs in create_kwargs.items()}
    )


async def say(env, name, **arguments):
    return (await env.step(assistant("", [tool_call(name, arguments)]))).obs[0]["content"]


async def test_tools_find_the_files_of_their_task_in_their_folder():
    encoded = {"base64": base64.b64encode(b"\xff\x00").decode()}
    bash = {"files": {"words.txt": "pear\n", "sub/raw.bin": encoded, "gone": None}, "setup": "cat words.txt > copy"}
    first = task(bash=bash, editor={"files": {"more.txt": "plum\n"}})
    async with SharedSandbox() as sandbox, Workspace(sandbox) as workspace:
        tools = [EditorTool({"folder": "e"}, sandbox=workspace), BashTool({"folder": "app"}, sandbox=workspace)]
        async with ToolEnv(tools, [first, task()]) as env:
            await env.reset(options={"task": first})
            assert await say(env, "bash", command="ls -A | grep -v state; cat copy; od -An -tx1 sub/raw.bin") == (
                "copy\nsub\nwords.txt\npear\n ff 00"
            )
            assert "plum" in await say(env, "editor", command="view", path="more.txt")
            await env.reset(options={"task": task()})
            assert "No such file" in await say(env, "bash", command="cat words.txt")


@NAMESPACES
async def test_a_session_that_was_lost_is_prepared_again_and_a_fork_is_not():
    first = task(bash={"files": {"a": "1"}, "setup": "echo x >> log", "env": {"NAME": "Ada"}})
    async with SharedSandbox() as sandbox, Workspace(sandbox) as workspace:
        tools = [BashTool(sandbox=workspace), EditorTool(sandbox=workspace)]
        env = ToolEnv(tools, [first])
        await env.reset()
        await say(env, "bash", command="echo 2 > a")
        async with await env.fork() as twin:
            assert await say(twin, "bash", command="cat a log; echo $NAME") == "2\nx\nAda"
            await say(twin, "bash", command="kill -9 -1")
            assert "1" in await say(twin, "editor", command="view", path="a")
            assert (await say(twin, "bash", command="cat a log; echo $NAME")).endswith("1x\nAda")
        assert await say(env, "bash", command="cat a") == "2"
        await env.close()


async def test_options_that_cannot_hold_for_a_shared_session_are_refused():
    async with SharedSandbox() as sandbox, Workspace(sandbox) as workspace:
        env = ToolEnv([BashTool(sandbox=workspace), EditorTool(sandbox=workspace)], [task()])
        with pytest.raises(ConfigError, match="two values of 'env': .*1.* and .*2"):
            await env.reset(options={"task": task(bash={"env": {"A": "1"}}, editor={"env": {"A": "2"}})})
        with pytest.raises(ConfigError, match="opened without 'env'.*give the option to the first of the tools"):
            await env.reset(options={"task": task(bash={"files": {"a": ""}}, editor={"env": {"A": "2"}})})
        assert workspace._shared == {}


@pytest.mark.parametrize(
    ("create_kwargs", "text"),
    [
        ({"fils": {}}, "the tool 'bash' has no create_kwargs 'fils', did you mean 'files'"),
        ({"files": {"a": 3}}, "the file 'a' must be text, bytes or {'base64': '...'}, not 3"),
        ({"files": {"": "x"}}, "the name of a file must be a text that is not empty"),
        ({"files": {"a": {"base64": "!"}}}, "option 'files'"),
        ({"files": ["a"]}, "files must map names to contents"),
        ({"network": "all"}, "option 'network'"),
        ({"setup": "echo no such thing; exit 3"}, r"the setup command .* error \(exit code 3\): no such thing"),
        ({"setup": "sleep 9", "setup_timeout": 0.2}, "the setup command .* timeout"),
    ],
)
async def test_a_setup_that_cannot_be_used_is_named(create_kwargs, text):
    async with SharedSandbox() as sandbox, Workspace(sandbox) as workspace:
        env = ToolEnv([BashTool(sandbox=workspace)], [task(bash=create_kwargs)])
        with pytest.raises(ConfigError, match=text):
            await env.reset()
        assert workspace._shared == {}


async def test_a_program_without_a_session_gets_the_files():
    files = {"a.txt": "pear"}
    tool = CodeInterpreterTool({"stateful": False}, sandbox=ProcessSandbox())
    async with ToolEnv([tool], [task()]) as env:
        await env.reset(options={"task": task(code_interpreter={"files": files, "ground_truth": "of verl's rows"})})
        assert await say(env, "code_interpreter", code="print(open('a.txt').read())") == "pear"
        with pytest.raises(ConfigError, match="'setup', which needs a session"):
            await env.reset(options={"task": task(code_interpreter={"setup": "ls"})})
        with pytest.raises(UnknownArgumentError, match="'file', did you mean 'files'"):
            await tool.create(file="x")


async def test_a_sandbox_without_programs_refuses_a_setup():
    class Cells(Counting):
        async def open_session(self, request):
            session = await super().open_session(request)
            session._exec = self.refuse
            return session

        async def refuse(self, *_):
            raise SandboxUnsupportedError("no programs here")

    async with Cells() as sandbox:
        env = ToolEnv([CodeInterpreterTool(sandbox=sandbox)], [task(code_interpreter={"setup": "ls"})])
        with pytest.raises(SandboxUnsupportedError, match="no programs here"):
            await env.reset()
        assert not any(session.alive for session in sandbox.opened)
