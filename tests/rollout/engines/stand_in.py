"""A stand-in for an SGLang server: it speaks the same API over a real socket, and the embedded engine samples.

`python -m tests.rollout.engines.stand_in FOLDER PORT` serves the model of a folder until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.rollout.engines.http_server import serving
from toolgym.rollout.engines import PauseMode, SamplingParams, TransformersEngine
from toolgym.rollout.engines.stop_texts import stop_in
from toolgym.tools.errors import ConfigError


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
            if sampling["max_new_tokens"] == 0:
                return web.json_response(await self._score(rid, ids, body["logprob_start_len"]))
            return web.json_response(await self._run(rid, ids, sampling))
        except ConfigError as error:
            return _refused(str(error))
        finally:
            self.running.discard(rid)

    async def _score(self, rid: str, ids: list[int], start: int) -> dict[str, Any]:
        scores = await self.engine.score_tokens(ids, start=start + 1, request_id=rid)
        pairs = zip((None, *scores.logprobs), ids[start:], strict=True)
        meta = {"id": rid, "finish_reason": {"type": "length", "length": 0}, "weight_version": scores.weight_version}
        entries = [[logprob, token_id, None] for logprob, token_id in pairs]
        return {"text": "", "output_ids": [], "meta_info": meta | {"input_token_logprobs": entries}}

    async def _run(self, rid: str, ids: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        eos = self.engine.model.config.eos_token_id
        stop = () if sampling["ignore_eos"] else (*sampling["stop_token_ids"], eos)
        params = SamplingParams(
            max_new_tokens=min(sampling["max_new_tokens"], self.engine.context_length - 2 - len(ids)),
            temperature=sampling["temperature"],
            top_p=sampling["top_p"],
            top_k=sampling["top_k"],
            min_p=sampling["min_p"],
            stop_token_ids=stop,
            seed=sampling["sampling_seed"],
            stop=tuple(sampling.get("stop", ())),
        )
        try:
            self.inside.add(rid)
            result = await self.engine.generate(ids, params, request_id=rid)
        finally:
            self.inside.discard(rid)
        matched: Any = result.token_ids[-1] if result.token_ids else None
        if matched not in stop and params.stop:
            matched = stop_in(self.engine.tokenizer.decode(list(result.token_ids)), params.stop)
            matched = matched and matched[1]
        reason: dict[str, Any] = {
            "stop": {"type": "stop", "matched": matched},
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

    async def new_weights(self, request: web.Request) -> web.Response:
        body = await request.json()
        await self.engine.update_weights(body["model_path"], version=body["weight_version"])
        return web.json_response({"success": True, "message": ""})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def say_loads(self, request: web.Request) -> web.Response:
        if self.loads is None:
            await asyncio.sleep(60)
        return web.json_response({"version": "0.5.23", "loads": self.loads})


def _refused(message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=400)


@contextlib.asynccontextmanager
async def stand_in(path: Path, port: int = 0) -> AsyncIterator[StandIn]:
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
            "POST /update_weights_from_disk": server.new_weights,
            "GET /health": server.health,
            "GET /v1/loads": server.say_loads,
        }
        async with serving(routes, port=port) as url:
            server.url = url
            yield server


async def _serve(path: Path, port: int) -> None:
    async with stand_in(path, port) as server:
        server.loads = [{"token_usage": 0.0, "num_running_reqs": 0, "num_waiting_reqs": 0, "max_running_requests": 128}]
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
