"""A server with a real model behind `/v1/completions`, which speaks as vLLM or SGLang does."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from aiohttp import web

from tests.rollout.engines.http_server import serving
from tests.rollout.engines.words import WORDS
from toolgym.rollout.engines import FinishReason, SamplingParams, TransformersEngine
from toolgym.rollout.engines.stop_texts import decoder, stop_in, stop_length

EOS = 256
CHUNK = 8


@dataclass
class Server:
    """Speaks `/v1/completions` over a real socket as vLLM or SGLang does, by wrapping the embedded engine.

    Generates a few tokens at a time, and streams each lot. A closed connection ends its request.
    """

    engine: TransformersEngine
    path: Path
    dialect: str
    mode: str = "scaled"
    ids_as_text: bool = False
    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    """How many events were sent to each."""
    completed: int = 0
    """How many requests got all tokens that they asked for."""

    async def under_way(self) -> None:
        """Wait until some events of a request were sent."""
        async with asyncio.timeout(60):
            while not any(sent > 2 for sent in self.running.values()):
                await asyncio.sleep(0.001)

    async def models(self, request: web.Request) -> web.Response:
        card = {
            "id": "tiny",
            "object": "model",
            "owned_by": self.dialect,
            "root": str(self.path),
            "max_model_len": self.engine.context_length,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"max_req_input_len": self.engine.context_length - 6})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        self.headers.append(dict(request.headers))
        name = str(len(self.seen))
        self.running[name] = 0
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            async for event in self._events(name, body):
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.running[name] += 1
            await response.write(b"data: [DONE]\n\n")
            self.completed += 1
        finally:
            del self.running[name]
        return response

    async def _events(self, name: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        prompt, most = body["prompt"], body["max_tokens"]
        stops = tuple(body["stop_token_ids"])
        if self.dialect == "sglang":
            stops = () if body["ignore_eos"] else (*stops, EOS)
            most = min(most, self.engine.context_length - 2 - len(prompt))
        elif not body["ignore_eos"]:
            stops = (*stops, EOS)
        ids: list[int] = []
        while True:
            params = SamplingParams(
                max_new_tokens=min(CHUNK, most - len(ids)),
                temperature=body["temperature"],
                top_p=body["top_p"],
                top_k=body["top_k"],
                min_p=body["min_p"],
                stop_token_ids=stops,
                seed=None if body.get("seed") is None else body["seed"] + len(ids),
            )
            step = await self.engine.generate([*prompt, *ids], params, request_id=f"{name}-{len(ids)}")
            first = not ids
            length = body.get("stop") and stop_length([*ids, *step.token_ids], body["stop"], decoder(WORDS))
            step = step.stopped_at(length - len(ids)) if length else step
            ids += step.token_ids
            stopped = step.finish_reason is FinishReason.STOP
            finish = "stop" if stopped else "length" if len(ids) >= most else None
            matched = stop_in(WORDS.decode(ids), body["stop"])[1] if length else None
            yield self._event(body, prompt if first else None, step, finish, matched)
            if finish is not None:
                break
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        yield {"id": name, "choices": [], "usage": usage}

    def _event(
        self, body: dict[str, Any], prompt: list[int] | None, step: Any, finish: str | None, stop: str | None = None
    ) -> dict[str, Any]:
        ids = list(step.token_ids)
        logprobs: dict[str, Any] = {
            "tokens": [f"token_id:{one}" if self.dialect == "vllm" else "?" for one in ids],
            "token_logprobs": list(step.logprobs),
            "text_offset": [0] * len(ids),
            "top_logprobs": [],
        }
        if body["logprobs"] and prompt is not None:
            logprobs["top_logprobs"] = [self._top(prompt, body)]
        choice: dict[str, Any] = {"index": 0, "text": "...", "logprobs": logprobs, "finish_reason": finish}
        if not self.ids_as_text:
            choice["token_ids"] = ids
            if prompt is not None:
                choice["prompt_token_ids"] = prompt
        matched = (stop or ids[-1]) if finish == "stop" else None
        choice["stop_reason" if self.dialect == "vllm" else "matched_stop"] = matched
        return {"id": "cmpl", "object": "text_completion", "choices": [choice]}

    def _top(self, prompt: list[int], body: dict[str, Any]) -> dict[str, float]:
        """The most probable first tokens, of the distribution that the mode names."""
        with torch.no_grad():
            logits = self.engine.model(torch.tensor([prompt])).logits[0, -1].float()
        if self.mode != "raw":
            logits = logits / (body["temperature"] or 1.0)
        if self.mode == "processed" and body["top_k"] > 0:
            logits = logits.masked_fill(logits < logits.topk(body["top_k"]).values[-1], -math.inf)
        values, places = logits.log_softmax(-1).topk(body["logprobs"])
        return {
            f"token_id:{place}": max(value, -9999.0)
            for value, place in zip(values.tolist(), places.tolist(), strict=True)
        }


@asynccontextmanager
async def real_model(path: Path, dialect: str, **options: Any) -> AsyncIterator[Server]:
    async with TransformersEngine(path) as inner:
        server = Server(inner, path, dialect, **options)
        routes = {
            "GET /v1/models": server.models,
            "GET /server_info": server.server_info,
            "POST /v1/completions": server.completions,
        }
        async with serving(routes, handler_cancellation=True) as url:
            server.url = url
            yield server
