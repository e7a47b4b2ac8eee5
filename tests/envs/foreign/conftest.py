"""A rollout with the tiny policy whose tokens are compared with the engine's, for envs of any project."""

from __future__ import annotations

import pytest

from toolgym.rollout import EpisodeLimits, RunConfig, SamplingParams, rollout, tiny_policy_path
from toolgym.rollout.engines import TransformersEngine
from toolgym.rollout.models.tokenizer import load_tokenizer


class Listening(TransformersEngine):
    """Keeps what goes in and comes out."""

    def __init__(self, model):
        super().__init__(model)
        self.heard = {}

    async def _generate(self, request):
        generation = await super()._generate(request)
        self.heard[request.request_id] = (list(request.prompt_ids), generation)
        return generation


@pytest.fixture(scope="session")
def tiny_tokenizer():
    return load_tokenizer(tiny_policy_path())


@pytest.fixture
def exact_rollout(tiny_tokenizer):
    """Plays 4 tasks twice each, checks that every token is the engine's own, and returns the trajectories."""

    async def play(make, tasks=None, *, max_new_tokens=32, max_response_tokens=300):
        config = RunConfig(
            group_size=2,
            seed=3,
            sampling=SamplingParams(max_new_tokens=max_new_tokens),
            limits=EpisodeLimits(max_response_tokens=max_response_tokens),
            on_truncated_turn="close",  # so that the env sees the turns of a policy that rarely ends one
        )
        async with Listening(tiny_policy_path()) as engine:
            done = await rollout(make, engine, tasks, num_tasks=4, config=config)
        assert len(done) == 8
        for one in done:
            assert not one.failed, one.error
            check_tokens(one, engine.heard)
            check_rendering(one, tiny_tokenizer)
        assert engine.heard == {}  # nothing was generated that is in no record
        return done

    return play


def check_tokens(one, heard):
    """Each prompt that the engine saw is the context so far, and each policy segment is what it answered."""
    context, number = list(one.prompt_ids), 0
    for segment in one.segments:
        if segment.is_policy:
            sent, generation = heard.pop(f"{one.id}-{number}")
            assert sent == context
            assert tuple(segment.token_ids) == generation.token_ids
            assert tuple(segment.logprobs) == generation.logprobs
            number += 1
        context += segment.token_ids.tolist()


def check_rendering(one, tokenizer):
    """The tokens are what the chat template makes of the conversation."""
    whole = tokenizer.decode([*one.prompt_ids, *one.response_ids])
    rendered = tokenizer.apply_chat_template(list(one.messages), tools=list(one.tools) or None, tokenize=False)
    closing = "\n" if whole.endswith("<|im_end|>") else "<|im_end|>\n"  # a turn that was cut is not closed
    assert rendered == whole + closing
