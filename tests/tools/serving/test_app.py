"""A server that knows nothing of sandboxes: routes, errors, metrics and the API's description."""

from __future__ import annotations

import contextlib
import logging
import re

import aiohttp
import pydantic
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.config import ServingConfig
from toolgym.tools.serving.json_bodies import parse
from toolgym.tools.serving.metrics import ServerMetrics, render
from toolgym.tools.serving.openapi import describe, render_page
from toolgym.tools.serving.routes import UNKNOWN, Operation, Route, Router
from toolgym.tools.serving.transport import answer


class Question(pydantic.BaseModel):
    """What is asked."""

    text: str


class Answer(pydantic.BaseModel):
    """What is answered."""

    text: str


async def echo(call):
    return answer(Answer(text=parse(Question, call.body).text))


async def page(call):
    return answer({"id": call.params["id"], "name": call.params["name"]})


async def failing(call):
    raise ZeroDivisionError


async def streaming(call):
    response = web.StreamResponse()
    await response.prepare(call.request)
    for part in (b"one ", b"two"):
        await response.write(part)
    await response.write_eof()
    return response


ROUTES = [
    Route("/echo", {"POST": Operation(echo, "Say it again", Question, Answer)}, runs=True),
    Route("/pages/{id}/{name:path}", {"GET": Operation(page, "Name a page", None, Answer)}),
    Route("/pages/{id}", {"GET": Operation(failing)}),
    Route("/stream", {"GET": Operation(streaming)}),
]


