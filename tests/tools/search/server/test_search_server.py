"""`toolgym serve search` as clients and users meet it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import re

import aiohttp
import pytest
from aiohttp import web

from tests.serve_command import running
from toolgym.cli.app import main
from toolgym.tools import BM25Retriever, RetrievalService, Retriever, SearchTool
from toolgym.tools.errors import RetrievalError
from toolgym.tools.search.retriever import Passage
from toolgym.tools.search.server.app import SearchApp
from toolgym.tools.search.server.config import SearchServerConfig
from toolgym.tools.serving.config import meanings

ROWS = [
    {"id": "1", "contents": '"Paris"\nThe capital of France.'},
    {"id": "2", "contents": '"Rome"\nThe capital of Italy.'},
    {"id": "3", "contents": '"Cat"\nAn animal.'},
]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@contextlib.asynccontextmanager
async def serving(retriever, **settings):
    """The service over a retriever; gives its address."""
    app = SearchApp(retriever, SearchServerConfig(**settings))
    runner = web.ServerRunner(app.listener(), shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await app.close()


async def post(url, body):
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as http, http.post(url, json=body) as response:
        return response.status, response.headers, await response.json()


async def test_it_answers_as_search_r1_s_server(corpus):
    async with BM25Retriever(corpus, index=":memory:") as retriever, serving(retriever) as url:
        body = {"queries": ["capital of France", "nothing"], "topk": 1, "return_scores": True}
        status, _, found = await post(f"{url}/retrieve", body)
        assert (status, len(found["result"]), found["result"][1]) == (200, 2, [])
        [best] = found["result"][0]
        assert best["document"] == ROWS[0]
        assert best["score"] > 0
        _, _, found = await post(f"{url}/retrieve", {"queries": ["capital"]})
        assert found == {"result": [ROWS[:2]]}


@pytest.mark.parametrize("path", ["/observation_kilt/", "/observation_kilt"])
async def test_it_answers_as_kilt_s_server(corpus, path):
    async with BM25Retriever(corpus, index=":memory:") as retriever, serving(retriever, topk=1) as url:
        status, _, found = await post(url + path, {"content": "the capital of Italy", "translate": True})
        assert (status, found) == (200, [{"content": ROWS[1]["contents"]}])


@pytest.mark.parametrize("protocol", ["search-r1", "kilt"])
async def test_our_client_finds_there_what_the_retriever_finds(corpus, protocol):
    path = {"search-r1": "/retrieve", "kilt": "/observation_kilt/"}[protocol]
    async with BM25Retriever(corpus, index=":memory:") as retriever, serving(retriever) as url:
        async with RetrievalService(url + path, protocol=protocol) as service:
            found = await service.search(["capital", "animal", "nothing"], 1)
        here = await retriever.search(["capital", "animal", "nothing"], 1)
    if protocol == "kilt":  # it gives neither scores nor ids
        here = [[one._replace(score=None, id="") for one in each] for each in here]
    assert found == here


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Field required"),
        ({"queries": []}, "at least 1 item"),
        ({"queries": "text"}, "valid array"),
        ({"queries": ["a"], "topk": 0}, "greater than or equal to 1"),
        ({"queries": ["a"], "topk": 6}, "topk is at most 5 here"),
        ({"queries": ["a"] * 3}, "at most 2 queries here, not 3"),
    ],
)
async def test_a_request_that_is_wrong_is_answered_422(corpus, body, message):
    async with (
        BM25Retriever(corpus, index=":memory:") as retriever,
        serving(retriever, max_topk=5, max_queries=2) as url,
    ):
        status, _, answer = await post(f"{url}/retrieve", body)
    assert (status, message in answer["detail"][0]["msg"]) == (422, True), answer


class Held(Retriever):
    """Answers when it is let go."""

    def __init__(self, error=None):
        self.go, self.running, self.error = asyncio.Event(), asyncio.Event(), error

    async def search(self, queries, topk):
        self.running.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return [[Passage("a", "b", 1.0, "1")] for _ in queries]

    async def close(self):
        pass


async def test_a_full_server_says_when_to_come_back_and_our_client_does():
    retriever = Held()
    async with (
        asyncio.timeout(60),
        serving(retriever, max_concurrency=1, max_queue=0) as url,
        RetrievalService(f"{url}/retrieve") as service,
    ):
        first = asyncio.create_task(service.search(["a"], 1))
        await retriever.running.wait()
        status, headers, _ = await post(f"{url}/retrieve", {"queries": ["a"]})
        assert (status, int(headers["Retry-After"]) >= 1) == (429, True)
        second = asyncio.create_task(service.search(["a"], 1))
        retriever.go.set()
        assert await first == await second == [[Passage("a", "b", 1.0, "1")]]


async def test_a_search_that_fails_is_answered_503_and_is_no_fault_of_the_model():
    retriever = Held(RetrievalError("the file was changed"))
    retriever.go.set()
    async with serving(retriever) as url:
        status, _, answer = await post(f"{url}/retrieve", {"queries": ["a"]})
        assert (status, answer) == (503, {"detail": "the file was changed"})
        tool = SearchTool({"retrieval_service_url": f"{url}/retrieve", "patience": 1})
        text, _, metrics = await tool.execute(await tool.create(), {"query_list": ["a"]})
        assert "queries are not to blame" in text
        assert (metrics["infra_failure"], "the file was changed" in metrics["error"]) == (True, True)
        await tool.close()


async def test_a_client_opens_passages_of_the_server(corpus):
    async with BM25Retriever(corpus, index=":memory:") as retriever, serving(retriever, corpus=corpus) as url:
        async with RetrievalService(f"{url}/retrieve") as service:
            [[passage]] = await service.search(["France"], 1)
            assert service.can_open
            assert (await service.open_passage(passage.id)).contents == passage.contents
            assert await service.open_passage("no such id") is None
        assert (await post(f"{url}/passages", {"ids": []}))[0] == 422
    async with RetrievalService("http://127.0.0.1:9/other") as service:
        assert not service.can_open


async def test_its_health_figures_and_description(corpus):
    async with (
        BM25Retriever(corpus, index=":memory:") as retriever,
        serving(retriever, corpus=corpus) as url,
        aiohttp.ClientSession() as http,
    ):
        await post(f"{url}/retrieve", {"queries": ["a"]})
        async with http.get(f"{url}/health") as response:
            about = await response.json()
        async with http.get(f"{url}/metrics") as response:
            figures = await response.text()
        async with http.get(f"{url}/openapi.json") as response:
            described = await response.json()
    assert about == {
        "status": "ok",
        "version": importlib.metadata.version("toolgym"),
        "corpus": "c.jsonl",
        "running": 0,
        "waiting": 0,
    }
    assert re.search(r'toolgym_search_requests_total\{code="200",endpoint="/retrieve",worker="0"\} 1\.0', figures)
    assert {"/retrieve", "/observation_kilt/", "/health"} <= set(described["paths"])


# ---------------------------------------------------------------------- the command


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command in this process until it exits; returns its status and what it printed."""

    def run(*arguments):
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr("sys.argv", ["toolgym", "serve", "search", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return run


def test_the_settings_are_printed_as_a_file(run, tmp_path):
    code, printed, _ = run("--corpus", "c.jsonl", "--topk", "5", "--print-config")
    (tmp_path / "server.yaml").write_text(printed)
    config = SearchServerConfig.load(tmp_path / "server.yaml")
    assert (code, str(config.corpus), config.topk, config.port) == (0, "c.jsonl", 5, 8000)
    assert set(meanings(SearchServerConfig)) >= set(SearchServerConfig.model_fields), "each has a meaning"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the file of passages to serve: --corpus FILE.jsonl"),
        (["--corpus", "nosuch.jsonl"], "nosuch.jsonl"),
        (["--corpus", "nosuch.jsonl", "--host", "0.0.0.0"], "TOOLGYM_SEARCH_TOKEN"),
        (["--topk", "0"], "--topk: Input should be greater than or equal to 1"),
    ],
)
def test_mistakes_stop_the_command(run, arguments, message):
    code, _, said = run(*arguments)
    assert (code, message in said) == (2, True), said


async def test_a_file_is_served_by_several_workers_until_the_server_is_stopped(corpus):
    flags = ("--corpus", str(corpus), "--workers", "2")
    with running("search", *flags, TOOLGYM_SEARCH_TOKEN="open-sesame") as server:
        config = {"retrieval_service_url": f"{server.url}/retrieve", "retrieval_token": "open-sesame", "topk": 1}
        tool = SearchTool(config)
        instance = await tool.create()
        for _ in range(4):
            text, _, _ = await tool.execute(instance, {"query_list": ["France"]})
            assert text == 'Doc 1 (Title: "Paris")\nThe capital of France.'
        await tool.close()
        assert (await post(f"{server.url}/retrieve", {"queries": ["a"]}))[0] == 401
        code, log = server.stop()
    assert (code, "Traceback" in log, log.count("building an index")) == (0, False, 1), log
