"""`MCP-v0` against servers of the official SDK: in this process, over stdio, and over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import toolgym
from tests.tools.mcp.own_server import own_server
from toolgym.envs import Task
from toolgym.envs.as_tools.tool_class import tool_class
from toolgym.testing import check_env
from toolgym.tools.errors import ConfigError, ForkNotSupportedError, UnknownNameError
from toolgym.tools.mcp.connection import McpError
from toolgym.tools.message import assistant, images_of, tool_call

SERVER = Path(__file__).with_name("own_server.py")
STDIO = [sys.executable, str(SERVER)]
TASKS = [Task(({"role": "user", "content": "2 + 3?"},), ground_truth=5)]


def call(name, **arguments):
    return assistant("", [tool_call(name, arguments)])


def made(server=own_server, connect_timeout=300, **arguments):
    return toolgym.make("MCP-v0", server=server, tasks=TASKS, connect_timeout=connect_timeout, **arguments)


@pytest.fixture(scope="module")
def url():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*STDIO, "http", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while True:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


async def test_it_keeps_the_contract():
    await check_env("MCP-v0", forks=False)


async def test_images_come_through_where_they_are_wanted():
    async with made(images=True) as env:
        await env.reset()
        text = (await env.step(call("picture"))).obs[0]["content"]
        assert text == "look\n[Image 1 of 1 left out: it cannot be read (UnidentifiedImageError)]"
        result = await env.call("picture", {})
        assert (result.text, images_of([*result.images])) == ("look", ["data:image/png;base64,AAAA"])


@pytest.mark.parametrize(
    "over", ["process", pytest.param("stdio", marks=pytest.mark.long), pytest.param("http", marks=pytest.mark.long)]
)
async def test_the_tools_of_a_server(over, request):
    server = {"process": own_server, "stdio": STDIO}.get(over) or request.getfixturevalue("url")
    async with made(server) as env:
        _, info = await env.reset()
        assert [one["function"]["name"] for one in info["tools"]][:2] == ["add", "counts"]
        assert (await env.step(call("add", a=2, b=3))).obs[0]["content"] == "5"
        result = await env.step(call("picture"))
        assert result.obs[0]["content"] == "look\n[image, image/png, 3 bytes]"
        [record] = (await env.step(call("fail"))).info["tool_calls"]
        assert (record.status, record.infra_failure) == ("error", False)
        assert "fail" in record.text
        [record] = (await env.step(call("add", a="two"))).info["tool_calls"]
        assert record.status == "wrong_arguments"  # the schema's check: the server is not asked
        [record] = (await env.step(call("much", characters=2_000_000))).info["tool_calls"]
        assert "characters left out" in record.text
        assert (await env.step("#### 5")).reward == 1.0


async def test_each_episode_has_a_session_of_its_own():
    async with made() as one, made() as other:
        for env in (one, other, one):
            await env.reset()
            assert (await env.step(call("counts"))).obs[0]["content"] == "1"
        assert (await one.step(call("counts"))).obs[0]["content"] == "2"
        with pytest.raises(ForkNotSupportedError):
            await one.fork()


async def test_a_call_has_a_deadline_and_the_session_lives_on():
    async with made(tool_timeout=1) as env:
        await env.reset()
        [record] = (await env.step(call("wait", seconds=60))).info["tool_calls"]
        assert record.status == "timeout"
        assert (await env.step(call("counts"))).obs[0]["content"] == "1"


@pytest.mark.long
async def test_a_server_that_ends_is_no_fault_of_the_models():
    async with made(STDIO) as env:
        await env.reset()
        for name in ("end", "counts"):
            [record] = (await env.step(call(name))).info["tool_calls"]
            assert (record.status, record.infra_failure) == ("unavailable", True)
            assert "not available" in record.text
            assert str(SERVER) not in record.text
            assert "the disk is gone" in record.metrics["error"]
        await env.reset()
        assert (await env.step(call("counts"))).obs[0]["content"] == "1"


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (["sh", "-c", "echo a setting is missing >&2; exit 1"], "it wrote: a setting is missing"),
        (["/no/such/program"], "No such file or directory"),
        (["sleep", "60"], "was not ready within 0.5 seconds"),
        ("http://127.0.0.1:9/mcp", "the MCP server 'http://127.0.0.1:9/mcp': "),
    ],
)
async def test_a_server_that_cannot_be_reached_is_named(server, said):
    async with made(server, connect_timeout=0.5 if server == ["sleep", "60"] else 300) as env:
        with pytest.raises(McpError, match=said) as failed:
            await env.reset()
    assert isinstance(failed.value, OSError)


async def test_a_subset_of_the_tools():
    async with made(only=["add"]) as env:
        await env.reset()
        assert [one.name for one in env.tool_schemas] == ["add"]
    async with made(only=["ad"]) as env:
        with pytest.raises(UnknownNameError, match="did you mean 'add'"):
            await env.reset()


def test_schemas_can_be_read_before_an_episode():
    methods = tool_class("MCP-v0")
    assert callable(methods.find_articles)
    assert callable(methods.get_article)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (3, "an MCP server is a URL"),
        ({"comand": "x"}, "command"),
        ("localhost:8000", "must look like http"),
    ],
)
def test_a_server_of_another_kind_is_refused(server, said):
    with pytest.raises(ConfigError, match=said):
        made(server)


def test_tasks_and_server_go_together():
    with pytest.raises(ConfigError, match="give a server and the tasks for it"):
        toolgym.make("MCP-v0", server=STDIO)
    with pytest.raises(ConfigError, match="headers are for a server with a URL"):
        made(headers={"a": "b"})


EXAMPLES = os.environ.get("MCP_SDK_EXAMPLES")
"""The folder `examples/servers` of the SDK's repository, which no package holds."""


