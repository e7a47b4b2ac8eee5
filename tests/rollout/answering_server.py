"""A server that speaks SGLang's `/generate`, as a program that a test can kill: each prompt gets one of two answers.

`python -m tests.rollout.answering_server CALL_IDS ANSWER_IDS` prints its port. The ids are JSON lists. A prompt without
CALL_IDS in it is answered with them, every other one with ANSWER_IDS.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from tests.processes import end_with_the_tests


class Answers:
    def __init__(self, call: list[int], answer: list[int]) -> None:
        self.call, self.answer = call, answer
        self.given = 0

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "m", "tokenizer_path": "m", "weight_version": "default"})

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"max_req_input_len": 4000, "version": "0.5.23", "tp_size": 1})

    async def generate(self, request: web.Request) -> web.Response:
        prompt = json.dumps((await request.json())["input_ids"])
        ids = self.answer if json.dumps(self.call)[1:-1] in prompt else self.call
        await asyncio.sleep(0.01)
        self.given += 1
        meta = {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "output_token_logprobs": [[-0.5, one, None] for one in ids],
            "weight_version": "default",
        }
        return web.json_response({"output_ids": ids, "meta_info": meta})

    async def done(self, request: web.Request) -> web.Response:
        """`/health`, `/abort_request` and the like; `/given` says how many answers were given."""
        return web.json_response({"success": True, "given": self.given})


async def serve(call: list[int], answer: list[int]) -> None:
    answers = Answers(call, answer)
    app = web.Application()
    app.router.add_get("/model_info", answers.model_info)
    app.router.add_get("/server_info", answers.server_info)
    app.router.add_post("/generate", answers.generate)
    app.router.add_route("*", "/{path}", answers.done)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def answering(count: int, call: list[int], answer: list[int]) -> Iterator[list[tuple[str, subprocess.Popen[Any]]]]:
    """So many servers, each a process of its own: their urls and their processes."""
    words = [sys.executable, "-m", "tests.rollout.answering_server", json.dumps(call), json.dumps(answer)]
    servers = [
        subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=end_with_the_tests,
            env={**os.environ, "PYTHONPATH": "."},
        )
        for _ in range(count)
    ]
    try:
        yield [(f"http://127.0.0.1:{int(server.stdout.readline())}", server) for server in servers]  # type: ignore[union-attr]
    finally:
        for server in servers:
            server.kill()
            server.wait(60)
            server.stdout.close()  # type: ignore[union-attr]


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1]), json.loads(sys.argv[2])))
