"""Sandboxes of the owners of keys: making, listing, pausing, forking and ending them."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.tools.sandbox.e2b.conftest import Box, Client, in_thread
from toolgym.tools.sandbox.e2b.sandboxes import E2bSandbox


async def test_a_sandbox_has_what_its_client_needs_to_reach_it(client):
    box = await client.create("/v2/sandboxes", metadata={"a": "b"}, envVars={"FOO": "bar"})
    assert box.made["templateID"] == "base"
    assert box.made["envdVersion"] == "0.6.4"
    assert box.made["envdAccessToken"].startswith(box.name)
    about = await client.api("GET", f"/sandboxes/{box.name}")
    assert about["state"] == "running"
    assert about["metadata"] == {"a": "b"}
    assert about["endAt"] > about["startedAt"]
    assert (await box.run("echo $FOO $E2B_SANDBOX_ID; pwd; whoami"))[0] == f"bar {box.name}\n/home/user\nuser\n"
    await client.api("DELETE", f"/sandboxes/{box.name}", expect=204)
    await client.api("DELETE", f"/sandboxes/{box.name}", expect=404)


async def test_the_time_of_a_sandbox_ends_it(client):
    box = await client.create(timeout=120)
    await client.api("POST", f"/sandboxes/{box.name}/timeout", {"timeout": 0}, expect=204)
    for _ in range(100):
        async with client.http.get(f"{client.url}/health", headers=box.headers) as response:
            if response.status == 502:
                break
            await asyncio.sleep(0.05)
    gone = await client.ask("GET", "/health", 502, headers=box.headers)
    assert gone == {"code": 502, "message": "The sandbox was not found", "sandboxId": box.name}


async def test_to_connect_lengthens_the_time_and_never_shortens_it(client, box):
    first = (await client.api("GET", f"/sandboxes/{box.name}"))["endAt"]
    await client.api("POST", f"/v2/sandboxes/{box.name}/connect", {"timeout": 1})
    assert (await client.api("GET", f"/sandboxes/{box.name}"))["endAt"] == first
    await client.api("POST", f"/sandboxes/{box.name}/connect", {"timeout": 600})
    assert (await client.api("GET", f"/sandboxes/{box.name}"))["endAt"] > first


async def test_what_a_client_did_not_get_to_know_ends(client, monkeypatch):
    owner = Client(client.http, client.url, "e2b_gone")
    box = await owner.create()

    async def gone(request, *_):
        request.transport.abort()
        raise ConnectionResetError

    for path in ("/sandboxes", f"/sandboxes/{box.name}/fork", f"/sandboxes/{box.name}/snapshots"):
        with monkeypatch.context() as patch:
            patch.setattr("toolgym.tools.serving.app.send", gone)
            with pytest.raises(aiohttp.ClientError):
                await owner.api("POST", path, {})
    assert [row["sandboxID"] for row in await owner.api("GET", "/v2/sandboxes")] == [box.name]
    assert await owner.api("GET", "/snapshots") == []
    await owner.api("DELETE", f"/sandboxes/{box.name}", expect=204)


async def test_a_list_has_pages_and_filters(client):
    boxes = [await client.create(metadata={"list": "of mine", "n": str(n)}) for n in range(3)]
    query = {"metadata": "list=of%20mine", "limit": "2", "state": "running"}
    async with client.http.get(
        f"{client.url}/v2/sandboxes", params=query, headers={"X-API-KEY": client.key}
    ) as response:
        first, token = await response.json(), response.headers["x-next-token"]
    rest = await client.api("GET", "/v2/sandboxes", params=query | {"nextToken": token})
    assert [row["sandboxID"] for row in first + rest] == [box.name for box in reversed(boxes)]
    await client.api("GET", "/v2/sandboxes", params={"limit": "x"}, expect=400)
    for box in boxes:
        await client.api("DELETE", f"/sandboxes/{box.name}", expect=204)


async def test_a_paused_sandbox_stands_still_and_goes_on(client, box):
    async with box.streaming("Start", process={"cmd": "bash", "args": ["-c", "sleep 60"]}, stdin=False) as stream:
        _, first = await anext(stream)
        pid = first["event"]["start"]["pid"]
        await box.cell("x = 41")
        await client.api("POST", f"/sandboxes/{box.name}/pause", expect=204)
        await client.api("POST", f"/sandboxes/{box.name}/pause", expect=409)
        await client.ask("GET", "/health", 502, headers=box.headers)
        await box.rpc("Stat", 502, path="/tmp")
        assert (await client.api("GET", f"/sandboxes/{box.name}"))["state"] == "paused"
        await client.api("POST", f"/sandboxes/{box.name}/connect", {"timeout": 60}, expect=201)
        assert [row["pid"] for row in (await box.rpc("List"))["processes"]] == [pid]
        assert (await box.run(f"grep State /proc/{pid}/status"))[0].split()[1] in "SR"
        assert (await box.cell("x + 1"))[-1]["text"] == "42"


async def test_a_sandbox_may_pause_itself_at_its_end(client, monkeypatch):
    pause, faults = E2bSandbox.pause, [OSError("a fault of the first try")]

    async def failing_once(box):
        if faults:
            raise faults.pop()
        await pause(box)

    monkeypatch.setattr(E2bSandbox, "pause", failing_once)
    box = await client.create(timeout=0, autoPause=True)
    for _ in range(100):
        if (await client.api("GET", f"/sandboxes/{box.name}"))["state"] == "paused":
            break
        await asyncio.sleep(0.05)
    assert not faults
    await client.api("POST", f"/sandboxes/{box.name}/connect", {"timeout": 60}, expect=201)
    assert (await box.run("echo on"))[0] == "on\n"
    await client.api("DELETE", f"/sandboxes/{box.name}", expect=204)


async def test_forks_have_files_and_variables_and_go_their_own_way(client, box):
    await box.write("a.txt", b"of both")
    await box.cell("import os; os.chdir('/tmp'); x = [1]")
    rows = await client.api("POST", f"/sandboxes/{box.name}/fork", {"count": 2}, expect=201)
    forks = [Box(client, row["sandbox"]) for row in rows]
    await box.cell("x.append(2)")
    for fork in forks:
        assert await fork.read("a.txt") == b"of both"
        assert (await fork.cell("x, os.getcwd()"))[-1]["text"] == "([1], '/tmp')"
        assert fork.headers["X-Access-Token"] != box.headers["X-Access-Token"]
        await client.api("DELETE", f"/sandboxes/{fork.name}", expect=204)


async def test_a_snapshot_outlives_its_sandbox(client):
    box = await client.create()
    await box.cell("x = 6")
    await box.write("kept", b"1")
    made = await client.api("POST", f"/sandboxes/{box.name}/snapshots", {"name": "mine"}, expect=201)
    assert made["names"] == ["mine:default"]
    await client.api("DELETE", f"/sandboxes/{box.name}", expect=204)
    again = await client.create(templateID=made["snapshotID"], envVars={"NEW": "1"})
    assert await again.read("kept") == b"1"
    assert (await again.cell("import os; x, os.environ['NEW']"))[-1]["text"] == "(6, '1')"
    assert [row["snapshotID"] for row in await client.api("GET", "/snapshots", params={"name": "mine"})] == [
        made["snapshotID"]
    ]
    await client.api("DELETE", f"/templates/{made['snapshotID']}", expect=204)
    await client.api("DELETE", f"/templates/{made['snapshotID']}", expect=404)
    await client.api("DELETE", f"/sandboxes/{again.name}", expect=204)


async def test_metrics_are_measured_when_asked_for(client, box):
    await box.run("head -c 5000000 /dev/zero > big; python3 -c 'sum(range(3_000_000))'")
    (point,) = await client.api("GET", f"/sandboxes/{box.name}/metrics")
    assert point["diskUsed"] >= 5_000_000
    assert 0 < point["memUsed"] < point["memTotal"]
    assert point["cpuCount"] > 0
    later = str(point["timestampUnix"] + 100)
    assert await client.api("GET", f"/sandboxes/{box.name}/metrics", params={"start": later}) == []


async def test_a_key_sees_its_own_sandboxes_alone(http, e2b_url, client, box):
    other = Client(http, e2b_url, "e2b_ff")
    assert box.name not in [row["sandboxID"] for row in await other.api("GET", "/v2/sandboxes")]
    calls = [("GET", ""), ("DELETE", ""), ("GET", "/metrics"), ("POST", "/timeout"), ("POST", "/snapshots")]
    for method, path in [*calls, *(("POST", f"/{name}") for name in ("connect", "fork", "pause"))]:
        refused = await other.api(method, f"/sandboxes/{box.name}{path}", expect=404)
        assert refused["code"] == 404
        assert box.name in refused["message"]
    snapshot = await client.api("POST", f"/sandboxes/{box.name}/snapshots", {}, expect=201)
    await other.api("DELETE", f"/templates/{snapshot['snapshotID']}", expect=404)
    assert await other.api("GET", "/snapshots") == []
    await other.api("POST", "/sandboxes", {"templateID": snapshot["snapshotID"], "timeout": 60}, expect=404)
    await client.api("DELETE", f"/templates/{snapshot['snapshotID']}", expect=204)
    refused = await client.ask("GET", "/v2/sandboxes", 401)
    assert "E2B_API_KEY" in refused["message"]


async def test_a_token_opens_its_own_sandbox_alone(client, box):
    other = await client.create()
    for token in (other.headers["X-Access-Token"], "", "é", None):
        headers = {"E2b-Sandbox-Id": box.name} | ({} if token is None else {"X-Access-Token": token})
        calls = [f"process.Process/{name}" for name in ("List", "Start", "Connect", "SendInput", "StreamInput")]
        calls += [f"filesystem.Filesystem/{name}" for name in ("Stat", "Remove", "WatchDir", "CreateWatcher")]
        for path in (*calls, "execute"):
            await client.ask("POST", f"/{path}", 401, json={"code": "1"}, headers=headers)
        await client.ask("POST", "/files", 401, params={"path": "a"}, data=b"theirs", headers=headers)
        await client.ask("GET", "/files", 401, params={"path": "a"}, headers=headers)
    await client.api("DELETE", f"/sandboxes/{other.name}", expect=204)


def test_only_the_keys_of_the_file_are_let_in(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("e2b_aa\n\n# of the e2b_cc team\ne2b_bb\n")

    async def ask(url):
        import aiohttp

        async with aiohttp.ClientSession() as http:
            box = await Client(http, url, "e2b_bb").create()
            for key in ("e2b_00", "e2b_a", "e2b_aaa", "e2b_cc", "#"):
                refused = await Client(http, url, key).api("GET", "/v2/sandboxes", expect=401)
                assert refused["code"] == 401
            await Client(http, url, "e2b_bb").api("POST", "/sandboxes", {"timeout": 5}, expect=429)
            return box.name

    with in_thread(e2b_keys=keys, e2b_sandboxes=1) as url:
        assert asyncio.run(ask(url))


async def test_what_is_not_served_answers_with_its_name(client, box):
    refused = await client.api("POST", "/v3/templates", {}, expect=501)
    assert refused["code"] == 501
    assert "POST /v3/templates" in refused["message"]
    refused = await client.ask("POST", "/filesystem.Filesystem/Chmod", 501, json={}, headers=box.headers)
    assert "Chmod" in refused["message"]
    refused = await client.api("POST", "/sandboxes", {"templateID": "base", "mcp": {"x": {}}}, expect=501)
    assert "MCP" in refused["message"]
    await client.api("POST", "/sandboxes", {"timeout": -1}, expect=400)
    assert await client.ask("GET", "/nothing", 404) == {"code": 404, "message": "Not Found"}
    assert (await client.ask("GET", "/health"))["status"] == "ok"  # the server's own


async def test_a_sandbox_that_resumes_by_itself_is_woken_by_a_call_and_not_by_a_look(client):
    box = await client.create(autoPause=True, autoResume={"enabled": True})
    await client.api("POST", f"/sandboxes/{box.name}/pause", expect=204)
    await client.ask("GET", "/health", 502, headers=box.headers)
    assert (await box.run("echo awake"))[0] == "awake\n"
    assert (await client.api("GET", f"/sandboxes/{box.name}"))["state"] == "running"
    await client.api("DELETE", f"/sandboxes/{box.name}", expect=204)


async def test_a_snapshot_is_known_by_its_name_and_missed_when_it_is_gone(client, box):
    await box.write("kept", b"1")
    made = await client.api("POST", f"/sandboxes/{box.name}/snapshots", {"name": "named"}, expect=201)
    for template in ("named", "named:default", f"{made['snapshotID']}:default"):
        again = await client.create(templateID=template)
        assert await again.read("kept") == b"1"
        await client.api("DELETE", f"/sandboxes/{again.name}", expect=204)
    await client.api("DELETE", f"/templates/{made['snapshotID']}", expect=204)
    await client.api("POST", "/sandboxes", {"templateID": made["snapshotID"]}, expect=404)


async def test_a_body_that_makes_no_sense_is_refused(client, box):
    for body in ({"metadata": [1]}, {"envVars": {"A": 1}}, {"network": 1}, {"timeout": "1"}, {"autoResume": True}):
        refused = await client.api("POST", "/sandboxes", body, expect=400)
        assert set(refused) == {"code", "message"}
    refused = await client.ask("POST", "/sandboxes", 400, data=b"[", headers={"X-API-KEY": client.key})
    assert "JSON" in refused["message"]
    for method, message in [
        ("SendInput", {"process": 1}),
        ("Update", {"process": {"pid": 1}, "pty": []}),
        ("SendSignal", {"process": {"pid": "1"}, "signal": "SIGNAL_SIGKILL"}),
        ("ListDir", {"path": ".", "depth": "1"}),
        ("Stat", {"path": 1}),
    ]:
        assert (await box.rpc(method, 404 if method in ("Update", "SendSignal") else 400, **message))["code"]
    rows = await box.events("Start", process={"cmd": "true"}, pty={"size": {"rows": "x"}})
    assert rows[-1][1]["error"]["code"] == "invalid_argument"
    rows = await box.events("Start", process={"cmd": "true", "envs": []})
    assert rows[-1][1]["error"]["code"] == "invalid_argument"
