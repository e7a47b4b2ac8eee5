"""`OpenAICompatible` against servers that speak as vLLM and SGLang do, and against those that misbehave.

The suite of all engines runs here too, once per dialect.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from transformers import AutoModelForCausalLM

from tests.rollout.engines.completions_server import EOS, real_model
from tests.rollout.engines.http_server import serving
from tests.rollout.engines.words import WORDS
from toolgym.rollout.engines import (
    FinishReason,
    OpenAICompatible,
    PauseMode,
    SamplingParams,
)
from toolgym.rollout.engines.openai.messages import LogprobsMode
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.testing import EngineSubject, EngineSuite
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError

SHORT = SamplingParams(max_new_tokens=24)
LONG = SamplingParams(max_new_tokens=450)


def as_subject(engine: OpenAICompatible, url: str, model: torch.nn.Module, **facts: Any) -> EngineSubject:
    async def new_version(version: str) -> None:
        engine.weight_version = version

    def logits(ids: Sequence[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([[*ids]])).logits[0].float().numpy()

    facts = {"eos": EOS, "pauses": (PauseMode.RETRACT, PauseMode.ABORT), "keeps_retracted": False} | facts
    return EngineSubject(engine, lambda: OpenAICompatible(url), logits, new_version=new_version, **facts)


@pytest.fixture(
    params=[
        "vllm",
        pytest.param("sglang", marks=pytest.mark.matrix),
        pytest.param("real", marks=pytest.mark.sglang),
    ]
)
async def subject(request: pytest.FixtureRequest, tiny_model_path: Path) -> AsyncIterator[Any]:
    if request.param == "real":
        [url] = request.getfixturevalue("farm").urls(1)
        async with OpenAICompatible(url) as engine:
            model = AutoModelForCausalLM.from_pretrained(engine.model.root, dtype=torch.float32).eval()
            yield as_subject(engine, url, model, seeds=False, eos=int(model.config.eos_token_id))
        return
    async with real_model(tiny_model_path, request.param) as server, OpenAICompatible(server.url) as engine:
        engine.tokenizer = WORDS
        yield as_subject(engine, server.url, server.engine.model)


class TestOpenAICompatible(EngineSuite):
    """A pause in place it refuses: see `test_a_pause_in_place_is_refused`."""


# ---------------------------------------------------------------- what start finds out


@pytest.mark.parametrize("mode", list(LogprobsMode))
async def test_it_finds_out_what_the_log_probabilities_are_of(tiny_model_path: Path, mode: LogprobsMode) -> None:
    async with real_model(tiny_model_path, "vllm", mode=mode.value) as server:
        async with OpenAICompatible(server.url + "/v1/") as engine:
            assert engine.logprobs_mode is mode
            assert (engine.vocab_size, engine.context_length) == (320, 512)
            assert engine.model.name == "tiny"
            warm = replace(SHORT, temperature=0.7)
            if mode is LogprobsMode.RAW:
                with pytest.raises(ConfigError, match="temperature 0.7.*processed_logprobs"):
                    await engine.generate([1, 2], warm, request_id="a")
                await engine.generate([1, 2], replace(SHORT, temperature=0.0), request_id="a")
            else:
                await engine.generate([1, 2], warm, request_id="a")
            narrow = replace(SHORT, top_k=5)
            if mode is LogprobsMode.PROCESSED:
                with pytest.raises(ConfigError, match="after top-p, top-k and min-p"):
                    await engine.generate([1, 2], narrow, request_id="a")
            else:
                await engine.generate([1, 2], narrow, request_id="a")
        async with OpenAICompatible(server.url, logprobs_mode="raw") as engine:
            assert engine.logprobs_mode is LogprobsMode.RAW


async def test_ids_written_as_text_will_do(tiny_model_path: Path) -> None:
    async with (
        real_model(tiny_model_path, "vllm", ids_as_text=True) as server,
        OpenAICompatible(server.url) as engine,
    ):
        assert len((await engine.generate([1, 2], SHORT, request_id="a")).token_ids) == 24


async def test_what_is_sent(tiny_model_path: Path) -> None:
    async with (
        real_model(tiny_model_path, "sglang") as server,
        OpenAICompatible(server.url, api_key="sesame", affinity_header="x-smg-routing-key") as engine,
    ):
        assert engine.context_length == 506  # a deal less than SGLang says, which it would cut without a word
        stopping = SamplingParams(max_new_tokens=3, stop_token_ids=(7,), seed=5, top_k=1)
        await engine.generate([1, 2], stopping, request_id="a", affinity="trajectory 1")
    body, headers = server.seen[-1], server.headers[-1]
    assert headers["Authorization"] == "Bearer sesame"
    assert headers["x-smg-routing-key"] == "trajectory 1"
    assert body["prompt"] == [1, 2]
    assert (body["stop_token_ids"], body["ignore_eos"], body["seed"]) == ([7], False, 5)
    assert (body["top_k"], body["top_p"] < 1e-3) == (-1, True)  # to SGLang a top-k of 1 would be greedy
    assert "sesame" not in json.dumps(body)
    async with real_model(tiny_model_path, "vllm") as server, OpenAICompatible(server.url) as engine:
        await engine.generate([1, 2], stopping, request_id="a")
    assert (server.seen[-1]["ignore_eos"], server.seen[-1]["top_k"]) == (True, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "127.0.0.1:8000"},
        {"url": "http://[::1"},
        {"request_timeout": 0.0},
        {"vocab_size": 0},
        {"context_length": -1},
        {"logprobs_mode": "cooked"},
    ],
)
def test_arguments_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        OpenAICompatible(**({"url": "http://127.0.0.1:1"} | wrong))


async def test_nothing_answers() -> None:
    async with serving({}) as url:
        pass
    with pytest.raises(EngineUnavailableError, match="Start a server there"):
        await OpenAICompatible(url).start()


# ---------------------------------------------------------------- pauses


async def test_a_retracted_request_goes_on_under_the_new_weights(tiny_model_path: Path) -> None:
    async with real_model(tiny_model_path, "vllm") as server:
        model = server.engine.model
        async with OpenAICompatible(server.url, weight_version="6") as engine:
            task = asyncio.create_task(engine.generate([1, 2, 3], replace(LONG, seed=4), request_id="a"))
            await server.under_way()
            await engine.pause(PauseMode.RETRACT)
            engine.weight_version = "7"
            await engine.resume()
            generation = await asyncio.wait_for(task, 60)
    old = generation.weight_versions.count("6")
    assert generation.weight_versions == ("6",) * old + ("7",) * (450 - old)
    assert 0 < old < 450
    first, second = server.seen[-2:]
    assert second["prompt"] == [1, 2, 3, *generation.token_ids[:old]]
    assert second["max_tokens"] == 450 - old
    assert first["seed"] == 4
    assert second["seed"] not in (4, None)  # the same draws again would not be independent
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 3, *generation.token_ids]])).logits[0, 2:-1].float()
    expected = logits.log_softmax(-1).gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]
    assert (expected - torch.tensor(generation.logprobs)).abs().max() < 1e-4


async def test_a_pause_can_abort_what_runs(tiny_model_path: Path) -> None:
    async with real_model(tiny_model_path, "sglang") as server, OpenAICompatible(server.url) as engine:
        running = asyncio.create_task(engine.generate([1, 2, 3], LONG, request_id="a"))
        await server.under_way()
        await engine.pause(PauseMode.ABORT)
        waiting = asyncio.create_task(engine.generate([1, 2, 3], SHORT, request_id="b"))
        generation = await asyncio.wait_for(running, 60)
        assert generation.finish_reason is FinishReason.ABORT
        assert 0 < len(generation.token_ids) < 450
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await engine.resume()
        assert (await asyncio.wait_for(waiting, 60)).finish_reason is FinishReason.LENGTH


async def test_a_pause_in_place_is_refused(tiny_model_path: Path) -> None:
    async with real_model(tiny_model_path, "vllm") as server, OpenAICompatible(server.url) as engine:
        with pytest.raises(ConfigError, match=r"PauseMode\.RETRACT"):
            await engine.pause(PauseMode.IN_PLACE)
        assert (await engine.generate([1], SHORT, request_id="a")).token_ids


async def test_a_closed_connection_ends_the_request_on_the_server(tiny_model_path: Path) -> None:
    async with real_model(tiny_model_path, "vllm") as server, OpenAICompatible(server.url) as engine:
        before = server.completed
        for how in ("abort", "cancel", "close"):
            task = asyncio.create_task(engine.generate([1, 2, 3], LONG, request_id=how))
            await server.under_way()
            if how == "abort":
                await engine.abort(how)
            elif how == "cancel":
                task.cancel()
            else:
                await engine.close()
            await asyncio.wait({task}, timeout=60)
            async with asyncio.timeout(60):
                while server.running:
                    await asyncio.sleep(0.01)
            assert server.completed == before


# ---------------------------------------------------------------- servers that misbehave


def event(
    ids: list[Any] | None, logprobs: list[Any] | None, *, tokens: list[str] | None = None, **fields: Any
) -> dict[str, Any]:
    """One event of a server that does all things right, unless told otherwise."""
    choice: dict[str, Any] = {"index": 0, "text": "x", "finish_reason": None, "token_ids": ids}
    choice["logprobs"] = (
        None if logprobs is None else {"token_logprobs": logprobs, "tokens": tokens or ["?"] * len(logprobs)}
    )
    return {"choices": [choice | fields]}


GOOD = [event([5, 6], [-0.5, -0.25], prompt_token_ids=[1, 2]), event([7], [-1.0], finish_reason="length")]


class Script:
    """Answers the probe as it should, and then with a script of events, statuses and deaths."""

    def __init__(self, *answers: Any, probe: list[Any] | None = None) -> None:
        self.answers = list(answers)
        self.probe = probe
        self.bodies: list[dict[str, Any]] = []

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": "someone", "max_model_len": 100}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["prompt"] == [0, 1, 2] and self.probe is None:
            usual = event([5], [-0.5], finish_reason="length", prompt_token_ids=[0, 1, 2])
            return await self.stream(request, [usual])
        self.bodies.append(body)
        answer = self.answers.pop(0) if self.answers else self.probe
        if isinstance(answer, web.Response):
            return answer
        return await self.stream(request, answer)

    async def stream(self, request: web.Request, events: list[Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for one in events:
            if one == "dies":
                assert request.transport is not None
                request.transport.abort()
                return response
            if one == "hangs":
                await asyncio.sleep(600)
            raw = one if isinstance(one, bytes) else b"data: " + json.dumps(one).encode() + b"\n\n"
            await response.write(raw)
        await response.write(b": bye\n\ndata: [DONE]\n\n")
        return response


@asynccontextmanager
async def scripted(script: Script, **options: Any) -> AsyncIterator[OpenAICompatible]:
    routes = {"GET /v1/models": script.models, "POST /v1/completions": script.completions}
    async with serving(routes, handler_cancellation=True) as url:
        settings = {"vocab_size": 50, "logprobs_mode": "scaled"} | options
        async with OpenAICompatible(url, **settings) as engine:
            yield engine


THREE = SamplingParams(max_new_tokens=3)


async def test_a_good_answer_is_taken_as_it_comes() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}
    async with scripted(Script([*GOOD, {"choices": [], "usage": usage}])) as engine:
        generation = await engine.generate([1, 2], THREE, request_id="a")
    assert generation.token_ids == (5, 6, 7)
    assert generation.logprobs == (-0.5, -0.25, -1.0)
    assert generation.cached_tokens == 1
    assert generation.weight_versions == ("0", "0", "0")


async def test_an_event_may_be_longer_than_any_buffer() -> None:
    prompt = [n % 50 for n in range(200_000)]
    whole = [event([5, 6, 7], [-0.5, -0.5, -0.5], prompt_token_ids=prompt, finish_reason="length")]
    async with scripted(Script(whole), context_length=10**6) as engine:
        assert (await engine.generate(prompt, THREE, request_id="a")).token_ids == (5, 6, 7)


BAD: dict[str, tuple[list[Any], str]] = {
    "text only": ([event(None, None, finish_reason="stop")], "return_token_ids"),
    "text and logprobs": ([event(None, [-0.5] * 3, finish_reason="length")], "return_token_ids"),
    "no logprobs": ([event([5, 6, 7], None, finish_reason="length")], "without log-probabilities"),
    "fewer logprobs": ([event([5, 6, 7], [-0.5], prompt_token_ids=[1, 2], finish_reason="length")], "3 ids and 1"),
    "more logprobs": ([event([5, 6], [-0.5] * 3, prompt_token_ids=[1, 2], finish_reason="length")], "2 ids and 3"),
    "nan": ([event([5], [float("nan")])], "finite"),
    "null": ([event([5], [None])], "finite"),
    "logits": ([event([5], [17.5])], "raw_logits"),
    "another prompt": ([event([5], [-0.5], prompt_token_ids=[0, 1, 2])], "another prompt"),
    "another count": ([*GOOD, {"choices": [], "usage": {"prompt_tokens": 3}}], "counted 3 prompt tokens"),
    "lost ids": ([*GOOD, {"choices": [], "usage": {"completion_tokens": 4}}], "some were lost"),
    "no word of the prompt": ([event([5, 6, 7], [-0.5] * 3, finish_reason="length")], "what the model saw"),
    "beyond the vocabulary": ([event([50], [-0.5])], "outside the vocabulary"),
    "not ids": ([event(["5"], [-0.5])], "list of ids"),
    "two places disagree": (
        [event([5], [-0.5], tokens=["token_id:6"])],
        "disagree",
    ),
    "cut short": ([GOOD[0], event([], [], finish_reason="length")], "after 2 tokens where max_new_tokens is 3"),
    "stop left out": ([GOOD[0], event([], [], finish_reason="stop", stop_reason=9)], "leaves the stop token out"),
    "stop unasked": ([GOOD[0], event([7], [-1.0], finish_reason="stop")], "not among stop_token_ids"),
    "stop string": ([GOOD[0], event([7], [-1.0], finish_reason="stop", matched_stop="NaN happened")], "NaN happened"),
    "stop on nothing": ([event([], [], prompt_token_ids=[1, 2], finish_reason="stop", stop_reason=9)], "after the id"),
    "odd end": ([GOOD[0], event([7], [-1.0], finish_reason="repetition")], "repetition"),
    "an error": ([GOOD[0], {"error": {"message": "out of memory", "code": 500}}], "out of memory"),
    "two choices": ([{"choices": [{}, {}]}], "one choice"),
    "no choices": ([{"object": "?"}], "one choice"),
    "not json": ([b"data: {oops\n\n"], "must be JSON"),
    "not an object": ([b"data: [1]\n\n"], "JSON object"),
    "dies at once": (["dies"], "broke off"),
    "dies midway": ([GOOD[0], "dies"], "after 2 tokens"),
    "ends midway": ([GOOD[0]], "before it was finished"),
}


@pytest.mark.parametrize("name", BAD)
async def test_an_answer_whose_parts_do_not_agree_is_an_error(name: str) -> None:
    events, match = BAD[name]
    async with scripted(Script(events, GOOD)) as engine:
        with pytest.raises(EngineError, match=match):
            await engine.generate([1, 2], THREE, request_id="a")
        assert (await engine.generate([1, 2], THREE, request_id="a")).token_ids == (5, 6, 7)  # the engine goes on


@pytest.mark.parametrize("name", ["text only", "text and logprobs", "no logprobs", "nan"])
async def test_a_server_that_will_not_do_is_refused_at_start(name: str) -> None:
    events, match = BAD[name]
    with pytest.raises(EngineError, match=match):
        async with scripted(Script(probe=events)):
            pytest.fail("it started")


async def test_a_server_whose_log_probabilities_cannot_be_told_is_refused_at_start() -> None:
    flat = event([5], [-0.5], finish_reason="length", prompt_token_ids=[0, 1, 2])
    with pytest.raises(EngineError, match="logprobs_mode="):
        async with scripted(Script(probe=[flat]), logprobs_mode=None):
            pytest.fail("it started")


async def test_an_answer_that_is_no_stream_is_an_error() -> None:
    async with scripted(Script(web.json_response({"choices": []}))) as engine:
        with pytest.raises(EngineError, match="must stream"):
            await engine.generate([1, 2], THREE, request_id="a")


async def test_a_server_that_hangs_costs_one_deadline() -> None:
    async with scripted(Script([GOOD[0], "hangs"], GOOD), request_timeout=1) as engine:
        with pytest.raises(EngineError, match=r"within 1 seconds; 2 tokens had come"):
            await engine.generate([1, 2], THREE, request_id="a")
        engine._request_timeout = 60
        assert (await engine.generate([1, 2], THREE, request_id="a")).token_ids == (5, 6, 7)


async def test_a_server_that_hangs_at_start() -> None:
    script = Script(probe=["hangs"])
    with pytest.raises(EngineError, match="first requests within"):
        async with scripted(script, control_timeout=0.3):
            pytest.fail("it started")


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_that_names_a_time_is_asked_again(status: int) -> None:
    busy = web.Response(status=status, headers={"Retry-After": "0"}, text="busy")
    script = Script(busy, GOOD)
    async with scripted(script) as engine:
        assert (await engine.generate([1, 2], THREE, request_id="a")).token_ids == (5, 6, 7)
    assert script.bodies[0] == script.bodies[1]


@pytest.mark.parametrize(
    ("status", "error", "match"),
    [
        (400, ConfigError, "too long"),
        (422, ConfigError, "too long"),
        (401, EngineError, "api_key"),
        (404, EngineError, "/v1/completions"),
        (500, EngineError, "500: too long"),
        (503, EngineError, "503: too long"),  # without Retry-After it is not sent again
    ],
)
async def test_a_refusal_is_passed_on_and_not_repeated(status: int, error: type[Exception], match: str) -> None:
    script = Script(web.json_response({"error": {"message": "too long"}}, status=status))
    async with scripted(script) as engine:
        with pytest.raises(error, match=match):
            await engine.generate([1, 2], THREE, request_id="a")
    assert len(script.bodies) == 1


async def test_a_stop_is_believed_where_the_last_id_proves_it() -> None:
    events = [GOOD[0], event([7], [-1.0], finish_reason="stop", stop_reason=7)]
    asked = [GOOD[0], event([9], [-1.0], finish_reason="stop", stop_reason=None)]
    async with scripted(Script(events, asked)) as engine:
        params = SamplingParams(max_new_tokens=5, stop_token_ids=(9,))
        for last in (7, 9):  # its own end of sequence, named; and one that was asked for
            generation = await engine.generate([1, 2], params, request_id="a")
            assert (generation.finish_reason, generation.token_ids[-1]) == (FinishReason.STOP, last)


@pytest.mark.parametrize(
    ("models", "options", "error", "match"),
    [
        ({"nothing": 1}, {}, EngineError, "list of models"),
        ({"data": []}, {}, ConfigError, "no model"),
        ({"data": [{"id": "a"}, {"id": "b"}]}, {}, ConfigError, "serves a, b"),
        ({"data": [{"id": "a"}]}, {"model": "b"}, ConfigError, "does not serve 'b'; it serves a"),
        ({"data": [{"id": "a"}]}, {}, ConfigError, "context_length="),
        ({"data": [{"id": "a", "max_model_len": 9}]}, {"vocab_size": None}, ConfigError, "vocab_size="),
    ],
)
async def test_what_models_must_say(models: Any, options: dict[str, Any], error: type[Exception], match: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(models)

    async with serving({"GET /v1/models": answer}) as url:
        with pytest.raises(error, match=match):
            await OpenAICompatible(url, **({"vocab_size": 50} | options)).start()


async def test_one_engine_belongs_to_one_event_loop() -> None:
    async with scripted(Script(GOOD)) as engine:

        def elsewhere() -> None:
            with pytest.raises(EngineError, match="event loop"):
                asyncio.run(engine.generate([1, 2], THREE, request_id="a"))

        await asyncio.to_thread(elsewhere)


# ---------------------------------------------------------------- the command


@pytest.mark.long
async def test_the_command_plays_on_such_a_server_and_replays_without_it(tmp_path: Path) -> None:
    async def toolgym(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "toolgym", *arguments,
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            out, problems = await asyncio.wait_for(process.communicate(), 240)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, problems.decode()
        return out.decode()

    async with real_model(tiny_policy_path(), "vllm") as server:
        short = ("--tasks", "2", "--group-size", "2", "--max-new-tokens", "96")
        shown = await toolgym("rollout", "--engine", f"{server.url}/v1", *short, "--record", "run.jsonl")
        assert "4 of 4" in shown
        assert "every invariant holds" in shown
    assert len(server.seen) > 6  # the three probes, and a turn each at least
    assert "4 of 4 episodes" in await toolgym("replay", "run.jsonl")
