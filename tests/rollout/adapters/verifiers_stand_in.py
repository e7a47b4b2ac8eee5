"""What verifiers' train client asks: vLLM's `/inference/v1/generate`, with a policy that a test writes."""

from __future__ import annotations

import asyncio

from aiohttp import web

from tests.rollout.engines.http_server import serving


class Engine:
    """Answers with what `policy(prompt_text)` says: a text, a status to fail with, or seconds to hang.

    `asked` holds for each request the ids that came and those that went.
    """

    def __init__(self, tokenizer, policy):
        self.tokenizer, self.policy = tokenizer, policy
        self.asked, self.sampling, self.headers = [], [], []

    def serve(self):
        return serving({"POST /inference/v1/generate": self.generate, "GET /v1/models": self.models})

    async def models(self, request):
        return web.json_response({"data": [{"id": "policy", "max_model_len": 2048}]})

    async def generate(self, request):
        body = await request.json()
        self.headers.append(request.headers)
        self.sampling.append(body["sampling_params"])
        said = self.policy(self.tokenizer.decode(body["token_ids"]))
        if isinstance(said, float):
            await asyncio.sleep(said)
        if isinstance(said, int):
            return web.json_response({"error": {"message": "cuda died"}}, status=said)
        ids = [*self.tokenizer.encode(said, add_special_tokens=False), self.tokenizer.eos_token_id]
        reason = "length" if len(ids) > body["sampling_params"]["max_tokens"] else "stop"
        ids = ids[: body["sampling_params"]["max_tokens"]]
        self.asked.append((body["token_ids"], ids))
        told = [{"token": f"token_id:{one}", "logprob": -0.5 - n / 64} for n, one in enumerate(ids)]
        choice = {"token_ids": ids, "finish_reason": reason, "logprobs": {"content": told}}
        return web.json_response({"request_id": "r", "choices": [choice]})
