"""`toolgym serve sandbox` as a user starts it: real processes, signals, deaths."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pkgutil
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.actors import until
from toolgym.cli.app import main
from toolgym.cli.serve import SERVERS
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.serving import supervisor

HELLO = {"code": "print('hello')", "language": "python"}
SMALL = "preload: []\n"
WORKERS = {"toolgym.tools.sandbox.server.worker", "toolgym.tools.integrations.sandbox_fusion.api"}
"""Modules that workers run: of a server from Python, and of the command's."""
MANY = 20
"""Connections of which two workers surely get some each: the kernel shares them out by chance."""


@pytest.fixture
def settings(tmp_path):
    """Writes a settings file."""

    def write(text=""):
        file = tmp_path / "server.yaml"
        file.write_text(SMALL + text)
        return str(file)

    return write


async def post(http, url, body=HELLO):
    async with http.post(f"{url}/run_code", json=body) as response:
        return response.status, await response.json()


async def health(url):
    """Asked over a connection of its own, so that any worker may answer."""
    async with aiohttp.ClientSession() as fresh, fresh.get(f"{url}/health") as response:
        return await response.json()


def workers_of(process):
    found = []
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.Error):  # it ended a moment ago
            if WORKERS & set(child.cmdline()):
                found.append(child)
    return found


def alive(process):
    """Whether a process still runs. (An orphan that ended may wait a while for init to collect it.)"""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


async def running_one(url):
    """Wait until the server runs one program."""
    async with asyncio.timeout(60):
        while (await health(url))["running"] != 1:
            await asyncio.sleep(0.05)


async def refusing(url):
    """Wait until the server takes no more connections."""
    async with asyncio.timeout(60):
        with contextlib.suppress(aiohttp.ClientError):
            while True:
                async with aiohttp.ClientSession() as fresh:
                    await post(fresh, url)
                await asyncio.sleep(0.05)


async def test_drain_finishes_what_runs(command, settings, http):
    server = command("--config", settings())
    body = {"code": "import time; time.sleep(1.5); print('finished')", "language": "python"}
    running = asyncio.create_task(post(http, server.url, body))
    await running_one(server.url)
    server.process.send_signal(signal.SIGTERM)
    await refusing(server.url)
    status, answer = await running
    assert (status, answer["run_result"]["stdout"]) == (200, "finished\n")
    _, log = await asyncio.to_thread(server.process.communicate, timeout=60)
    assert server.process.returncode == 0
    assert "Traceback" not in log
    assert "WARNING" not in log


@pytest.mark.long  # that a drain finishes what runs is tested beside it
async def test_drain_has_an_end(command, settings, http):
    server = command("--config", settings("drain_timeout: 0.5\n"))
    body = {"code": "import time; time.sleep(600)", "language": "python", "run_timeout": 600}
    running = asyncio.create_task(post(http, server.url, body))
    await running_one(server.url)
    below = psutil.Process(server.process.pid).children(recursive=True)
    began = time.monotonic()
    code, log = await asyncio.to_thread(server.stop, signal.SIGINT)
    assert (code, time.monotonic() - began < 30) == (0, True), log
    with pytest.raises(aiohttp.ClientError):
        await running
    await until(lambda: not any(alive(process) for process in below))


async def test_a_killed_server_leaves_nothing(command, settings, http):
    server = command("--config", settings(), "--workers", "2")
    assert (await post(http, server.url))[0] == 200
    below = psutil.Process(server.process.pid).children(recursive=True)
    assert len(below) >= 4
    addresses = {one.laddr for worker in workers_of(server.process) for one in worker.net_connections("unix")}
    [folder] = {Path(address).parent for address in addresses if address.endswith(".sock")}
    assert folder.is_dir()
    server.process.kill()
    await until(lambda: not any(alive(process) for process in below))
    assert not folder.exists()


