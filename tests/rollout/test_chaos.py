"""Runs in which everything breaks at once, drawn by chance: nothing hangs, nothing is lost and nothing is left.

The engine fails, aborts by itself, hangs and ignores `abort`; envs raise, hang and swallow cancellation in each of
their methods, and while they are made; sinks and observers raise; the consumer breaks off, or the run is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from contextlib import aclosing

import pytest

from tests.actors import tasks
from tests.rollout.held_engine import others
from tests.rollout.test_random_runs import CALL, random_plan
from toolgym.envs import ToolEnv
from toolgym.rollout import EpisodeLimits, RunConfig, RunMetrics, Runner, SamplingParams
from toolgym.rollout.engines.base import EngineLoad, FinishReason, Generation
from toolgym.rollout.episode import env_lifecycle, turn_sampling
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.runner import Adaptive
from toolgym.rollout.runner.branching import Branching, by_chance
from toolgym.tools import tool
from toolgym.tools.concurrency import deadline, tool_loops
from toolgym.tools.errors import EngineError, EpisodeError

GRACE = 0.02
SEEDS = range(10)
FAULTS = ("raises", "hangs", "swallows", "exits", "cancels")


@tool
async def look(at: str) -> str:
    """Look at something."""
    await asyncio.sleep(0)
    return "seen"


class Brokenness(Exception):
    """What is raised on purpose."""


async def fault(draws, chance):
    """Break, with a probability."""
    if draws.random() >= chance:
        return
    kind = draws.choice(FAULTS)
    if kind == "raises":
        raise Brokenness("on purpose")
    if kind == "exits":
        raise SystemExit("on purpose")
    if kind == "cancels":
        raise asyncio.CancelledError
    if kind == "swallows":
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)
    await asyncio.sleep(0.2)


class Envs:
    """Makes envs that break now and then, and counts them."""

    def __init__(self, draws, chance):
        self.draws, self.chance = draws, chance
        self.made, self.closed = [], []

    def __call__(self):
        envs, draws = self, self.draws

        class Env(ToolEnv):
            async def reset(self, **kwargs):
                await fault(draws, envs.chance)
                return await super().reset(**kwargs)

            async def step(self, action):
                await fault(draws, envs.chance)
                return await super().step(action)

            async def fork(self):
                await fault(draws, envs.chance)
                twin = await super().fork()
                envs.made.append(twin)
                return twin

            async def close(self):
                envs.closed.append(self)
                await super().close()
                await fault(draws, envs.chance)

        if draws.random() < self.chance and self.made:
            if draws.random() < 0.5:
                threading.Event().wait(0.15)
            else:
                raise Brokenness("cannot be made")
        self.made.append(Env([look], tasks("unused")))
        return self.made[-1]

    @property
    def counts(self):
        """How often each env that was made has been closed."""
        closed = Counter(map(id, self.closed))
        return [closed[id(one)] for one in self.made]


@pytest.fixture
def wild(scripted_engine, tokenizer):
    class Wild(scripted_engine):
        def __init__(self, draws, chance):
            super().__init__(tokenizer, self._say)
            self.draws, self.chance, self.aborts = draws, chance, {}

        def _say(self, prompt, request_id):
            drawn = self.draws.random()
            if drawn < self.chance:
                return self.draws.choice([EngineError("gone"), 0.3, RuntimeError("odd"), ("", FinishReason.ABORT)])
            if drawn < 0.4:
                return CALL % "x"
            if drawn < 0.5:
                return (self.tokenizer.encode("half of"), FinishReason.ABORT)
            return f"#### {self.draws.randrange(2)}"

        async def _generate(self, request):
            aborted = self.aborts[request.request_id] = asyncio.Event()
            for _ in range(self.draws.choice([0, 0, 1, 5, 30])):
                if aborted.is_set():
                    self.seen[request.request_id] = (list(request.prompt_ids), request.params)
                    partial = Generation((5,), (-0.5,), FinishReason.ABORT, (self.version,), 0, {})
                    return self.given.setdefault(request.request_id, partial)
                await asyncio.sleep(0)
            return await super()._generate(request)

        async def abort(self, request_id):
            await fault(self.draws, self.chance)
            if request_id in self.aborts:
                self.aborts[request_id].set()

        async def load(self):
            await fault(self.draws, self.chance)
            return EngineLoad(self.draws.random(), 3, self.draws.randrange(2))

    return Wild


class Raising(EpisodeObserver):
    """Raises once, at some moment; and a sink that does."""

    def __init__(self, draws):
        self.left = draws.randrange(400)

    def _count(self):
        self.left -= 1
        if self.left == 0:
            raise Brokenness("observer")

    def began(self, job):
        self._count()

    def waits(self, job, phase, what=""):
        self._count()

    def generated(self, job, generation):
        self._count()

    def ended(self, job, trajectory):
        self._count()

    def write(self, trajectory):
        self.left -= 30
        if -30 < self.left <= 0:
            raise Brokenness("sink")


def run_config(draws, size):
    return RunConfig(
        seed=1,
        group_size=size,
        refills=draws.choice([0, 1, 3]),
        branching=draws.choice([None, Branching(by_chance(0.3), max_branches=3)]),
        max_concurrent=draws.choice([1, 2, 7, 64, Adaptive(start=4, least=1, most=16, interval=0.005)]),
        max_generations=draws.choice([None, 1, 3]),
        max_tool_calls=draws.choice([None, 1, 3]),
        sampling=SamplingParams(max_new_tokens=60),
        limits=EpisodeLimits(
            engine_timeout=0.1,
            env_timeout=0.1,
            episode_timeout=draws.choice([0.3, 3.0]),
            turn_timeout=draws.choice([None, 0.15]),
            max_resumes=2,
        ),
    )


async def play(runner, draws, source, plan, given):
    """One call of the runner, which ends in one of many ways."""
    end = draws.choice(["whole", "whole", "cancel", "break"])
    behind = draws.randrange(4)

    async def consume():
        stream = runner.stream(source, plan=plan) if draws.random() < 0.3 else None
        async with aclosing(stream or runner.stream_groups(source, plan=plan)) as one:
            count = 0
            async for got in one:
                given.extend(got if isinstance(got, tuple) else (got,))
                count += 1
                for _ in range(draws.choice([0, 0, 3])):
                    await asyncio.sleep(0)
                if end == "break" and count > behind:
                    return

    playing = asyncio.create_task(consume())
    if end == "cancel":
        await asyncio.wait({playing}, timeout=draws.random() * 0.1)
        playing.cancel()
    await asyncio.wait({playing}, timeout=120)
    assert playing.done(), "it hangs"
    if not playing.cancelled():
        # An observer's, a sink's, or that of the first env, which the caller gets.
        assert isinstance(playing.exception(), Brokenness | EpisodeError | None)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_hangs_and_nothing_is_left(wild, exact, seed, monkeypatch):
    monkeypatch.setattr(turn_sampling, "RESUME_WAIT", (0.0, 0.0))
    monkeypatch.setattr(turn_sampling, "ABORT_GRACE", 0.05)
    monkeypatch.setattr(deadline, "CANCEL_GRACE", GRACE)
    monkeypatch.setattr(env_lifecycle, "CLOSE_TIMEOUT", 0.1)
    fresh = tool_loops.ToolLoops()
    monkeypatch.setattr(tool_loops, "TOOL_LOOPS", fresh)
    draws = random.Random(seed)
    threads = set(threading.enumerate())
    chance = draws.choice([0.0, 0.02, 0.1, 0.3])
    envs, engine, given = Envs(draws, chance), wild(draws, chance), []
    size = draws.choice([1, 2, 4])
    plan, config = random_plan(draws, size), run_config(draws, size)
    raising = Raising(draws)
    metrics = RunMetrics() if draws.random() < 0.5 else None
    watching = [*([raising] if draws.random() < 0.3 else []), *([metrics] if metrics else [])]
    async with Runner(
        envs, engine, config=config, observers=watching, sinks=[raising] if draws.random() < 0.3 else []
    ) as runner:
        source = iter(tasks(*map(str, range(30))))
        for call in range(4):
            await play(runner, draws, source, draws.choice([plan, None]) if call < 3 else None, given)
    for one in given:
        # Where an episode is not dropped, a request that outlives `ABORT_GRACE` is lost to it.
        if not (one.failed or one.parent) and plan.stragglers == "drop":
            exact(engine, one)
    assert set(Counter((one.group_id, one.sample_index) for one in given).values()) <= {1}
    async with asyncio.timeout(50):
        while others() or not all(envs.counts):
            await asyncio.sleep(0.01)
    assert set(envs.counts) <= {1}
    fresh.close()
    async with asyncio.timeout(50):
        while {one for one in threading.enumerate() if one.is_alive()} - threads:
            await asyncio.sleep(0.01)