@pytest.fixture
async def client():
    """A client of such a server."""
    config = ServingConfig(workers=1, max_concurrency=1)
    app = HttpApp(config, Gate(1, 1, 1.0), ServerMetrics("echo"))
    app.add_routes(ROUTES)
    runner = web.ServerRunner(app.listener(), shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
        yield session
    await runner.cleanup()
    await app.close()


async def test_what_a_handler_has_sent_is_not_sent_again(client):
    for _ in range(2):  # over the same connection
        async with client.get("/stream") as response:
            assert (response.status, await response.text()) == (200, "one two")
    async with client.get("/metrics") as response:
        assert 'echo_requests_total{code="200",endpoint="/stream",worker="0"} 2.0' in await response.text()


async def test_requests_find_their_routes(client):
    async with client.post("/echo", json={"text": "hello"}) as response:
        assert await response.json() == {"text": "hello"}
    async with client.get("/pages/7/a/b%20c?x=1") as response:
        assert await response.json() == {"id": "7", "name": "a/b%20c"}
    async with client.post("/echo", json={}) as response:
        assert (response.status, (await response.json())["detail"][0]["loc"]) == (422, ["body", "text"])
    async with client.get("/echo") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
    async with client.get("/pages/7") as response:
        assert (response.status, "ZeroDivision" in await response.text()) == (500, False)
    async with client.get("/worker/metrics") as response:
        assert response.status == 404, "that is for other workers"


async def test_the_page_for_prometheus(client):
    async with client.post("/echo", json={"text": "hello"}):
        pass
    async with client.get("/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(await response.text())}
    [sample] = families["echo_requests"].samples
    assert (sample.labels, sample.value) == ({"worker": "0", "endpoint": "/echo", "code": "200"}, 1)
    assert families["echo_in_flight"].samples[0].value == 0


@pytest.mark.parametrize("path", ["/", "/echo/", "/pages", "/pages/", "/pages/1/", "/pages/1/a/b", "/pages/a\nb"])
def test_placeholders(path):
    route, params = Router(ROUTES).find(path)
    expected = {
        "/pages/": (ROUTES[2], {"id": ""}),
        "/pages/1/": (ROUTES[1], {"id": "1", "name": ""}),
        "/pages/1/a/b": (ROUTES[1], {"id": "1", "name": "a/b"}),
        "/pages/a\nb": (ROUTES[2], {"id": "a\nb"}),
    }
    assert (route, params) == expected.get(path, (UNKNOWN, {}))


def test_the_description_comes_from_the_routes():
    found = describe("echo", "1.2", ROUTES, with_token=True)
    assert sorted(found["paths"]) == ["/echo", "/pages/{id}/{name}"]
    assert {"Question", "Answer", "Error", "HTTPValidationError"} <= set(found["components"]["schemas"])
    assert [one["name"] for one in found["paths"]["/pages/{id}/{name}"]["get"]["parameters"]] == ["id", "name"]
    assert found["security"] == [{"bearer": []}]


def test_the_numbers_of_several_workers_stand_side_by_side():
    workers = []
    for count in (1, 2):
        metrics = ServerMetrics("x")
        metrics.gauge("open", "What is open.", lambda count=count: count)
        for _ in range(count):
            metrics.answered("/echo", 200, 0.3)
        workers.append(metrics.snapshot())
    text = render(list(enumerate(workers))).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def values(name, **labels):
        return [one.value for one in samples if one.name == name and labels.items() <= one.labels.items()]

    assert values("x_requests_total") == [1, 2]
    assert values("x_open") == [1, 2]
    assert values("x_request_seconds_bucket", le="0.25") == [0, 0]
    assert values("x_request_seconds_bucket", le="0.5") == [1, 2]
    assert values("x_queue_seconds_count") == [0, 0]
    assert text.count("# TYPE x_requests_total counter") == 1
    assert "_created" not in text


@pytest.fixture
async def serving():
    """Opens such a server with these settings: gives the client and the service."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_server(**settings):
            config = ServingConfig(workers=1, max_concurrency=1, **settings)
            app = HttpApp(config, Gate(1, 1, 1.0), ServerMetrics("echo"))
            app.add_routes(ROUTES)
            runner = web.ServerRunner(app.listener(), shutdown_timeout=0.5)
            await runner.setup()
            stack.push_async_callback(app.close)
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            base = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return await stack.enter_async_context(aiohttp.ClientSession(base)), app

        yield open_server


async def get(client, path, **kwargs):
    async with client.get(path, **kwargs) as response:
        return response.status, await response.text()


async def test_probes_tell_a_draining_server_from_a_dead_one(serving):
    client, app = await serving(token="secret")
    assert await get(client, "/healthz") == (200, "ok\n")
    assert await get(client, "/readyz") == (200, "ok\n")
    app.drain()
    assert await get(client, "/healthz") == (200, "ok\n")
    assert await get(client, "/readyz") == (503, "draining\n")


async def test_a_line_for_each_request_names_no_id(serving, caplog):
    caplog.set_level(logging.INFO, "toolgym.tools.serving.access")
    client, _ = await serving(access_log="requests")
    await get(client, "/pages/secret-id/a?key=value")
    await get(client, "/nowhere")
    assert [re.sub(r"\d\.\d+ s$", "0 s", one.getMessage()) for one in caplog.records] == [
        "127.0.0.1 GET /pages/{id}/{name} 200 0 s",
        "127.0.0.1 GET other 404 0 s",
    ]


async def test_no_line_for_each_request_unless_asked_for(serving, caplog):
    caplog.set_level(logging.INFO, "toolgym.tools.serving")
    client, _ = await serving()
    await get(client, "/pages/1/a")
    assert caplog.text == ""


async def test_a_wrong_token_is_logged_once_in_a_while_and_never_itself(serving, caplog):
    client, _ = await serving(token="secret")
    for _ in range(3):
        assert (await get(client, "/pages/1/a", headers={"Authorization": "Bearer gue55ed"}))[0] == 401
    [line] = caplog.records
    assert line.getMessage() == "no valid token: GET /pages/{id}/{name} from 127.0.0.1"
    assert "gue55ed" not in caplog.text


async def test_the_page_for_prometheus_has_the_workers_memory_and_how_often_it_was_replaced(serving):
    client, app = await serving()
    app.metrics.restarts.inc(2)
    _, text = await get(client, "/metrics")
    found = {one.name: one for family in text_string_to_metric_families(text) for one in family.samples}
    assert found["process_resident_memory_bytes"].value > 1e6
    assert found["process_resident_memory_bytes"].labels == {"worker": "0"}
    assert found["echo_worker_restarts_total"].value == 2


def test_the_description_as_a_page_loads_nothing():
    routes = [*ROUTES, Route("/<b>", {"GET": Operation(echo, "Say <i>", None, "text/plain")}, public=True)]
    text = render_page(describe("Echo & co", "1.0", routes, with_token=True))
    assert "<h1>Echo &amp; co 1.0</h1>" in text
    assert '<code>POST /echo</code> Say it again</summary><p>Body: <a href="#Question">Question</a></p>' in text
    assert "<code>GET /&lt;b&gt;</code> Say &lt;i&gt; <em>no token</em>" in text
    assert '<details id="Question">' in text
    assert not re.search(r"<script|src=|https?://", text)