async def test_more_connections_than_descriptors(command, settings, http):
    server = command("--config", settings("max_concurrency: 2\n"), nofile=200)
    port = int(server.url.rpartition(":")[2])
    dialled = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
    for one in dialled:
        one.close()
    assert (await post(http, server.url))[0] == 200
    code, log = await asyncio.to_thread(server.stop)
    assert code == 0
    assert "max_connections: 100 at once" in log
    assert "Traceback" not in log


async def test_several_workers(command, settings, http):
    server = command("--config", settings("max_sessions: 60\n"), "--workers", "2")
    url = server.url

    # Connections are shared out, and sessions answer over any of them.
    seen = {(await health(url))["worker"] for _ in range(40)}
    assert seen == {0, 1}
    sessions = []
    for number in range(MANY):
        async with aiohttp.ClientSession() as fresh, fresh.post(f"{url}/sessions") as response:
            sessions.append((await response.json())["id"])
        for path, body in (("cells", {"code": f"x = {number}"}), ("files/f", None)):
            async with aiohttp.ClientSession() as fresh:
                method = "POST" if body else "PUT"
                async with fresh.request(method, f"{url}/sessions/{sessions[-1]}/{path}", json=body) as response:
                    assert response.status in (200, 204)
    assert {name.partition("-")[0] for name in sessions} == {"w0", "w1"}

    async def ask(name, code="x"):
        where = f"{url}/sessions/{name}/cells"
        async with aiohttp.ClientSession() as fresh, fresh.post(where, json={"code": code}) as response:
            return response.status, (await response.json()).get("result")

    for _ in range(3):
        answers = [await ask(name) for name in sessions]
        assert answers == [(200, str(number)) for number in range(MANY)]
    assert (await ask("w7-nothing"))[0] == 404

    # Any worker's figures are there, whichever is asked.
    async with http.get(f"{url}/metrics") as response:
        text = await response.text()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    open_sessions = {one.labels["worker"]: one.value for one in samples if one.name == "toolgym_sandbox_sessions"}
    assert set(open_sessions) == {"0", "1"}
    assert sum(open_sessions.values()) == MANY
    # What one worker passes on to another is one request.
    cells = [
        one.value
        for one in samples
        if one.name == "toolgym_sandbox_requests_total"
        and (one.labels["endpoint"], one.labels["code"]) == ("/sessions/{id}/cells", "200")
    ]
    assert sum(cells) == MANY + 3 * MANY
    assert text.count("# TYPE toolgym_sandbox_sessions ") == 1

    # One of them dies: the other goes on, a new one comes, only its sessions are lost.
    victim = workers_of(server.process)[0]
    victim.kill()
    await until(lambda: len(workers_of(server.process)) == 2 and victim not in workers_of(server.process))
    await until(lambda: not alive(victim))
    end = time.monotonic() + 60
    while len({(await health(url))["worker"] for _ in range(20)}) < 2:
        assert time.monotonic() < end
    async with http.get(f"{url}/metrics") as response:
        found = re.findall(r'^toolgym_sandbox_worker_restarts_total{worker="\d"} (\S+)$', await response.text(), re.M)
    assert sorted(found) == ["0.0", "1.0"]
    statuses = {}
    for name in sessions:
        statuses.setdefault(name.partition("-")[0], set()).add((await ask(name))[0])
    assert sorted(statuses.values(), key=sorted) == [{200}, {404}]
    code, log = await asyncio.to_thread(server.stop)
    assert (code, "is replaced" in log) == (0, True)
    assert log.startswith("starting the sandbox server with 2 workers")


async def test_sessions_overflow_into_other_workers(command, settings):
    server = command("--config", settings(), "--workers", "2", "--max-sessions", "4")
    async with aiohttp.ClientSession() as one:  # one connection: one worker is asked
        made = []
        for _ in range(5):
            async with one.post(f"{server.url}/sessions") as response:
                made.append(response.status)
        assert made == [201, 201, 201, 201, 429]


