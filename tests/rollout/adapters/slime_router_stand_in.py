"""What slime's router answers: `/generate` in SGLang's shape, with a policy that a test writes."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
from aiohttp import web

from tests.rollout.engines.http_server import serving

CALL = '<tool_call>\n{{"name": "code_interpreter", "arguments": {{"code": "{}"}}}}\n</tool_call>'
LAYERS, TOP_K = 2, 2


def call_then_answer(seen):
    """Calls the tool, then answers 6."""
    return "#### 6" if "<tool_response>" in seen else CALL.format("print(2*3)")


class Router:
    """Answers with what `policy(prompt_text)` says: a text, or a status to fail with.

    `bodies` and `headers` are those of the requests; `held` is what each request waits for.
    """

    def __init__(self, tokenizer, policy=call_then_answer):
        self.tokenizer, self.policy = tokenizer, policy
        self.bodies, self.headers = [], []
        self.held = asyncio.Event()
        self.held.set()
        self.aborting, self.weighs = False, True

    def serve(self):
        return serving(
            {
                "POST /generate": self.generate,
                "GET /workers": self.workers,
                "POST /abort_request": self.abort,
                "GET /v1/loads": self.loads,
            }
        )

    async def generate(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        await self.held.wait()
        said = self.policy(self.tokenizer.decode(body["input_ids"]))
        if isinstance(said, int):
            return web.json_response({"error": "no"}, status=said)
        ids = [*self.tokenizer.encode(said, add_special_tokens=False), self.tokenizer.eos_token_id]
        sampling = body["sampling_params"]
        reason = {"type": "stop", "matched": ids[-1]}
        if len(ids) > sampling["max_new_tokens"]:
            ids = ids[: sampling["max_new_tokens"]]
            reason = {"type": "length", "length": len(ids)}
        if self.aborting:
            ids, reason = ids[:2], {"type": "abort", "message": "Abort"}
        meta = {
            "output_token_logprobs": [[-0.5 - n / 64, one, None] for n, one in enumerate(ids)],
            "finish_reason": reason,
            "weight_version": str(4 + len(self.bodies)),
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 3,
        }
        if (sampling.get("custom_params") or {}).get("return_top_p_token_ids"):
            kept = [[one, one + 1][: 1 + n % 2] for n, one in enumerate(ids)]
            meta["top_p_token_ids"] = encoded([one for some in kept for one in some])
            meta["top_p_token_offsets"] = encoded(np.cumsum([0, *map(len, kept)]))
        if body.get("return_routed_experts"):
            meta["routed_experts"] = encoded([routing(one) for one in [*body["input_ids"], *ids][:-1]])
        if body.get("return_routed_expert_weights") and self.weighs:
            rows = np.asarray([weights(one) for one in [*body["input_ids"], *ids][:-1]], "<f4")
            meta["routed_expert_weights"] = base64.b64encode(rows.tobytes()).decode()
        return web.json_response({"text": said, "output_ids": ids, "meta_info": meta})

    async def workers(self, request):
        return web.json_response({"workers": [{"url": str(request.url.origin())}]})

    async def abort(self, request):
        self.aborting = True
        self.held.set()
        return web.json_response({})

    async def loads(self, request):
        return web.json_response({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0, "num_total_reqs": 0}]})


def routing(token_id):
    """The experts of a token, other ones for other tokens."""
    return [[(token_id + layer + slot) % 7 + 1 for slot in range(TOP_K)] for layer in range(LAYERS)]


def weights(token_id):
    """Their weights, of a token's experts together 1; not exact in fewer than 32 bits."""
    first = np.float32(1) / np.float32(token_id + 2)
    return [[float(first), float(np.float32(1) - first)]] * LAYERS


def encoded(numbers):
    return base64.b64encode(np.asarray(numbers, "<i4").tobytes()).decode()
