"""Trajectories on their way from a worker: equal, small, and without texts that are not read."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np

from tests.rollout.ray.parts import Instant, make_env, task
from toolgym.rollout import RunConfig, Runner
from toolgym.rollout.runner.ray.packing import Packer, portable, unpack
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.tools.errors import EngineError, EngineUnavailableError


def played(count):
    runner = Runner(make_env, Instant(), config=RunConfig(seed=3))
    return asyncio.run(runner.run([task(at) for at in range(count)])), runner.tokenizer


def never(ids):
    raise AssertionError("a text was decoded that nothing reads")


def test_a_trajectory_comes_back_equal_and_its_texts_are_decoded_when_they_are_read(tokenizer):
    packer, calls = Packer(), []

    def decode(ids):
        calls.append(ids)
        return tokenizer.decode(ids, skip_special_tokens=False)

    trajectories, _ = played(2)
    for one in trajectories:
        made = unpack(packer.pack(one), packer.tools, decode)
        assert calls == []
        assert made.sequences == one.sequences
        assert made.to_json() == one.to_json()
        assert len(calls) == 2
        calls.clear()
        assert pickle.loads(pickle.dumps(made)).response_text == one.response_text
    assert len(packer.tools) == 1


def test_tokens_are_sent_as_they_lie_in_memory():
    [one], _ = played(1)
    tokens = 20_000
    ids = np.arange(tokens, dtype=np.int32)
    large = Segment(ids, True, np.zeros(tokens), (("1", tokens),))
    packer = Packer()
    small = len(packer.pack(one))
    one.__dict__["sequences"] = (TokenSequence(one.prompt_ids, (*one.segments, large)),)
    data = packer.pack(one)
    assert len(data) - small < 12 * tokens + 1000
    assert np.array_equal(unpack(data, packer.tools, never).segments[-1].token_ids, ids)


def test_an_error_keeps_its_kind_where_it_can_and_its_text():
    class Local(EngineError):  # of no module, so it cannot be sent
        pass

    class Odd(EngineUnavailableError):
        def __init__(self, text, code):
            super().__init__(text)

    assert type(portable(EngineError("one"))) is EngineError
    for error, kind in (
        (Local("one"), EngineError),
        (Odd("one", 7), EngineUnavailableError),
        (KeyError("one"), KeyError),
    ):
        made = portable(error)
        assert (type(made), str(made)) == (kind, str(error))
