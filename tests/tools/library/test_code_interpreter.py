"""`CodeInterpreterTool`: configuration, what the model reads, and the limits on concurrency."""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import pytest

from toolgym.tools import CodeInterpreterTool, ToolSchema
from toolgym.tools.errors import ConfigError, ForkNotSupportedError
from toolgym.tools.library.code_interpreter import render_result
from toolgym.tools.sandbox import ExecutionResult, ExecutionStatus, Limits, LocalSandbox, Sandbox
from toolgym.tools.sandbox.facts import probe_python
from toolgym.tools.sandbox.shared import SharedSandbox


class SlowSandbox(Sandbox):
    """Sleeps instead of running, and counts."""

    def __init__(self):
        self.running = self.peak = 0
        self.order = []

    async def execute(self, request):
        code = request.code
        self.order.append(code)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await asyncio.sleep(0.05)
        finally:
            self.running -= 1
        return ExecutionResult(ExecutionStatus.OK, stdout=f"{code}\n", return_code=0)


async def ask(tool, code, **kwargs):
    instance = await tool.create()
    try:
        return await tool.execute(instance, {"code": code}, **kwargs)
    finally:
        await tool.release(instance)


async def ask_new(config, code):
    tool = CodeInterpreterTool(config)
    result = await ask(tool, code)
    await tool.close()
    return result


async def test_defaults_are_the_founding_ones():
    tool = CodeInterpreterTool()
    options = tool.options
    await tool.close()
    assert (options.rate_limit, options.default_timeout, options.default_language) == (None, 30.0, "python")
    assert options.enable_global_rate_limit is True
    assert options.sandbox_fusion_url is None


async def test_the_schema_has_one_required_argument():
    tool = CodeInterpreterTool()
    schema = tool.get_openai_tool_schema()["function"]
    await tool.close()
    assert schema["name"] == "code_interpreter"
    assert schema["parameters"]["required"] == ["code"]


async def test_the_model_reads_what_was_printed():
    result = await ask_new({}, "print(6 * 7)")
    assert result.text == "42"
    assert result.reward == 0.0
    assert result.metrics["status"] == "ok"


async def test_the_model_reads_deep_recursion_once():
    code = "print('so far')\ndef f(n):\n    return g(n + 1)\ndef g(n):\n    return f(n + 1)\nf(0)"
    text = (await ask_new({}, code)).text
    assert text.startswith("so far\nTraceback")
    assert text.count("return g(n + 1)") <= 2
    assert "the last 2 frames repeated" in text
    assert text.endswith("RecursionError: maximum recursion depth exceeded")
    stateless = (await ask_new({"stateful": False}, code)).text
    assert stateless.endswith("[The program ended with exit code 1]")


async def test_the_model_reads_that_it_timed_out():
    tool = CodeInterpreterTool({"default_timeout": 1})
    result = await ask(tool, "print('begun', flush=True)\nwhile True: pass")
    assert [line for line in result.text.split("\n") if line.strip(" ^")] == [  # Python 3.12 marks the `pass`
        "begun",
        '  File "<cell 1>", line 2, in <module>',
        "    while True: pass",
        "[Timed out: the program was stopped after 1 seconds]",
    ]
    assert result.metrics["status"] == "timeout"
    longer = await ask(tool, "import time; time.sleep(1.2); print('done')", timeout=60)
    assert longer.text == "done"
    await tool.close()


async def test_the_model_reads_that_output_was_cut():
    result = await ask_new({"max_output_chars": 100}, "print('a' * 500)")
    assert result.text == "a" * 50 + "\n... [400 characters cut] ...\n" + "a" * 50


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ExecutionResult(ExecutionStatus.OK), "[The program printed nothing]"),
        (ExecutionResult(ExecutionStatus.OK, stdout="1\n\n"), "1\n"),
        (ExecutionResult(ExecutionStatus.OK, stdout="1", stderr="warning\n"), "1\nwarning"),
        (ExecutionResult(ExecutionStatus.KILLED, return_code=-11), "[The program was killed by SIGSEGV (signal 11)]"),
        (ExecutionResult(ExecutionStatus.OUTPUT_LIMIT, stdout="x"), "x\n[Stopped: the program printed too much]"),
        (
            ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message="disk full"),
            "[The sandbox failed; your program is not to blame]",
        ),
    ],
)
def test_every_ending_is_said_plainly(result, text):
    assert render_result(result, 30) == text


