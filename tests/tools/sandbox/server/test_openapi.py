"""The description of the API says what the server answers."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

SESSION = "/sessions/{id}"
FILE = "/sessions/{id}/files/{name}"
CHECKPOINT = "/sessions/{id}/checkpoints/{name}"
PYTHON = {"language": "python"}


@pytest.fixture
async def check(shared_url, http):
    """Asks, and compares the answer with the description."""
    async with http.get(f"{shared_url}/openapi.json") as response:
        description = await response.json()
    assert (description["openapi"], sorted(description)[0]) == ("3.1.0", "components")

    async def ask(method, path, status, *, id="x", name="x", **kwargs):
        operation = description["paths"][path][method.lower()]
        url = shared_url + path.format(id=id, name=name)
        async with http.request(method, url, **kwargs) as response:
            body = await response.read()
            kind = response.headers.get("Content-Type", "").partition(";")[0]
        assert response.status == status, body
        content = operation["responses"][str(status)].get("content")
        if content is None:
            assert body == b""
            return None
        if kind != "application/json":
            assert kind in content
            return body
        found = json.loads(body)
        schema = {**content[kind]["schema"], "components": description["components"]}
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(found)
        return found

    return ask


async def test_runs(check):
    await check("POST", "/run_code", 200, json={"code": "print(1)", **PYTHON})
    await check("POST", "/run_code", 200, json={"code": "while 1: pass", "run_timeout": 0.2, **PYTHON})
    await check("POST", "/run_code", 200, json={"code": "1", "language": "sql"})
    await check("POST", "/run_code", 422, json={"code": 1})
    await check("POST", "/run_code", 422, data=b"{")
    await check("POST", "/run_code", 400, data=b"abc", headers={"Content-Encoding": "gzip"})
    await check("POST", "/run_jupyter", 200, json={"cells": ["1", "1/0", "import os; os._exit(1)"]})
    await check("POST", "/run_jupyter", 422, json={"cells": 1})


async def test_sessions(check):
    info = await check("POST", "/sessions", 201)
    await check("POST", "/sessions", 422, json={"files": {"..": ""}})
    own = {"id": info["id"]}
    await check("GET", SESSION, 200, **own)
    await check("POST", f"{SESSION}/cells", 200, json={"code": "1/0"}, **own)
    await check("POST", f"{SESSION}/cells", 422, json={"code": "1", "timeout": 0}, **own)
    await check("POST", f"{SESSION}/exec", 200, json={"argv": ["ls"]}, **own)
    await check("PUT", FILE, 204, name="a", data=b"1", **own)
    await check("PUT", FILE, 409, name="a%2Fb", data=b"1", **own)
    await check("PUT", FILE, 422, name="..%2Fb", data=b"1", **own)
    assert await check("GET", FILE, 200, name="a", **own) == b"1"
    await check("GET", FILE, 404, name="b", **own)
    await check("GET", FILE, 422, name="%FF", **own)
    fork = await check("POST", f"{SESSION}/fork", 201, **own)
    assert [one["id"] for one in fork["sessions"]] == [fork["id"]]
    await check("PUT", CHECKPOINT, 204, name="%C3%A4%20%2F", **own)
    await check("PUT", CHECKPOINT, 422, name="%FF", **own)
    assert (await check("GET", f"{SESSION}/checkpoints", 200, **own)) == {"checkpoints": ["ä /"]}
    await check("POST", f"{SESSION}/fork", 422, json={"n": 0}, **own)
    await check("POST", f"{SESSION}/fork", 404, json={"checkpoint": "none"}, **own)
    forks = await check("POST", f"{SESSION}/fork", 201, json={"checkpoint": "ä /", "n": 2}, **own)
    for _ in range(2):
        await check("DELETE", CHECKPOINT, 204, name="%C3%A4%20%2F", **own)
    for name in (info["id"], fork["id"], *(one["id"] for one in forks["sessions"])):
        await check("DELETE", SESSION, 204, id=name)
    await check("DELETE", SESSION, 404, **own)


async def test_figures(check):
    assert await check("GET", "/v1/ping", 200) == "pong"
    assert (await check("GET", "/health", 200))["status"] == "ok"
    assert b"toolgym_sandbox_running" in await check("GET", "/metrics", 200)
