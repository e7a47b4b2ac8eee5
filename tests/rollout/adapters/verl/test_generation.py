"""Turns from verl's client. Needs no verl."""

from __future__ import annotations

import pytest

from tests.rollout.adapters.verl.fakes import ServerAnswer
from toolgym.rollout.adapters.verl.generation import VerlGenerate
from toolgym.rollout.engines.base import FinishReason, GenerationRequest, SamplingParams
from toolgym.rollout.engines.callable import read_answer
from toolgym.tools.errors import EngineError

REQUEST = GenerationRequest((5, 6), SamplingParams(max_new_tokens=3, stop_token_ids=(9,)), "r")
SAMPLING = {"temperature": 0.5, "logprobs": True}


class Client:
    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    async def generate(self, request_id, **given):
        self.requests.append((request_id, given))
        return self.answers.pop(0)


def answer(ids, said, logprobs=..., **fields):
    return ServerAnswer(ids, [-0.5] * len(ids) if logprobs is ... else logprobs, said, fields)


async def generated(said, sampling=SAMPLING):
    return read_answer(await VerlGenerate(Client(said), sampling, "r")(REQUEST), REQUEST)


@pytest.mark.parametrize(
    ("ids", "said", "expected"),
    [
        ([1, 9], "stop", FinishReason.STOP),
        ([1, 2, 3], "length", FinishReason.LENGTH),
        ([1], "length", FinishReason.LENGTH),  # the server's own bound was lower
        ([1, 9], "completed", FinishReason.STOP),  # vLLM's word for both
        ([1, 2, 3], "completed", FinishReason.LENGTH),
        ([1], "aborted", FinishReason.ABORT),
        ([], "abort", FinishReason.ABORT),
        ([1, 9], None, FinishReason.STOP),
        ([1, 2, 3], None, FinishReason.LENGTH),
    ],
)
async def test_why_a_turn_ended(ids, said, expected):
    assert (await generated(answer(ids, said))).finish_reason is expected


async def test_what_is_sent():
    client = Client(answer([9], "stop"))
    await VerlGenerate(client, SAMPLING, "r", {"priority": 2})(REQUEST)
    params = {"temperature": 0.5, "logprobs": True, "max_tokens": 3, "stop_token_ids": [9]}
    assert client.requests == [("r", {"prompt_ids": [5, 6], "sampling_params": params, "priority": 2})]
    assert SAMPLING == {"temperature": 0.5, "logprobs": True}


async def test_log_probs_stand_as_0_where_verl_does_not_want_them():
    made = await generated(answer([1, 9], "stop", None), {"logprobs": False})
    assert made.logprobs == (0.0, 0.0)


@pytest.mark.parametrize("logprobs", [None, [-0.5]])
async def test_missing_log_probs_are_an_error_and_not_guessed(logprobs):
    with pytest.raises(EngineError, match=rf"2 ids and {len(logprobs or ())} log-probs"):
        await generated(answer([1, 9], "stop", logprobs))


@pytest.mark.parametrize("said", ["stop", "length", None])
async def test_no_tokens_are_an_error(said):
    with pytest.raises(EngineError, match="no tokens"):
        await generated(answer([], said))


async def test_versions_preemptions_and_experts_over_several_turns():
    first = answer([1, 9], "stop", min_global_steps=3, max_global_steps=4)
    second = answer([2, 9], "stop", global_steps=6)
    first.num_preempted, second.num_preempted, second.routed_experts = 1, 2, "experts"
    generate = VerlGenerate(Client(first, second, answer([9], "stop")), SAMPLING, "r")
    assert read_answer(await generate(REQUEST), REQUEST).weight_versions == ("4", "4")
    await generate(REQUEST)
    await generate(REQUEST)  # a server that says nothing
    assert (generate.first_step, generate.last_step) == (3, 6)
    assert (generate.num_preempted, generate.routed_experts) == (3, "experts")
