"""Making an env is the user's code: it holds up no other episode, has a deadline, and what it made is closed."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, RunConfig, Runner, SamplingParams, run_episode
from toolgym.rollout.runner.envs.env_pool import EnvPool
from toolgym.tools.concurrency import deadline
from toolgym.tools.errors import EpisodeError

TASKS = [Task(({"role": "user", "content": f"go {number}"},), id=str(number)) for number in range(12)]


class Counted(ToolEnv):
    """Counts the envs that are open."""

    open = made = 0

    def __init__(self):
        super().__init__([], TASKS)
        type(self).open += 1
        type(self).made += 1

    async def close(self):
        type(self).open -= 1
        await super().close()


@pytest.fixture
def counted():
    return type("Counted", (Counted,), {"open": 0, "made": 0})


def config(**limits):
    return RunConfig(
        sampling=SamplingParams(max_new_tokens=32), seed=0, max_concurrent=12, limits=EpisodeLimits(**limits)
    )


async def test_an_env_that_is_slow_to_make_holds_up_no_episode_that_has_its_env(scripted, counted):
    made = 0
    go_on = threading.Event()

    def make():
        nonlocal made
        made += 1
        if made == 2:
            go_on.wait(120)
        return counted()

    runner = Runner(make, scripted(lambda *_: "#### 1"), config=config(env_timeout=120))
    stream = runner.stream(TASKS)
    first = await asyncio.wait_for(anext(stream), 50)  # while the second env is being made
    assert not first.failed
    go_on.set()
    assert not any([one.failed async for one in stream])
    assert counted.open == 0


async def test_an_env_whose_making_hangs_is_one_failed_trajectory_and_is_closed_when_it_comes(scripted, counted):
    def make():
        nonlocal made
        made += 1
        if made == 2:
            go_on.wait(120)
        return counted()

    for seconds in (0.5, 5.0):  # a busy machine may need the first for the envs that do not hang
        made, go_on = 0, threading.Event()
        done = await Runner(make, scripted(lambda *_: "#### 1"), config=config(env_timeout=seconds)).run(TASKS)
        failed = [one for one in done if one.failed]
        go_on.set()
        async with asyncio.timeout(50):
            while made < 3 or counted.open:
                await asyncio.sleep(0.01)
        if len(failed) == 1:
            break
    [late] = failed
    assert late.stop_reason is StopReason.ENV_CREATE_FAILED
    assert f"making the env did not finish within {seconds:g} seconds" in late.error.message


async def test_one_env_that_cannot_be_made_is_one_failed_trajectory(scripted, counted):
    made = 0

    def make():
        nonlocal made
        made += 1
        if made == 3:
            raise SystemExit("no licence")
        if made == 4:
            raise OSError("no disk")
        return counted()

    done = await Runner(make, scripted(lambda *_: "#### 1"), config=config()).run(TASKS)
    failed = sorted(one.error.message for one in done if one.failed)
    assert len(failed) == 2
    assert "no licence" in failed[0]
    assert "no disk" in failed[1]
    assert counted.open == 0


async def test_a_stop_iteration_of_what_makes_envs_costs_its_episodes_and_hangs_none(scripted, counted):
    configs = iter([1, 2])

    def make():
        next(configs)  # too few of them
        return counted()

    async with asyncio.timeout(50):
        done = await Runner(make, scripted(lambda *_: "#### 1"), config=config()).run(TASKS)
    assert len(done) == len(TASKS)
    failed = [one.error.message for one in done if one.failed]
    assert failed
    assert set(failed) == {"RuntimeError: EnvFactory raised StopIteration"}
    assert counted.open == 0


async def test_what_waits_for_an_env_hears_that_its_maker_is_gone(counted):
    go_on = threading.Event()
    pool = EnvPool(lambda: go_on.wait(120) and counted(), 100.0)
    waiting = [asyncio.create_task(pool.take()) for _ in range(3)]
    try:
        await asyncio.sleep(0.1)
        pool._making.cancel()  # as a user's code may that cancels all tasks of an event loop
        async with asyncio.timeout(50):
            ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in ended] == [EpisodeError] * 3
    finally:
        go_on.set()
        await pool.close()


async def test_an_episode_of_a_trainer_has_that_deadline_too(scripted):
    go_on = threading.Event()
    try:
        began = time.monotonic()
        trajectory = await run_episode(
            lambda: go_on.wait(120), TASKS[0], scripted(lambda *_: "#### 1"), config=config(env_timeout=0.2)
        )
        assert time.monotonic() - began < 60
    finally:
        go_on.set()
    assert trajectory.stop_reason is StopReason.ENV_CREATE_FAILED


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(deadline, "CANCEL_GRACE", 50.0)


@pytest.mark.usefixtures("patient")
async def test_a_pool_that_is_closed_makes_no_further_env_and_closes_the_one_that_is_made(counted):
    begun, go_on, made = threading.Event(), threading.Event(), []

    def make():
        begun.set()
        go_on.wait(120)
        made.append(counted())
        return made[-1]

    pool = EnvPool(make, 50.0)
    waiting = [asyncio.create_task(pool.take()) for _ in range(5)]
    assert await asyncio.to_thread(begun.wait, 50)
    closing = asyncio.create_task(pool.close())
    await asyncio.wait(waiting)  # they are cancelled at once
    go_on.set()
    await closing
    assert (len(made), counted.open) == (1, 0)


async def test_an_env_whose_episode_was_cancelled_meanwhile_is_used_or_closed(counted):
    pool = EnvPool(counted, 50.0)
    given_up = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    given_up.cancel()
    env = await pool.take()
    other = await pool.take()
    assert env is not other
    assert counted.open >= 2
    await pool.close()
    assert counted.open == 0


@pytest.mark.usefixtures("patient")
async def test_closing_waits_for_an_env_that_is_just_being_made(counted):
    begun, go_on = threading.Event(), threading.Event()

    def make():
        begun.set()
        go_on.wait(120)
        return counted()

    pool = EnvPool(make, 50.0)
    waiting = [asyncio.create_task(pool.take()) for _ in range(3)]
    while not begun.is_set():
        await asyncio.sleep(0.001)
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    await pool.close()
    assert counted.open == 0
    assert all(
        isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*waiting, return_exceptions=True)
    )
    assert [one for one in asyncio.all_tasks() if one is not asyncio.current_task()] == []


@pytest.mark.filterwarnings("error")
def test_an_env_that_is_made_when_its_event_loop_is_closed_is_closed_all_the_same(counted, monkeypatch):
    monkeypatch.setattr(deadline, "CANCEL_GRACE", 0.05)
    begun, go_on = threading.Event(), threading.Event()

    def make():
        begun.set()
        go_on.wait(120)
        return counted()

    async def cancelled():
        pool = EnvPool(make, 50.0)
        taking = asyncio.create_task(pool.take())
        while not begun.is_set():
            await asyncio.sleep(0.001)
        taking.cancel()
        await pool.close()

    before = set(threading.enumerate())
    asyncio.run(cancelled())
    [thread] = set(threading.enumerate()) - before
    go_on.set()
    thread.join(50)
    assert not thread.is_alive()
    assert (counted.made, counted.open) == (1, 0)
