"""The number of episodes follows the engine's KV cache, against a model of a server that has one."""

from __future__ import annotations

import asyncio
import logging

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.rollout import RunConfig, Runner, SamplingParams
from toolgym.rollout.engines import EngineLoad
from toolgym.rollout.runner import Adaptive, adaptive
from toolgym.rollout.runner.adaptive import LoadFollower, ask_load
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ConfigError, EngineError


class Simulated:
    """A server with a KV cache, and the episodes of a run on it, tick by tick, without a clock or chance.

    An episode generates for some ticks and is in a tool for some, in turn. While it generates, its whole context is in
    the cache, and grows by 50 tokens a tick. Episodes and requests hold leases of the real limiters, and the real
    follower hears of each tick.
    """

    def __init__(self, *, capacity, **settings):
        self.capacity = capacity
        rules = Adaptive(**settings)
        self.episodes, self.generations = LocalRateLimiter(rules.start), LocalRateLimiter(10**9)
        self.follower = LoadFollower(None, rules, self.episodes, self.generations, LocalRateLimiter(10**9))
        self.contexts = {}  # of the requests that are under way
        self.history = []  # use of the cache, most episodes, requests that were admitted since the tick before
        self.admitted = self.finished = self.overfull = 0

    async def run(self, ticks):
        self.now = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(self._start(group))
            for _ in range(ticks):
                before, self.now = self.now, asyncio.get_running_loop().create_future()
                before.set_result(None)
                for _ in range(8):  # until all that this leads to has happened
                    await asyncio.sleep(0)
                tokens = sum(self.contexts.values())
                self.overfull += tokens > self.capacity
                use = min(1.0, tokens / self.capacity)
                self.history.append((use, self.episodes.limit, self.admitted))
                self.admitted = 0
                self.follower.follow(EngineLoad(use, len(self.contexts), 0))
            starting.cancel()
            for task in self.tasks:
                task.cancel()

    async def _start(self, group):
        self.tasks = []
        while True:
            lease = await self.episodes.acquire()
            self.tasks.append(group.create_task(self._play(len(self.tasks), lease)))

    async def _play(self, number, lease):
        context = 100
        for turn in range(2 + number * 11 % 9):
            async with self.generations.permit():
                self.admitted += 1
                for _ in range(2 + (number * 7 + turn) % 5):
                    self.contexts[number] = context
                    await self.now
                    context += 50
                del self.contexts[number]
            for _ in range(1 + (number * 5 + turn) % 7):
                await self.now
        self.finished += 1
        lease.release()


@pytest.mark.parametrize(
    ("capacity", "start"),
    [
        (50_000, 16),
        (50_000, 200),
        pytest.param(100_000, 400, marks=pytest.mark.long),
        pytest.param(400_000, 16, marks=pytest.mark.long),
    ],
)
async def test_the_use_of_the_cache_comes_between_the_bounds_and_stays_there(capacity, start):
    """From far too few episodes, and from far too many."""
    server = Simulated(capacity=capacity, start=start, most=10_000)
    await server.run(400)
    late = [use for use, *_ in server.history[200:]]
    assert 0.6 <= sum(late) / len(late) <= 0.8
    assert sum(0.45 < use < 0.95 for use in late) > 0.95 * len(late)
    limits = [limit for _, limit, _ in server.history[200:]]
    assert max(limits) < 2 * min(limits)  # it has settled
    assert server.overfull < 10


async def test_at_the_hard_stop_no_further_request_is_sent_until_there_is_room():
    server = Simulated(capacity=30_000, start=200, most=200, least=200)  # so many that trimming is of no use
    await server.run(200)
    after = zip(server.history, server.history[1:], strict=False)
    assert {admitted for (use, *_), (_, _, admitted) in after if use >= 0.9} == {0}
    assert server.finished > 100  # and it goes on


def test_where_nothing_is_under_way_one_request_is_sent_although_the_cache_is_full():
    """Others may fill it, for ever."""
    episodes, generations = LocalRateLimiter(8), LocalRateLimiter(100)
    follower = LoadFollower(None, Adaptive(start=8), episodes, generations, LocalRateLimiter(8))
    follower.follow(EngineLoad(0.97, 50, 4))
    lease = generations.try_acquire()
    assert lease is not None
    assert generations.try_acquire() is None
    lease.release()
    assert generations.try_acquire() is not None


def following(limit=10, held=None, **settings):
    episodes, generations, tools = LocalRateLimiter(limit), LocalRateLimiter(100), LocalRateLimiter(5)
    leases = [episodes.try_acquire() for _ in range(limit if held is None else held)]
    follower = LoadFollower(None, Adaptive(start=limit, **settings), episodes, generations, tools)
    return follower, episodes, generations, leases


