"""Log-probabilities of given tokens: the embedded engine, SGLang's client, and engines that cannot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio
import torch
from aiohttp import web

from tests.rollout.engines.conftest import make_model
from tests.rollout.engines.sglang_client import client
from tests.rollout.engines.stand_in import stand_in
from toolgym.rollout.engines import CallableEngine, SamplingParams, SGLangServer, TokenScores, TransformersEngine
from toolgym.rollout.engines.wrapper import EngineWrapper
from toolgym.tools.errors import ConfigError, EngineError, EngineUnsupportedError

PROMPT = [5, 9, 11, 7]


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest_asyncio.fixture
async def engine(model):
    async with TransformersEngine(model) as engine:
        yield engine


def expected(model: torch.nn.Module, ids: list[int], start: int, temperature: float = 1.0) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1] / temperature
    values = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return values[start - 1 :].tolist()


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
async def test_what_was_sampled_is_scored_alike(engine, model, temperature):
    params = SamplingParams(max_new_tokens=12, temperature=temperature, seed=3)
    generation = await engine.generate(PROMPT, params, request_id="g")
    ids = [*PROMPT, *generation.token_ids]
    scores = await engine.score_tokens(ids, start=len(PROMPT), request_id="s", temperature=temperature)
    assert scores.logprobs == pytest.approx(generation.logprobs, abs=1e-5)
    assert scores.logprobs == pytest.approx(expected(model, ids, len(PROMPT), temperature), abs=1e-5)
    assert scores.weight_version == engine.weight_version


async def test_a_start_of_1_scores_all_but_the_first_token(engine, model):
    scores = await engine.score_tokens(PROMPT, start=1, request_id="s")
    assert scores.logprobs == pytest.approx(expected(model, PROMPT, 1), abs=1e-5)


async def test_scoring_waits_while_the_engine_is_paused(engine):
    await engine.pause()
    scoring = asyncio.create_task(engine.score_tokens(PROMPT, start=2, request_id="s"))
    await asyncio.sleep(0.02)
    await engine.notify_weights_changed("7")
    assert not scoring.done()
    await engine.resume()
    assert (await scoring).weight_version == "7"


async def test_scoring_leaves_a_training_module_as_it_is(model):
    model.train()
    try:
        async with TransformersEngine(model) as engine:
            await engine.score_tokens(PROMPT, start=2, request_id="s")
        assert model.training
        assert all(part.training for part in model.modules())
    finally:
        model.eval()


async def test_sglang_scores_given_tokens_as_a_prompt(model, tmp_path):
    model.save_pretrained(tmp_path)
    async with (
        stand_in(tmp_path) as server,
        SGLangServer(server.url) as engine,
    ):
        scores = await engine.score_tokens(PROMPT, start=2, request_id="s")
        body = server.seen[-1]
    assert scores.logprobs == pytest.approx(expected(model, PROMPT, 2), abs=1e-5)
    assert (body["logprob_start_len"], body["return_logprob"]) == (1, True)
    assert body["sampling_params"]["max_new_tokens"] == 0


def scored(entries: Any, **meta: Any):
    async def handler(request: web.Request) -> web.Response:
        meta_info = {"input_token_logprobs": entries, "weight_version": "3", **meta}
        return web.json_response({"output_ids": [], "meta_info": meta_info})

    return handler


async def test_sglang_scores_at_temperature_1_only():
    async with client(scored([[None, 9, None], [-0.5, 11, None], [-1.0, 7, None]])) as engine:
        assert await engine.score_tokens(PROMPT, start=2, request_id="s") == TokenScores((-0.5, -1.0), "3")
        with pytest.raises(EngineUnsupportedError, match="at temperature 1 only, got 0.6"):
            await engine.score_tokens(PROMPT, start=2, request_id="s", temperature=0.6)


@pytest.mark.parametrize(
    "entries",
    [
        None,
        [[None, 9, None], [-0.5, 11, None]],
        [[None, 9, None], [-0.5, 11, None], [-1.0, 8, None]],
        [[None, 9, None], [-0.5, 11, None], [None, 7, None]],
        [[None, 9, None], [0.5, 11, None], [-1.0, 7, None]],
    ],
)
async def test_a_wrong_answer_of_sglang_is_an_error(entries):
    async with client(scored(entries)) as engine:
        with pytest.raises(EngineError, match="logprob|log-probability"):
            await engine.score_tokens(PROMPT, start=2, request_id="s")


async def sample(request):
    return [1], [-0.1]


async def test_an_engine_that_cannot_score_says_so():
    async with CallableEngine(sample, tokenizer=None, vocab_size=320, context_length=64) as engine:
        for each in (engine, EngineWrapper(engine)):
            assert not each.scores_tokens
            with pytest.raises(EngineUnsupportedError, match="cannot compute the log-probabilities of given tokens"):
                await each.score_tokens(PROMPT, start=2, request_id="s")


async def test_a_wrapper_scores_with_the_engine_inside(engine, model):
    wrapper = EngineWrapper(engine)
    assert wrapper.scores_tokens
    scores = await wrapper.score_tokens(PROMPT, start=2, request_id="s")
    assert scores.logprobs == pytest.approx(expected(model, PROMPT, 2), abs=1e-5)


@pytest.mark.parametrize(
    ("ids", "options", "shown"),
    [
        (PROMPT, {"start": 0}, "start"),
        (PROMPT, {"start": 4}, "start must be the place of one of 4 tokens, got 4"),
        ([], {"start": 1}, "start"),
        ([*PROMPT, 320], {"start": 1}, "token id 320 is outside the vocabulary"),
        (PROMPT * 200, {"start": 1}, "more than the context"),
        (PROMPT, {"start": 1, "temperature": 0}, "temperature must be above 0"),
        (PROMPT, {"start": 1, "temperature": float("nan")}, "temperature must be above 0"),
    ],
)
async def test_wrong_arguments_are_refused(engine, ids, options, shown):
    with pytest.raises(ConfigError, match=shown):
        await engine.score_tokens(ids, request_id="s", **options)
