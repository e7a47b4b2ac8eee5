"""The deadline of an episode, and the grace of a scorer that is at work when it passes."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.envs import StopReason, Task, ToolEnv
from toolgym.rollout import EpisodeLimits, RunConfig, Runner, SamplingParams
from toolgym.rollout.episode.env_lifecycle import episode_deadline
from toolgym.tools.concurrency.deadline import own_deadline
from toolgym.tools.errors import ConfigError

TASK = Task(({"role": "user", "content": "go"},), id="t")


async def test_what_is_no_scorer_ends_at_the_deadline():
    with pytest.raises(TimeoutError):
        async with episode_deadline(EpisodeLimits(episode_timeout=0.05, score_grace=60)):
            await asyncio.sleep(60)


async def test_a_scorer_at_work_gets_its_grace():
    async with episode_deadline(EpisodeLimits(episode_timeout=0.05, score_grace=60)):
        with own_deadline():
            await asyncio.sleep(0.2)


async def test_the_grace_has_an_end():
    async def score():
        with own_deadline():
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        async with episode_deadline(EpisodeLimits(episode_timeout=0.05, score_grace=0.05)):
            await score()


@pytest.mark.parametrize(("score_grace", "stop_reason"), [(60, StopReason.ANSWERED), (0, StopReason.EPISODE_TIMEOUT)])
async def test_an_episode_whose_time_is_up_while_it_is_scored(scripted, tokenizer, score_grace, stop_reason):
    scored = asyncio.Event()

    async def score(outcome):
        scored.set()
        await asyncio.sleep(seconds + 0.2)
        return 0.5

    engine = scripted(lambda prompt, request_id: "done")
    for seconds in (1.0, 10.0):  # a busy machine may need the first for what comes before scoring
        limits = EpisodeLimits(episode_timeout=seconds, score_grace=score_grace)
        config = RunConfig(sampling=SamplingParams(max_new_tokens=50), limits=limits)
        runner = Runner(lambda: ToolEnv([], [TASK], scorer=score), engine, tokenizer=tokenizer, config=config)
        [one] = await runner.run([TASK])
        if scored.is_set():
            break
    assert scored.is_set()
    assert (one.stop_reason, one.reward) == (stop_reason, 0.5 if score_grace else 0.0)


async def test_scoring_does_not_count_towards_the_deadline_of_a_step(scripted, tokenizer):
    async def score(outcome):
        await asyncio.sleep(seconds + 0.2)
        return 0.5

    engine = scripted(lambda prompt, request_id: "done")
    for seconds in (0.6, 10.0):  # a busy machine may need the first for what comes before scoring
        config = RunConfig(sampling=SamplingParams(max_new_tokens=50), limits=EpisodeLimits(env_timeout=seconds))
        runner = Runner(lambda: ToolEnv([], [TASK], scorer=score), engine, tokenizer=tokenizer, config=config)
        [one] = await runner.run([TASK])
        if not one.failed:
            break
    assert (one.stop_reason, one.reward) == (StopReason.ANSWERED, 0.5)


@pytest.mark.parametrize("value", [-1, "60", float("nan")])
def test_a_grace_that_is_no_time_is_refused(value):
    with pytest.raises(ConfigError, match="score_grace"):
        EpisodeLimits(score_grace=value)
