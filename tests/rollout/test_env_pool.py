"""Envs go to episodes one in each round of the event loop, and are closed once no further episode may need them."""

from __future__ import annotations

import asyncio

from tests.actors import tasks, until
from tests.rollout.held_engine import Envs, config, held_engine
from toolgym.envs import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.rollout import Runner
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.envs.env_pool import EnvPool

TASKS = [Task(({"role": "user", "content": "go"},))]


def pool_of(make):
    return EnvPool(EnvFactory.of(make, None), 50.0)


async def test_envs_that_were_made_together_are_handed_over_one_in_a_round():
    pool, rounds, counting = pool_of(lambda: ToolEnv([], TASKS)), 0, True
    taken: list[int] = []

    async def take():
        await pool.take()
        taken.append(rounds)

    async def count():
        nonlocal rounds
        while counting:
            rounds += 1
            await asyncio.sleep(0)

    try:
        async with asyncio.timeout(50):
            counter = asyncio.create_task(count())
            await asyncio.gather(*(take() for _ in range(20)))
            counting = False
            await counter
    finally:
        await pool.close()
    assert len(set(taken)) == 20


class Slow(ToolEnv):
    """Takes a while to close."""

    open = 0

    async def close(self):
        await asyncio.sleep(0.05)
        Slow.open -= 1
        await super().close()


async def test_envs_that_no_episode_needs_any_more_are_closed_while_the_others_go_on():
    pool = pool_of(lambda: Slow([], TASKS))
    Slow.open = 3
    async with asyncio.timeout(50):
        idle, used, last = [await pool.take() for _ in range(3)]
        pool.give_back(idle)
        assert await pool.take() is idle, "as long as it may be needed"
        pool.give_back(idle)
        pool.expect(1)
        assert await pool.take() is idle, "it was expected to be taken"
        pool.give_back(idle)
        pool.give_back(used)
        await until(lambda: Slow.open == 1)
        pool.give_back(last)
        await pool.close()
    assert Slow.open == 0, "closing the pool waits for those that close already"


async def test_a_run_closes_envs_before_its_last_episode_is_over(scripted_engine, tokenizer):
    """It does not keep its consumer waiting for that in the end."""
    envs, gate = Envs(), asyncio.Event()
    engine = held_engine(
        scripted_engine, tokenizer, lambda asked, member: ("#### 1", gate) if asked == "last" else "#### 1"
    )
    runner = Runner(envs, engine, config=config(max_concurrent=4))
    playing = asyncio.create_task(runner.run(tasks("a", "b", "c", "last")))
    await until(lambda: engine.running and len(envs.closed) == len(envs.made) - 1)
    assert not playing.done()
    gate.set()
    assert len(await playing) == 4
    assert envs.all_closed