async def test_an_episode_keeps_its_variables_and_shares_them_with_no_other():
    tool = CodeInterpreterTool()
    first, second = await tool.create(), await tool.create()
    await tool.execute(first, {"code": "x = 6\nopen('note', 'w').write('mine')"})
    assert (await tool.execute(first, {"code": "x * 7"})).text == "42"
    assert (await tool.execute(first, {"code": "print(open('note').read())"})).text == "mine"
    assert "NameError" in (await tool.execute(second, {"code": "x"})).text
    await tool.release(first)
    await tool.release(second)
    await tool.close()


async def test_a_lost_session_is_said_and_a_new_one_opened():
    tool = CodeInterpreterTool()
    instance = await tool.create()
    await tool.execute(instance, {"code": "x = 1"})
    died = await tool.execute(instance, {"code": "import os; os.kill(-1, 9); os._exit(1)"})
    assert died.text.startswith("[The program ended with exit code 1]")
    assert died.text.endswith("[The session ended with it; variables and files are gone]")
    again = await tool.execute(instance, {"code": "'x' in globals()"})
    assert again.text.endswith("variables and files of earlier calls are gone]\nFalse")
    await tool.release(instance)
    await tool.close()


class LateSandbox(Sandbox):
    """A real local sandbox whose sessions open only when they are let."""

    def __init__(self):
        self.inner = SharedSandbox(preload=[])
        self.let = asyncio.Event()
        self.asked = 0
        self.opened = []

    async def execute(self, request):
        raise AssertionError

    async def open_session(self, request):
        self.asked += 1
        await self.let.wait()
        self.opened.append(await self.inner.open_session(request))
        return self.opened[-1]


@pytest.mark.parametrize("end", ["release", "close", "cancel"])
async def test_an_episode_that_ends_while_its_session_opens_leaves_none(end):
    sandbox = LateSandbox()
    tool = CodeInterpreterTool({"num_workers": 2, "enable_global_rate_limit": False}, sandbox=sandbox)
    episode = await tool.create()
    calls = [
        asyncio.create_task(tool.execute(episode, {"code": "1"})) for _ in range(3)
    ]  # two workers: the third waits
    while not sandbox.asked:
        await asyncio.sleep(0)
    if end == "cancel":
        for task in calls:
            task.cancel()
    else:
        await (tool.release(episode) if end == "release" else tool.close())
    sandbox.let.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [session.alive for session in sandbox.opened] == [False] * len(sandbox.opened)
    if end == "cancel":
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
    else:
        assert all("released before this call" in result.metrics["error"] for result in results)
        assert all(result.metrics["infra_failure"] for result in results)
    await sandbox.inner.close()


async def test_calls_of_one_turn_share_one_session():
    sandbox = LateSandbox()
    sandbox.let.set()
    tool = CodeInterpreterTool({"enable_global_rate_limit": False}, sandbox=sandbox)
    episode = await tool.create()
    await asyncio.gather(*(tool.execute(episode, {"code": f"x{n} = {n}"}) for n in range(4)))
    assert (await tool.execute(episode, {"code": "x0 + x1 + x2 + x3"})).text == "6"
    await tool.release(episode)
    assert [session.alive for session in sandbox.opened] == [False]
    await sandbox.inner.close()


async def test_stateless_by_option():
    tool = CodeInterpreterTool({"stateful": False})
    instance = await tool.create()
    await tool.execute(instance, {"code": "x = 1"})
    assert "NameError" in (await tool.execute(instance, {"code": "print(x)"})).text
    await tool.close()


async def test_where_the_level_gives_no_forks_the_error_names_the_tool_and_the_level():
    async with LocalSandbox(level="landlock") as sandbox:
        tool = CodeInterpreterTool(sandbox=sandbox)
        instance = await tool.create()
        await tool.execute(instance, {"code": "x = 1"})
        with pytest.raises(ForkNotSupportedError, match="'code_interpreter' cannot be forked: .* level 'landlock'"):
            await tool.fork(instance)
        await tool.release(instance)
        await tool.close()


async def test_num_workers_bounds_one_tool():
    sandbox = SlowSandbox()
    tool = CodeInterpreterTool({"num_workers": 3, "enable_global_rate_limit": False}, sandbox=sandbox)
    results = await asyncio.gather(*(ask(tool, str(n)) for n in range(12)))
    assert sandbox.peak == 3
    assert sandbox.order == [str(n) for n in range(12)]
    assert results[-1].metrics["queue_seconds"] > 0.1


async def test_the_rate_limit_bounds_all_tools_of_the_process():
    sandbox = SlowSandbox()
    config = {"num_workers": 8, "rate_limit": 4}
    tools = [CodeInterpreterTool(config, sandbox=sandbox) for _ in range(3)]
    await asyncio.gather(*(ask(tool, "x") for tool in tools for _ in range(6)))
    assert sandbox.peak == 4


