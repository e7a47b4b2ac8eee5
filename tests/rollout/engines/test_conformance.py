"""The suite of all engines on ours (see `conftest.py` for which there are), and what `Engine` itself checks."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from toolgym.rollout.engines import Engine, FinishReason, Generation, GenerationRequest, SamplingParams
from toolgym.testing import EngineSuite
from toolgym.tools.errors import ConfigError, EngineError


class TestEngines(EngineSuite):
    async def test_cancelling_the_caller_aborts_the_request(self, subject: Any) -> None:
        await super().test_cancelling_the_caller_aborts_the_request(subject)
        if subject.server is not None:
            long = [one["rid"] for one in subject.server.seen if one["sampling_params"]["max_new_tokens"] > 100]
            # On a busy machine the server may not have seen it yet when it was cancelled.
            assert not long or subject.server.aborted[0] == long[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"top_k": -2},
        {"min_p": -0.1},
        {"min_p": 1.1},
    ],
)
def test_parameters_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SamplingParams(**({"max_new_tokens": 4} | wrong))


# ---- what the contract itself checks, whatever a subclass does


class Scripted(Engine):
    """An engine that writes no more than it must, and answers with what it is given."""

    vocab_size = 10
    context_length = 20

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[GenerationRequest] = []

    async def _generate(self, request: GenerationRequest) -> Generation:
        self.asked.append(request)
        answer: Generation = self.answer() if callable(self.answer) else self.answer
        return answer


def good(**changes: Any) -> Generation:
    return dataclasses.replace(Generation((1, 2), (-0.5, -1.0), FinishReason.LENGTH, ("0", "0")), **changes)


TWO = SamplingParams(max_new_tokens=2)


async def test_a_subclass_sees_a_checked_request_and_its_good_answer_is_returned() -> None:
    payload = np.arange(8, dtype=np.int32).reshape(2, 2, 2)
    engine = Scripted(good(aligned={"routed_experts": payload}))
    async with engine:
        generation = await engine.generate(np.array([3, 4]), TWO, request_id="a", affinity="t")  # type: ignore[arg-type]
    assert generation is engine.answer
    assert engine.asked == [GenerationRequest((3, 4), TWO, "a", "t")]
    assert all(type(one) is int for one in engine.asked[0].prompt_ids)
    copy = pickle.loads(pickle.dumps(generation))
    assert copy == generation
    assert "ids" not in vars(copy), "what was made of the ids while they were checked stays here"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "must return a Generation"),
        ({"token_ids": (1, 2)}, "must return a Generation"),
        (lambda: good(token_ids=(1, 10)), "token id 10, outside its vocabulary of 10"),
        (lambda: good(token_ids=(-1, 2)), "token id -1, outside"),
        (lambda: good(token_ids=("1", 2)), "no integer"),
        (lambda: good(logprobs=(float("nan"), -1.0)), "finite"),
        (lambda: good(logprobs=(-1.0, float("-inf"))), "finite"),
        (lambda: good(logprobs=(-1.0, None)), "finite"),
        (lambda: good(logprobs=(-1.0, 5.0)), "log-probability 5: a probability's logarithm is at most 0"),
        (lambda: good(logprobs=(0.7, 0.4)), "log-probability 0.7"),  # probabilities
        (lambda: good(logprobs=(-1.0,)), "2 ids, 1 logprobs and 2 weight versions"),
        (lambda: good(weight_versions=("0",)), "2 ids, 2 logprobs and 1 weight versions"),
        (lambda: good(token_ids=(1, 2, 3), logprobs=(-1.0,) * 3, weight_versions=("0",) * 3), "max_new_tokens=2"),
        (lambda: good(finish_reason="length"), "FinishReason"),
        (lambda: Generation((), (), FinishReason.STOP, ()), "no token"),
        (lambda: good(aligned={"routed_experts": np.zeros((3, 2, 2))}), r"'routed_experts' of shape \[3, 2, 2\]"),
        (lambda: good(aligned={"sampling_mask": np.zeros(())}), "sampling_mask"),
        (lambda: good(aligned={"sampling_mask": [[1], [2]]}), "no array"),
    ],
)
async def test_an_answer_that_would_break_a_batch_is_an_engine_error(answer: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        await Scripted(answer).generate([1], TWO, request_id="a")


@pytest.mark.parametrize("logprobs", [(0.0, -0.0), (1.2e-7, 0.0078), ()])
async def test_log_probabilities_of_sure_tokens_may_be_rounded_to_just_above_0(logprobs: tuple[float, ...]) -> None:
    ids = tuple(range(1, len(logprobs) + 1))
    reason = FinishReason.STOP if ids else FinishReason.ABORT
    given = Generation(ids, logprobs, reason, ("0",) * len(ids))
    assert (await Scripted(lambda: given).generate([1], TWO, request_id="a")).logprobs == logprobs


@pytest.mark.parametrize("ids", [[], [-1], [10], [1.5], ["1"], [None]])
async def test_a_wrong_request_never_reaches_a_subclass(ids: list[Any]) -> None:
    engine = Scripted(good())
    with pytest.raises(ConfigError, match="at least one|vocabulary|integers"):
        await engine.generate(ids, TWO, request_id="a")
    with pytest.raises(ConfigError, match="context of 20"):
        await engine.generate([1] * 19, TWO, request_id="a")
    assert engine.asked == []


def test_a_subclass_cannot_replace_the_check() -> None:
    with pytest.raises(ConfigError, match=r"Old replaces Engine.generate.*_generate"):

        class Old(Scripted):
            async def generate(self, *args: Any, **kwargs: Any) -> Generation:  # type: ignore[override,misc]
                return good()


async def test_what_an_engine_does_not_write_is_refused_by_name() -> None:
    engine = Scripted(good())
    assert engine.weight_version == "0"
    assert engine.tokenizer is None
    for call in (
        engine.abort("a"),
        engine.pause(),
        engine.resume(),
        engine.update_weights("folder", version="1"),
    ):
        with pytest.raises(EngineError, match="Scripted cannot"):
            await call
    await engine.close()
