"""Agent-Lightning's own server and local controller start our agent; skipped where it is not installed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import pytest
from aiohttp import web

from tests.rollout.engines.http_server import serving

pytest.importorskip("agentlightning.server.app", reason="Agent-Lightning is not installed")

import uvicorn
from agentlightning.client import AgentLightningAsyncClient
from agentlightning.controller.local_reconciler import LocalReconciler
from agentlightning.server import store
from agentlightning.server.app import create_app
from omegaconf import OmegaConf

KEY, MODEL = "secret", "policy"
LOCAL = {
    "agent_class": "toolgym.rollout.adapters.agent_lightning:ToolgymAgent",
    "env_map": {"TOOLGYM_TASK": "input", "TOOLGYM_ENV": "CodeInterpreter-v0"},
}


async def vllm(request):
    """vLLM's chat server: a call, then an answer; for a prompt with "broken" in it an answer and then an error."""
    body = await request.json()
    assert (body["model"], body["logprobs"], body["return_token_ids"]) == (MODEL, True, True)
    message = {"role": "assistant", "content": "#### 6"}
    if not any(one["role"] == "tool" for one in body["messages"]):
        function = {"name": "code_interpreter", "arguments": json.dumps({"code": "print(2*3)"})}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }
    elif "broken" in body["messages"][0]["content"]:
        return web.json_response({"error": {"message": "lost"}}, status=400)
    return web.json_response(
        {
            "prompt_token_ids": list(range(len(body["messages"]))),
            "choices": [
                {
                    "message": message,
                    "finish_reason": "stop",
                    "token_ids": [7, 8],
                    "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]},
                }
            ],
        }
    )


@contextlib.asynccontextmanager
async def agent_lightning():
    """Its server in a thread, as its processes would reach it, and its local controller."""
    proxy = {"model_name": MODEL, "train": {"temperature": 1.0}, "val": {"temperature": 0.0}}
    app = create_app({"key": KEY, "default_proxy": proxy})
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        settings = {
            "runner_type": "local",
            "agl_server": {"url": url, "key": KEY},
            "local_runner": {"maximum_size": 2, "poll_interval": 0.1},
        }
        async with AgentLightningAsyncClient(base_url=url, key=KEY) as api:
            reconciler = LocalReconciler(api=api, config=OmegaConf.create(settings))
            running = asyncio.create_task(reconciler.run())
            try:
                yield api
            finally:
                reconciler.stop()
                await running
    finally:
        server.should_exit = True
        thread.join(60)
        for kept in (store._rollouts, store._events, store._models, store._terminal_order):
            kept.clear()


async def test_its_controller_runs_episodes_against_its_gateway():
    rows = [
        {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "6"}, "data_source": "sums"}
        for text in ("What is 2*3?", "This one is broken")
    ]
    async with serving({"POST /v1/chat/completions": vllm}) as model, agent_lightning() as api:
        (
            await api.post("/api/models", json=[{"model": MODEL, "endpoint": f"{model}/v1", "version": 3}])
        ).raise_for_status()
        made = await api.post("/api/rollouts", json=[{"input": row, "config": {"local": LOCAL}} for row in rows])
        whole, broken = [one["rollout_id"] for one in made.json()]
        async with asyncio.timeout(240):  # its processes import the library, which takes long on a busy machine
            while (await api.get("/api/rollouts/terminal")).json()["total_terminal"] < 2:
                await asyncio.sleep(0.1)

        async def read(rollout_id):
            status = (await api.get(f"/api/rollouts/{rollout_id}")).json()["rollout"]["status"]
            events = (await api.get(f"/api/rollouts/{rollout_id}/events", params={"format": "triplet"})).json()
            return status, [(one["event_type"], one["data"]) for one in events]

        status, events = await read(whole)
        assert status["state"] == "succeeded"
        assert [kind for kind, _ in events] == ["model_request", "model_request", "reward"]
        assert [one["response_token_ids"] for _, one in events[:2]] == [[7, 8]] * 2
        assert [one["response_log_probs"] for _, one in events[:2]] == [[-0.5, -0.25]] * 2
        assert events[2][1]["value"] == 1.0
        status, events = await read(broken)
        assert (status["state"], status["last_attempt_id"]) == ("failed", "broken-off")
        assert "lost" in status["error_message"]
        assert events == []
        kept = [one.event_type for one in store._events[broken]["0"]]
        assert kept == ["model_request"] * 2  # the gateway has them; the trainer does not see them
