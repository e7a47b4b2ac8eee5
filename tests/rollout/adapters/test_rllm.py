"""`ToolgymAgent` and `ToolgymEvaluator` as rLLM finds and calls them, and its own gateway between agent and model."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import sys

import pytest
from aiohttp import web

from tests.rollout.adapters import rllm_stand_in, sums  # noqa: F401  which registers tests/Sums-v0
from tests.rollout.adapters.slime_router_stand_in import call_then_answer
from tests.rollout.engines.http_server import serving
from tests.rollout.test_endpoint import gateway, interpreter, solve, too_long
from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout import EpisodeLimits
from toolgym.rollout.adapters.rllm import ToolgymAgent, ToolgymEvaluator
from toolgym.tools.errors import ConfigError, MissingExtraError, UnknownNameError

ROW = {"question": "6*7?", "ground_truth": "42", "data_source": "sums"}


@pytest.fixture(autouse=True)
def rllm(monkeypatch):
    rllm_stand_in.install(monkeypatch)


def task(row=ROW):
    return rllm_stand_in.Task("7", row.get("question", ""), row)


def config(url):
    return rllm_stand_in.AgentConfig(base_url=url, model="m", session_uid="7:0")


def found(group):
    [entry] = importlib.metadata.entry_points(group=group, name="toolgym")
    return entry.load()()


async def test_rllm_finds_both_by_name_and_the_reward_is_the_envs(monkeypatch):
    monkeypatch.setenv("TOOLGYM_ENV", "tests/Sums-v0")
    agent, evaluator = found("rllm.agents"), found("rllm.evaluators")
    async with gateway(solve) as server:
        episode = await agent.arun(task(), config(server.url))
    assert (episode.id, episode.task) == ("7:0", ROW)
    [trajectory] = episode.trajectories
    assert (trajectory.name, trajectory.reward) == ("toolgym", 1.25)
    assert [(step.reward, step.done) for step in trajectory.steps] == [(0.25, False), (1.0, True)]
    assert [body["model"] for body in server.bodies] == ["m", "m"]
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "6*7?"}]
    scored = evaluator.evaluate(task(), episode)
    assert (scored.reward, scored.is_correct, scored.signals[0].value) == (1.25, True, 1.25)


async def test_rows_in_verls_shape_name_their_env_and_a_wrong_answer_is_not_correct():
    row = {
        "prompt": [{"role": "user", "content": "6*7?"}],
        "reward_model": {"ground_truth": "41"},
        "env_id": "tests/Sums-v0",
    }
    async with gateway(solve) as server:
        episode = await ToolgymAgent().arun(task(row), config(server.url))
    scored = ToolgymEvaluator().evaluate(task(row), episode)
    assert (scored.reward, scored.is_correct) == (0.25, False)


async def test_the_agent_runs_without_an_event_loop_too():
    agent = ToolgymAgent("tests/Sums-v0", env_kwargs={"max_turns": 3})
    async with gateway(solve) as server:
        episode = await asyncio.to_thread(agent.run, task({**ROW, "answer": "41"}), config(server.url))
    assert episode.trajectories[0].reward == 1.25


async def test_a_cut_turn_is_a_step_and_a_refused_request_is_none():
    agent = ToolgymAgent("tests/Sums-v0")
    async with gateway(lambda messages: (interpreter("1"), "length")) as server:
        cut = await agent.arun(task(), config(server.url))
    async with gateway(too_long) as server:
        full = await agent.arun(task(), config(server.url))
        assert len(server.bodies) == 2
    assert [(step.reward, step.done) for step in cut.trajectories[0].steps] == [(0.0, True)]
    assert [(step.reward, step.done) for step in full.trajectories[0].steps] == [(0.25, True)]


async def test_what_breaks_off_is_an_error_and_no_reward():
    agent = ToolgymAgent("tests/Sums-v0", limits=EpisodeLimits(engine_timeout=60))
    async with gateway(lambda messages: web.Response(status=500, text="cuda died")) as server:
        with pytest.raises(EpisodeFailedError, match="cuda died") as caught:
            await agent.arun(task(), config(server.url))
    assert caught.value.stop_reason is StopReason.ENGINE_FAILED


async def test_mistakes_are_errors(monkeypatch):
    url = config("http://127.0.0.1:1/v1")
    with pytest.raises(ConfigError, match="set TOOLGYM_ENV"):
        await ToolgymAgent().arun(task(), url)
    with pytest.raises(UnknownNameError, match="did you mean"):
        ToolgymAgent("tests/Smus-v0")
    with pytest.raises(ConfigError, match="go with an env id"):
        ToolgymAgent(env_kwargs={"max_turns": 3})
    with pytest.raises(ConfigError, match="needs a text as its instruction"):
        await ToolgymAgent("tests/Sums-v0").arun(rllm_stand_in.Task("7", [{"type": "image"}], {}), url)
    with pytest.raises(ConfigError, match="row in metadata"):
        await ToolgymAgent("tests/Sums-v0").arun(ROW, url)
    with pytest.raises(ConfigError, match="give --agent toolgym"):
        ToolgymEvaluator().evaluate(
            task(), rllm_stand_in.Episode(trajectories=[rllm_stand_in.Trajectory(name="react", reward=1.0)])
        )
    for name in ("rllm.types", "rllm.eval.types"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match="rllm"):
        await ToolgymAgent("tests/Sums-v0").arun(task(), url)
    with pytest.raises(MissingExtraError, match="rllm"):
        ToolgymEvaluator().evaluate(task(), rllm_stand_in.Episode())


# ------------------------------------------------------------------ rLLM's own gateway


class Vllm:
    """vLLM's chat completions with token ids, for the tiny policy's tokenizer."""

    def __init__(self, tokenizer):
        self.tokenizer, self.bodies = tokenizer, []

    async def answer(self, request):
        body = await request.json()
        self.bodies.append(body)
        prompt = self.tokenizer.apply_chat_template(
            body["messages"], tools=body["tools"], add_generation_prompt=True, return_dict=False
        )
        said = call_then_answer(self.tokenizer.decode(prompt))
        ids = [*self.tokenizer.encode(said), self.tokenizer.eos_token_id]
        message = {"role": "assistant", "content": said}
        if said.startswith("<tool_call>"):
            message = interpreter("print(2*3)")
        told = [{"token": "", "logprob": -0.5 - n / 64} for n in range(len(ids))]
        choice = {"message": message, "finish_reason": "stop", "token_ids": ids, "logprobs": {"content": told}}
        return web.json_response({"model": "m", "prompt_token_ids": prompt, "choices": [choice]})


@contextlib.asynccontextmanager
async def rllm_gateway(worker):
    """rLLM's model gateway in front of a worker, and its store of traces."""
    import uvicorn
    from rllm_model_gateway.models import GatewayConfig
    from rllm_model_gateway.server import create_app

    app = create_app(GatewayConfig(workers=[{"url": worker}], store_worker="memory", sync_traces=True))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="on"))
    serve = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", app.state.store
    finally:
        server.should_exit = True
        await serve