async def test_contradicting_global_limits_are_refused():
    gc.collect()  # the tools of other tests
    kept = CodeInterpreterTool({"rate_limit": 3}, sandbox=SlowSandbox())
    with pytest.raises(ConfigError, match="already 3"):
        CodeInterpreterTool({"rate_limit": 5}, sandbox=SlowSandbox())
    del kept
    CodeInterpreterTool({"rate_limit": 5}, sandbox=SlowSandbox())


async def test_a_queue_does_not_eat_the_deadline():
    tool = CodeInterpreterTool({"num_workers": 1, "default_timeout": 1.6, "enable_global_rate_limit": False})
    started = time.monotonic()
    results = await asyncio.gather(*(ask(tool, "import time; time.sleep(0.2); print('ok')") for _ in range(10)))
    assert time.monotonic() - started > 2.0  # the last waited for 1.8 s
    assert [r.text for r in results] == ["ok"] * 10
    await tool.close()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"rate_limits": 3}, "did you mean 'rate_limit'"),
        ({"default_timeout": -1}, "'default_timeout'"),
        ({"num_workers": "many"}, "'num_workers'"),
        ({"isolation": "concrete"}, "no isolation level 'concrete'"),
        ({"stateful": True, "sandbox_fusion_url": "http://x"}, "has no sessions"),
        ({"stateful": True, "default_language": "bash"}, "only Python has sessions"),
    ],
)
def test_wrong_options_are_named(config, said):
    with pytest.raises(ConfigError) as caught:
        CodeInterpreterTool(config)
    assert said in str(caught.value)


def test_a_schema_without_code_is_refused():
    with pytest.raises(ConfigError, match="argument 'code'"):
        CodeInterpreterTool({}, ToolSchema("x"))


def test_the_environment_names_servers_where_the_configuration_names_no_sandbox(monkeypatch):
    monkeypatch.setenv("TOOLGYM_SANDBOX_URLS", "http://a:1, http://b:2")
    assert CodeInterpreterTool({}).sandbox.urls == ("http://a:1", "http://b:2")
    assert CodeInterpreterTool({"sandbox_url": "http://c:3"}).sandbox.urls == ("http://c:3",)
    with pytest.raises(ConfigError, match="leave it out beside the environment variable TOOLGYM_SANDBOX_URLS"):
        CodeInterpreterTool({"isolation": "landlock"})


@pytest.mark.parametrize(
    ("config", "sentences", "absent"),
    [
        ({}, ("kept from call to call", "value of its last line", "30 s per call", "1024 MiB", "No network."), ()),
        ({"stateful": False, "default_timeout": 7}, ("Each call starts from scratch", "7 s per call"), ("last line",)),
        ({"memory_limit_mb": 300}, ("300 MiB of memory",), ("1024",)),
        ({"default_language": "bash"}, ("language bash", "Each call starts from scratch"), ("Python",)),
        ({"sandbox_url": "http://a:1"}, ("30 s per call",), ("network", "MiB", "kept", "from scratch")),
        ({"sandbox_url": "http://a:1", "stateful": True}, ("kept from call to call",), ("network",)),
        ({"sandbox_fusion_url": "http://a:1/run_code"}, ("Each call starts from scratch",), ("kept",)),
    ],
)
async def test_the_description_states_the_configuration_in_force(config, sentences, absent):
    tool = CodeInterpreterTool(config)
    description = tool.get_openai_tool_schema()["function"]["description"]
    await tool.close()
    assert all(sentence in description for sentence in sentences), description
    assert not any(word in description for word in absent), description


async def test_the_description_follows_the_sandbox_that_was_passed_in():
    sandbox = LocalSandbox(network="host", limits=Limits(memory_mb=77))
    description = CodeInterpreterTool(sandbox=sandbox).tool_schema.description
    await sandbox.close()
    assert "77 MiB" in description
    assert "No network" not in description
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]}" in description


def test_a_schema_of_the_user_keeps_its_description():
    schema = ToolSchema("run", "My words.", {"type": "object", "properties": {"code": {"type": "string"}}})
    assert CodeInterpreterTool({}, schema, sandbox=SlowSandbox()).tool_schema.description == "My words."


def test_packages_are_those_of_the_sandboxes_interpreter(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'[[3, 99], ["numpy", "sklearn"]]\'\n')
    python.chmod(0o755)
    assert probe_python(str(python)) == ("3.99", ("numpy", "scikit-learn"))
    assert probe_python(str(tmp_path / "absent")) == ("", ())
