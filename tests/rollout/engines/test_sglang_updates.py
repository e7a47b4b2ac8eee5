"""New weights in the middle of requests, against a server that keeps a prefix cache as SGLang does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from aiohttp import web

from tests.rollout.engines.http_server import serving
from toolgym.rollout.engines import PauseMode, SamplingParams, SGLangServer
from toolgym.tools.errors import EngineError

ONE = SamplingParams(max_new_tokens=1)
CLEAN, STALE, HALF = -0.5, -9.0, -7.0
"""The log-prob of a token: under its weights alone; on a cache of others; from weights of which a part is new."""


class CachingServer:
    """Samples one token, whose log-prob says what its keys and values were computed by."""

    def __init__(self) -> None:
        self.url = ""
        self.label = "default"
        self.half_loaded = False
        self.updates = 0
        self.buckets_until_failure = 1_000
        self.cache: dict[str, int] = {}
        self.seen: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.going, self.free = asyncio.Event(), asyncio.Event()
        self.going.set()
        self.free.set()  # whether the scheduler has room

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "m", "tokenizer_path": "m", "weight_version": self.label})

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"max_req_input_len": 100})

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(body)
        await self.going.wait()
        await self.free.wait()
        computed_by = self.cache.setdefault(body["extra_key"], self.updates)
        logprob = HALF if self.half_loaded else CLEAN if computed_by == self.updates else STALE
        meta = {
            "finish_reason": {"type": "length", "length": 1},
            "output_token_logprobs": [[logprob, 5, None]],
            "weight_versions": [{"version": self.label, "start": 0, "end": 1}],
        }
        return web.json_response({"text": "", "output_ids": [5], "meta_info": meta})

    async def control(self, request: web.Request) -> web.Response:
        body = await request.json()
        path = request.path.removeprefix("/")
        self.calls.append(path if path != "pause_generation" else body["mode"])
        if path == "pause_generation":
            self.going.clear()
        elif path == "continue_generation":
            self.going.set()
        elif path.startswith("update_weights"):
            if self.buckets_until_failure == 0:
                return web.json_response({"success": False, "message": "no memory"}, status=400)
            self.buckets_until_failure -= 1
            self.updates += 1
            self.label = body["weight_version"]
            self.half_loaded = " in part" in self.label
            if body["flush_cache"]:
                self.cache.clear()
            await asyncio.sleep(0.02)
        return web.json_response({"success": True})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[CachingServer]:
        controls = ("pause_generation", "continue_generation", "abort_request", "begin_weight_update")
        routes = {
            "GET /model_info": self.model_info,
            "GET /server_info": self.server_info,
            "POST /generate": self.generate,
            **{f"POST /{name}": self.control for name in controls},
            "POST /end_weight_update": self.control,
            "POST /update_weights_from_tensor": self.control,
            "POST /update_weights_from_disk": self.control,
        }
        async with serving(routes) as self.url:
            yield self


@pytest.fixture
async def server() -> AsyncIterator[CachingServer]:
    async with CachingServer().running() as caching:
        yield caching


def client(server: CachingServer) -> SGLangServer:
    return SGLangServer(server.url, vocab_size=320)


async def update(engine: SGLangServer, version: str, mode: PauseMode = PauseMode.IN_PLACE) -> None:
    await engine.pause(mode)
    await engine.update_weights_from_disk("folder", version=version)
    await engine.resume()


async def outcome(engine: SGLangServer, request_id: str = "a") -> tuple[float, str]:
    """The log-prob of a new request's token, and its version."""
    generation = await engine.generate([1], ONE, request_id=request_id)
    return generation.logprobs[0], generation.weight_versions[0]


async def sent(server: CachingServer, count: int) -> None:
    """Wait until so many requests have reached the server."""
    async with asyncio.timeout(20):
        while len(server.seen) < count:
            await asyncio.sleep(0.01)


# ---- an update in place leaves the keys and values of the old weights in the cache


async def test_a_client_that_did_not_update_begins_on_no_stale_cache(server: CachingServer) -> None:
    async with client(server) as player, client(server) as trainer:
        assert await outcome(player) == (CLEAN, "default")
        await update(trainer, "1")
        assert [await outcome(player) for _ in range(3)] == [(CLEAN, "1")] * 3
        assert player.weight_version == trainer.weight_version == "1"
        assert len(server.seen) == 5  # the first of the three learned of the update, and was sent again
        assert await outcome(trainer) == (CLEAN, "1")


