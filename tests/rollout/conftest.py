"""A policy whose every word is written down beforehand, for the cases that a real engine gives only by accident."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.rollout.engines.base import Engine, FinishReason, Generation, PauseMode
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer


class ScriptedEngine(Engine):
    """Answers each request with what `script(prompt_text, request_id)` returns.

    A string is a whole turn; `(text, FinishReason)` is one that ended otherwise, a list of ids in place of the text
    being taken as it is; an exception is raised; a number is slept for, in seconds, and then a plain answer given.
    """

    version = "7"
    aligned = staticmethod(lambda request_id, token_ids: {})  # the payloads of an answer

    def __init__(self, tokenizer, script, context_length=4096):
        self.tokenizer = tokenizer
        self.script = script
        self.seen = {}
        self.affinities = {}
        self.given = {}
        self._context_length = context_length

    @property
    def vocab_size(self):
        return len(self.tokenizer)

    @property
    def context_length(self):
        return self._context_length

    @property
    def weight_version(self):
        return self.version

    async def _generate(self, request):
        prompt_ids, params, request_id = request.prompt_ids, request.params, request.request_id
        self.seen[request_id] = (list(prompt_ids), params)
        self.affinities[request_id] = request.affinity
        said = self.script(self.tokenizer.decode(prompt_ids), request_id)
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, int | float):
            await asyncio.sleep(said)
            said = "#### 0"
        text, reason = said if isinstance(said, tuple) else (said, FinishReason.STOP)
        ids = list(text) if isinstance(text, list) else self.tokenizer.encode(text, add_special_tokens=False)
        if reason is FinishReason.STOP and isinstance(text, str):
            ids.append(self.tokenizer.eos_token_id)
        if len(ids) > params.max_new_tokens:
            ids, reason = ids[: params.max_new_tokens], FinishReason.LENGTH
        logprobs = tuple(-0.25 - n / 1000 for n in range(len(ids)))
        self.given[request_id] = Generation(
            tuple(ids), logprobs, reason, (self.version,) * len(ids), 3, self.aligned(request_id, ids)
        )
        return self.given[request_id]

    async def abort(self, request_id):
        pass

    async def pause(self, mode=PauseMode.IN_PLACE):
        pass

    async def resume(self):
        pass

    async def close(self):
        pass


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer(tiny_policy_path())


@pytest.fixture
def scripted(tokenizer):
    def make(script, **kwargs):
        return ScriptedEngine(tokenizer, script, **kwargs)

    return make


def assert_exact(engine, trajectory):
    """Each sequence is what the engine was sent and produced, and every sampled token is in exactly one of them."""
    requests = [name for name in engine.given if name.startswith(trajectory.id)]
    waiting = iter([name for name in requests if engine.given[name].token_ids])
    for sequence in trajectory.sequences:
        context = list(sequence.prompt_ids)
        for segment in sequence.segments:
            if segment.is_policy:
                request = next(waiting)
                given = engine.given[request]
                assert engine.seen[request][0] == context
                assert tuple(segment.token_ids) == given.token_ids
                assert tuple(segment.logprobs) == given.logprobs
                assert segment.weight_versions == given.weight_versions
            context += segment.token_ids.tolist()
        assert len(context) <= engine.context_length
    assert list(waiting) == []
    assert trajectory.policy_tokens == sum(len(engine.given[name].token_ids) for name in requests)
    assert trajectory.policy_tokens == sum(turn.generated_tokens for turn in trajectory.turns)
    turns = [number for number, sequence in enumerate(trajectory.sequences) for s in sequence.segments if s.is_policy]
    assert sorted({turn.sequence for turn in trajectory.turns if turn.generated_tokens}) == sorted(set(turns))


@pytest.fixture(scope="session")
def scripted_engine():
    return ScriptedEngine


@pytest.fixture(scope="session")
def exact():
    return assert_exact
