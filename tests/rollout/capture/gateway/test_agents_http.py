"""The HTTP that clients speak: spellings of addresses, keys, compressed bodies, browsers, errors in envelopes."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from tests.rollout.capture.gateway.test_app import TOKEN, gateway, key_of
from toolgym.rollout.capture.gateway import body_coding
from toolgym.rollout.capture.gateway.agent_paths import usual_spelling

ORIGIN = {"Origin": "http://localhost:3000"}


@pytest.mark.parametrize(
    ("path", "usual"),
    [
        ("/sessions/s/v1/lines", "/sessions/s/v1/lines"),
        ("/sessions/s/v1//lines", "/sessions/s/v1/lines"),
        ("/sessions/s/v1/lines/", "/sessions/s/v1/lines"),
        ("/sessions/s/v1/v1/lines", "/sessions/s/v1/lines"),
        ("/sessions/s/lines", "/sessions/s/v1/lines"),
        ("//v1/lines//", "/v1/lines"),
        ("/lines", "/v1/lines"),
        ("/openai/deployments/policy/lines", "/v1/lines"),
        ("/sessions/s/v1/openai/deployments/policy/lines", "/sessions/s/v1/lines"),
        ("/sessions/s/openai/v1/lines", "/sessions/s/v1/lines"),
    ],
)
def test_an_address_has_one_usual_spelling(path, usual):
    assert usual_spelling(path) == usual


@pytest.mark.parametrize(
    "path",
    ["/v1//lines", "/v1/lines/", "/v1/v1/lines", "/lines", "/openai/deployments/policy/lines?api-version=2024-10-21"],
)
async def test_other_spellings_reach_the_same_wire(path):
    async with gateway() as server:
        session = await server.open()
        assert (await server.ask(f"/sessions/{session['id']}{path}", "hi", key_of(session)))[0] == 200
        assert (await server.ask(path, "hi", key_of(session)))[0] == 200


@pytest.mark.parametrize("path", ["/sessions/", "/sessions/s//finish", "/sessions/s/v1/finish", "/v1/sessions"])
async def test_other_spellings_reach_no_control_route(path):
    async with gateway() as server:
        await server.open(id="s")
        status, _ = await server.control("POST", path, {"reward": 1.0})
        assert status in (404, 405)
        assert server.kept.trajectories == []


@pytest.mark.parametrize("header", ["api-key", "x-goog-api-key", "x-api-key"])
async def test_keys_of_other_makers_open_a_session(header):
    async with gateway() as server:
        session = await server.open()
        assert (await server.ask("/v1/lines", "hi", {header: session["key"]}))[0] == 200
        assert (await server.control("GET", "/sessions", headers={header: "the-servers"}))[0] == 401


def _zstd(data):
    return pytest.importorskip("zstandard").compress(data)


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data, wbits=-15)),
        ("zstd", _zstd),
        ("identity", lambda data: data),
    ],
)
async def test_compressed_bodies_are_read(coding, pack):
    async with gateway() as server:
        session = await server.open()
        headers = {**key_of(session), "Content-Encoding": coding}
        data = pack(json.dumps({"text": "hi"}).encode())
        async with server.http.post("/v1/lines", data=data, headers=headers) as response:
            assert (response.status, (await response.json())["text"]) == (200, "HI")
        assert server.app._bodies._held == 0


@pytest.mark.parametrize(
    ("coding", "data", "status", "code"),
    [
        ("br", b"x", 415, "unsupported_coding"),
        ("gzip", b"not gzip", 400, "invalid_request"),
        ("zstd", b"not zstd", 400, "invalid_request"),
        ("gzip", gzip.compress(b" " * 5_000_000), 413, "request_too_large"),
    ],
)
async def test_a_body_that_cannot_be_unpacked_is_refused_in_the_envelope(coding, data, status, code):
    if coding == "zstd":
        pytest.importorskip("zstandard")
    async with gateway(body_limit_mb=1) as server:
        session = await server.open()
        headers = {**key_of(session), "Content-Encoding": coding}
        async with server.http.post("/v1/lines", data=data, headers=headers) as response:
            refusal = await response.json()
            assert (response.status, refusal["wire"], refusal["code"]) == (status, "lines", code)
        assert server.app._bodies._held == 0


async def test_zstd_without_its_package_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(body_coding, "codings", lambda: ["gzip", "deflate"])
    async with gateway() as server:
        headers = {**key_of(await server.open()), "Content-Encoding": "zstd"}
        async with server.http.post("/v1/lines", data=b"x", headers=headers) as response:
            assert (response.status, response.headers["Accept-Encoding"]) == (415, "gzip, deflate")
            assert "decodes no bodies in 'zstd'" in (await response.json())["text"]


async def test_a_browser_may_call_the_wires_and_nothing_else():
    async with gateway() as server:
        session = await server.open()
        asked = {**ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        async with server.http.options("/v1/lines", headers=asked) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == "*"
            assert response.headers["Access-Control-Allow-Headers"] == "authorization"
        for stream in (False, True):
            headers = {**key_of(session), **ORIGIN}
            async with server.http.post(
                "/v1/lines", json={"text": "hi", "stream": stream}, headers=headers
            ) as response:
                assert response.headers["Access-Control-Allow-Origin"] == "*"
        async with server.http.post("/v1/lines", json={}, headers=ORIGIN) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (401, "*")
        for method, path in (("OPTIONS", "/sessions"), ("GET", "/sessions"), ("OPTIONS", "/sessions/s/finish")):
            async with server.http.request(method, path, headers={**TOKEN, **ORIGIN}) as response:
                assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"cors_origins": []}, None),
        ({"cors_origins": ["http://localhost:3000"]}, "http://localhost:3000"),
        ({"cors_origins": ["http://elsewhere"]}, None),
        ({"open_by": "agents", "token": None}, None),
        ({"open_by": "agents", "token": None, "cors_origins": ["http://localhost:3000"]}, "http://localhost:3000"),
    ],
)
async def test_origins_are_those_of_the_settings(settings, allowed):
    async with gateway(**settings) as server, server.http.options("/v1/lines", headers=ORIGIN) as response:
        assert response.headers.get("Access-Control-Allow-Origin") == allowed


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/lines", 405),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/files/f", 404),
        ("POST", "/v1/models", 405),
    ],
)
async def test_what_is_not_served_is_told_in_the_envelope_with_an_id(method, path, status):
    async with gateway() as server, server.http.request(method, path) as response:
        assert (response.status, (await response.json())["wire"]) == (status, "lines")
        assert response.headers["x-request-id"] == response.headers["request-id"]


async def test_a_model_has_the_name_that_the_agent_gives_it():
    async with gateway() as server:
        for path in ("/v1/models/org/policy", "/v1/models/org%2Fpolicy"):
            status, model = await server.control("GET", path)
            assert (status, model["id"], model["object"]) == (200, "org/policy", "model")
