"""Any env in the real Miles: its session server, its agentic generation, its samples, its rewards and its filter.

SGLang is a stand-in, which parses the calls as SGLang does and gives the ids and log-probs that the session asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import random
from argparse import Namespace

import pytest
from aiohttp import web

from tests.rollout.adapters.slime_router_stand_in import CALL, call_then_answer
from tests.rollout.adapters.sums import Sums
from tests.rollout.engines.http_server import serving
from toolgym import register
from toolgym.envs import ArithmeticTasks
from toolgym.envs.tasks.task import Task
from toolgym.rollout import tiny_policy_path
from toolgym.rollout.adapters import miles as adapter
from toolgym.rollout.adapters.task_rows import task_column
from toolgym.rollout.engines import http
from toolgym.tools.errors import ConfigError, SandboxUnavailableError
from toolgym.tools.parsers import get_parser

ADAPTER = "toolgym.rollout.adapters.miles"
FILTER = "miles.rollout.filter_hub.dynamic_sampling_filters.check_no_aborted"
needs_miles = pytest.mark.skipif(importlib.util.find_spec("miles") is None, reason="Miles is not installed")
PROMPT = [{"role": "user", "content": "What is 2*3?"}]
TASK = Task.from_row({"prompt": PROMPT, "reward_model": {"ground_truth": "6"}})


class Gone(Sums):
    """Its sandbox is gone."""

    async def step(self, action):
        raise SandboxUnavailableError("no disk")


register("tests/MilesGone-v0", Gone)


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.setenv("TOOLGYM_ENV", "tests/Sums-v0")
    monkeypatch.setattr(http, "RETRIES", dataclasses.replace(http.RETRIES, first_delay=0.001))


class Engine:
    """SGLang's chat completions in shape, with a policy that a test writes; `asked` has the ids of each request."""

    def __init__(self, tokenizer, policy=call_then_answer):
        self.tokenizer, self.policy = tokenizer, policy
        self.asked, self.bodies = [], []
        self.parse = get_parser("hermes")
        self.held = asyncio.Event()
        self.held.set()

    async def chat(self, request):
        body = await request.json()
        await self.held.wait()
        text = self.policy(self.tokenizer.decode(body["input_ids"]))
        if isinstance(text, int):
            message = "The input is longer than the model's context length" if text == 400 else "no"
            return web.json_response({"message": message}, status=text)
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        reason = "stop" if len(ids) <= body["max_tokens"] else "length"
        ids = ids[: body["max_tokens"]]
        self.asked.append((body["input_ids"], ids))
        self.bodies.append(body)
        if reason == "length":
            text = self.tokenizer.decode(ids)
        turn = self.parse(text)
        message = {"role": "assistant", "content": turn.content if turn.calls else text}
        if turn.calls:
            reason = "tool_calls"
            message["tool_calls"] = [
                {"id": f"c{len(self.asked)}", "index": 0, "type": "function",
                 "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
                for call in turn.calls
            ]  # fmt: skip
        meta = {
            "output_token_logprobs": [[value, token, None] for value, token in zip(logprobs(ids), ids, strict=True)],
            "completion_tokens": len(ids), "prompt_tokens": len(body["input_ids"]), "cached_tokens": 0,
            "weight_version": str(len(self.asked)),
        }  # fmt: skip
        return web.json_response({"choices": [{"message": message, "finish_reason": reason, "meta_info": meta}]})


def logprobs(ids):
    return [-0.5 - place / 64 for place in range(len(ids))]


def arguments(**more):
    values = {
        "hf_checkpoint": str(tiny_policy_path()), "chat_template_path": None, "tito_model": "qwen3",
        "apply_chat_template_kwargs": None, "sglang_speculative_algorithm": None, "group_rm": False,
        "custom_agent_function_path": f"{ADAPTER}.run", "custom_rm_path": f"{ADAPTER}.reward", "rm_type": None,
        "custom_generate_function_path": "miles.rollout.generate_hub.agentic_tool_call.generate",
        "dynamic_sampling_filter_path": FILTER, "partial_rollout": False, "generate_multi_samples": False,
        "custom_eval_rollout_log_function_path": f"{ADAPTER}.log_eval_rollout", "eval_interval": 5,
        "sglang_server_concurrency": 8, "rollout_num_gpus": 1, "rollout_num_gpus_per_engine": 1,
        "rollout_temperature": 1.0, "rollout_top_p": 1.0, "rollout_top_k": -1, "rollout_max_response_len": 200,
        "rollout_stop": None, "rollout_stop_token_ids": None, "rollout_skip_special_tokens": False,
        "save_debug_trajectory_data": None, "use_session_server": True, "session_message_matcher": "strict",
        "reward_key": None, "use_distributed_post": False, "eval_num_gpus": 0,
        "sglang_router_policy": None, "router_policy": None,
    }  # fmt: skip
    return Namespace(**{**values, **more})


@contextlib.asynccontextmanager
async def miles(tokenizer, policy=call_then_answer, **more):
    """Miles' session server over a stand-in for SGLang, Miles' state, and a function that plays one sample."""
    import uvicorn
    from miles.rollout.inference_rollout.inference_rollout_common import GenerateState, generate_and_rm
    from miles.rollout.session.session_server import SessionServer
    from miles.utils import http_utils
    from miles.utils.types import Sample

    engine = Engine(tokenizer, policy)
    async with serving({"POST /v1/chat/completions": engine.chat}) as url:
        args = arguments(session_server_ip="127.0.0.1", **more)
        server = uvicorn.Server(
            uvicorn.Config(SessionServer(args, url).app, port=0, log_level="warning", lifespan="off")
        )
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        args.session_server_port = server.servers[0].sockets[0].getsockname()[1]
        args.session_server_ports = [args.session_server_port]
        http_utils._http_client = None
        http_utils.init_http_client(args)

        async def play(metadata=None, **sampling):
            sample = Sample(
                group_index=0, index=random.randrange(99), prompt=PROMPT,
                metadata=task_column(TASK) if metadata is None else metadata,
            )  # fmt: skip
            return await generate_and_rm(state, sample, {**state.sampling_params, **sampling})

        try:
            state = GenerateState(args)
            yield Namespace(engine=engine, args=args, play=play)
        finally:
            await http_utils._http_client.aclose()
            server.should_exit = True
            await running


@needs_miles
async def test_a_sample_has_exactly_the_tokens_that_the_engine_saw_and_gave(tokenizer):
    async with miles(tokenizer) as run:
        sample = await run.play()
        (first, called), (second, answered) = run.engine.asked
    assert "code_interpreter" in tokenizer.decode(first)
    assert second[: len(first + called)] == first + called
    assert sample.tokens == second + answered
    shown = len(second) - len(first + called)
    assert sample.loss_mask == [1] * len(called) + [0] * shown + [1] * len(answered)
    assert sample.rollout_log_probs == [*logprobs(called), *[0.0] * shown, *logprobs(answered)]
    assert sample.response_length == len(sample.loss_mask)
    assert (sample.reward, sample.status.value, sample.weight_versions) == (1.25, "completed", ["1", "2"])
    assert sample.metadata["agent_metrics"] == {"turns": 2}
    assert {body["temperature"] for body in run.engine.bodies} == {1.0}


@needs_miles
async def test_a_row_of_ones_own_and_a_turn_that_was_cut(tokenizer):
    async with miles(tokenizer) as run:
        sample = await run.play({"ground_truth": "6", "env_id": "tests/Sums-v0"})
        assert sample.reward == 1.25
        sample = await run.play(max_new_tokens=4)
        assert (sample.reward, sample.status.value, sum(sample.loss_mask)) == (0.0, "truncated", 4)


@needs_miles
async def test_a_context_that_became_too_long_is_the_models_doing(tokenizer):
    def policy(seen):
        return 400 if "<tool_response>" in seen else CALL.format("print(2*3)")

    async with miles(tokenizer, policy) as run:
        sample = await run.play()
    assert (sample.reward, sample.status.value) == (0.25, "completed")


@needs_miles
async def test_what_something_broke_off_is_aborted_and_miles_draws_another_group(tokenizer, monkeypatch):
    from miles.rollout.filter_hub.base_types import call_dynamic_filter
    from miles.utils.misc import load_function

    async with miles(tokenizer) as run:
        good = await run.play()
        monkeypatch.setenv("TOOLGYM_ENV", "tests/MilesGone-v0")
        gone = await run.play()
        run.engine.policy = lambda seen: 500
        failed = await run.play()
    for sample in (gone, failed):
        assert (sample.status.value, bool(sample.reward)) == ("aborted", False)
    assert gone.remove_sample
    assert gone.metadata["toolgym"]["stop_reason"] == "sandbox_failed"
    check = load_function(FILTER)
    assert call_dynamic_filter(check, run.args, [good, good]).keep
    assert not call_dynamic_filter(check, run.args, [good, gone]).keep
    data = {"x": {"rewards": [1.25, 0.0, None], "truncated": [False] * 3, "samples": [good, gone, failed]}}
    for number, sample in enumerate(data["x"]["samples"]):
        sample.index = number
    adapter.log_eval_rollout(0, Namespace(log_passrate=False, n_samples_per_eval_prompt=1), data, None)
    assert data["x"] == {"rewards": [1.25], "truncated": [False], "samples": [good]}


@needs_miles
async def test_miles_ends_the_episodes_that_it_does_not_need(tokenizer):
    """Newer sources call what stands beside the agent's function as `abort`; miles-rl 0.0.2 lets episodes play on."""
    async with miles(tokenizer) as run:
        run.engine.held.clear()
        playing = asyncio.create_task(run.play())
        while not adapter._playing:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await adapter.abort(run.args)
        assert not adapter._playing
        run.engine.held.set()
        sample = await playing
    assert sample.status.value == "aborted"


def test_what_miles_would_count_as_an_answer_is_refused():
    with pytest.raises(ConfigError, match="check_no_aborted"):
        adapter.require_usable(arguments(dynamic_sampling_filter_path=None))
    with pytest.raises(ConfigError, match=r"miles\.log_eval_rollout"):
        adapter.require_usable(arguments(custom_eval_rollout_log_function_path=None))
    with pytest.raises(ConfigError, match="--sglang-context-length"):
        adapter.require_usable(arguments(max_seq_len=100))
    adapter.require_usable(arguments())


async def test_a_prompt_that_was_rendered_and_variables_that_are_no_json_are_errors(monkeypatch):
    with pytest.raises(ConfigError, match="--apply-chat-template"):
        await adapter.run("http://127.0.0.1:1", "<|im_start|>user", {}, {})
    monkeypatch.setenv("TOOLGYM_RUN", "[1]")
    with pytest.raises(ConfigError, match="TOOLGYM_RUN must be a JSON object"):
        await adapter.run("http://127.0.0.1:1", PROMPT, {}, {})


def test_a_task_keeps_all_that_its_row_has():
    [task] = ArithmeticTasks().take(1, seed=0)
    row = json.loads(json.dumps(task_column(task)))
    assert adapter.task_of(list(task.messages), row) == task
