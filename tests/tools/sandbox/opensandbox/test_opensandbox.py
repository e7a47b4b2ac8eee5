"""OpenSandbox's API: sandboxes of the owners of keys, their commands, shells, code and files."""

from __future__ import annotations

import asyncio
import datetime
import json

import aiohttp
import pytest

from tests.tools.sandbox.opensandbox.conftest import Client
from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.opensandbox.config import OpenSandboxServerConfig

OK = {"type": "execution_complete"}


def failed(event):
    assert event["type"] == "error", event
    return event["error"]["ename"], event["error"]["evalue"]


async def test_a_sandbox_lives_as_its_owner_says(client):
    box = await client.create(metadata={"a": "b"}, env={"FOO": "bar"}, entrypoint=["sleep", "77"])
    assert box.about["status"] == {"state": "Running"}
    assert (await box.run(command="echo $FOO; pwd; ls -d /workspace"))[0] == [
        ("stdout", "bar"), ("stdout", "/home/user"), ("stdout", "/workspace")]  # fmt: skip
    assert (await box.run(command="cat /proc/*/cmdline | tr '\\0' ' ' | grep -c 'sleep 77'"))[0] == [("stdout", "1")]
    place = f"/sandboxes/{box.name}"
    patched = await client.api("PATCH", f"{place}/metadata", {"a": None, "c": "d"})
    assert patched["metadata"] == {"c": "d"}
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=20)
    renewed = await client.api("POST", f"{place}/renew-expiration", {"expiresAt": ends.isoformat()})
    assert renewed["expiresAt"] == (await client.api("GET", place))["expiresAt"] > box.about["expiresAt"]
    await client.api("POST", f"{place}/pause", expect=202)
    await client.api("POST", f"{place}/pause", expect=409)
    assert (await box.ask("GET", "/ping", 409))["message"].endswith("resume it first")
    query = {"metadata": "c=d", "state": "Paused", "pageSize": "1"}
    page = await client.api("GET", "/sandboxes", params=query)
    assert [row["id"] for row in page["items"]] == [box.name]
    assert page["pagination"] == {"page": 1, "pageSize": 1, "totalItems": 1, "totalPages": 1, "hasNextPage": False}
    await client.api("POST", f"{place}/resume", expect=202)
    await box.ask("GET", "/ping")
    assert 0 < (await box.ask("GET", "/metrics"))["mem_used_mib"] < 512
    await client.api("DELETE", place, expect=204)
    await client.api("GET", place, expect=404)
    await box.ask("GET", "/ping", 404)


async def test_a_sandbox_ends_that_its_client_did_not_get_to_know(client, monkeypatch):
    owner = Client(client.http, client.url, "gone")

    async def gone(request, *_):
        request.transport.abort()
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr("toolgym.tools.serving.app.send", gone)
        with pytest.raises(aiohttp.ClientError):
            await owner.create()
    assert (await owner.api("GET", "/sandboxes"))["items"] == []


async def test_one_tenant_never_sees_the_sandbox_of_another(client, box, http):
    other = Client(http, client.url, key="theirs")
    assert (await other.api("GET", "/sandboxes"))["items"] == []
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("GET", "/endpoints/44772")):
        error = await other.api(method, f"/sandboxes/{box.name}{path}", expect=404, headers={"X-Request-ID": "r-1"})
        assert error["code"] == "NOT_FOUND"
    theirs = await other.create()
    await box.ask("GET", "/ping", 401, headers=theirs.headers)
    await other.api("DELETE", f"/sandboxes/{theirs.name}", expect=204)
    async with http.get(f"{client.url}/v1/sandboxes", headers={"X-Request-ID": "r-2"}) as response:
        assert (response.status, response.headers["X-Request-ID"]) == (401, "r-2")