@pytest.mark.skipif(not EXAMPLES, reason="MCP_SDK_EXAMPLES does not name the SDK's folder examples/servers")
@pytest.mark.parametrize(
    ("folder", "module", "name", "arguments", "said"),
    [
        ("everything-server", "mcp_everything_server", "test_simple_text", {}, "simple text"),
        ("everything-server", "mcp_everything_server", "test_image_content", {}, "[image, image/png, "),
        ("everything-server", "mcp_everything_server", "test_error_handling", {}, "error"),
        ("simple-streamablehttp", "mcp_simple_streamablehttp", "start-notification-stream",
         {"interval": 0.01, "count": 2, "caller": "me"}, "Sent 2 notifications"),
        ("simple-streamablehttp-stateless", "mcp_simple_streamablehttp_stateless", "start-notification-stream",
         {"interval": 0.01, "count": 2, "caller": "me"}, "Sent 2 notifications"),
    ],
)  # fmt: skip
async def test_the_sdks_example_servers_over_http(folder, module, name, arguments, said):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--port", str(port)],
        cwd=Path(EXAMPLES) / folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(120), made(f"http://127.0.0.1:{port}/mcp") as env:
            while True:
                try:
                    await env.reset()
                    break
                except McpError:
                    await asyncio.sleep(0.2)
            assert said in (await env.step(call(name, **arguments))).obs[0]["content"]
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(not EXAMPLES, reason="MCP_SDK_EXAMPLES does not name the SDK's folder examples/servers")
async def test_the_sdks_simple_tool_over_stdio():
    folder = str(Path(EXAMPLES) / "simple-tool")
    async with made({"command": sys.executable, "args": ["-m", "mcp_simple_tool"], "cwd": folder}) as env:
        await env.reset()
        assert [one.name for one in env.tool_schemas] == ["fetch"]
        [record] = (await env.step(call("fetch", url="http://127.0.0.1:9/"))).info["tool_calls"]
        assert record.status in ("error", "unavailable")
