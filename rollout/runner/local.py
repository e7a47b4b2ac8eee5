from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from toolgym.envs.base import BaseEnv
from toolgym.envs.types import StopReason
from toolgym.rollout.engines.base import Engine, require_tokenizer
from toolgym.rollout.episode.episode import Episode
from toolgym.rollout.episode.observer import EpisodeObserver, GuardedObserver, checked_observers, observed_run
from toolgym.rollout.job import Job
from toolgym.rollout.runner.admission import Admission
from toolgym.rollout.runner.base import Delivery, RunnerProtocol, Sink, checked_sinks
from toolgym.rollout.runner.branching import Brancher
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory, JobEpisode, MakeEpisode, end_as
from toolgym.rollout.runner.envs.env_pool import EnvPools, Suspended, SuspendedEpisodes
from toolgym.rollout.runner.envs.role_plan import RolePlan
from toolgym.rollout.runner.envs.roles import RolesEpisode, checked_roles, lost_job
from toolgym.rollout.runner.metrics.spans import spans_of_run
from toolgym.rollout.runner.run_episode import policy_renderer
from toolgym.rollout.runner.run_settings import run_settings
from toolgym.rollout.runner.scheduling.group_scheduler import GroupScheduler
from toolgym.rollout.runner.scheduling.open_group import OpenGroup
from toolgym.rollout.runner.scheduling.plan import GroupPlan
from toolgym.rollout.runner.scheduling.scheduler import Cut, RunCounts, Scheduler, finish
from toolgym.rollout.runner.scheduling.tasks import Tasks
from toolgym.rollout.runner.stream import BoundedStream
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.failures import FailureLog
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.deadline import CALLBACKS
from toolgym.tools.concurrency.gc_freeze import freeze_heap
from toolgym.tools.concurrency.loop_watch import watch_loop
from toolgym.tools.concurrency.rate_limit import Lease
from toolgym.tools.errors import ConfigError, EngineError, EpisodeError
from toolgym.tools.keywords import named_keywords
from toolgym.tools.schema import ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_log = logging.getLogger("toolgym.rollout")