@pytest.mark.parametrize(
    ("fields", "status", "why"),
    [
        ({"image": {"uri": "python:3.12"}}, 404, "image 'python:3.12' is not on this server's disk"),
        ({"volumes": [{"name": "v", "mountPath": "/v"}]}, 501, "volumes is not served here"),
        ({"networkPolicy": {"defaultAction": "deny"}}, 501, "networkPolicy"),
        ({"resourceLimits": {"gpu": "1"}}, 501, "gpu cannot be set"),
        ({"resourceLimits": {"memory": "64Gi"}}, 400, "at most 4096Mi"),
        ({"timeout": 1e8}, 400, "setting max_timeout"),
        ({"entrypoint": ["no-such-program"]}, 400, "no-such-program"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(client, fields, status, why):
    asked = {"image": {"uri": "opensandbox/code-interpreter"}, **fields}
    assert why in (await client.api("POST", "/sandboxes", asked, status))["message"]
    assert (await client.api("GET", "/sandboxes"))["items"] == []


async def test_other_endpoints_answer_with_their_name(client, box):
    assert "GET /v1/templates is not served here" in (await client.api("GET", "/templates", expect=501))["message"]
    assert "/pty is not served here" in (await box.ask("POST", "/pty", 501))["message"]
    assert "port 80" in (await client.api("GET", f"/sandboxes/{box.name}/endpoints/80", expect=501))["message"]


def test_a_sandbox_lives_in_one_process():
    with pytest.raises(ConfigError, match="opensandbox: served needs workers: 1, got 2"):
        OpenSandboxServerConfig.load(flags={"opensandbox": "served", "workers": 2})


@pytest.mark.skipif("namespaces" not in probe()["levels"], reason="needs the level namespaces")
async def test_an_image_on_disk_is_the_root_of_a_sandbox(client):
    box = await client.create("shell:1")
    assert (await client.api("GET", f"/sandboxes/{box.name}"))["image"] == {"uri": "shell:1"}
    assert (await box.run(command="cat /etc/marker"))[0] == [("stdout", "from the image")]
    await client.api("DELETE", f"/sandboxes/{box.name}", expect=204)


async def test_a_command_gives_lines_and_its_exit_code(box):
    lines, last = await box.run(command=r"printf 'a\r\nb\rc\n\nd'; echo $X >&2", envs={"X": "err"}, cwd="/tmp")
    assert sorted(lines) == sorted([("stdout", text) for text in ("a", "b", "c", "\n", "d")] + [("stderr", "err")])
    assert last.pop("execution_time") >= 0
    assert last == OK
    assert failed((await box.run(command="exit 7"))[1]) == ("CommandExecError", "7")
    lines, last = await box.run(argv=["/bin/echo", "$X"])
    assert lines == [("stdout", "$X")]
    lines, _ = await box.run(command="head -c 200000 /dev/zero | tr '\\0' x")
    assert sum(len(text) for _, text in lines) == 200_000
    assert failed((await box.run(command="sleep 60", timeout=300))[1]) == ("CommandExecError", "-1")
    assert "cwd '/none' does not exist" in failed((await box.run(command="ls", cwd="/none"))[1])[1]
    assert "only user" in (await box.ask("POST", "/command", 501, json={"command": "id", "uid": 0}))["message"]


async def test_a_command_is_interrupted_and_ends_with_its_client(client, box):
    stream = box.stream("/command", command="sleep 60")
    name = (await anext(stream))["text"]
    await box.ask("DELETE", "/command", params={"id": name})
    assert failed(await anext(stream)) == ("CommandExecError", "-1")
    await box.ask("DELETE", "/command", 404, params={"id": name})
    async with aiohttp.ClientSession() as http:
        request = await http.post(f"{box.url}/command", json={"command": "sleep 66"}, headers=box.headers)
        name = json.loads((await request.content.readline())[6:])["text"]
        request.close()
    for _ in range(100):
        if not (status := await box.ask("GET", f"/command/status/{name}"))["running"]:
            break
        await asyncio.sleep(0.05)
    assert (status["content"], status["exit_code"]) == ("sleep 66", -1)


async def test_a_command_in_the_background_is_asked_about(box):
    [first, last] = [event async for event in box.stream("/command", command="echo a; sleep 0.3; echo b; exit 3",
                                                         background=True)]  # fmt: skip
    assert last["type"] == "execution_complete"
    place, text, cursor = f"/command/{first['text']}/logs", "", "0"
    while "b" not in text:
        async with box.client.http.get(box.url + place, params={"cursor": cursor}, headers=box.headers) as response:
            text, cursor = text + await response.text(), response.headers["EXECD-COMMANDS-TAIL-CURSOR"]
        await asyncio.sleep(0.05)
    assert (text, cursor) == ("a\nb\n", "4")
    status = await box.ask("GET", f"/command/status/{first['text']}")
    assert (status["running"], status["exit_code"], status["error"]) == (False, 3, "exit status 3")


async def test_a_shell_keeps_its_state(box):
    shell = f"/session/{(await box.ask('POST', '/session', json={'cwd': '/tmp/new'}))['session_id']}"
    assert (await box.run(f"{shell}/run", command="pwd; export A=1"))[0] == [("stdout", "/tmp/new")]
    lines, last = await box.run(f"{shell}/run", command="printf $A; pwd >&2; (exit 5)", cwd="/var")
    assert (sorted(lines), failed(last)) == ([("stderr", "/var"), ("stdout", "1")], ("CommandExecError", "5"))
    assert failed((await box.run(f"{shell}/run", command="if"))[1])[0] == "CommandExecError"
    assert (await box.run(f"{shell}/run", command="echo $A"))[0] == [("stdout", "1")]
    lines, last = await box.run(f"{shell}/run", command="exit 4")
    assert "the interpreter of this context ended" in last["error"]["traceback"][0]
    assert await box.ask("GET", "/code/contexts", params={"language": "bash"}) == []
    await box.ask("DELETE", shell)
    await box.ask("DELETE", shell, 404)


async def test_code_runs_in_contexts(box):
    lines, last = await box.run("/code", code="x = 6\nprint('hi')\n'a' * 2")
    assert lines == [("stdout", "hi\n"), ("result", {"text": "'aa'"}), ("execution_count", None)]
    assert last["type"] == "execution_complete"
    context = await box.ask("POST", "/code/context", json={"language": "python"})
    events = [event async for event in box.stream("/code", code="x", context=context)]
    assert failed(events[1]) == ("NameError", "name 'x' is not defined")
    stream = box.stream("/code", code="y = 1\nimport time\ntime.sleep(60)", context=context)
    await anext(stream)
    await asyncio.sleep(0.5)
    await box.ask("DELETE", "/code", params={"id": context["id"]})
    assert failed(await anext(stream))[0] == "KeyboardInterrupt"
    assert (await box.run("/code", code="y", context=context))[0][0] == ("result", {"text": "1"})
    assert context in await box.ask("GET", "/code/contexts", params={"language": "python"})
    assert await box.ask("GET", f"/code/contexts/{context['id']}") == context
    await box.ask("DELETE", "/code/contexts", params={"language": "python"})
    assert await box.ask("GET", "/code/contexts", params={"language": "python"}) == []
    assert "'java' is not served" in (await box.ask("POST", "/code/context", 501, json={"language": "java"}))["message"]


def form(**files):
    data = aiohttp.FormData()
    for path, (text, metadata) in files.items():
        data.add_field("metadata", json.dumps({"path": path, **metadata}), filename="metadata")
        data.add_field("file", text.encode(), filename="file")
    return data


async def test_files_are_written_found_and_changed(box):
    await box.ask("POST", "/directories", json={"/tmp/d/e": {"mode": 750}})
    await box.ask("POST", "/directories", json={"/tmp/d/e": {"mode": 755}})
    await box.ask("POST", "/files/upload", data=form(**{"/tmp/d/a.txt": ("foo foo", {"mode": 640}), "b.py": ("1", {})}))
    info = (await box.ask("GET", "/files/info", params={"path": "/tmp/d/a.txt"}))["/tmp/d/a.txt"]
    assert (info["size"], info["mode"], info["type"], info["owner"]) == (7, 640, "file", "user")
    await box.ask("POST", "/files/permissions", json={"/tmp/d/a.txt": {"mode": 600, "owner": "user"}})
    refused = await box.ask("POST", "/files/permissions", 501, json={"/tmp/d/a.txt": {"mode": 600, "owner": "nobody"}})
    assert "files belong to 'user' here" in refused["message"]
    counts = await box.ask("POST", "/files/replace?verbose=true", json={"/tmp/d/a.txt": {"old": "foo", "new": "barr"}})
    assert counts == {"/tmp/d/a.txt": {"replacedCount": 2}}
    await box.ask("POST", "/files/mv", json=[{"src": "/tmp/d/a.txt", "dest": "/tmp/d/e/a.txt"}])
    rows = await box.ask("GET", "/files/search", params={"path": "/tmp/d", "pattern": "*.txt"})
    assert [(row["path"], row["mode"]) for row in rows] == [("/tmp/d/e/a.txt", 600)]
    part = {"params": {"path": "/tmp/d/e/a.txt"}, "headers": {"Range": "bytes=0-3"}}
    assert await box.ask("GET", "/files/download", 206, **part) == b"barr"
    rows = await box.ask("GET", "/directories/list", params={"path": "/tmp/d", "depth": "2"})
    assert [(row["path"], row["type"]) for row in rows] == [("/tmp/d/e", "directory"), ("/tmp/d/e/a.txt", "file")]
    await box.ask("DELETE", "/files", 400, params={"path": "/tmp/d"})
    await box.ask("DELETE", "/files", params={"path": "b.py"})
    await box.ask("DELETE", "/directories", params={"path": "/tmp/d"})
    await box.ask("GET", "/files/info", 404, params={"path": "/tmp/d"})
