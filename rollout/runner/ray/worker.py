"""`RolloutWorker`: the process that plays episodes for a `RayRunner`. It is a Ray actor, and knows nothing of Ray. Its
runner's scheduler is an inbox that the driver fills; what comes back waits in an outbox until the driver has it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import os
import pickle
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from toolgym.rollout.engines.base import Engine
from toolgym.rollout.engines.open import open_engine
from toolgym.rollout.episode.env_lifecycle import CLOSE_TIMEOUT
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.job import Job
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.envs.env_pool import EnvPools
from toolgym.rollout.runner.envs.role_plan import plan_of
from toolgym.rollout.runner.envs.roles import checked_roles
from toolgym.rollout.runner.local import Runner
from toolgym.rollout.runner.ray.packing import Packer, Tools, portable
from toolgym.rollout.runner.scheduling.scheduler import Cut, Scheduler, Stragglers
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.deadline import shielded, with_deadline
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PATIENCE = 2.0
"""Seconds that `collect` waits for a trajectory. Its answer without one says that the worker lives."""

REPLY_BYTES = 4 * 2**20
"""Bytes of trajectories in one reply, the last of which may go beyond."""

MOST_WARNINGS = 100

_log = logging.getLogger("toolgym")

MakeEngine = Callable[[], Engine | Awaitable[Engine]]


@dataclass(frozen=True)
class WorkerSetup:
    """The parts of a worker, as its process gets them; `variables` of the environment are set first."""

    env: EnvFactory
    engine: str | Path | MakeEngine
    tokenizer: PreTrainedTokenizerBase | str | Path | None = None
    observers: Callable[[], Sequence[EpisodeObserver]] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


class WorkerFacts(NamedTuple):
    """The facts that all workers share: the pickled tokenizer, and the trained roles of each env that has roles."""

    tokenizer: bytes
    roles: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class WorkerReply:
    """The news of a worker for its driver; tools and warnings are those behind earlier replies. `results` are pairs of
    a job's number and its packed trajectories, one, or one for each role; `room` is how many jobs it can take, those
    that it has included. `broken` ended the run."""

    results: list[tuple[int, list[bytes]]]
    tools: list[Tools]
    room: int
    metrics: dict[str, Any]
    warnings: list[str]
    broken: Exception | None = None


class RolloutWorker:
    """Plays episodes, on the event loop of its actor. One run at a time."""

    def __init__(self, setup: bytes) -> None:
        self._setup: WorkerSetup = cloudpickle.loads(setup)
        self._engine: Engine | None = None
        self._engines = contextlib.AsyncExitStack()  # the run's, and those of roles
        self._env = self._setup.env
        self._runner: Runner | None = None
        self._run: _WorkersRun | None = None

    async def start(self) -> dict[str, Any]:
        if self._engine is None:
            os.environ.update(self._setup.variables)
            try:
                self._engine = await self._start_engines()
            except Exception as error:  # noqa: BLE001  raised anew, in a form that can be sent
                raise portable(error) from None
        return {"pid": os.getpid()}

    async def _start_engines(self) -> Engine:
        async with contextlib.AsyncExitStack() as stack:
            engine = await _opened(self._setup.engine, self._setup.tokenizer)
            stack.push_async_callback(engine.close)
            players: dict[int, Engine] = {}
            for plan in itertools.chain(*(factory.roles.values() for factory in self._env.each)):
                if plan.engine is not None:
                    players[id(plan)] = player = await _opened(plan.engine, plan.tokenizer)
                    stack.push_async_callback(player.close)
            self._env = self._env.planned(lambda plan: replace(plan, engine=players.get(id(plan))))
            self._engines = stack.pop_all()
        return engine

    async def begin(self, config: bytes, send_facts: bool) -> WorkerFacts | None:
        """Begin a run with a pickled config, and end an earlier one. Returns `WorkerFacts` if asked, for which it makes
        an env, and closes it. Raises what making that raises, in a form that can be sent."""
        await self.end()
        wanted: RunConfig = cloudpickle.loads(config)
        if self._runner is None:
            assert self._engine is not None
            observers = tuple(self._setup.observers()) if self._setup.observers is not None else ()
            tokenizer = loaded_tokenizer(self._setup.tokenizer)
            self._runner = Runner(self._env, self._engine, tokenizer=tokenizer, observers=observers)
        self._runner = self._runner.replaced(config=wanted)
        facts = None
        if send_facts:
            try:
                facts = WorkerFacts(cloudpickle.dumps(self._runner.tokenizer), await self._roles(self._runner))
            except Exception as error:  # noqa: BLE001  raised anew, in a form that can be sent
                raise portable(error) from None
        self._run = _WorkersRun(self._runner)
        return facts

    async def _roles(self, runner: Runner) -> dict[str, tuple[str, ...]]:
        pools, roles = EnvPools(runner.config.limits.env_timeout), dict[str, tuple[str, ...]]()
        try:
            for factory in self._env.each:
                env = await pools.of(factory).take()
                roles[factory.env_id] = await checked_roles(env, factory.roles, runner.config, runner.tokenizer)
        finally:
            await pools.close()
        return roles

    async def add(self, jobs: bytes, cuts: Sequence[int]) -> None:
        """Take pickled pairs of a number and a `Job`, and cut the jobs of some numbers. Jobs are not taken twice."""
        assert self._run is not None
        for number, job in pickle.loads(jobs):
            self._run.inbox.put(number, job)
        self._run.inbox.cut(cuts)

    async def collect(self, taken: int, tools: int, warnings: int = 0) -> WorkerReply:
        """Return what has finished since the driver took `taken` trajectories of this run; wait for the first. A reply
        that is lost on its way is given again, until the driver says what it took."""
        assert self._run is not None
        return await self._run.collect(taken, tools, warnings)

    async def end(self) -> dict[str, Any]:
        """Cancel the episodes that run, wait until they have cleaned up, and close the envs. Returns the figures."""
        run, self._run = self._run, None
        return {} if run is None else await run.end()

    async def close(self) -> None:
        await self.end()
        await self._engines.aclose()


class _WorkersRun:
    def __init__(self, runner: Runner) -> None:
        self.inbox = Inbox()
        self._runner, self._packer = runner, Packer()
        self._warnings = _Warnings()
        _log.addHandler(self._warnings)
        self._playing = asyncio.create_task(self._play())
        self._playing.add_done_callback(lambda _: self.inbox.news.set())

    async def _play(self) -> None:
        async with aclosing(self._runner.stream(self.inbox)) as stream:
            async for _ in stream:
                pass  # the inbox gives everything to its outbox

    async def collect(self, taken: int, tools: int, warnings: int) -> WorkerReply:
        inbox = self.inbox
        inbox.drop(taken)
        if not inbox.outbox and not self._playing.done():
            inbox.news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await inbox.news.wait()
        results, size = [], 0
        for number, trajectories in inbox.outbox:
            data = [
                self._packer.pack(trajectory, texts=self._has_own_tokens(trajectory)) for trajectory in trajectories
            ]
            results.append((number, data))
            size += sum(map(len, data))
            if size >= REPLY_BYTES:
                break
        logged = self._warnings.texts[warnings:]
        return WorkerReply(results, self._packer.tools[tools:], self._room, self._metrics(), logged, self._broken())

    def _has_own_tokens(self, trajectory: Trajectory) -> bool:
        """Whether a trajectory is of a role with a tokenizer of its own, which the driver does not have."""
        env, default = self._runner.env, self._runner.tokenizer
        plan = plan_of(trajectory.role, env.members.get(trajectory.env_id, env).roles)
        return plan.tokenizer_in_use(default) is not default

    async def end(self) -> dict[str, Any]:
        self._playing.cancel()
        await asyncio.gather(self._playing, return_exceptions=True)
        _log.removeHandler(self._warnings)
        return self._metrics()

    @property
    def _room(self) -> int:
        """A few more than play at once, so that the next one begins without waiting for the driver."""
        most, begun = self._runner.config.max_concurrent, self.inbox.begun
        if isinstance(most, int):
            return most + most // 8
        return begun + max(4, begun // 8) if begun else most.start  # how many play at once follows the engine's load

    def _metrics(self) -> dict[str, Any]:
        merged: dict[str, Any] = {"pid": os.getpid(), "cpu_seconds": time.process_time(), **self.inbox.figures}
        for observer in self._runner.observers:
            if callable(figures := getattr(observer, "metrics", None)):
                merged.update(figures())
        return merged

    def _broken(self) -> Exception | None:
        if not self._playing.done() or self._playing.cancelled():
            return None
        return portable(self._playing.exception() or RuntimeError("the run ended by itself"))


class _Warnings(logging.Handler):
    """Keeps the first warnings of this process for the driver, whose log people read."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.texts) < MOST_WARNINGS:
            self.texts.append(record.getMessage())