@pytest.mark.parametrize(
    ("load", "held"),
    [
        pytest.param(EngineLoad(0.3, 0, 0), 10, id="nothing runs: it is paused, or all episodes are in their tools"),
        pytest.param(EngineLoad(0.3, 5, 2), 10, id="requests wait in the engine already"),
        pytest.param(EngineLoad(0.3, 5, 0), 9, id="not all of them run"),
        pytest.param(EngineLoad(0.7, 5, 0), 10, id="it is full enough"),
    ],
)
def test_it_grows_only_where_the_limit_is_what_keeps_the_engine_idle(load, held):
    follower, episodes, *_ = following(held=held)
    follower.follow(load)
    assert episodes.limit == 10


async def test_it_does_not_grow_while_tool_calls_wait_for_their_turn():
    follower, episodes, _, _ = following()
    tools = follower._tool_calls
    leases = [await tools.acquire() for _ in range(5)]
    waiting = asyncio.create_task(tools.acquire())
    await asyncio.sleep(0)
    follower.follow(EngineLoad(0.3, 5, 0))
    assert episodes.limit == 10
    leases[0].release()
    await waiting
    follower.follow(EngineLoad(0.3, 5, 0))
    assert episodes.limit == 11


def test_it_is_lowered_again_only_when_the_last_time_has_come_into_effect():
    follower, episodes, _, leases = following(limit=100)
    for _ in range(5):
        follower.follow(EngineLoad(0.84, 50, 0))
    assert episodes.limit == 88  # by an eighth
    for lease in leases[:12]:
        lease.release()
    follower.follow(EngineLoad(0.84, 50, 0))
    assert episodes.limit == 88  # those that ended have made room, but all that run are as long as before
    for lease in leases[12:23]:
        lease.release()
        episodes.try_acquire()
    follower.follow(EngineLoad(0.72, 50, 0))
    assert episodes.limit == 88
    follower.follow(EngineLoad(0.84, 50, 0))
    assert episodes.limit == 77


def test_a_server_that_stops_answering_leaves_the_limit_where_it_is():
    follower, episodes, generations, _ = following(limit=100)
    follower.follow(EngineLoad(0.95, 50, 0))
    limit = episodes.limit
    for number in range(5):
        assert generations.limit == (1 if number < adaptive.UNANSWERED else 100)
        follower.follow(None)
    assert (episodes.limit, generations.limit) == (limit, 100)


async def test_an_engine_that_fails_to_tell_is_in_the_log_once(caplog, monkeypatch, scripted):
    monkeypatch.setattr(adaptive, "LOAD_TIMEOUT", 0.05)
    monkeypatch.setattr(adaptive, "_silent", adaptive.LogThrottle(60.0))
    engine = scripted(lambda *_: "#### 1")

    async def fails():
        raise EngineError("it is gone")

    async def hangs():
        await asyncio.sleep(60)

    with caplog.at_level(logging.WARNING):
        for engine.load in (fails, hangs, fails):
            assert await ask_load(engine) is None
    [line] = [record.getMessage() for record in caplog.records]
    assert "it is gone" in line


async def test_a_run_follows_its_engine(scripted_engine, tokenizer, monkeypatch):
    """From 4 episodes to what the cache holds, with the real runner; and nothing of it is left behind."""
    follow, followers = LoadFollower.run, []

    def run(self):
        followers.append(self)
        return follow(self)

    monkeypatch.setattr(LoadFollower, "run", run)

    class Caching(scripted_engine):
        """Each request takes a fortieth of the cache, for three looks at it."""

        running = peak = 0
        looked = asyncio.Event()

        async def _generate(self, request):
            self.running += 1
            self.peak = max(self.peak, self.running)
            for _ in range(3):
                await self.looked.wait()
            self.running -= 1
            return await super()._generate(request)

        async def load(self):
            # What has begun is on its way here, which is long on a busy machine: it counts too.
            while any(self.running + one._generations.waiting < one._episodes.in_use for one in followers):
                await asyncio.sleep(0.001)
            before, self.looked = self.looked, asyncio.Event()
            before.set()
            return EngineLoad(min(1.0, self.running / 40), self.running, 0, 1000)

    engine = Caching(tokenizer, lambda *_: "#### 1")
    tasks = [Task(({"role": "user", "content": f"go {number}"},)) for number in range(150)]
    config = RunConfig(
        max_concurrent=Adaptive(start=4, interval=0.005), sampling=SamplingParams(max_new_tokens=16), seed=0
    )
    async with asyncio.timeout(120):
        done = await Runner(lambda: ToolEnv([], tasks[:1]), engine, config=config).run(tasks)
    assert not any(one.failed for one in done)
    assert 20 < engine.peak < 40
    assert not [task for task in asyncio.all_tasks() if "follows" in task.get_name()]


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 0},
        {"least": 100},
        {"most": 3},
        {"grow_below": 0.9},
        {"stop_above": 1.5},
        {"trim_above": "0.8"},
        {"interval": 0},
    ],
)
def test_rules_that_contradict_each_other_are_refused(wrong):
    with pytest.raises(ConfigError):
        Adaptive(**wrong)
