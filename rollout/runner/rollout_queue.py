from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar

from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.rollout.engines.base import Engine, PauseMode, WeightSource
from toolgym.rollout.job import Job
from toolgym.rollout.runner.base import RunnerProtocol
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.scheduling.group_scheduler import GroupScheduler, Observe
from toolgym.rollout.runner.scheduling.open_group import Member, OpenGroup
from toolgym.rollout.runner.scheduling.plan import GroupPlan
from toolgym.rollout.runner.scheduling.queue_tasks import QueueTasks
from toolgym.rollout.runner.scheduling.tasks import Tasks
from toolgym.rollout.runner.weight_versions import WeightVersions
from toolgym.rollout.trajectory.failures import require_one_that_played
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.rollout.trajectory.withholding import withhold
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, with_deadline
from toolgym.tools.errors import ConfigError, EngineError, require_whole_number, shorten
from toolgym.tools.keywords import named_keywords

T = TypeVar("T")

FEWEST_FAILURES = 8
"""Episodes in a row, at least, that fail at their first turn before the rollout ends: a batch, if that is more."""

_log = logging.getLogger("toolgym.rollout")


class RolloutQueue:
    """Batches of whole groups for a trainer that learns while the next groups are played, none staler than a limit.

    A trajectory's staleness is the number of versions, as they were published here, between the newest weights and the
    oldest that sampled one of its tokens; a group's is that of its stalest trajectory. A staler group than
    `max_staleness` is dropped, and its task is skipped: it is not played again, and `skipped_tasks` names it. Or the
    stale tokens of the group are not trained (`stale`). A group begins only if it
    would be fresh enough when its turn comes, with one update for each batch; so groups that are played or wait fill at
    most `max_staleness + 1` batches. 0 makes the training synchronous.

    Iterate over it for the batches, lists of trajectories ordered by task and sample; the last one may have fewer
    groups. Failed trajectories are in their groups. One event loop owns the queue; a learner that blocks it stops the
    rollout.

    For an example see docs/async_training.md.

    Args:
        runner: plays the groups. Its sinks get each group that comes whole, also one that is too stale then.
        tasks: as `Runner.stream` takes them; each is drawn when its group may begin. Or a `TaskSource`, from which
            tasks are drawn as `rollout` draws them: `batch_size` tasks for each training step, from the config's step
            on, shuffled by the config's seed, epoch after epoch. The source gets the rewards of each group.
        batch_size: groups of a batch.
        num_tasks: how many tasks to draw in all, those of earlier queues counted whose state is loaded. If None, all
            tasks are drawn, and from a source tasks without end.
        max_staleness: most versions that a group may be behind the newest weights when the trainer gets it.
        stale: what becomes of what is staler: `drop` gives up the whole group and skips its task. `withhold` masks the
            stale tokens out of training (see `withhold`), so that the rewards of long episodes stay in their groups. A
            group without a fresh token is dropped all the same.
        plan: which groups are wanted, such as `GroupPlan(keep=has_signal)`; None: all.
        engine: whose weights are updated; None: the runner's.
        pause_mode: what an update does with the requests in flight; by default their later tokens have the new weights.
        update_timeout: seconds for each of the engine's parts in an update: pause, new weights, resume.
    """

    @named_keywords
    def __init__(
        self,
        runner: RunnerProtocol,
        tasks: Tasks | TaskSource,
        *,
        batch_size: int,
        num_tasks: int | None = None,
        max_staleness: int = 1,
        stale: Literal["drop", "withhold"] = "drop",
        plan: GroupPlan | None = None,
        engine: Engine | None = None,
        pause_mode: PauseMode | str = PauseMode.RETRACT,
        update_timeout: float = 600.0,
    ) -> None:
        require_whole_number("batch_size", batch_size, at_least=1)
        require_whole_number("max_staleness", max_staleness, at_least=0)
        if stale not in ("drop", "withhold"):
            raise ConfigError(f"stale must be 'drop' or 'withhold', got {stale!r}")
        if not isinstance(update_timeout, int | float) or not update_timeout > 0:
            raise ConfigError(f"update_timeout must be a positive number of seconds, got {update_timeout!r}")
        engine = getattr(runner, "engine", None) if engine is None else engine
        if not isinstance(engine, Engine):
            raise ConfigError(
                f"engine must be the Engine whose weights are updated, got {engine!r}; a runner whose workers have the "
                "engines has none itself, so give one as engine=, such as an SGLangServer with the same servers"
            )
        self.batch_size, self.max_staleness = batch_size, max_staleness
        self._runner, self._engine = runner, engine
        self._pause_mode, self._update_timeout = PauseMode(pause_mode), update_timeout
        self._withholds = stale == "withhold"
        self._source, self._plan = tasks if isinstance(tasks, TaskSource) else None, plan
        self._config = config = runner.config.seeded()
        self._tasks = QueueTasks(tasks, batch_size=batch_size, config=config, num_tasks=num_tasks)
        self._groups = self._new_groups()
        self._versions: WeightVersions | None = None
        self._updates = asyncio.Lock()
        self._news = asyncio.Event()
        self._producer: asyncio.Task[None] | None = None
        self._over = False  # nothing more will come
        self._error: BaseException | None = None
        most = max(FEWEST_FAILURES, batch_size * runner.config.group_size)
        self._latest: deque[Trajectory] = deque(maxlen=most)  # to tell when all fail
        self._begun = self._received = self._given_up = 0
        self._ready: list[Sequence[Trajectory]] = []
        self._waiting = 0  # calls that wait for a batch
        self._owed = False  # a batch is out, and no update has come of it
        self._taken = self._dropped = self._tokens_withheld = 0
        self._ages: list[int] = []
        self._wait_seconds = self._pause_seconds = 0.0

    def _new_groups(self) -> _Groups:
        observe = self._source.observe if self._source is not None and not self._config.validate else None
        return _Groups(
            self._gated(),
            self._config,
            self._plan,
            observe,
            tasks=self._tasks,
            came_back=self._came_back,
            tell=self._tell,
        )

    # ------------------------------------------------------------------ the trainer's side

    async def __aenter__(self) -> Self:
        """Begin to play. Raises `ConfigError` if it was open before, `EngineError` if the engine has not started."""
        if self._versions is not None:
            raise ConfigError("a queue serves one run, and this one was open before: make another")
        self._versions = WeightVersions(self._engine.weight_version)
        self._producer = asyncio.create_task(self._produce(), name="toolgym rollout queue")
        self._producer.add_done_callback(self._ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel the episodes that run, wait until they have cleaned up, and give up what waits. The log gets an error
        that the trainer has not met, and the number of dropped groups with their tasks."""
        if self._producer is None:
            return
        unseen = self._error
        self._producer.cancel()
        await shielded(asyncio.wait({self._producer}))
        self._producer = None
        if unseen is not None:
            _log.warning("the rollout had failed before its queue was closed: %s: %s", type(unseen).__name__, unseen)
        if self._dropped:
            _log.warning(
                "%d of %d groups were dropped and their tasks skipped (%s), because their %s tokens were more than %d "
                "versions behind the weights. RolloutQueue.skipped_tasks names all of them. Raise max_staleness to "
                "skip fewer",
                self._dropped,
                self._dropped + self._taken + len(self._ready),
                shorten(", ".join(self._tasks.skipped.values()), 200),
                "newest" if self._withholds else "oldest",
                self.max_staleness,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return as JSON values, for a checkpoint, what became of each task, and the state of the source.

        Call it after you trained on a batch, together with saving the weights. A queue that loads the state does not
        play a task again if `anext` returned its group, if the plan refused the group, or if the task was skipped
        because the group was too stale. Skipped tasks are listed in the state. Tasks of groups that are played or wait
        are played again.

        Raises:
            ConfigError: a task of a source without places cannot be written as JSON.
        """
        self._groups.note_observed()
        return self._tasks.state_dict()

    @property
    def skipped_tasks(self) -> dict[int, str]:
        """Ids of the tasks that the trainer never gets because their groups were too stale, by `Trajectory.task_index`.

        Those of earlier queues are among them if their state was loaded.
        """
        return dict(sorted(self._tasks.skipped.items()))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a state of `state_dict`. Call it before the queue is opened.

        Give the queue the same tasks or an equal source, from its beginning, and the same `batch_size`. The state of
        the source is loaded, too. A config without a seed takes the seed of the state.

        Raises:
            ConfigError: the queue was opened, or the state is of other tasks or of another seed.
        """
        if self._versions is not None:
            raise ConfigError("load_state_dict was called after the queue was opened: call it before `async with`")
        self._tasks.load_state_dict(state)
        if self._runner.config.seed not in (None, self._tasks.seed):
            raise ConfigError(
                f"the saved state has seed {self._tasks.seed!r}, and the runner's config {self._runner.config.seed!r}"
            )
        self._config = replace(self._config, seed=self._tasks.seed)
        self._groups = self._new_groups()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Trajectory]:
        """Wait for the next batch: `batch_size` whole groups, the ones whose tasks came first. Raises `RunFailedError`
        if the last episodes all failed at their first turn, and in the same way. After what else ended the rollout, the
        next call gives the groups that had finished."""
        self._require_open()
        started = time.monotonic()
        self._waiting += 1
        self._tell()  # the trainer owes no update that a new group would have to reckon with
        try:
            while len(self._ready) < self.batch_size and not self._over:
                await self._changed()
        finally:
            self._waiting -= 1
            self._wait_seconds += time.monotonic() - started
        if len(self._ready) < self.batch_size and self._error is not None:
            error, self._error = self._error, None
            raise error
        if not self._ready:
            raise StopAsyncIteration
        self._ready.sort(key=lambda group: group[0].task_index)
        batch, self._ready = self._ready[: self.batch_size], self._ready[self.batch_size :]
        if not self._config.validate and self._taken:  # a queue that ends is a step, too
            self._runner.history.end_step()
        self._taken, self._owed = self._taken + len(batch), True
        for group in batch:
            self._tasks.settle(group[0].task_index)
        self._tell()
        if self._withholds:
            batch = list(map(self._without_stale_tokens, batch))
        trajectories = [trajectory for group in batch for trajectory in group]
        self._ages = [self.staleness(trajectory) for trajectory in trajectories]
        return trajectories

    async def update_weights(self, source: WeightSource, *, version: str) -> None:
        """Give the engine new weights (see `Engine.update_weights`) in the middle of the episodes, which go on with
        them.

        Raises:
            ConfigError: the source is not usable, or `version` is no new name.
            EngineError: the engine cannot, failed to, or did not answer in time. In any case it goes on as it was.
        """
        async with self.updating(version):
            await self._ask("take the new weights", self._engine.update_weights(source, version=version))

    @contextlib.asynccontextmanager
    async def updating(self, version: str) -> AsyncIterator[None]:
        """Pause the engine for a block that changes its weights in a way of the engine's own, then publish `version`.
        If the block raises, nothing is published, and the engine goes on. Raises as `update_weights` does."""
        versions = self._require_open()
        async with self._updates:
            versions.require_new(version)
            started = time.monotonic()
            try:
                try:
                    await self._ask("pause", self._engine.pause(self._pause_mode))
                except (EngineError, asyncio.CancelledError) as error:
                    if not isinstance(error, EngineError) or isinstance(error.__cause__, DeadlineError):
                        await self._resume()  # else it is as before
                    raise
                try:
                    yield
                    self.publish(version)
                finally:
                    await self._resume()
            finally:
                self._pause_seconds += time.monotonic() - started

    def publish(self, version: str) -> None:
        """Make a version the newest one. `update_weights` and `updating` do; call it yourself, before the first token,
        if the weights are changed elsewhere and without a pause."""
        versions = self._require_open()
        versions.publish(version)
        self._owed = False
        self._ready = [group for group in self._ready if self._fresh(group)]
        self._give_up()
        self._tell()

    def staleness(self, trajectory: Trajectory) -> int:
        """Versions that the oldest token of a trajectory is behind the newest weights. Raises `EngineError` for a token
        of a version that was not published here."""
        if self._versions is None:
            raise ConfigError("a queue knows versions once it is open: `async with RolloutQueue(...) as queue`")
        return self._versions.staleness(trajectory)

    def metrics(self) -> dict[str, float]:
        """Figures for a trainer's logger: updates, groups by what became of them, staleness, and seconds; with those of
        the source of tasks."""
        return {
            "queue/updates": len(self._versions) - 1 if self._versions is not None else 0,
            "queue/groups_playing": self._playing,
            "queue/groups_ready": len(self._ready),
            "queue/groups_taken": self._taken,
            "queue/groups_dropped": self._dropped,
            "queue/tasks_skipped": len(self._tasks.skipped),
            "queue/groups_filtered": self._groups.counts.groups_filtered,
            "queue/tokens_withheld": self._tokens_withheld,
            "queue/staleness_mean": sum(self._ages) / max(1, len(self._ages)),
            "queue/staleness_max": max(self._ages, default=0),
            "queue/wait_seconds": self._wait_seconds,
            "queue/update_seconds": self._pause_seconds,
            **(self._source.metrics() if self._source is not None else {}),
        }

    # ------------------------------------------------------------------ the engine

    async def _ask(self, what: str, call: Coroutine[Any, Any, T]) -> T:
        try:
            return await with_deadline(call, self._update_timeout)
        except DeadlineError as error:
            raise EngineError(f"the engine did not {what} within {self._update_timeout:g} seconds") from error

    async def _resume(self) -> None:
        await shielded(self._ask("resume", self._engine.resume()))

    # ------------------------------------------------------------------ the rollout's side

    async def _produce(self) -> None:
        async with contextlib.aclosing(self._runner.stream_groups(self._groups)) as stream:
            async for group in stream:
                self._received += 1
                if self._fresh(group):
                    self._ready.append(group)
                self._tell()

    async def _gated(self) -> AsyncGenerator[Task, None]:
        tasks = aiter(self._tasks)
        try:
            while True:
                while not self._has_room():
                    await self._changed()
                numbered = await anext(tasks, None)
                if numbered is None:
                    return
                number, task = numbered
                self._begun += 1
                self._groups.numbers.append(number)
                yield task
        finally:
            await self._tasks.close()

    def _ended(self, producer: asyncio.Task[None]) -> None:
        if producer.cancelled():
            self._error = EngineError("the rollout behind the queue was cancelled from outside")
        else:
            self._error = producer.exception()
        self._over = True
        self._tell()

    def _is_stale(self, trajectory: Trajectory) -> bool:
        return self.staleness(trajectory) > self.max_staleness

    def _fresh(self, group: Sequence[Trajectory]) -> bool:
        ages = set[int]().union(*map(self._require_open().ages, group))
        fresh = (min if self._withholds else max)(ages, default=0) <= self.max_staleness
        if not fresh:
            self._dropped += 1
            self._tasks.skip(group[0].task_index, group[0].task_id)
        return fresh

    def _without_stale_tokens(self, group: Sequence[Trajectory]) -> Sequence[Trajectory]:
        age = self._require_open().age
        fresh = withhold(group, lambda version: age(version) > self.max_staleness)
        sampled, left = (sum(trajectory.policy_tokens for trajectory in each) for each in (group, fresh))
        self._tokens_withheld += sampled - left
        return fresh

    @property
    def _playing(self) -> int:
        gone = self._received + self._groups.counts.groups_filtered + self._given_up
        return max(0, self._begun - gone)  # of a group that is carried over, the rest comes once more

    def _has_room(self) -> bool:
        """Whether a group that began now would be fresh enough in its turn, with one update for each batch."""
        ahead = len(self._ready) + self._playing
        updates = ahead // self.batch_size + (self._owed and not self._waiting)
        return updates <= self.max_staleness

    def _came_back(self, trajectory: Trajectory) -> None:
        """Drop the episode's group if it is too stale. If a batch failed, raise: the trainer would wait for ever."""
        self._latest.append(trajectory)
        if len(self._latest) == self._latest.maxlen:
            require_one_that_played(self._latest)
        if self._is_stale(trajectory):
            self._give_up()
        self._tell()

    def _give_up(self) -> None:
        if self._withholds:
            return
        given_up = self._groups.give_up(self._is_stale)
        self._given_up += given_up
        self._dropped += given_up

    # ------------------------------------------------------------------ who waits

    def _require_open(self) -> WeightVersions:
        if self._producer is None or self._versions is None:
            raise ConfigError("the queue is not open: use it inside of `async with RolloutQueue(...) as queue`")
        return self._versions

    def _tell(self) -> None:
        self._news.set()

    async def _changed(self) -> None:
        self._news.clear()
        await self._news.wait()


class _Groups(GroupScheduler):
    """The groups of a queue.

    Attributes:
        numbers: the numbers of the tasks that were drawn, in the order that their groups began.
    """

    def __init__(
        self,
        drawn: Tasks,
        config: RunConfig,
        plan: GroupPlan | None,
        observe: Observe | None,
        *,
        tasks: QueueTasks,
        came_back: Callable[[Trajectory], None],
        tell: Callable[[], None],
    ) -> None:
        super().__init__(drawn, config, plan or GroupPlan(), observe)
        self.numbers: list[int] = []
        self._tasks, self._came_back, self._tell = tasks, came_back, tell
        self._observed_before = frozenset(tasks.observed)
        self._noted = 0

    def note_observed(self) -> None:
        """Tell the tasks which of them the source has the rewards of."""
        for number in self.numbers[self._noted : self._rewards.reported]:
            if not self._tasks.is_settled(number):
                self._tasks.observed.add(number)
        self._noted = self._rewards.reported

    def _task_index(self, place: int) -> int:
        return self.numbers[place]

    def finished_roles(self, job: Job, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        groups = super().finished_roles(job, trajectories)
        for trajectory in trajectories:
            self._came_back(trajectory)
        return groups

    def give_up(self, unwanted: Callable[[Trajectory], bool]) -> int:
        before = dict(self._groups)
        count = super().give_up(unwanted)
        for id in before.keys() - self._groups.keys():
            self._tasks.skip(before[id].task_index, before[id].task.id)
        return count

    def _decided_as(self, group: OpenGroup, chosen: list[Member], keeps: bool) -> list[Trajectory]:
        if not keeps:
            self._tasks.settle(group.task_index)
        groups = super()._decided_as(group, chosen, keeps)
        self._tell()
        return groups

    def _observe(self, group: OpenGroup, members: Sequence[Member]) -> None:
        # The source has the rewards of these from the run whose state was loaded.
        super()._observe(group, () if group.task_index in self._observed_before else members)