@pytest.mark.long
async def test_a_stuck_worker_is_replaced(monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "SILENCE", 3.0)  # instead of half a minute
    said = []
    server = asyncio.create_task(
        supervisor.serve(ServerConfig.load(None, {"port": 0, "workers": 1, "preload": ()}), said.append)
    )
    await until(lambda: said)
    await until(lambda: workers_of(psutil.Process()))
    [stuck] = workers_of(psutil.Process())
    stuck.suspend()
    await until(lambda: "it gave no sign of life" in caplog.text)
    url = said[0].split()[3]
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            assert (await health(url))["status"] == "ok"
            break
        assert time.monotonic() < end
        await asyncio.sleep(0.1)
    assert not server.done()  # else the signal would end these tests
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(server, 60)
    assert workers_of(psutil.Process()) == []


async def test_the_token_comes_from_the_environment_and_goes_nowhere_else(command, settings, http):
    server = command("--config", settings(), "--host", "0.0.0.0", TOOLGYM_SANDBOX_TOKEN="open-sesame")
    url = server.url.replace("0.0.0.0", "127.0.0.1")
    assert (await post(http, url))[0] == 401
    for path, expected in {"/": 200, "/docs": 200, "/readyz": 200, "/openapi.json": 401, "/metrics": 401}.items():
        async with http.get(url + path) as response:
            assert response.status == expected
            assert "open-sesame" not in await response.text()
    looked_at = 0
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):  # it ended a moment ago
            assert "open-sesame" not in " ".join(process.cmdline())
            assert b"open-sesame" not in Path(f"/proc/{process.pid}/environ").read_bytes()
            looked_at += 1
    assert looked_at >= 2  # a worker and its template
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer open-sesame"}) as client:
        body = {"code": "import os; print(os.environ)", "language": "python"}
        status, answer = await post(client, url, body)
    assert (status, "sesame" in answer["run_result"]["stdout"]) == (200, False)


def test_the_settings_are_printed_as_a_file(monkeypatch, capsys, tmp_path):
    flags = ["--port", "4321", "--access-log", "requests", "--log-level", "warning"]
    monkeypatch.setattr("sys.argv", ["toolgym", "serve", "sandbox", *flags, "--print-config"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    file = tmp_path / "server.yaml"
    file.write_text(capsys.readouterr().out)
    model = pkgutil.resolve_name(SERVERS["sandbox"].settings)
    config = model.load(file)
    assert (config.port, config.access_log, config.log_level) == (4321, "requests", "warning")
    assert config == model.load(flags={"port": 4321, "access_log": "requests", "log_level": "warning"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "error: host: '0.0.0.0' can be reached from other machines"),
        (["--host", "no.such.host.invalid"], "set a token"),
        (["--port", "99999"], "error: --port: Input should be less than or equal to 65535"),
        (["--isolation", "fortress"], "error: --isolation: Input should be 'namespaces', 'uid' or 'landlock'"),
        (["--config", "/nowhere.yaml"], "error: no configuration file at '/nowhere.yaml'"),
    ],
)
def test_mistakes_are_told_at_once(flags, message, monkeypatch, capsys):
    """In this process; the next two tests have processes that fail."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.argv", ["toolgym", "serve", "sandbox", *flags])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert message in capsys.readouterr().err


async def test_a_port_that_is_taken_is_told(command, settings):
    server = command("--config", settings())
    port = server.url.rpartition(":")[2]
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "toolgym", "serve", "sandbox", "--port", port, stderr=subprocess.PIPE
    )
    _, said = await asyncio.wait_for(done.communicate(), 120)
    assert (done.returncode, b"port: cannot listen on" in said) == (1, True)


def test_a_sandbox_that_cannot_start_is_told(settings):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "toolgym",
            "serve",
            "sandbox",
            "--config",
            settings("port: 0\npython: /bin/true\n"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "error: the server cannot start worker 0" in done.stderr
