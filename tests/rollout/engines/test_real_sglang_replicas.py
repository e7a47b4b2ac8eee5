"""Two real SGLang servers: one trajectory stays on one of them, and no episode is lost when one is killed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolgym.envs import ArithmeticTasks
from toolgym.rollout import RunConfig, Trajectory, rollout
from toolgym.rollout.engines import Engine, Generation, SamplingParams, SGLangServer
from toolgym.tools.http.replicas import ReplicaState

pytestmark = pytest.mark.sglang


async def converse(engine: Engine, number: int) -> list[Generation]:
    """Four turns that each continue the one before."""
    ids = [(number * 31 + 7 * n) % 250 for n in range(1, 151)]
    turns = []
    for turn in range(4):
        generation = await engine.generate(
            ids, SamplingParams(max_new_tokens=16), request_id=f"{number}-{turn}", affinity=f"talk {number}"
        )
        turns.append(generation)
        ids = [*ids, *generation.token_ids, turn, number]
    return turns


@pytest.mark.parametrize("routed", [False, True], ids=["replicas", "router"])
async def test_every_turn_finds_the_one_before_in_the_cache(farm: Any, routed: bool) -> None:
    urls = [farm.router()] if routed else farm.urls(2)
    async with SGLangServer(*urls) as engine:
        before = await engine.metrics()
        for turns in await asyncio.gather(*(converse(engine, number) for number in range(8))):
            for turn, generation in enumerate(turns[1:], start=1):
                shared = 150 + 18 * (turn - 1) + 16
                assert generation.cached_tokens > 0.9 * shared
        after = await engine.metrics()
        served = {
            url: sum(
                value - before[url].get(name, 0.0)
                for name, value in samples.items()
                if name.startswith("sglang:num_requests_total")
            )
            for url, samples in after.items()
        }
    assert sum(served.values()) == 32
    if not routed:  # a router places keys at random
        assert list(served.values()) == [16, 16]


async def play(engine: SGLangServer) -> list[Trajectory]:
    config = RunConfig(group_size=4, sampling=SamplingParams(max_new_tokens=96), seed=5)
    return await rollout("CodeInterpreter-v0", engine, ArithmeticTasks(split="test"), num_tasks=8, config=config)


async def test_no_episode_is_lost_when_a_server_is_killed(farm: Any) -> None:
    first, second = farm.urls(2)
    router = farm.router()
    async with SGLangServer(first, second) as engine, SGLangServer(router, workers=[first, second]) as through_router:
        rollouts = asyncio.gather(play(engine), play(through_router))
        await asyncio.sleep(1.0)
        while not (engine.requests_in_flight[second] or rollouts.done()):
            await asyncio.sleep(0.01)
        assert not rollouts.done(), "the rollout was over before the server could be killed"
        process, rerouter = farm.victim()
        await asyncio.to_thread(process.kill)
        done, done_through_router = await asyncio.wait_for(rollouts, 480)
        assert engine.replicas == {first: ReplicaState.HEALTHY, second: ReplicaState.UNHEALTHY}
        process.end()
        rerouter.end()
    for trajectories in (done, done_through_router):
        assert len(trajectories) == 32
        assert [one.error for one in trajectories] == [None] * 32
        for one in trajectories:
            policy = [segment for segment in one.segments if segment.is_policy]
            assert all(len(segment.token_ids) == len(segment.logprobs) for segment in policy)
