"""Engines to test.

The embedded one; SGLang's client against one and two stand-in servers; and, with the marker `sglang`, against real
servers: one, two replicas, and two behind a router. `test_real_sglang_engine.py` adds SGLang in process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tests.rollout.engines.http_server import serving
from tests.rollout.engines.sglang_farm import Farm
from toolgym.rollout.engines import (
    Engine,
    PauseMode,
    SamplingParams,
    SGLangEngine,
    SGLangServer,
    TransformersEngine,
)
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.testing import EngineSubject
from toolgym.tools.errors import ConfigError

EOS = 256
IN_PROCESS = os.environ.get("TOOLGYM_SGLANG_IN_PROCESS") == "1"
"""Whether this run is the one inside of SGLang's environment, for `SGLangEngine` alone."""
CPU_ENGINE: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "context_length": 2048,
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_overlap_schedule": True,
    "max_total_tokens": 65536,
    "max_running_requests": 128,
    "sleep_on_idle": True,
    "skip_server_warmup": True,
    "enable_metrics": True,
}


@pytest.fixture(scope="session")
def farm() -> Iterator[Any]:
    """Real servers, each started when it is first asked for; see `sglang_farm.py`."""
    real = Farm()
    try:
        yield real
    finally:
        real.end()


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
    inside: set[str] = field(default_factory=set)
    scheduler_paused: bool = False
    loads: list[dict[str, Any]] | None = None
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
        try:
            self.inside.add(rid)
            result = await self.engine.generate(ids, params, request_id=rid)
        finally:
            self.inside.discard(rid)
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
            versions = result.weight_versions
            begins = [place for place in range(len(versions)) if place == 0 or versions[place] != versions[place - 1]]
            meta["weight_versions"] = [
                {"version": versions[begin], "start": begin, "end": end}
                for begin, end in zip(begins, [*begins[1:], len(versions)], strict=True)
            ]
        return {"text": "", "output_ids": list(result.token_ids), "meta_info": meta}

    async def abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        self.aborted.append(rid)
        await self.engine.abort(rid)
        return web.Response()

    async def pause(self, request: web.Request) -> web.Response:
        mode = PauseMode((await request.json())["mode"])
        self.going.clear()
        if mode is not PauseMode.ABORT:
            self.scheduler_paused = True
            await self.engine.pause(mode)
            return web.json_response({"status": "ok"})
        while True:  # as SGLang does: it waits for what runs, and a paused scheduler ends nothing
            if not self.scheduler_paused:
                await self.engine.pause(mode)
                await self.engine.resume()
            if not self.inside:
                return web.json_response({"status": "ok"})
            await asyncio.sleep(0.05)

    async def resume(self, request: web.Request) -> web.Response:
        self.scheduler_paused = False
        await self.engine.resume()
        self.going.set()
        return web.json_response({"status": "ok"})

    async def new_version(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["abort_all_requests"] is False  # its default is to abort
        await self.engine.notify_weights_changed(body["new_version"])
        return web.json_response({"success": True, "new_version": body["new_version"]})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def say_loads(self, request: web.Request) -> web.Response:
        if self.loads is None:
            await asyncio.sleep(60)
        return web.json_response({"version": "0.5.23", "loads": self.loads})


def _refused(message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=400)


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
            "POST /update_weight_version": server.new_version,
            "GET /health": server.health,
            "GET /v1/loads": server.say_loads,
        }
        async with serving(routes) as url:
            server.url = url
            yield server


@pytest.fixture(scope="session")
def stand_in_of() -> Callable[[Path], contextlib.AbstractAsyncContextManager[StandIn]]:
    """Serves a model folder as SGLang would, for tests that need a server and no model of their own."""
    return stand_in


