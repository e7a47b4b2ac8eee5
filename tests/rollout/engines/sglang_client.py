"""A client of a server that answers as SGLang does, or as a test says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from tests.rollout.engines.http_server import Handler, serving
from toolgym.rollout.engines import SamplingParams, SGLangServer

SHORT = SamplingParams(max_new_tokens=2)
MODEL_INFO = {"model_path": "org/model", "tokenizer_path": "org/model", "weight_version": "default"}
SERVER_INFO = {"context_length": None, "max_req_input_len": 100, "version": "0.5.23"}
GOOD: dict[str, Any] = {
    "text": "",
    "output_ids": [5, 6],
    "meta_info": {
        "finish_reason": {"type": "length", "length": 2},
        "output_token_logprobs": [[-0.5, 5, None], [-1.5, 6, None]],
        "weight_version": "2",
        "weight_versions": [{"version": "1", "start": 0, "end": 1}, {"version": "2", "start": 1, "end": 2}],
        "cached_tokens": 3,
    },
}


def answering(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        if isinstance(body, str):
            return web.Response(text=body, status=status, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    return handler


@contextlib.asynccontextmanager
async def client(generate: Handler, **changes: Any) -> AsyncIterator[SGLangServer]:
    """A started client whose server answers `/generate` with `generate`."""
    server_info = SERVER_INFO | changes.pop("server_info", {})
    routes = {
        "GET /model_info": answering(MODEL_INFO),
        "GET /server_info": answering(server_info),
        "POST /generate": generate,
        "POST /abort_request": changes.pop("abort", answering("")),
        "POST /pause_generation": answering({}),
        "POST /continue_generation": answering({}),
    }
    async with serving(routes) as url, SGLangServer(url, vocab_size=320, **changes) as engine:
        yield engine


def wrong(**changes: Any) -> dict[str, Any]:
    answer = json.loads(json.dumps(GOOD))
    for name, value in changes.items():
        place = answer if name in answer else answer["meta_info"]
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    return answer