class Runner(RunnerProtocol):
    """Plays many episodes at once in this process, on one event loop, each with an env of its own.

    Only a run that carries stragglers over (`GroupPlan`) leaves something behind: then use `async with Runner(...)`, or
    `await runner.close()` behind the last run.

    Example:
        >>> import asyncio
        >>> from toolgym.envs import ArithmeticTasks
        >>> from toolgym.rollout import open_engine
        >>> async def main(tasks):
        ...     async with open_engine("tiny") as engine:
        ...         runner = Runner("CodeInterpreter-v0", engine, config=RunConfig(group_size=2))
        ...         return [trajectory.reward async for trajectory in runner.stream(tasks)]
        >>> len(asyncio.run(main(ArithmeticTasks().take(1))))
        2

    Args:
        env: an env id, a function that makes an env, or an `EnvFactory`.
        engine: started; it stays the caller's to close.
        tokenizer: of the model that the engine serves, a fast tokenizer with a chat template; None: the engine's.
        env_kwargs: for `toolgym.make`, when `env` is an id.
        sinks: get each trajectory before the consumer does, in this order.
        observers: hear of each episode while it is played.
        config: see `RunConfig`.

    Attributes:
        counts: what the last call did beside what its consumer got, or the present one so far.

    Raises:
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: an argument is of the wrong kind, or neither the engine nor the caller has a tokenizer.
    """

    @named_keywords
    def __init__(
        self,
        env: str | Callable[[], BaseEnv] | EnvFactory,
        engine: Engine,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        sinks: Sequence[Sink] = (),
        observers: Sequence[EpisodeObserver] = (),
        config: RunConfig | None = None,
    ) -> None:
        self.env = EnvFactory.of(env, env_kwargs)
        _require_engine("engine", engine)
        for role, plan in itertools.chain(*(factory.roles.items() for factory in self.env.each)):
            if plan.engine is not None:
                _require_engine(f"engine of the RolePlan of {role!r}", plan.engine)
        if not isinstance(config, RunConfig | None):
            raise ConfigError(f"config must be a RunConfig, got {config!r}")
        self.engine = engine
        self.tokenizer = require_tokenizer(tokenizer, engine)
        self.sinks = checked_sinks(sinks)
        self.observers = checked_observers(observers)
        self.config = config or RunConfig()
        self.counts = RunCounts()
        self._suspended = SuspendedEpisodes()
        self._carried_groups: dict[bool, list[OpenGroup]] = {False: [], True: []}  # by `RunConfig.validate`

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Free the episodes that were carried over and that no later run went on with. Only they need it."""
        for groups in self._carried_groups.values():
            groups.clear()
        await self._suspended.close()

    def replaced(
        self,
        *,
        env: EnvFactory | None = None,
        engine: Engine | None = None,
        sinks: Sequence[Sink] | None = None,
        observers: Sequence[EpisodeObserver] | None = None,
        config: RunConfig | None = None,
    ) -> Runner:
        """Return a runner like this one, with other parts."""
        return Runner(
            self.env if env is None else env,
            self.engine if engine is None else engine,
            tokenizer=self.tokenizer,
            sinks=self.sinks if sinks is None else sinks,
            observers=self.observers if observers is None else observers,
            config=self.config if config is None else config,
        )

    async def stream(
        self, tasks: Tasks | Scheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> AsyncGenerator[Trajectory, None]:
        scheduler = self.schedule(tasks, group_size=group_size, plan=plan)
        self.counts = scheduler.counts
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(scheduler.close)
            run = _Run(self, scheduler, self._suspended.take(scheduler.carried()))
            stack.push_async_callback(self._keep_carried, scheduler, run)
            ready = scheduler.ready()
            first = await scheduler.next()
            if first is None and not ready:
                return
            _ = self.engine.vocab_size, self.engine.context_length  # raises if it has not started
            await self.engine.check_tokenizer(self.tokenizer)
            stack.push_async_callback(run.envs.close)
            stack.callback(run.failures.warn)
            await stack.enter_async_context(run.admission)
            stack.enter_context(watch_loop())
            stack.enter_context(freeze_heap())
            stack.enter_context(observed_run(run.observed_by))
            await run.prepare()
            for factory in self.env.each:
                if (episodes := factory.episodes) is not None:
                    opened = episodes(self.engine, self.tokenizer, self.config)
                    run.make_episode[factory.env_id] = await stack.enter_async_context(opened)
            delivery = Delivery(self, self.sinks, run.break_off, self.engine.weight_version)
            with run.admission.applied():
                playing = asyncio.create_task(run.play(ready, first))
            try:
                async for trajectory in run.finished:
                    delivery.add(trajectory)
                    yield trajectory
                delivery.end()
                if run.broken is not None:
                    raise run.broken
            finally:
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)

    def schedule(
        self, tasks: Tasks | Scheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> Scheduler:
        """As `RunnerProtocol.schedule`, with what earlier calls, that validated or not like this one, carried over."""
        carried = self._carried_groups[self.config.validate]
        if carried and not isinstance(tasks, Scheduler):
            plan = plan or GroupPlan()
        scheduler = super().schedule(tasks, group_size=group_size, plan=plan)
        if isinstance(scheduler, GroupScheduler) and scheduler is not tasks:
            scheduler.go_on_with(carried)
            carried.clear()
        return scheduler

    async def _keep_carried(self, scheduler: Scheduler, run: _Run) -> None:
        if isinstance(scheduler, GroupScheduler):
            self._carried_groups[run.config.validate] += scheduler.carried_groups
        await self._suspended.give(run.suspended, scheduler.carried())

    def settings(self, env: BaseEnv, factory: EnvFactory) -> dict[str, str]:
        """The `run_settings` of the episodes in the envs of a factory, given one of these."""
        return run_settings(self.config, env, factory.kwargs, self.tokenizer, factory.roles)


def _require_engine(name: str, engine: object) -> None:
    if not isinstance(engine, Engine):
        raise ConfigError(
            f"{name} must be an Engine (`await open_engine("
            f"{(str(engine) if isinstance(engine, str | Path) else 'tiny')!r})` gives one), got {engine!r}"
        )


class _Run:
    """One call of `Runner.stream`: starts the episodes and hands their trajectories to `finished`. `suspended` are
    those that stand still: of earlier runs, of this one, and new branches."""

    def __init__(self, runner: Runner, scheduler: Scheduler, suspended: dict[tuple[str, int], Suspended]) -> None:
        self._runner, self._scheduler, self.suspended = runner, scheduler, suspended
        self.config = config = runner.config
        self.admission = Admission(config, runner.engine)
        self.envs = EnvPools(config.limits.env_timeout)
        self.failures = FailureLog()
        self.finished: BoundedStream[Trajectory] = BoundedStream(self.admission.episodes.limit)
        self.broken: Exception | None = None
        spans = spans_of_run(runner.env, str(runner.tokenizer.name_or_path), type(runner.engine).__name__)
        self.observed_by = (*runner.observers, *spans)
        self._observers = tuple(GuardedObserver(observer, self.break_off) for observer in self.observed_by)
        brancher = Brancher(config.branching, self._branch_job, self._begin_branch) if config.branching else None
        self._between_turns = brancher.between_turns if brancher is not None else None
        self._renderer = self._shared_renderer
        self._renderers: dict[tuple[int, tuple[str, ...]], ChatRenderer] = {}
        self._settings: dict[str, Mapping[str, str]] = {}  # by the env's name, as what follows
        self.make_episode: dict[str, MakeEpisode] = {}
        self._roles: dict[str, tuple[str, ...]] = {}
        self._without_env: Counter[str] = Counter()  # episodes that take an env yet
        self._episodes: dict[tuple[str, int], JobEpisode] = {}
        self._early_cuts: dict[tuple[str, int], Cut] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._tell_error = self._on_done  # for all: each task keeps it
        self._playing = 0  # episodes that run
        self._stopping = False
        scheduler.tell_cuts(self._cut)

    async def prepare(self) -> None:
        """Make the first env and its renderer here: an error in them is the caller's, not an episode's."""
        for factory in self._runner.env.each:
            envs = self.envs.of(factory)
            env = await envs.take()
            roles = await checked_roles(env, factory.roles, self.config, self._runner.tokenizer)
            if len(roles) > 1:
                self._scheduler.require_roles()
            if roles:
                self._roles[factory.env_id] = roles
                self.make_episode[factory.env_id] = partial(RolesEpisode, plans=factory.roles)
            self._renderer(env.tool_schemas)
            self._settings[factory.env_id] = self._runner.settings(env, factory)
            envs.give_back(env)

    def _shared_renderer(self, schemas: Sequence[ToolSchema], plan: RolePlan | None = None) -> ChatRenderer:
        """The renderer of an env's or a role's tools, which episodes with the same tools share."""
        tokenizer = self._runner.tokenizer if plan is None else plan.tokenizer_in_use(self._runner.tokenizer)
        key = id(tokenizer), tuple(schema.canonical_json for schema in schemas)
        if key not in self._renderers:
            self._renderers[key] = policy_renderer(tokenizer, self.config, schemas)
        return self._renderers[key]

    async def play(self, ready: Sequence[Trajectory], job: Job | None) -> None:
        """Play this job and all that follow, one whenever there is a lease and room in the stream; end the stream."""
        async with asyncio.TaskGroup() as self._tasks:
            try:
                await self.finished.send_all(ready, lambda: self._scheduler.over)
                await self._send_decided()
                lease = await self.admission.episodes.acquire()
                while job is not None and not self._stopping:
                    self._without_env[self._runner.env.member(job.task).env_id] += job.member not in self.suspended
                    self._start(job, self._play(job, lease))
                    await self.finished.room()  # a slow consumer gets no more episodes than wait for it
                    lease = await self.admission.episodes.acquire()
                    if self._between_turns is not None:
                        lease.release()  # the scheduler may wait for branches, which need it
                    job = await self._scheduler.next()
                    if not lease.held and job is not None:
                        lease = await self.admission.episodes.acquire()
                    self._cut()
                lease.release()
                self.envs.expect(self._without_env)
            except asyncio.CancelledError:
                self.finished.end(EngineError("the run was cancelled from outside"))
                raise
            except BaseException as error:
                self.finished.end(error)
                raise
        self.finished.end()

    def _start(self, job: Job, playing: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        self._playing += 1
        task = self._tasks.create_task(playing, name=f"toolgym episode of {job.key}")
        task.add_done_callback(self._tell_error, context=CALLBACKS.context)

    def _branch_job(self, job: Job) -> Job:
        if self._stopping:
            raise EpisodeError("the run stops")
        return self._scheduler.branch(job)

    def _begin_branch(self, branch: Episode) -> None:
        """Let a branch stand still until it is admitted, as one does that was carried over."""
        self.suspended[branch.job.member] = Suspended(branch, branch.env)
        self._start(branch.job, self._play_branch(branch.job))

    async def _play_branch(self, job: Job) -> None:
        lease = await self.admission.episodes.acquire()
        if self._stopping:
            self._end_episode(lease)
        else:
            await self._play(job, lease)

    def break_off(self, error: Exception) -> None:
        """Start no further episode; the stream ends when those that run have finished, and the run raises `broken`."""
        self.broken, self._stopping = self.broken or error, True
        self._end_if_stopped()

    def _end_if_stopped(self) -> None:
        if self._stopping and not self._playing:
            self.finished.end()

    def _end_episode(self, lease: Lease) -> None:
        self._playing -= 1
        self._end_if_stopped()
        lease.release()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Let an error reach the consumer; without this, a cancelled episode would be waited for, for ever."""
        if task.cancelled():  # if the runner itself cancelled it, nothing reads the stream any more
            self.finished.end(EngineError("an episode of the run was cancelled from outside"))
        elif (error := task.exception()) is not None:
            self.finished.end(error)

    async def _play(self, job: Job, lease: Lease) -> None:
        """Play an episode, or go on with one that stands still, and hand on what the scheduler makes of it."""
        try:
            episode = await self._episode(job)
            if isinstance(episode, list):
                played: Sequence[Trajectory] = episode
            else:
                ended = await episode.run(between_turns=self._between_turns)
                played = [ended] if isinstance(ended, Trajectory) else ended or []
                await self._leave_env(episode, played)
            ready: Sequence[Trajectory] = ()
            if not played:
                self._scheduler.suspended(job)
            else:
                for trajectory in played:
                    self.failures.add(trajectory)
                ready = finish(self._scheduler, job, played)
            self._episodes.pop(job.member, None)
            self._early_cuts.pop(job.member, None)
            self._cut()
            await self.finished.send_all(ready, lambda: self._scheduler.over)
            await self._send_decided()
        finally:
            self._end_episode(lease)

    async def _send_decided(self) -> None:
        ready = await self._scheduler.decide()
        self._cut()
        await self.finished.send_all(ready, lambda: self._scheduler.over)

    async def _episode(self, job: Job) -> JobEpisode | list[Trajectory]:
        """Return the episode of a job; its trajectories, one for each role, if no env can be made for it."""
        runner, factory = self._runner, self._runner.env.member(job.task)
        envs, name = self.envs.of(factory), factory.env_id
        if job.member in self.suspended:
            episode, env = self.suspended.pop(job.member)
            envs.adopt(env)
        else:
            self._without_env[name] -= 1
            try:
                env = await envs.take()
            except Exception as error:  # noqa: BLE001  one env that cannot be made is one failed trajectory
                _log.debug("making an env failed", exc_info=True)
                return lost_job(job, self._roles.get(name, ()), self.config, name, error, self._observers)
            episode = self.make_episode.get(name, Episode)(
                job,
                self.config,
                env,
                runner.engine,
                self._renderer,
                env_id=name,
                observers=self._observers,
                settings=self._settings[name],
            )
        self._episodes[job.member] = episode
        if job.member in self._early_cuts:
            end_as(episode, self._early_cuts.pop(job.member).how)
        return episode

    async def _leave_env(self, episode: JobEpisode, played: Sequence[Trajectory]) -> None:
        envs = self.envs.of(self._runner.env.member(episode.job.task))
        if not played:
            envs.release(episode.env)
            self.suspended[episode.job.member] = Suspended(episode, episode.env)
        elif any(trajectory.failed or trajectory.stop_reason is StopReason.STRAGGLER for trajectory in played):
            await envs.discard(episode.env)  # its state is unknown: the next episode gets a fresh one
        else:
            envs.give_back(episode.env)

    def _cut(self) -> None:
        """End the episodes that the scheduler wants ended; one that has not begun yet, when it does."""
        for cut in self._scheduler.cuts():
            episode = self._episodes.get(cut.job.member)
            if episode is None:
                self._early_cuts[cut.job.member] = cut
            else:
                end_as(episode, cut.how)
