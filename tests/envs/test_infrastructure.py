"""What the model reads where the infrastructure fails names no host, port, path or number of ours; the record does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import stat

import psutil
import pytest

from toolgym.envs import Task, ToolEnv, tool_instances
from toolgym.envs.library.code_interpreter import CodeInterpreterEnv
from toolgym.tools import CodeInterpreterTool, tool
from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.errors import SandboxError, SandboxFileError, SandboxFileNotFoundError
from toolgym.tools.sandbox import LocalSandbox, RemoteSandbox, Retries

TASK = Task(({"role": "user", "content": "go"},))
NEUTRAL = "[The sandbox failed; your program is not to blame]"


@pytest.fixture(autouse=True)
def log(caplog, monkeypatch):
    """The log, in which nothing was said before."""
    monkeypatch.setattr(tool_instances, "_warnings", LogThrottle(60.0))
    caplog.set_level(logging.WARNING, "toolgym.envs")
    return caplog


def turn(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def lines(log):
    """What the envs said, without what others say, as of something that was only now collected."""
    return [record for record in log.records if record.name.startswith("toolgym.envs")]


async def one_call(env, text):
    await env.reset(seed=0)
    [record] = (await env.step(text)).info["tool_calls"]
    return record


async def test_a_server_that_is_down(log):
    async with RemoteSandbox("http://127.0.0.1:9", retries=Retries(attempts=2, first_delay=0.01)) as sandbox:
        interpreter = CodeInterpreterTool({}, sandbox=sandbox)
        async with CodeInterpreterEnv([TASK], tools=[interpreter], own_tools=False) as env:
            record = await one_call(env, turn("code_interpreter", code="1"))
    assert (record.text, record.status, record.infra_failure) == (NEUTRAL, "sandbox_error", True)
    assert "http://127.0.0.1:9" in record.metrics["error"]
    assert "http://127.0.0.1:9" in log.text


async def test_a_worker_that_dies_while_it_answers(log):
    async def die(reader, writer):
        await reader.read(100)
        writer.close()

    server = await asyncio.start_server(die, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, RemoteSandbox(address, retries=Retries(attempts=2, first_delay=0.01)) as sandbox:
        interpreter = CodeInterpreterTool({}, sandbox=sandbox)
        async with CodeInterpreterEnv([TASK], tools=[interpreter], own_tools=False) as env:
            record = await one_call(env, turn("code_interpreter", code="1"))
    assert (record.text, record.status, record.infra_failure) == (NEUTRAL, "sandbox_error", True)
    assert address in record.metrics["error"]
    assert address in log.text


async def test_a_sandbox_whose_processes_die(log, end_lingering):
    """As often as it is asked: it dies below the session's first cell, and the model goes on in another."""
    others = set(psutil.Process().children(recursive=True))
    async with LocalSandbox(preload=[], templates=1) as sandbox:
        interpreter = CodeInterpreterTool({}, sandbox=sandbox)
        async with CodeInterpreterEnv([TASK], tools=[interpreter], own_tools=False) as env:
            await one_call(env, turn("code_interpreter", code="x = 1"))
            kill_all_below(others)
            [record] = (await env.step(turn("code_interpreter", code="x"))).info["tool_calls"]
            after = (await env.step(turn("code_interpreter", code="print(6 * 7)"))).obs[0]["content"]
    if record.infra_failure:  # else its death was seen before the call, which opened another session
        assert record.text == NEUTRAL
        assert record.metrics["error"] in log.text
    else:
        assert record.text.startswith("[The session was lost before; variables and files of earlier calls are gone]\n")
    assert after.endswith("42")


def kill_all_below(others):
    """Kill the processes that have come below this one since, and not what earlier tests left for later ones."""
    for child in set(psutil.Process().children(recursive=True)) - others:
        with contextlib.suppress(psutil.NoSuchProcess):  # it died with another
            child.kill()


async def test_a_template_process_that_cannot_start(log, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no room on /srv/secret' >&2\nexit 3\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    sandbox = LocalSandbox(preload=[], templates=1, python=str(python))
    try:
        env = ToolEnv([CodeInterpreterTool({}, sandbox=sandbox)], [TASK], owns_tools=True)
        async with env:
            record = await one_call(env, turn("code_interpreter", code="1"))
    finally:
        await sandbox.close()
    assert (record.text, record.status, record.infra_failure) == (NEUTRAL, "sandbox_error", True)
    assert record.metrics["error"]
    assert record.metrics["error"][:100] in log.text


class _WrappedError(Exception):
    """What an HTTP client makes of a socket's error."""


@tool
def search(words: str) -> str:
    """Search."""
    if words == "refused":
        raise ConnectionRefusedError(111, "Connect call failed ('10.0.0.7', 9200)")
    if words == "wrapped":
        try:
            raise OSError("10.0.0.7:9200 is down")
        except OSError as error:
            raise _WrappedError("http://10.0.0.7:9200 after 5 attempts") from error
    raise ValueError(f"no document has {words!r}")


@pytest.mark.parametrize("words", ["refused", "wrapped"])
async def test_a_tool_that_raises_what_the_network_raised(log, words):
    async with ToolEnv([search], [TASK]) as env:
        record = await one_call(env, turn("search", words=words))
    assert record.text == "[The tool 'search' is not available now; your call is not to blame]"
    assert (record.status, record.infra_failure) == ("error", True)
    assert "10.0.0.7" in record.metrics["error"]
    assert "10.0.0.7" in log.text


async def test_what_else_a_tool_raises_is_for_the_model(log):
    async with ToolEnv([search], [TASK]) as env:
        record = await one_call(env, turn("search", words="gold"))
    assert record.text == "[The tool 'search' failed: ValueError: no document has 'gold']"
    assert (record.status, record.infra_failure, record.metrics) == ("error", False, {})
    assert lines(log) == []


async def test_a_server_that_is_down_for_many_calls_is_one_line(log):
    async with ToolEnv([search], [TASK]) as env:
        await env.reset(seed=0)
        for _ in range(5):
            await env.step(turn("search", words="refused"))
        assert len(lines(log)) == 1
        tool_instances._warnings.interval = 0.0
        await env.step(turn("search", words="refused"))
    assert len(lines(log)) == 2
    assert "4 more" in log.text


@pytest.mark.parametrize(
    ("error", "infrastructure"),
    [
        (FileNotFoundError(2, "No such file or directory", "answer.txt"), False),
        (SandboxFileError("'answer' is not a regular file"), False),
        (SandboxFileNotFoundError("no file 'answer.txt'"), False),
        (ConnectionError("10.0.0.7:9200 refused"), True),
        (SandboxError("the session's process died"), True),
    ],
)
async def test_a_tool_that_raises_for_a_file_tells_the_model(error, infrastructure):
    @tool
    def read() -> str:
        """Read the answer."""
        raise error

    async with ToolEnv([read], [TASK]) as env:
        record = await one_call(env, turn("read"))
    assert record.infra_failure == infrastructure
    assert (str(error) in record.text) != infrastructure
