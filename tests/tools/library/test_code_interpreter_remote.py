"""`CodeInterpreterTool` on servers, by configuration alone; and what a failing server is, up to the trajectory."""

from __future__ import annotations

import json
import logging

import pytest
from aiohttp import web

from tests.tools.sandbox.served import serving
from tests.tools.sandbox.stand_ins import RAN, StandIn, answer
from toolgym.envs.library.code_interpreter import CodeInterpreterEnv
from toolgym.envs.tasks.task import Task
from toolgym.tools import CodeInterpreterTool
from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox import LocalSandbox, ProcessSandbox, RemoteSandbox, Retries

NOBODY = "http://127.0.0.1:9"
QUICK = Retries(attempts=2, first_delay=0.01, connect_timeout=30)


@pytest.fixture
async def ours():
    """Our server."""
    async with LocalSandbox(preload=[], templates=1) as local, serving(local) as service:
        yield service.url


@pytest.fixture
async def fusion():
    """A server with SandboxFusion's `/run_code` and nothing else, over plain processes."""

    async def run_code(request: web.Request) -> web.Response:
        body = await request.json()
        async with ProcessSandbox() as local:
            result = await local.run(body["code"], timeout=body["run_timeout"], stdin=body["stdin"])
        late = result.status.value == "timeout"
        ran = {
            "status": "TimeLimitExceeded" if late else "Finished",
            "execution_time": result.duration,
            "return_code": result.return_code,
            "stdout": result.stdout,
            "stderr": result.stderr,
        }
        return web.json_response(RAN | {"status": "Success" if result.ok else "Failed", "run_result": ran})

    async def describe(request: web.Request) -> web.Response:
        return web.json_response({"openapi": "3.1.0", "paths": {"/run_code": {}, "/run_jupyter": {}}})

    app = web.Application()
    app.router.add_post("/run_code", run_code)
    app.router.add_get("/openapi.json", describe)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def episode(config, *codes):
    """What the model reads of these programs in one episode. Each is its code alone, or with its time."""
    tool = CodeInterpreterTool(config)
    instance = await tool.create()
    calls = [(one, {}) if isinstance(one, str) else (one[0], {"timeout": one[1]}) for one in codes]
    texts = [(await tool.execute(instance, {"code": code}, **kwargs)).text for code, kwargs in calls]
    await tool.release(instance)
    await tool.close()
    return texts


@pytest.mark.parametrize("key", ["sandbox_url", "sandbox_urls"])
async def test_our_server_keeps_the_state(ours, key):
    config = {key: ours if key == "sandbox_url" else [ours]}
    assert await episode(config, "x = 6", "x * 7") == ["[The program printed nothing]", "42"]


@pytest.mark.parametrize("config", [{"stateful": False}, {"default_language": "bash"}])
async def test_stateless_by_option(ours, config):
    code = ("x=6", 'echo "<$x>"') if "default_language" in config else ("x = 6", "print('x' in globals())")
    assert (await episode({"sandbox_url": ours, **config}, *code))[1] in ("<>", "False")


async def test_a_sandboxfusion_server_is_stateless_and_that_is_said_once(fusion, caplog):
    caplog.set_level(logging.INFO, "toolgym.tools")
    texts = await episode({"sandbox_url": fusion}, "x = 6", "print('x' in globals())")
    assert texts[1] == "False"
    said = [record for record in caplog.records if "every call is a clean start" in record.message]
    assert len(said) == 1


async def test_a_sandboxfusion_server_is_refused_where_state_is_demanded(fusion):
    tool = CodeInterpreterTool({"sandbox_url": fusion, "stateful": True})
    with pytest.raises(ConfigError, match="stateful to false"):
        await tool.create()
    await tool.close()


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("here", marks=pytest.mark.matrix),
        "ours",
        "fusion",
        pytest.param("fusion_url", marks=pytest.mark.matrix),
    ],
)
async def test_the_model_reads_the_same_wherever_it_runs(where, ours, fusion):
    places = {
        "here": {},
        "ours": {"sandbox_url": ours},
        "fusion": {"sandbox_url": fusion},
        "fusion_url": {"sandbox_fusion_url": f"{fusion}/run_code"},
    }
    config = {"stateful": False, **places[where]}
    good, bad, late = await episode(
        config,
        "print(6 * 7)",
        "import sys; print('so far'); sys.exit('oh no')",
        ("print('begun', flush=True)\nwhile True: pass", 3),
    )
    assert good == "42"
    assert bad == "so far\noh no\n[The program ended with exit code 1]"
    assert late == (
        'begun\n  File "main.py", line 2, in <module>\n    while True: pass\n'
        "[Timed out: the program was stopped after 3 seconds]"
    )


