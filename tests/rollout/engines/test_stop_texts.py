"""Stop texts: the turn ends after the token that completes one, whatever the engine knows of them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.rollout.engines.test_conformance import Scripted, good
from tests.rollout.engines.words import WORDS
from toolgym.rollout.engines import CallableEngine, FinishReason, SamplingParams
from toolgym.rollout.engines.stop_texts import decoder, stop_in, stop_length
from toolgym.rollout.engines.wrapper import EngineWrapper
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.tools.errors import ConfigError

STOPPING = SamplingParams(max_new_tokens=2, stop=("w1",))


@pytest.mark.parametrize("stop", ["w1", ("",), (1,), ["w1"], None])
def test_stop_texts_are_a_tuple_of_texts(stop):
    with pytest.raises(ConfigError, match="stop must be a tuple of texts that are not empty"):
        SamplingParams(max_new_tokens=1, stop=stop)


def test_parameters_come_back_from_json():
    params = SamplingParams(max_new_tokens=3, stop_token_ids=(1,), stop=("a",))
    assert SamplingParams.from_json({**vars(params), "stop_token_ids": [1], "stop": ["a"]}) == params
    assert SamplingParams.from_json({"max_new_tokens": 3, "stop_token_ids": []}).stop == ()
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(
    ("stops", "length"),
    [(("w2",), 2), (("w1 w2",), 2), (("1 w",), 2), (("w3 ", "w2 "), 2), (("w4",), None), ((), None), (("w1",), 1)],
)
def test_the_first_stop_text_that_is_complete_counts(stops, length):
    assert stop_length((1, 2, 3), stops, decoder(WORDS)) == length
    assert stop_length((), stops, decoder(WORDS)) is None


def test_a_stop_text_may_end_inside_of_a_token_and_begin_with_half_a_character():
    tokenizer = load_tokenizer(tiny_policy_path())
    ids = tokenizer.encode("Go 🦊 on. Stop here", add_special_tokens=False)
    decode = decoder(tokenizer)
    for stop in ("🦊", "op", "p h", "Go", "here"):
        length = stop_length(ids, (stop,), decode)
        assert stop in decode(ids[:length])
        assert stop not in decode(ids[: length - 1])


@pytest.mark.parametrize(
    ("text", "stops", "place"),
    [
        ("ab cd", ("d", "b"), (1, "b")),
        ("abcd", ("abcd", "bc"), (1, "bc")),
        ("abc", ("abc", "c"), (0, "abc")),
        ("a", ("b",), None),
    ],
)
def test_the_stop_text_that_ends_first_is_named(text, stops, place):
    assert stop_in(text, stops) == place


async def test_what_an_engine_samples_after_a_stop_text_is_cut_off():
    engine = Scripted(good(aligned={"mask": np.arange(4).reshape(2, 2)}))
    engine.tokenizer = WORDS
    for outer in (engine, EngineWrapper(engine)):
        generation = await outer.generate([3], STOPPING, request_id="a")
        assert (generation.token_ids, generation.logprobs) == ((1,), (-0.5,))
        assert generation.finish_reason is FinishReason.STOP
        assert generation.aligned["mask"].tolist() == [[0, 1]]


async def test_an_engine_without_a_tokenizer_refuses_stop_texts():
    with pytest.raises(ConfigError, match=r"Scripted knows no tokenizer, so it cannot stop at the texts \['w1'\]"):
        await Scripted(good()).generate([3], STOPPING, request_id="a")


async def test_a_function_that_generates_follows_stop_texts():
    async def generate(request):
        return ids, [-0.5] * len(ids), "length"

    tokenizer = load_tokenizer(tiny_policy_path())
    ids = tokenizer.encode("Action: x\nObservation: y", add_special_tokens=False)
    engine = CallableEngine(generate, tokenizer=tokenizer, context_length=100)
    params = SamplingParams(max_new_tokens=len(ids), stop=("\nObservation:",))
    generation = await engine.generate([1], params, request_id="a")
    assert tokenizer.decode(generation.token_ids).startswith("Action: x\nObservation:")
    assert len(generation.token_ids) < len(ids)