def forward(model: Any) -> Callable[[Sequence[int]], Any]:
    """Return the plain forward pass of a model, from ids to logits of shape [len(ids), vocab]."""

    def logits(ids: Sequence[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([[*ids]])).logits[0].float().numpy()

    return logits


@dataclass(frozen=True)
class Subject(EngineSubject):
    """One of our engines.

    Attributes:
        model: what `logits` runs.
        server: what stands in for a server, where there is one.
    """

    model: Any = None
    server: StandIn | None = None

    @classmethod
    def of(cls, engine: Any, make: Callable[[], Engine], model: Any, **facts: Any) -> Subject:
        return cls(engine, make, forward(model), model=model, **facts)


def sglang_subject(engine: Any, make: Callable[[], Engine], model: Any, **facts: Any) -> Subject:
    """Return a subject that gives back nothing of what waits, as SGLang does; what was retracted waits."""
    facts = {"eos": EOS, "seeds": engine.info.deterministic, "min_p": not engine.info.deterministic} | facts
    return Subject.of(engine, make, model, new_version=engine.update_weight_version, keeps_retracted=False, **facts)


REAL = pytest.mark.sglang
SUBJECTS = [
    "transformers",
    "stand_in",
    pytest.param("two_stand_ins", marks=pytest.mark.matrix),
    pytest.param("sglang", marks=REAL),
    pytest.param("sglang_replicas", marks=REAL),
    pytest.param("sglang_router", marks=REAL),
]
if IN_PROCESS:
    SUBJECTS = [pytest.param("sglang_engine", marks=REAL)]


@pytest.fixture(params=SUBJECTS)
async def subject(request: pytest.FixtureRequest, tiny_model_path: Path) -> AsyncIterator[Subject]:
    if request.param == "transformers":
        model = AutoModelForCausalLM.from_pretrained(tiny_model_path).eval()

        def embedded() -> Engine:
            return TransformersEngine(model)

        async with TransformersEngine(model) as engine:
            yield Subject.of(engine, embedded, model, new_version=engine.notify_weights_changed, eos=EOS)
    elif request.param == "stand_in":
        async with stand_in(tiny_model_path) as server, SGLangServer(server.url) as client:
            yield sglang_subject(
                client,
                lambda: SGLangServer(server.url),
                server.engine.model,
                server=server,
                idle=lambda: not server.running,
            )
    elif request.param == "two_stand_ins":
        async with stand_in(tiny_model_path) as one, stand_in(tiny_model_path) as two:
            urls = (one.url, two.url)
            async with SGLangServer(*urls) as client:
                yield sglang_subject(client, lambda: SGLangServer(*urls), one.engine.model)
    elif request.param == "sglang_engine":
        engine = await _in_process()
        yield sglang_subject(
            engine,
            lambda: SGLangEngine(tiny_policy_path(), **(CPU_ENGINE | {"enable_metrics": False})),
            _float_model(engine.info.model_path),
            eos=505,
        )
    else:
        farm = request.getfixturevalue("farm")
        counts = {"sglang": 1, "sglang_replicas": 2}
        real = [farm.router()] if request.param == "sglang_router" else farm.urls(counts[request.param])
        async with SGLangServer(*real) as client:
            exact = all(info["dtype"] == "float32" for info in (await client.server_info()).values())
            model = _float_model(client.info.model_path)
            yield sglang_subject(
                client,
                lambda: SGLangServer(*real),
                model,
                tolerance=1e-4 if exact else 0.05,
                eos=int(model.config.eos_token_id),
            )


@functools.cache
def _float_model(path: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


_ENGINE: list[SGLangEngine] = []


async def _in_process() -> SGLangEngine:
    """One engine for all tests of this run, which share one event loop."""
    if not _ENGINE:
        engine = SGLangEngine(tiny_policy_path(), **CPU_ENGINE)
        await engine.start()
        _ENGINE.append(engine)
    return _ENGINE[0]


if IN_PROCESS:

    @pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
    async def _end_of_engine() -> AsyncIterator[None]:
        yield
        for engine in _ENGINE:
            await engine.close()