async def test_what_a_session_says_on_our_server(ours):
    bad, late, again = await episode(
        {"sandbox_url": ours},
        "import sys; x = 5; print('warned', file=sys.stderr); 1/0",
        ("while True: pass", 1),
        "x",
    )
    assert bad.startswith("warned\n")
    assert bad.endswith("ZeroDivisionError: division by zero")
    assert late.startswith('  File "<cell 2>", line 1, in <module>\n    while True: pass\n')
    assert late.endswith("[Timed out: the program was stopped after 1 seconds]")
    assert again == "5"


async def test_release_closes_the_session(ours):
    import aiohttp

    async def open_sessions():
        async with aiohttp.ClientSession() as http, http.get(f"{ours}/health") as response:
            return (await response.json())["sessions"]

    tool = CodeInterpreterTool({"sandbox_url": ours})
    first, second = await tool.create(), await tool.create()
    assert await open_sessions() == 0, "opened at the first call"
    for instance in (first, second):
        await tool.execute(instance, {"code": "1"})
    assert await open_sessions() == 2
    await tool.release(first)
    assert await open_sessions() == 1
    await tool.close()
    assert await open_sessions() == 0


async def test_a_failing_server_is_an_infrastructure_failure_up_to_the_record():
    sandbox = RemoteSandbox(NOBODY, retries=QUICK)
    call = json.dumps({"name": "code_interpreter", "arguments": {"code": "print(1)"}})
    tool = CodeInterpreterTool({}, sandbox=sandbox)
    task = Task(({"role": "user", "content": "go"},), ground_truth="1")
    async with CodeInterpreterEnv([task], tools=[tool], own_tools=False) as env:
        await env.reset()
        result = await env.step(f"<tool_call>{call}</tool_call>")
        [record] = result.info["tool_calls"]
        assert (record.status, record.infra_failure) == ("sandbox_error", True)
        assert "not to blame" in record.text
    await sandbox.close()


async def test_a_server_that_comes_later_is_used_then():
    server = StandIn(answer(RAN))
    await server.start()
    await server.stop()
    sandbox = RemoteSandbox(server.url, retries=QUICK)
    tool = CodeInterpreterTool({}, sandbox=sandbox)
    instance = await tool.create()
    first = await tool.execute(instance, {"code": "print(42)"})
    assert first.metrics["infra_failure"] is True
    with pytest.raises(SandboxError):
        await tool.has_sessions()
    await server.start()
    second = await tool.execute(instance, {"code": "print(42)"})
    assert second.text == "42"
    assert await tool.has_sessions() is False
    await tool.close()
    await sandbox.close()
    await server.stop()


async def test_the_token_of_the_environment_goes_to_our_servers_only(monkeypatch):
    monkeypatch.setenv("TOOLGYM_SANDBOX_TOKEN", "fromenv")
    async with StandIn(answer(RAN)) as server:
        await episode({"sandbox_url": server.url}, "1")
        await episode({"sandbox_url": server.url, "sandbox_token": "given"}, "1")
        await episode({"sandbox_fusion_url": server.url}, "1")
        shown = [one.headers.get("authorization") for one in server.seen]
        assert shown == ["Bearer fromenv", "Bearer given", None]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sandbox_url": "localhost:1"}, "http://"),
        ({"sandbox_urls": []}, "at least one"),
        ({"sandbox_url": NOBODY, "sandbox_urls": [NOBODY]}, "not both"),
        ({"sandbox_url": NOBODY, "sandbox_fusion_url": NOBODY}, "not both"),
        ({"sandbox_url": NOBODY, "isolation": "landlock"}, "isolation is set where the server runs"),
        ({"sandbox_token": "x"}, "sandbox_token is for servers"),
        ({"sandbox_url": NOBODY, "stateful": True, "default_language": "bash"}, "only Python has sessions"),
        ({"sandbox_fusion_url": NOBODY, "stateful": True}, "has no sessions"),
    ],
)
def test_wrong_options_are_named(config, said):
    with pytest.raises(ConfigError, match=said):
        CodeInterpreterTool(config)


async def test_a_server_tells_the_limits_that_hints_name(ours):
    tool = CodeInterpreterTool({"sandbox_url": ours})
    instance = await tool.create()
    result = await tool.execute(instance, {"code": "import socket\nsocket.create_connection(('192.0.2.1', 80))"})
    assert result.text.endswith("[There is no network here]")
    held = await tool.execute(instance, {"code": "held = bytearray(1 << 42)"})
    assert "(limit: " in held.text
    shown = await tool.execute(instance, {"code": "print('a')\ndisplay(5)\nprint('b')"})
    assert shown.text == "a\n5\nb"
    await tool.release(instance)
    await tool.close()
