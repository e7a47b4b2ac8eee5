from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import cloudpickle

from toolgym.envs.base import BaseEnv
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.episode.observer import EpisodeObserver, checked_observers, observed_run
from toolgym.rollout.runner.base import Delivery, RunnerProtocol, Sink, checked_sinks
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.envs.role_plan import RolePlan
from toolgym.rollout.runner.ray.cluster import check_options, connect, nodes
from toolgym.rollout.runner.ray.packing import TextDecoder
from toolgym.rollout.runner.ray.run import CANNOT_CARRY, RayRun, WorkerPool
from toolgym.rollout.runner.ray.sandboxes import SandboxServers
from toolgym.rollout.runner.ray.worker import MakeEngine, WorkerSetup, loaded_tokenizer
from toolgym.rollout.runner.scheduling.plan import GroupPlan
from toolgym.rollout.runner.scheduling.scheduler import RunCounts, Scheduler, Stragglers
from toolgym.rollout.runner.scheduling.tasks import Tasks
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_log = logging.getLogger("toolgym.rollout")


class RayRunner(RunnerProtocol):
    """Plays many episodes at once in Ray actors, and yields each trajectory as it finishes.

    Each worker is a process that plays up to `config.max_concurrent` episodes on an event loop, each with an env of its
    own. A slow consumer slows the workers. A worker that dies, with or without its machine, is replaced, and the
    episodes that it had not delivered are played again at once, with the same seeds; each reaches the consumer once. An
    episode whose worker dies three times, the last time with nothing else to do, fails (`StopReason.WORKER_DIED`).

    The workers start with the first run. With `async with RayRunner(...) as runner` they stay for further runs, one at
    a time, until the end of the block; otherwise they end with the run.

    For an example see docs/ray.md.

    Args:
        env: an env id, a function that makes an env, or an `EnvFactory`; functions travel by cloudpickle.
        engine: what `open_engine` takes, such as a server's address; a function that makes an engine, or an awaitable
            of one; or handles of Ray actors, see `RayEngine`. Each worker makes its own of it.
        num_workers: None: one for each machine of the cluster. A worker keeps one processor busy.
        tokenizer: of the model that the engine serves, or its folder or hub name; None: the engine's.
        env_kwargs: for `toolgym.make`, when `env` is an id.
        sinks: get each trajectory before the consumer does, in this order, in this process.
        observers: hear in this process when a run begins and is over, and when a job is handed out (`began`, once) and
            its trajectory is here (`ended`; once for each role, of an env with roles).
        worker_observers: makes observers in each worker, which hear everything of its episodes. What their `metrics()`
            returns, if they have it, is in `worker_metrics`.
        config: see `RunConfig`; `max_concurrent` is each worker's.
        ray_options: for each worker, as Ray's `.options(...)` takes them: `num_cpus` (1), `resources`,
            `scheduling_strategy` ("SPREAD"), `runtime_env`, and others.
        sandbox: "ray", or settings as `toolgym serve sandbox --config` takes them, starts a sandbox server on each
            machine, which ends with the workers; the workers' tools run code there unless their configuration names a
            sandbox.
        address: of the cluster, as for `ray.init`; if this process is connected already, that connection is used.

    Attributes:
        counts: what the last call did beside what its consumer got, or the present one so far.
        worker_metrics: the last figures of each worker, by its number: `pid`, `cpu_seconds`, `episodes`, `failed`,
            `turns`, `policy_tokens`, and what `worker_observers` add.

    Raises:
        MissingExtraError: Ray is not installed.
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: an argument is of the wrong kind, or cannot be sent to another process.
    """

    @named_keywords
    def __init__(
        self,
        env: str | Callable[[], BaseEnv] | EnvFactory,
        engine: str | Path | MakeEngine | Any,
        *,
        num_workers: int | None = None,
        tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        sinks: Sequence[Sink] = (),
        observers: Sequence[EpisodeObserver] = (),
        worker_observers: Callable[[], Sequence[EpisodeObserver]] | None = None,
        config: RunConfig | None = None,
        ray_options: Mapping[str, Any] | None = None,
        sandbox: Literal["ray"] | Mapping[str, Any] | None = None,
        address: str | None = None,
    ) -> None:
        if num_workers is not None:
            require_whole_number("num_workers", num_workers, at_least=1)
        if not isinstance(config, RunConfig | None):
            raise ConfigError(f"config must be a RunConfig, got {config!r}")
        if worker_observers is not None and not callable(worker_observers):
            raise ConfigError(f"worker_observers must be a function that makes observers, got {worker_observers!r}")
        self.env = EnvFactory.of(env, env_kwargs)
        self.config = config or RunConfig()
        self.sinks, self.observers = checked_sinks(sinks), checked_observers(observers)
        self.counts = RunCounts()
        self.worker_metrics: dict[int, dict[str, Any]] = {}
        self._decoder, self._roles = TextDecoder(), dict[str, tuple[str, ...]]()
        self._num_workers, self._address = num_workers, address
        self._options = check_options(ray_options)
        self._setup = WorkerSetup(
            self.env.planned(_made_there), _engine(engine, tokenizer), tokenizer, worker_observers
        )
        _ = self._packed_setup()  # raises where something cannot be sent
        if sandbox not in ("ray", None) and not isinstance(sandbox, Mapping):
            raise ConfigError(f"sandbox must be 'ray', settings of sandbox servers, or None, got {sandbox!r}")
        settings = sandbox if isinstance(sandbox, Mapping) else None
        self._servers = SandboxServers(settings) if sandbox is not None else None
        self._pool: WorkerPool | None = None
        self._keeps_workers = self._is_running = False

    async def __aenter__(self) -> Self:
        self._keeps_workers = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the workers: their episodes, their engines, their processes. Closing twice is fine."""
        self._keeps_workers = False
        await shielded(self._end_workers())

    async def _end_workers(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
        if self._servers is not None:
            await self._servers.close()

    async def stream(
        self, tasks: Tasks | Scheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> AsyncGenerator[Trajectory, None]:
        """See `RunnerProtocol.stream`.

        Raises:
            ConfigError: as there; or a run of this runner is under way.
            ClusterError: Ray cannot be reached, or no worker can be started.
            ToolgymError: what opening the engine or making the first env raised in a worker.
        """
        if self._is_running:
            raise ConfigError("a run of this RayRunner is under way: wait for its end, or make another RayRunner")
        scheduler = self.schedule(tasks, group_size=group_size, plan=plan)
        self.counts = scheduler.counts
        self._is_running = True
        async with AsyncExitStack() as stack:
            stack.callback(setattr, self, "_is_running", False)
            stack.push_async_callback(scheduler.close)
            ready = scheduler.ready()
            first = await scheduler.next()
            if first is None and not ready:
                return
            pool = await self._workers()
            run = RayRun(
                scheduler,
                pool,
                self.config,
                env=self.env,
                observers=self.observers,
                decoder=self._decoder,
                metrics=self.worker_metrics,
                roles=self._roles,
            )
            stack.callback(run.failures.warn)
            stack.enter_context(observed_run(self.observers))
            delivery = Delivery(self, self.sinks, run.break_off)
            playing = asyncio.create_task(run.play(ready, first))
            try:
                async for trajectory in run.finished:
                    delivery.add(trajectory)
                    yield trajectory
                delivery.end()
                if run.broken is not None:
                    raise run.broken
            finally:
                await shielded(self._end_run(playing, pool))

    def schedule(
        self, tasks: Tasks | Scheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> Scheduler:
        """As `RunnerProtocol.schedule`; carried stragglers and branches are refused."""
        if self.config.branching is not None:
            raise ConfigError("episodes of a RayRunner cannot branch; use a Runner for RunConfig(branching=...)")
        if isinstance(plan, GroupPlan) and plan.stragglers == Stragglers.CARRY:
            raise ConfigError(CANNOT_CARRY)
        return super().schedule(tasks, group_size=group_size, plan=plan)

    async def _workers(self) -> WorkerPool:
        if self._pool is None:
            connect(self._address)
            size = self._num_workers or len(nodes())
            if self._servers is not None:
                self._setup = replace(self._setup, variables=await self._servers.start())
            self._pool = WorkerPool(self._packed_setup(), size, self._options)
        return self._pool

    async def _end_run(self, playing: asyncio.Task[None], pool: WorkerPool) -> None:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        if self._keeps_workers:
            await pool.end_run()
        else:
            await self.close()

    def _packed_setup(self) -> bytes:
        try:
            data: bytes = cloudpickle.dumps(self._setup)
        except Exception as error:
            raise ConfigError(
                "env, engine, tokenizer and worker_observers must be such that they can be sent to another process, "
                f"and one of them cannot: {error}. Give a function that makes it there"
            ) from error
        return data


def _made_there(plan: RolePlan) -> RolePlan:
    """A role's plan as a worker gets it: with what makes its engine there."""
    return plan if plan.engine is None else replace(plan, engine=_engine(plan.engine, plan.tokenizer))


def _engine(engine: Any, tokenizer: Any) -> str | Path | MakeEngine:
    from ray.actor import ActorHandle

    actors = list(engine) if isinstance(engine, list | tuple) else [engine]
    if actors and all(isinstance(actor, ActorHandle) for actor in actors):
        return partial(_ray_engine, actors, tokenizer)
    if isinstance(engine, Engine):
        raise ConfigError(
            f"engine must be made in each worker: give its address, or a function that makes it, got {engine!r}"
        )
    if not isinstance(engine, str | Path) and not callable(engine):
        raise ConfigError(
            "engine must be what open_engine takes, a function that makes an Engine, or handles of Ray actors, got "
            f"{engine!r}"
        )
    opened: str | Path | MakeEngine = engine
    return opened


def _ray_engine(actors: Sequence[Any], tokenizer: Any) -> Engine:
    from toolgym.rollout.runner.ray.engine import RayEngine

    return RayEngine(*actors, tokenizer=loaded_tokenizer(tokenizer))
