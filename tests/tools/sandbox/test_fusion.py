"""`RemoteSandbox(kind="sandboxfusion")` against a real server that answers as SandboxFusion's `/run_code` does."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from toolgym.tools import CodeInterpreterTool
from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox import ExecutionStatus, ProcessSandbox, RemoteSandbox, Retries

SEEN = web.AppKey("seen", list)


def fusion(url, **options):
    return RemoteSandbox(url, kind="sandboxfusion", **options)


def answer(status, run):
    return {"status": status, "message": "", "compile_result": None, "run_result": run, "files": {}}


async def run_code(request: web.Request) -> web.Response:
    body = await request.json()
    request.app[SEEN].append(body)
    code = body["code"]
    if code == "500":
        return web.json_response({"detail": "boom"}, status=500)
    if code == "sandbox error":
        return web.json_response({"status": "SandboxError", "message": "no runner", "run_result": None})
    if code == "nonsense":
        return web.Response(text="[1]", content_type="application/json")
    if code == "hang":
        await asyncio.sleep(60)
    if code == "late":  # said, not measured: how fast a program starts on a busy machine is not the client's affair
        run = {
            "status": "TimeLimitExceeded",
            "execution_time": None,
            "return_code": None,
            "stdout": "1\n",
            "stderr": "",
        }
        return web.json_response(answer("Failed", run))
    async with ProcessSandbox() as local:
        result = await local.run(code, timeout=body["run_timeout"], stdin=body["stdin"] or "")
    run = {"status": "Finished", "execution_time": result.duration, "return_code": result.return_code}
    run |= {"stdout": result.stdout, "stderr": result.stderr}
    return web.json_response(answer("Success" if result.ok else "Failed", run))


@pytest.fixture
async def server():
    app = web.Application()
    app[SEEN] = []
    app.router.add_post("/run_code", run_code)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield f"http://127.0.0.1:{port}", app[SEEN]
    await runner.cleanup()


@pytest.mark.parametrize("suffix", ["", "/", "/run_code"])
async def test_success_error_and_timeout(server, suffix):
    url, seen = server
    async with fusion(url + suffix) as sandbox:
        good = await sandbox.run("print(input())", stdin="hi")
        bad = await sandbox.run("1/0")
        late = await sandbox.run("late", timeout=1)
    assert (good.status, good.stdout) == (ExecutionStatus.OK, "hi\n")
    assert (bad.status, bad.return_code) == (ExecutionStatus.ERROR, 1)
    assert "ZeroDivisionError" in bad.stderr
    assert (late.status, late.stdout) == (ExecutionStatus.TIMEOUT, "1\n")
    assert seen[0]["language"] == "python"


@pytest.mark.parametrize(
    ("code", "said"), [("500", "answered 500"), ("sandbox error", "no runner"), ("nonsense", "makes no sense")]
)
async def test_the_servers_failures_are_told_from_the_programs(server, code, said):
    async with fusion(server[0]) as sandbox:
        result = await sandbox.run(code)
    assert result.status is ExecutionStatus.SANDBOX_ERROR
    assert said in result.message


async def test_a_server_that_never_answers(server):
    retries = Retries(attempts=1, attempt_margin=0.5, patience=60)
    async with fusion(server[0], retries=retries) as sandbox:
        result = await sandbox.run("hang", timeout=0.1)
    assert result.status is ExecutionStatus.SANDBOX_ERROR
    assert "no answer within" in result.message


async def test_no_server_is_there():
    async with fusion("http://127.0.0.1:9", retries=Retries(attempts=2, first_delay=0.01)) as sandbox:
        result = await sandbox.run("print(1)")
    assert result.status is ExecutionStatus.SANDBOX_ERROR


async def test_the_tool_runs_there_by_configuration_alone(server):
    tool = CodeInterpreterTool({"sandbox_fusion_url": server[0], "memory_limit_mb": 256})
    await tool.create("a")
    result = await tool.execute("a", {"code": "print(6 * 7)"})
    assert result.text == "42"
    assert server[1][0]["memory_limit_MB"] == 256
    broken = await tool.execute("a", {"code": "500"})
    assert broken.metrics["infra_failure"] is True
    assert "not to blame" in broken.text
    await tool.release("a")
    await tool.close()


def test_a_url_must_be_one():
    with pytest.raises(ConfigError, match="http://"):
        fusion("localhost:8080")
