"""The retriever behind an address, against a real HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial

import pytest
from aiohttp import web

from tests.rollout.engines.http_server import serving
from toolgym.tools.errors import ConfigError, RetrievalError, is_infrastructure
from toolgym.tools.http.retries import Retries
from toolgym.tools.search import service as service_module
from toolgym.tools.search.retriever import Passage
from toolgym.tools.search.service import RetrievalService

FOUND = {"document": {"id": "7", "contents": '"Paris"\nIt is the capital\nof France.'}, "score": 0.5}
PARIS = Passage('"Paris"', "It is the capital\nof France.", 0.5, "7")


@pytest.fixture
def few_attempts(monkeypatch):
    """Two attempts with hardly a pause, in all the time that they need."""
    monkeypatch.setattr(service_module, "Retries", partial(Retries, attempts=2, first_delay=0.01))


async def asked(handler, queries=("a", "b"), **options):
    """What a service finds whose one server has this handler."""
    async with serving({"POST /retrieve": handler}) as url, RetrievalService(f"{url}/retrieve", **options) as service:
        return await service.search(queries, 3)


async def test_it_speaks_the_protocol():
    bodies = []

    async def retrieve(request):
        bodies.append(await request.json())
        return web.json_response({"result": [[FOUND, {"contents": "alone"}], []]})

    assert await asked(retrieve) == [[PARIS, Passage("alone", "", None)], []]
    assert bodies == [{"queries": ["a", "b"], "topk": 3, "return_scores": True}]


@pytest.mark.parametrize("first", [500, 503, 429, "garbled"])
async def test_what_may_be_better_the_next_time_is_asked_again(first):
    calls = 0

    async def retrieve(request):
        nonlocal calls
        calls += 1
        if calls == 1:
            return web.Response(text="{") if first == "garbled" else web.Response(status=first)
        return web.json_response({"result": [[FOUND]]})

    assert await asked(retrieve, ["a"]) == [[PARIS]]
    assert calls == 2


async def test_a_request_that_the_server_refuses_is_sent_once():
    calls = 0

    async def retrieve(request):
        nonlocal calls
        calls += 1
        return web.Response(status=422, text="no such field")

    with pytest.raises(RetrievalError, match="answered 422: no such field") as caught:
        await asked(retrieve)
    assert calls == 1
    assert is_infrastructure(caught.value)


@pytest.mark.usefixtures("few_attempts")
@pytest.mark.parametrize("answer", [{"result": [[FOUND]]}, {"result": [["x"], []]}, {"results": []}, [1]])
async def test_an_answer_that_makes_no_sense_is_an_error_in_the_end(answer):
    async def retrieve(request):
        return web.json_response(answer)

    with pytest.raises(RetrievalError, match=r"expected 'result' with a list for each of 2|needs a text 'contents'"):
        await asked(retrieve)


async def test_a_server_that_does_not_answer_is_given_up():
    never = asyncio.Event()

    async def retrieve(request):
        await never.wait()

    with pytest.raises(RetrievalError, match=r"no server answered within 1 s \(at last: .* no answer within"):
        await asked(retrieve, timeout=0.1, patience=1)


async def test_another_server_takes_the_call_where_one_cannot_be_reached():
    async def retrieve(request):
        return web.json_response({"result": [[FOUND]]})

    async with serving({"POST /retrieve": retrieve}) as url:
        async with RetrievalService(["http://127.0.0.1:9/retrieve", f"{url}/retrieve"]) as service:
            for _ in range(2):
                assert await service.search(["a"], 1) == [[PARIS]]
        with pytest.raises(RetrievalError, match="closed"):
            await service.search(["a"], 1)


def test_a_loop_of_its_own():
    service = RetrievalService("http://127.0.0.1:9/retrieve", patience=0.2)

    async def search():
        with pytest.raises(RetrievalError):
            await service.search(["a"], 1)

    async def twice():
        await search()
        with pytest.raises(ConfigError, match="belongs to another event loop"):
            await asyncio.to_thread(asyncio.run, service.search(["a"], 1))
        await service.close()

    asyncio.run(twice())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"urls": "localhost"}, "address of a retrieval server"),
        ({"urls": []}, "at least one address"),
        ({"urls": "http://a/retrieve", "timeout": 0}, "timeout"),
    ],
)
def test_what_cannot_be_used_is_refused(given, expected):
    with pytest.raises(ConfigError, match=expected):
        RetrievalService(**given)


# ---------------------------------------------------------------------- KILT


async def asked_kilt(handler, queries=("a", "b"), topk=2, **options):
    """What a service finds whose one server has this handler for the older protocol."""
    async with (
        serving({"POST /observation_kilt/": handler}) as url,
        RetrievalService(f"{url}/observation_kilt/", protocol="kilt", **options) as service,
    ):
        return await service.search(queries, topk)


async def test_it_speaks_the_older_protocol_a_request_for_each_query():
    bodies = []

    async def observe(request):
        bodies.append(await request.json())
        return web.json_response(
            [{"content": f"{bodies[-1]['content']}\nOf France."}, {"content": "x"}, {"content": "y"}]
        )

    assert await asked_kilt(observe) == [
        [Passage("a", "Of France."), Passage("x", "")],
        [Passage("b", "Of France."), Passage("x", "")],
    ]
    assert sorted(bodies, key=lambda body: body["content"]) == [
        {"content": "a", "translate": False},
        {"content": "b", "translate": False},
    ]


@pytest.mark.usefixtures("few_attempts")
@pytest.mark.parametrize("answer", [{"content": "x"}, [{"contents": "x"}], ["x"], [None], 5])
async def test_an_answer_of_another_shape_is_an_error_there_too(answer):
    async def observe(request):
        return web.json_response(answer)

    with pytest.raises(RetrievalError, match="expected a list of passages with a text 'content'"):
        await asked_kilt(observe)


# ---------------------------------------------------------------------- what servers do


@pytest.mark.usefixtures("few_attempts")
@pytest.mark.parametrize("protocol", ["search-r1", "kilt"])
async def test_a_huge_answer_is_not_read_to_its_end(protocol, monkeypatch):
    monkeypatch.setattr(service_module, "MAX_ANSWER", 10_000)

    async def endless(request):
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"[" * 5000)
        return response

    asks = asked if protocol == "search-r1" else asked_kilt
    with pytest.raises(RetrievalError, match="more than 10000 bytes"):
        await asks(endless, ["a"])


async def test_a_full_server_is_asked_again_when_it_says():
    asked_at = []

    async def retrieve(request):
        asked_at.append(time.monotonic())
        if len(asked_at) == 1:
            return web.Response(status=429, headers={"Retry-After": "1"})
        return web.json_response({"result": [[FOUND]]})

    assert await asked(retrieve, ["a"]) == [[PARIS]]
    assert asked_at[1] - asked_at[0] >= 1


async def test_a_server_that_stays_full_is_given_up():
    async def retrieve(request):
        return web.Response(status=429, headers={"Retry-After": "30"})

    with pytest.raises(RetrievalError, match=r"no server answered within 1 s \(at last: .* is full"):
        await asked(retrieve, ["a"], patience=1)


@pytest.mark.usefixtures("few_attempts")
async def test_deeply_nested_json_is_an_error():
    async def retrieve(request):
        return web.Response(text="[" * 100_000)

    with pytest.raises(RetrievalError, match="is no JSON"):
        await asked(retrieve, ["a"])
