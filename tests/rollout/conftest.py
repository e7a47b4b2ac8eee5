"""A policy whose every word is written down beforehand, for the cases that a real engine gives only by accident."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.rollout.engines.base import Engine, FinishReason, Generation, PauseMode
from toolgym.rollout.tiny import tiny_policy_path
from toolgym.rollout.tokenizer import load_tokenizer


class ScriptedEngine(Engine):
    """Answers each request with what `script(prompt_text, request_id)` returns.

    A string is a whole turn; `(text, FinishReason)` is one that ended otherwise; an exception is raised; a number is
    slept for, in seconds, and then a plain answer given.
    """

    def __init__(self, tokenizer, script, context_length=4096):
        self.tokenizer = tokenizer
        self.script = script
        self.seen = {}
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
        return "7"

    async def generate(self, prompt_ids, params, *, request_id, affinity=None):
        self.check_request(prompt_ids, params)
        self.seen[request_id] = (list(prompt_ids), params)
        said = self.script(self.tokenizer.decode(prompt_ids), request_id)
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, int | float):
            await asyncio.sleep(said)
            said = "#### 0"
        text, reason = said if isinstance(said, tuple) else (said, FinishReason.STOP)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if reason is FinishReason.STOP:
            ids.append(self.tokenizer.eos_token_id)
        if len(ids) > params.max_new_tokens:
            ids, reason = ids[: params.max_new_tokens], FinishReason.LENGTH
        logprobs = tuple(-0.25 - n / 1000 for n in range(len(ids)))
        self.given[request_id] = Generation(tuple(ids), logprobs, reason, ("7",) * len(ids), 3)
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
