"""vLLM as TRL's `GRPOTrainer` meets it, without a GPU: its server over HTTP, and its engine in the trainer's process.

Both sample with a real model, as TRL loads the weights into it. Only NCCL is left out: what it would carry to the
server is put into the server's model.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from transformers import AutoModelForCausalLM

from tests.rollout.engines.completions_server import Server
from tests.rollout.engines.http_server import serving
from toolgym.rollout.engines import TransformersEngine
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread

VLLM_MODULES = ("trl.generation.vllm_client", "trl.generation.vllm_generation")


class TrlServer(Server):
    """`vllm serve` with the endpoints that TRL's `VLLMClient` asks."""

    calls: list[str]

    async def answer(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        if request.path == "/server_info":
            facts = {"model_config": {"logprobs_mode": "processed_logprobs"}, "weight_transfer_config": {}}
            return web.json_response({"vllm_config": facts})
        return web.json_response({"world_size": 1})


@contextmanager
def vllm_server(path: Path, patch: pytest.MonkeyPatch) -> Iterator[TrlServer]:
    """A server in a thread of its own; TRL believes that vLLM is installed."""
    _installed(patch)
    bridge = EventLoopThread(name="vllm-stand-in")

    @asynccontextmanager
    async def started() -> Any:
        async with TransformersEngine(path) as engine:
            server = TrlServer(engine, path, "vllm", mode="processed")
            server.calls = []
            routes = {"GET /v1/models": server.models, "POST /v1/completions": server.completions}
            for name in ("health", "server_info", "get_world_size"):
                routes[f"GET /{name}"] = server.answer
            for name in ("start_weight_update", "update_weights", "finish_weight_update", "reset_prefix_cache"):
                routes[f"POST /{name}"] = server.answer
            async with serving(routes, handler_cancellation=True) as server.url:
                yield server

    context = started()
    server = bridge.run(context.__aenter__())

    def broadcast(iterator: Any, **_: Any) -> None:
        named = dict(server.engine.model.named_parameters())
        with torch.no_grad():
            for name, value in iterator:
                named[name].copy_(value)

    patch.setattr("trl.generation.vllm_client.VLLMClient.init_communicator", lambda self, device: None)
    patch.setattr("trl.generation.vllm_client._HAS_STATEFUL_TRAINER_ENGINE", True, raising=False)
    patch.setattr("trl.generation.vllm_client._HAS_RESET_PREFIX_CACHE_SUCCESS", True, raising=False)
    patch.setattr("trl.generation.vllm_client.packed_nccl_broadcast_producer", broadcast, raising=False)
    try:
        yield server
    finally:
        bridge.run(context.__aexit__(None, None, None))
        bridge.close()


@dataclass
class Params:
    """The fields of vLLM's `SamplingParams` that are used here."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop_token_ids: list[int]
    ignore_eos: bool
    logprobs: int
    detokenize: bool
    output_kind: str


@dataclass
class _Request:
    prompt: list[int]
    params: Params
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Any]] = field(default_factory=list)


class InProcess:
    """vLLM's `LLM`: a token for each running request a step, sampled in the thread that makes the step."""

    made: list[InProcess]

    def __init__(self, model: str, **options: Any) -> None:
        assert options["logprobs_mode"] == "processed_logprobs"
        self.model = AutoModelForCausalLM.from_pretrained(model).eval()
        self.llm_engine = self
        self.model_config = types.SimpleNamespace(max_model_len=self.model.config.max_position_embeddings)
        loader = types.SimpleNamespace(model=types.SimpleNamespace(load_weights=self.load))
        runner = types.SimpleNamespace(model_runner=loader)
        self.model_executor = types.SimpleNamespace(driver_worker=runner)
        self.requests: dict[str, _Request] = {}
        self.random = torch.Generator().manual_seed(0)
        self.most_at_once = self.aborted = 0
        self.fails = False
        self.made.append(self)

    def load(self, named: list[tuple[str, torch.Tensor]]) -> None:
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in named:
                own[name].copy_(value)

    def reset_prefix_cache(self) -> None:
        assert not self.requests

    def add_request(self, request_id: str, prompt: dict[str, Any], params: Params) -> str:
        if len(prompt["prompt_token_ids"]) + params.max_tokens > self.model_config.max_model_len:
            raise ValueError("the prompt is too long")
        self.requests[request_id] = _Request(prompt["prompt_token_ids"], params)
        return request_id

    def abort_request(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.aborted += self.requests.pop(request_id, None) is not None

    def step(self) -> list[Any]:
        if self.fails:
            raise RuntimeError("CUDA error: device-side assert triggered")
        self.most_at_once = max(self.most_at_once, len(self.requests))
        done = []
        running = [torch.tensor([*request.prompt, *request.token_ids]) for request in self.requests.values()]
        with torch.no_grad():  # padded behind, where no token that counts can look
            rows = self.model(torch.nn.utils.rnn.pad_sequence(running, batch_first=True)).logits.float()
        for (request_id, request), ids, row in zip(list(self.requests.items()), running, rows, strict=True):
            logits = row[len(ids) - 1]
            logprobs = (logits / request.params.temperature).log_softmax(-1)
            token = int(torch.multinomial(logprobs.exp(), 1, generator=self.random))
            request.token_ids.append(token)
            request.logprobs.append({token: types.SimpleNamespace(logprob=float(logprobs[token]))})
            stopped = token in request.params.stop_token_ids
            if stopped or len(request.token_ids) == request.params.max_tokens:
                del self.requests[request_id]
                answer = types.SimpleNamespace(
                    token_ids=request.token_ids,
                    logprobs=request.logprobs,
                    finish_reason="stop" if stopped else "length",
                )
                done.append(
                    types.SimpleNamespace(request_id=request_id, finished=True, outputs=[answer], num_cached_tokens=0)
                )
        return done


@contextmanager
def vllm_in_process(patch: pytest.MonkeyPatch) -> Iterator[list[InProcess]]:
    """vLLM's `LLM` for TRL's mode `colocate`; yields the ones that were made."""
    _installed(patch)
    InProcess.made = []
    sampling = types.SimpleNamespace(RequestOutputKind=types.SimpleNamespace(FINAL_ONLY="final"))
    patch.setitem(sys.modules, "vllm", types.SimpleNamespace(SamplingParams=Params))
    patch.setitem(sys.modules, "vllm.sampling_params", sampling)
    patch.setattr("trl.generation.vllm_generation.LLM", InProcess, raising=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):  # TRL sets them for vLLM
        patch.setenv(name, "x")
        patch.delenv(name)
    yield InProcess.made


def _installed(patch: pytest.MonkeyPatch) -> None:
    for module in VLLM_MODULES:
        patch.setattr(f"{module}.is_vllm_available", lambda *_: True)