class Inbox(Scheduler):
    """Jobs that the driver hands out, and the trajectories that came of them, until the driver has them."""

    def __init__(self) -> None:
        self.outbox: deque[tuple[int, Sequence[Trajectory]]] = deque()
        self.news = asyncio.Event()
        self.figures = {"episodes": 0, "failed": 0, "turns": 0, "policy_tokens": 0}
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._cuts: list[Cut] = []
        self._on_cuts: Callable[[], None] = lambda: None
        self._numbers: dict[int, tuple[int, Job]] = {}  # by the job's identity: equal jobs are different episodes
        self._known: set[int] = set()
        self._first = 0

    @property
    def begun(self) -> int:
        return len(self._numbers) - self._jobs.qsize() + len(self.outbox)

    def put(self, number: int, job: Job) -> None:
        if number not in self._known:
            self._known.add(number)
            self._numbers[id(job)] = number, job
            self._jobs.put_nowait(job)

    def drop(self, taken: int) -> None:
        """Forget the first trajectories: the driver has taken so many in all."""
        while self._first < taken and self.outbox:
            self.outbox.popleft()
            self._first += 1

    def cut(self, numbers: Sequence[int]) -> None:
        wanted = set(numbers)
        self._cuts += [Cut(job, Stragglers.KEEP) for number, job in self._numbers.values() if number in wanted]
        if self._cuts:
            self._on_cuts()

    def tell_cuts(self, on_cuts: Callable[[], None]) -> None:
        self._on_cuts = on_cuts

    def cuts(self) -> Sequence[Cut]:
        cuts, self._cuts = self._cuts, []
        return cuts

    async def next(self) -> Job | None:
        return await self._jobs.get()

    def finished(self, job: Job, trajectory: Trajectory) -> Sequence[Trajectory]:
        return self.finished_roles(job, (trajectory,))

    def finished_roles(self, job: Job, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        number, _ = self._numbers.pop(id(job))
        self.outbox.append((number, trajectories))
        for trajectory in trajectories:
            self.figures["episodes"] += 1
            self.figures["failed"] += trajectory.failed
            self.figures["turns"] += len(trajectory.turns)
            self.figures["policy_tokens"] += trajectory.policy_tokens
        self.news.set()
        return ()


def loaded_tokenizer(tokenizer: PreTrainedTokenizerBase | str | Path | None) -> PreTrainedTokenizerBase | None:
    if isinstance(tokenizer, str | Path):
        from toolgym.rollout.models.tokenizer import load_tokenizer  # needs transformers

        return load_tokenizer(tokenizer)
    return tokenizer


async def _opened(engine: str | Path | MakeEngine, tokenizer: PreTrainedTokenizerBase | str | Path | None) -> Engine:
    if isinstance(engine, str | Path):
        return await open_engine(engine, tokenizer=tokenizer)
    return await started_engine(engine)


async def started_engine(make: MakeEngine) -> Engine:
    """The engine that a function makes, started. Raises `ConfigError` if the function made something else."""
    result = make()
    engine = await result if inspect.isawaitable(result) else result
    if not isinstance(engine, Engine):
        raise ConfigError(f"engine must be a function that makes an Engine, it made {engine!r}")
    try:
        await engine.start()
    except BaseException:  # cancelled too: no worker owns the engine yet
        await shielded(with_deadline(engine.close(), CLOSE_TIMEOUT))
        raise
    return engine