async def healthy(request):
    return web.Response()


async def test_rllms_gateway_has_the_tokens_of_each_step(tokenizer):
    pytest.importorskip("rllm_model_gateway", reason="rLLM's gateway is not installed")
    vllm = Vllm(tokenizer)
    row = {"question": "What is 2*3?", "answer": "6"}
    async with (
        serving({"POST /v1/chat/completions": vllm.answer, "GET /health": healthy}) as worker,
        rllm_gateway(worker) as (url, store),
    ):
        agent = ToolgymAgent("tests/Sums-v0")
        episode = await agent.arun(task(row), config(f"{url}/sessions/7:0/v1"))
        traces = await store.get_session_traces("7:0")
    steps = episode.trajectories[0].steps
    assert len(traces) == len(steps) == 2  # rLLM matches them by their order
    assert episode.trajectories[0].reward == 1.25
    assert all(body["return_token_ids"] and body["logprobs"] for body in vllm.bodies)
    first, second = traces
    for trace in traces:
        assert len(trace["logprobs"]) == len(trace["completion_token_ids"])
        assert trace["completion_token_ids"][-1] == tokenizer.eos_token_id
    seen = [*first["prompt_token_ids"], *first["completion_token_ids"]]
    assert second["prompt_token_ids"][: len(seen)] == seen


async def test_an_env_of_ones_own_goes_as_a_function():
    tasks = [Task(({"role": "user", "content": "?"},))]
    async with gateway(lambda messages: "yes") as server:
        episode = await ToolgymAgent(lambda: ToolEnv([], tasks)).arun(task(), config(server.url))
    assert episode.trajectories[0].reward == 0.0
