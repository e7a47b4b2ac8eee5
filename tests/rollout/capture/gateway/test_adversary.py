"""An adversarial agent with a shell on the gateway's machine: it forges, drops, shortens and reads nothing."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
import urllib.parse

import pytest

from tests.rollout.capture.gateway.adversary import REQUESTS, SMUGGLING, raw_request, raw_smuggling, send_raw
from tests.rollout.capture.gateway.test_app import TOKEN, gateway, key_of
from tests.rollout.capture.gateway.test_command import ask
from tests.serve_command import running
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, Runner, SamplingParams
from toolgym.rollout.capture import CaptureConfig, agent_env

SECRETS = ("the-servers", "idle_seconds", "toolgym_capture_", "run-0")
"""What no answer to an agent may hold: the token, other sessions' states, figures, places in the run."""


async def assert_in_vain(raw):
    async with gateway(access_log="none") as server:
        own, other = await server.open(id="own"), await server.open(id="other")
        values = {"own": "own", "other": "other", "key": own["key"]}
        values["digest"] = hashlib.sha256(own["key"].encode()).hexdigest()
        await server.ask("/v1/lines", "first", key_of(own))
        address = server.http._base_url
        answered = await send_raw(address.host, address.port, raw(**values))
        assert [secret for secret in (*SECRETS, other["key"]) if secret in answered] == []
        for session in (own, other):
            assert (await server.ask("/v1/lines", "last", key_of(session)))[0] == 200, "it is still open"
        for name, reward in (("own", -1.0), ("other", 0.5)):
            status, told = await server.control("POST", f"/sessions/{name}/finish", {"reward": reward})
            assert (status, told["reward"], told["stop_reason"]) == (200, reward, "answered"), answered
        turns = {each.settings["session"]: [turn.text for turn in each.turns] for each in server.kept.trajectories}
        assert turns == {"own": ["first", "last"], "other": ["last"]}, answered


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_of_an_adversary_changes_nothing(name):
    await assert_in_vain(lambda **values: raw_request(name, **values))


async def test_the_same_request_with_the_control_token_does_finish():
    async with gateway() as server:
        await server.open(id="own")
        address = server.http._base_url
        raw = raw_request("finish with a reward", own="own", key=server.app.settings.secret)
        assert "200 OK" in await send_raw(address.host, address.port, raw)
        assert [each.reward for each in server.kept.trajectories] == [1.0]


@pytest.mark.parametrize("name", SMUGGLING)
async def test_a_smuggled_request_changes_nothing(name):
    await assert_in_vain(lambda **values: raw_smuggling(name, **values))


async def test_the_gateway_of_a_run_has_no_control_routes_at_all(scripted):
    answers = {}

    async def agent(task, *, base_url, api_key):
        address = urllib.parse.urlsplit(base_url)
        session_name = address.path.split("/")[2]
        values = {"own": session_name, "other": "other", "key": api_key, "digest": "x"}
        call = f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api_key}\r\n"
        body = '{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
        call += f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        assert "200 OK" in await send_raw(address.hostname, address.port, call)
        for name in REQUESTS:
            answers[name] = await send_raw(address.hostname, address.port, raw_request(name, **values))
        for path in ("/health", "/healthz", "/docs", "/metrics", "/openapi.json", "/"):
            request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            answers[path] = await send_raw(address.hostname, address.port, request)
        assert "200 OK" in await send_raw(address.hostname, address.port, call)
        return -1.0

    config = RunConfig(sampling=SamplingParams(max_new_tokens=24))
    tasks = [Task(({"role": "user", "content": "x"},))]
    [trajectory] = await Runner(agent_env(agent), scripted(lambda *_: "four"), config=config).run(tasks)
    assert (trajectory.reward, trajectory.trainable, len(trajectory.turns)) == (-1.0, True, 2), trajectory.error
    alive = '"toolgym capture"'  # agents ask whether their address is there
    told = [name for name, answered in answers.items() if " 200 OK" in answered and alive not in answered]
    assert told == []


READING = """
import glob, os, sys
server, workers, folder = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
secret = "control" + "-token-for-this-test"
places = [*glob.glob(folder + "/**", recursive=True)]
for pid in (server, *workers):
    places += [f"/proc/{pid}/{name}" for name in ("cmdline", "environ", "auxv", "stat", "status", "maps")]
    for part in ("fd", "task", "map_files"):
        places += glob.glob(f"/proc/{pid}/{part}/*") + glob.glob(f"/proc/{pid}/{part}/*/environ")
for path in places:
    try:
        with open(path, "rb") as file:
            if secret.encode() in file.read(1 << 20):
                print("read", path)
    except OSError:
        pass
for pid in (server, *workers):
    for what in ("mem", "environ", "fd/0", "fd/3"):
        try:
            open(f"/proc/{pid}/{what}", "rb").close()
            print("opened", pid, what)
        except OSError:
            pass
import ctypes
for pid in (server, *workers):
    if ctypes.CDLL(None).ptrace(16, int(pid), 0, 0) == 0:
        print("attached", pid)
"""


def without_capabilities():
    """As an ordinary user of the same id would be: root may read every process."""
    libc = ctypes.CDLL(None)
    for number in range(64):
        libc.prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="what /proc shows")
@pytest.mark.parametrize("where", ["environment", "option"])
def test_a_process_of_the_same_user_cannot_read_the_token(tmp_path, where):
    secret, variables, flags = "control-token-for-this-test", {}, []
    if where == "environment":
        variables["TOOLGYM_CAPTURE_TOKEN"] = secret
    else:
        flags = ["--token", secret]
    with running("capture", "--out", str(tmp_path), *flags, **variables) as server:
        ask(f"{server.url}/sessions", {"task": "a"}, key=secret)
        pid = str(server.process.pid)
        workers = subprocess.run(["pgrep", "-P", pid], capture_output=True, text=True).stdout.split()
        environment = {name: value for name, value in os.environ.items() if name != "TOOLGYM_CAPTURE_TOKEN"}
        adversary = subprocess.run(
            [sys.executable, "-c", READING, pid, ",".join(workers), str(tmp_path)],
            preexec_fn=without_capabilities,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert workers
        assert adversary.stdout == ""


@pytest.mark.long
def test_a_generated_token_is_printed_and_in_no_file(tmp_path):
    with running("capture", "--out", str(tmp_path / "run")) as server:
        line = server.process.stdout.readline()
        assert line.startswith("token of its control API: ctl-")
        secret = line.split()[-1]
        assert ask(f"{server.url}/sessions", {}, key=secret)["key"].startswith("sk-")
        files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
        assert files
        assert not any(secret.encode() in path.read_bytes() for path in files)


def test_a_token_file_is_made_for_its_owner_only(tmp_path):
    path = tmp_path / "token"
    config = CaptureConfig.load(flags={"token_file": path})
    assert path.stat().st_mode & 0o777 == 0o600
    assert config.secret == path.read_text().strip() == CaptureConfig.load(flags={"token_file": path}).secret
    assert config.generated_secret is None, "the file tells it"
    assert TOKEN["Authorization"] != f"Bearer {config.secret}"
