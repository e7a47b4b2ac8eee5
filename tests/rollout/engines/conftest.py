"""Engines to test: the embedded one, SGLang's client against a stand-in server, and against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from toolgym.rollout.engines import Engine, SamplingParams, SGLangServer, TransformersEngine
from toolgym.tools.errors import ConfigError

REAL_URL = os.environ.get("TOOLGYM_SGLANG_URL")
EOS = 256


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_model(seed: int = 0, **changes: Any) -> Qwen3ForCausalLM:
    """Make a random Qwen3 whose next-token distributions are far from uniform."""
    settings = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "eos_token_id": EOS,
        "pad_token_id": 257,
        "bos_token_id": None,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**(settings | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model


@pytest.fixture
def tiny_model() -> Qwen3ForCausalLM:
    return make_model()


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny_model")
    make_model().save_pretrained(path)
    return path


@dataclass
class StandIn:
    """A server that speaks SGLang's `/generate` contract over a real socket, by wrapping the embedded engine.

    It keeps the habits of SGLang that bite: it stops at the model's own end of sequence, checks no ids, cuts a
    generation a few tokens before the context, drops the abort of an unknown id, and loses the abort of a request
    that waits for the end of a pause.
    """

    engine: TransformersEngine
    path: Path
    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    going: asyncio.Event = field(default_factory=asyncio.Event)

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": str(self.path),
                "tokenizer_path": str(self.path),
                "is_generation": True,
                "weight_version": self.engine.weight_version,
            }
        )

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "context_length": self.engine.context_length,
                "max_req_input_len": self.engine.context_length - 6,
                "enable_deterministic_inference": True,
                "version": "0.5.23",
            }
        )

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(body)
        rid, sampling, ids = body["rid"], body["sampling_params"], body["input_ids"]
        if rid in self.running:
            return _refused(f"Duplicate request ID detected: {rid}")
        if len(ids) >= self.engine.context_length - 6:
            return _refused(f"Input length ({len(ids)} tokens) exceeds the maximum allowed length")
        self.running.add(rid)
        try:
            await self.going.wait()
            return web.json_response(await self._run(rid, ids, sampling))
        except ConfigError as error:
            return _refused(str(error))
        finally:
            self.running.discard(rid)

    async def _run(self, rid: str, ids: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        stop = () if sampling["ignore_eos"] else (*sampling["stop_token_ids"], EOS)
        params = SamplingParams(
            max_new_tokens=min(sampling["max_new_tokens"], self.engine.context_length - 2 - len(ids)),
            temperature=sampling["temperature"],
            top_p=sampling["top_p"],
            top_k=sampling["top_k"],
            min_p=sampling["min_p"],
            stop_token_ids=stop,
            seed=sampling["sampling_seed"],
        )
        result = await self.engine.generate(ids, params, request_id=rid)
        reason: dict[str, Any] = {
            "stop": {"type": "stop", "matched": result.token_ids[-1] if result.token_ids else None},
            "length": {"type": "length", "length": len(result.token_ids)},
            "abort": {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
        }[result.finish_reason]
        meta: dict[str, Any] = {"id": rid, "finish_reason": reason, "weight_version": self.engine.weight_version}
        if result.token_ids:
            meta["cached_tokens"] = result.cached_tokens
            meta["output_token_logprobs"] = [
                [logprob, token_id, None] for logprob, token_id in zip(result.logprobs, result.token_ids, strict=True)
            ]
            meta["weight_versions"] = [
                {"version": self.engine.weight_version, "start": 0, "end": len(result.token_ids)}
            ]
        return {"text": "", "output_ids": list(result.token_ids), "meta_info": meta}

    async def abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        self.aborted.append(rid)
        await self.engine.abort(rid)
        return web.Response()

    async def pause(self, request: web.Request) -> web.Response:
        assert (await request.json())["mode"] == "in_place"
        self.going.clear()
        await self.engine.pause()
        return web.json_response({"status": "ok"})

    async def resume(self, request: web.Request) -> web.Response:
        await self.engine.resume()
        self.going.set()
        return web.json_response({"status": "ok"})


def _refused(message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=400)


@contextlib.asynccontextmanager
async def serving(routes: dict[str, Callable[[web.Request], Any]]) -> AsyncIterator[str]:
    """Serve handlers, keyed by "METHOD /path", on a free local port; yields the url."""
    app = web.Application()
    for route, handler in routes.items():
        method, path = route.split()
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def stand_in(path: Path) -> AsyncIterator[StandIn]:
    async with TransformersEngine(path) as inner:
        server = StandIn(inner, path)
        server.going.set()
        routes = {
            "GET /model_info": server.model_info,
            "GET /server_info": server.server_info,
            "POST /generate": server.generate,
            "POST /abort_request": server.abort,
            "POST /pause_generation": server.pause,
            "POST /continue_generation": server.resume,
        }
        async with serving(routes) as url:
            server.url = url
            yield server


@dataclass
class Subject:
    """One engine under test, with what the tests need to judge it."""

    engine: Engine
    make: Callable[[], Engine]
    model: torch.nn.Module
    tolerance: float = 1e-4
    honours_seeds: bool = True
    server: StandIn | None = None


@pytest.fixture(
    params=[
        "transformers",
        "stand_in",
        pytest.param(
            "sglang",
            marks=[
                pytest.mark.sglang,
                pytest.mark.skipif(REAL_URL is None, reason="TOOLGYM_SGLANG_URL is not set"),
            ],
        ),
    ]
)
async def subject(request: pytest.FixtureRequest, tiny_model_path: Path) -> AsyncIterator[Subject]:
    if request.param == "transformers":
        model = AutoModelForCausalLM.from_pretrained(tiny_model_path).eval()

        def embedded() -> Engine:
            return TransformersEngine(model)

        async with embedded() as engine:
            yield Subject(engine, embedded, model)
    elif request.param == "stand_in":
        async with stand_in(tiny_model_path) as server:

            def client() -> Engine:
                return SGLangServer(server.url)

            async with client() as engine:
                yield Subject(engine, client, server.engine.model, server=server)
    else:
        assert REAL_URL is not None
        url: str = REAL_URL
        async with aiohttp.ClientSession() as session, session.get(f"{url}/server_info") as response:
            exact = (await response.json())["dtype"] == "float32"
        async with SGLangServer(url) as engine:
            model = AutoModelForCausalLM.from_pretrained(engine.info.model_path, dtype=torch.float32).eval()
            yield Subject(
                engine,
                lambda: SGLangServer(url),
                model,
                tolerance=1e-4 if exact else 0.05,
                honours_seeds=engine.info.deterministic,
            )
