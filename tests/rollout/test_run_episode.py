"""`run_episode`: one episode for a loop that is not ours, with a function in place of an engine."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from toolgym.envs.library.code_interpreter import CodeInterpreterEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import (
    EpisodeLimits,
    RunConfig,
    Runner,
    SamplingParams,
    load_tokenizer,
    run_episode,
    tiny_policy_path,
)
from toolgym.rollout.engines import CallableEngine, FinishReason, Generation
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.tools.errors import ConfigError, UnknownNameError

TASK = Task(({"role": "user", "content": "What is 2*3?"},), ground_truth="6", id="six")
CALL = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(2*3)"}}\n</tool_call>'


class Policy:
    """Generates with a function: calls the tool, then answers. `shape` makes of ids and logprobs what is returned."""

    def __init__(self, tokenizer, shape=lambda ids, logprobs, request: (ids, logprobs)):
        self.tokenizer, self.shape, self.requests = tokenizer, shape, []

    async def __call__(self, request):
        self.requests.append(request)
        seen = self.tokenizer.decode(request.prompt_ids)
        ids = [*self.tokenizer.encode("#### 6" if "<tool_response>" in seen else CALL), self.tokenizer.eos_token_id]
        ids = ids[: request.params.max_new_tokens]
        answer = self.shape(ids, [-0.5 - n / 100 for n in range(len(ids))], request)
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def play(policy, tokenizer, env="CodeInterpreter-v0", **kwargs):
    kwargs.setdefault("config", EpisodeConfig(sampling=SamplingParams(max_new_tokens=100)))
    return await run_episode(env, TASK, policy, tokenizer=tokenizer, **kwargs)


async def test_what_the_function_was_given_and_gave_is_the_trajectory(tokenizer):
    policy = Policy(tokenizer)
    one = await play(policy, tokenizer, task_index=3, sample_index=1, group_id="g", seed=5)
    assert (one.reward, one.stop_reason, one.env_id) == (1.0, StopReason.ANSWERED, "CodeInterpreter-v0")
    assert (one.task_index, one.sample_index, one.group_id, one.task_id) == (3, 1, "g", "six")
    first, second = policy.requests
    assert first.prompt_ids == tuple(one.prompt_ids)
    assert second.prompt_ids == (*one.prompt_ids, *one.segments[0].token_ids, *one.segments[1].token_ids)
    assert [s.is_policy for s in one.segments] == [True, False, True]
    assert one.segments[0].logprobs.tolist() == pytest.approx([-0.5 - n / 100 for n in range(len(one.segments[0]))])
    assert tokenizer.eos_token_id in first.params.stop_token_ids
    assert [turn.finish_reason for turn in one.turns] == ["stop", "stop"]


async def test_it_is_the_episode_of_the_runner(tokenizer):
    """Same seeds, same requests, same tokens."""
    config = RunConfig(sampling=SamplingParams(max_new_tokens=100), seed=11, training_step=2, validate=True)
    mine, theirs = Policy(tokenizer), Policy(tokenizer)
    one = await play(mine, tokenizer, config=config)
    runner = Runner("CodeInterpreter-v0", CallableEngine(theirs, tokenizer=tokenizer), config=config)
    [other] = await runner.run([TASK])
    assert [r.params for r in mine.requests] == [r.params for r in theirs.requests]
    assert one.sequence == other.sequence
    assert [turn.seed for turn in one.turns] == [turn.seed for turn in other.turns]
    assert (one.training_step, one.validate, one.sampling["seed"]) == (2, True, 11)


SHAPES = {
    "mapping": lambda ids, logprobs, _: {"token_ids": ids, "logprobs": logprobs},
    "arrays": lambda ids, logprobs, _: (np.array(ids), np.array(logprobs, np.float32)),
    "with reason": lambda ids, logprobs, _: (ids, logprobs, "stop"),
    "generation": lambda ids, logprobs, _: Generation(
        tuple(ids), tuple(logprobs), FinishReason.STOP, ("0",) * len(ids)
    ),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
async def test_every_shape_of_an_answer_gives_the_same_tokens(shape, tokenizer):
    plain = await play(Policy(tokenizer), tokenizer)
    one = await play(Policy(tokenizer, shape), tokenizer)
    assert one.error is None
    assert one.response_ids.tolist() == plain.response_ids.tolist()
    assert one.segments[0].logprobs.tolist() == pytest.approx(plain.segments[0].logprobs.tolist())


async def test_versions_and_payloads_arrive_at_their_tokens(tokenizer):
    def shape(ids, logprobs, request):
        versions = [4] * 3 + [5] * (len(ids) - 3)
        payload = {"routed": np.arange(2 * len(ids)).reshape(len(ids), 2)}
        return {"token_ids": ids, "logprobs": logprobs, "weight_versions": versions, "aligned": payload}

    one = await play(Policy(tokenizer, shape), tokenizer)
    segment = one.segments[0]
    assert segment.weight_versions[:4] == ("4", "4", "4", "5")
    assert segment.aligned["routed"][2].tolist() == [4, 5]
    every = await play(
        Policy(tokenizer, lambda i, lp, r: {"token_ids": i, "logprobs": lp, "weight_versions": 9}), tokenizer
    )
    assert set(every.weight_versions) == {"9", None}


async def test_an_aborted_turn_goes_on_from_what_it_had(tokenizer):
    def shape(ids, logprobs, request):
        had = len(request.prompt_ids) - len(policy.requests[0].prompt_ids)
        if had >= len(ids):  # the second turn
            return ids, logprobs
        return (ids[had:], logprobs[had:]) if had == 4 else (ids[had : had + 2], logprobs[had : had + 2], "abort")

    policy = Policy(tokenizer, shape)
    one = await play(policy, tokenizer)
    assert (one.turns[0].resumes, one.reward) == (2, 1.0)
    assert one.response_text.startswith(CALL + "<|im_end|>")


async def test_a_cut_turn_needs_no_reason(tokenizer):
    one = await play(Policy(tokenizer), tokenizer, config=EpisodeConfig(sampling=SamplingParams(max_new_tokens=4)))
    assert (one.stop_reason, one.turns[0].finish_reason) == (StopReason.LENGTH, "length")


WRONG = {
    "lengths": (lambda ids, logprobs, _: (ids, logprobs[1:]), "logprobs"),
    "no logprobs": (lambda ids, logprobs, _: (ids, None), "logprobs as a list, got None"),
    "nothing": (lambda ids, logprobs, _: None, "generate must return"),
    "text": (lambda ids, logprobs, _: "#### 6", "generate must return"),
    "key": (lambda i, lp, _: {"token_ids": i, "logprobs": lp, "finish": "stop"}, "did you mean 'finish_reason'"),
    "reason": (lambda ids, logprobs, _: (ids, logprobs, "eos"), "finish_reason out of"),
    "no reason": (lambda ids, logprobs, _: (ids[:3], logprobs[:3]), "must say with finish_reason"),
    "float ids": (lambda ids, logprobs, _: ([float(i) for i in ids], logprobs), "whole numbers"),
    "unknown id": (lambda ids, logprobs, _: ([99999], [-1.0], "length"), "outside its vocabulary"),
    "nan": (lambda ids, logprobs, _: (ids, [float("nan")] * len(ids)), "not a finite number"),
    "versions": (lambda i, lp, _: {"token_ids": i, "logprobs": lp, "weight_versions": ["1"]}, "weight versions"),
    "payload": (lambda i, lp, _: {"token_ids": i, "logprobs": lp, "aligned": {"x": [1]}}, "one row per id"),
    "raises": (lambda ids, logprobs, _: RuntimeError("out of memory"), "out of memory"),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "text"), WRONG.values(), ids=WRONG)
async def test_what_cannot_be_used_is_a_failed_trajectory_that_says_why(shape, text, tokenizer):
    one = await play(Policy(tokenizer, shape), tokenizer)
    assert one.stop_reason is StopReason.ENGINE_FAILED
    assert text in one.error.message
    assert one.policy_tokens == 0


async def test_a_function_that_is_not_async_is_told(tokenizer):
    one = await play(lambda request: ([1], [-1.0]), tokenizer)
    assert "must be an async function" in one.error.message


async def test_a_function_that_hangs_is_cancelled_at_the_deadline(tokenizer):
    cancelled = asyncio.Event()

    async def hang(request):
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    one = await play(hang, tokenizer, config=EpisodeConfig(limits=EpisodeLimits(engine_timeout=0.1)))
    assert one.stop_reason is StopReason.ENGINE_TIMEOUT
    assert cancelled.is_set()


class Watched(CodeInterpreterEnv):
    closed = 0

    async def close(self):
        type(self).closed += 1
        await super().close()


async def test_an_env_that_it_made_is_closed_and_one_that_was_given_is_not(tokenizer):
    Watched.closed = 0
    one = await play(Policy(tokenizer), tokenizer, env=Watched)
    assert (one.env_id, one.reward, Watched.closed) == ("Watched", 1.0, 1)
    async with Watched() as env:
        for _ in range(2):
            assert (await play(Policy(tokenizer), tokenizer, env=env)).reward == 1.0
        assert Watched.closed == 1


async def test_an_env_is_closed_when_the_episode_is_cancelled(tokenizer):
    Watched.closed, asked = 0, asyncio.Event()

    async def hang(request):
        asked.set()
        await asyncio.sleep(60)

    episode = asyncio.create_task(play(hang, tokenizer, env=Watched))
    await asyncio.wait_for(asked.wait(), 50)
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert Watched.closed == 1


async def test_an_env_that_cannot_be_made_costs_one_trajectory(tokenizer):
    def broken():
        raise RuntimeError("no disk")

    one = await play(Policy(tokenizer), tokenizer, env=broken, config=EpisodeConfig(training_step=7))
    assert (one.stop_reason, one.training_step, one.error.message) == (
        StopReason.ENV_CREATE_FAILED, 7, "RuntimeError: no disk",
    )  # fmt: skip


async def test_limits_and_rows_are_honoured(tokenizer):
    row = {"prompt": [dict(one) for one in TASK.messages], "reward_model": {"ground_truth": "6"}}
    config = EpisodeConfig(limits=EpisodeLimits(max_prompt_tokens=2))
    one = await run_episode("CodeInterpreter-v0", row, Policy(tokenizer), tokenizer=tokenizer, config=config)
    assert one.stop_reason is StopReason.PROMPT_REFUSED
    one = await run_episode("CodeInterpreter-v0", row, Policy(tokenizer), tokenizer=tokenizer, context_length=400)
    assert one.stop_reason in (StopReason.ANSWERED, StopReason.BUDGET)
    assert len(one.prompt_ids) + len(one.response_ids) <= 400


async def test_a_users_mistakes_are_errors(tokenizer):
    policy = Policy(tokenizer)
    with pytest.raises(UnknownNameError, match="CodeInterpreter-v0"):
        await play(policy, tokenizer, env="CodeInterpretr-v0")
    with pytest.raises(ConfigError, match="needs the model's tokenizer"):
        await run_episode("CodeInterpreter-v0", TASK, policy)
    with pytest.raises(ConfigError, match="EpisodeConfig"):
        await play(policy, tokenizer, config=SamplingParams(max_new_tokens=3))
    with pytest.raises(ConfigError, match="async function of a GenerationRequest"):
        await play(7, tokenizer)
    with pytest.raises(ConfigError, match="task row"):
        await run_episode("CodeInterpreter-v0", json, policy, tokenizer=tokenizer)
    endless = load_tokenizer(tiny_policy_path())
    endless.model_max_length = 10**30
    with pytest.raises(ConfigError, match="give context_length"):
        await play(policy, endless)