async def test_what_waited_in_sglang_begins_on_no_stale_cache(server: CachingServer) -> None:
    async with client(server) as engine:
        await outcome(engine)
        server.free.clear()
        waiting = [asyncio.create_task(outcome(engine, str(n))) for n in range(3)]
        await sent(server, 4)
        await update(engine, "1")
        server.free.set()
        assert await asyncio.gather(*waiting) == [(CLEAN, "1")] * 3


async def test_what_waits_through_every_update_is_sent_again_once(server: CachingServer) -> None:
    async with client(server) as engine:
        await outcome(engine)
        for count in (2, 3):
            server.free.clear()
            if count == 2:
                waiting = asyncio.create_task(outcome(engine))
            await sent(server, count)
            await update(engine, str(count))
            server.free.set()
        assert await waiting == (CLEAN, "3")
        assert len(server.seen) == 3


async def test_a_name_that_comes_twice_begins_on_no_stale_cache(server: CachingServer) -> None:
    async with client(server) as engine:
        for _ in range(2):
            await update(engine, "step 1")
            assert await outcome(engine) == (CLEAN, "step 1")
    async with client(server) as restarted:
        assert restarted.weight_version == "step 1"
        assert await outcome(restarted) == (CLEAN, "step 1")
        await update(restarted, "step 1")
        assert await outcome(restarted) == (CLEAN, "step 1")


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.ABORT])
async def test_where_the_cache_is_flushed_nothing_is_sent_again(server: CachingServer, mode: PauseMode) -> None:
    async with client(server) as player, client(server) as trainer:
        await outcome(player)
        await update(trainer, "1", mode)
        assert await outcome(player) == (CLEAN, "1")
        assert len(server.seen) == 2
        assert server.label == "1"


async def test_a_stale_answer_to_an_aborted_request_is_dropped(server: CachingServer) -> None:
    async with client(server) as engine:
        await outcome(engine)
        server.free.clear()
        waiting = asyncio.create_task(engine.generate([1], ONE, request_id="a"))
        await sent(server, 2)
        await update(engine, "1")
        aborting = asyncio.create_task(engine.abort("a"))
        await asyncio.sleep(0.05)
        server.free.set()
        assert (await waiting).token_ids == ()
        await aborting
        assert len(server.seen) == 2


# ---- an update in several requests


@pytest.mark.parametrize("paused", [None, *PauseMode])
async def test_no_request_meets_half_of_the_new_weights(server: CachingServer, paused: PauseMode | None) -> None:
    weights = {name: torch.ones(4) for name in "abcdef"}
    async with client(server) as player, client(server) as trainer:
        outcomes: list[tuple[float, str]] = []

        async def play() -> None:
            while "1" not in {version for _, version in outcomes}:
                outcomes.append(await outcome(player))

        playing = asyncio.create_task(play())
        await sent(server, 2)
        if paused is not None:
            await trainer.pause(paused)
        await trainer.update_weights_from_tensors(weights, version="1", bucket_bytes=16)
        assert trainer.paused is paused
        if paused is not None:
            await trainer.resume()
        await asyncio.wait_for(playing, 60)
    assert {logprob for logprob, _ in outcomes} == {CLEAN}
    assert {version for _, version in outcomes} == {"default", "1"}
    mode = PauseMode.RETRACT if paused is None else paused
    buckets = ["update_weights_from_tensor"] * 6
    assert server.calls == [mode, "begin_weight_update", *buckets, "end_weight_update", "continue_generation"]


async def test_tokens_of_half_loaded_weights_say_so(server: CachingServer) -> None:
    weights = {name: torch.ones(4) for name in "abcdef"}
    async with client(server) as engine:
        await outcome(engine)
        server.buckets_until_failure = 3
        with pytest.raises(EngineError, match="no memory"):
            await engine.update_weights_from_tensors(weights, version="1", bucket_bytes=16)
        assert engine.paused is None
        assert await outcome(engine) == (HALF, "1 in part")
        server.buckets_until_failure = 6
        await engine.update_weights_from_tensors(weights, version="1", bucket_bytes=16)
        assert await outcome(engine) == (CLEAN, "1")


async def test_an_update_in_one_request_needs_no_pause(server: CachingServer) -> None:
    async with client(server) as engine:
        await engine.update_weights_from_tensors({"a": torch.ones(4)}, version="1")
    assert server.calls == ["begin_weight_update", "update_weights_from_tensor", "end_weight_update"]
