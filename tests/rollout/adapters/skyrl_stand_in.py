"""What SkyRL's router answers: `/inference/v1/generate` and its packed form, with a policy that a test writes."""

from __future__ import annotations

import json

import numpy as np
from aiohttp import web

from tests.rollout.adapters.slime_router_stand_in import LAYERS, TOP_K, call_then_answer, routing
from tests.rollout.engines.http_server import serving

WIDTH = 3


class Router:
    """Answers with what `policy(prompt_text)` says: a text, or a status to fail with. `bodies` are the requests'."""

    def __init__(self, tokenizer, policy=call_then_answer):
        self.tokenizer, self.policy = tokenizer, policy
        self.bodies, self.sessions, self.finished = [], [], []

    def serve(self):
        return serving(
            {
                "POST /inference/v1/generate": self.generate,
                "POST /skyrl/v1/generate": self.generate,
                "POST /finish_session": self.finish,
            }
        )

    async def generate(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.sessions.append(request.headers["X-Session-ID"])
        said = self.policy(self.tokenizer.decode(body["token_ids"]))
        if isinstance(said, int):
            return web.json_response({"error": {"message": "no", "type": "x", "code": said}}, status=said)
        ids = [*self.tokenizer.encode(said, add_special_tokens=False), self.tokenizer.eos_token_id]
        ids, whole = ids[: body["sampling_params"]["max_tokens"]], len(ids)
        choice = {
            "token_ids": ids,
            "logprobs": {"content": [{"logprob": -0.5 - n / 64} for n in range(len(ids))]},
            "finish_reason": "stop" if len(ids) == whole else "length",
        }
        if request.path.startswith("/skyrl"):
            from skyrl.backends.skyrl_train.inference_servers import generate_wire

            start = body["sampling_params"].get("routed_experts_prompt_start", 0)
            rows = [routing(one) for one in [*body["token_ids"], *ids][start:-1]]
            choice["routed_experts"] = generate_wire.pack_routed_experts(np.array(rows).reshape(-1, LAYERS, TOP_K))
            if body.get("return_sample_support"):
                rows = np.array([support(one) for one in ids], np.int32)
                choice["rollout_sample_support"] = generate_wire.pack_sample_support(rows)
        return web.json_response({"choices": [choice]}, dumps=compact)

    async def finish(self, request):
        self.finished.append(request.query["session_id"])
        return web.json_response({})


def compact(value):
    """JSON without spaces, as SkyRL's client reads the arrays in it."""
    return json.dumps(value, separators=(",", ":"))


def support(token_id):
    """The ids among which a token was sampled."""
    return [token_id, token_id + 1, -1][:WIDTH]
