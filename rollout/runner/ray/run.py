from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
import ray

from toolgym.envs.types import StopReason
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.job import Job
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.envs.roles import lost_job
from toolgym.rollout.runner.ray.cluster import WorkerLostError, call, kill
from toolgym.rollout.runner.ray.dispatcher import Dispatcher, PendingJob, WorkerSlots
from toolgym.rollout.runner.ray.packing import TextDecoder, Tools, unpack
from toolgym.rollout.runner.ray.worker import RolloutWorker, WorkerFacts, WorkerReply
from toolgym.rollout.runner.scheduling.scheduler import Scheduler, Stragglers, finish
from toolgym.rollout.runner.stream import BoundedStream
from toolgym.rollout.trajectory.failures import FailureLog
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ClusterError, ConfigError, EngineError, error_text

START_TIMEOUT = 600.0
"""Seconds for a worker to start: Ray may have to start a machine for it, and the worker loads what it needs."""

CLOSE_TIMEOUT = 60.0
"""Seconds for a worker to cancel its episodes and to free what it holds, before its process is killed."""

UNRESPONSIVE = 120.0
"""Seconds without an answer after which a worker is killed and replaced: something blocks its event loop."""

MAX_STARTS = 5
"""Starts of one worker that may fail in a row."""

START_PAUSE = 1.0
"""Seconds before a worker is started again whose start failed; doubled with each further failure."""

CANNOT_CARRY = (
    "stragglers='carry' keeps episodes in the process that played them, so it goes with a Runner: for a RayRunner use "
    "'drop' or 'keep'"
)

_log = logging.getLogger("toolgym.rollout")


class WorkerPool:
    """Starts worker actors when they are needed, and ends them; `setup` is a `WorkerSetup`, pickled."""

    def __init__(self, setup: bytes, size: int, options: Mapping[str, Any]) -> None:
        self.size = size
        self._setup = ray.put(setup)  # sent once to each machine
        defaults = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
        # Its methods wait for episodes, so many may be under way; a worker that dies is the runner's to replace.
        required = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1000}
        self._actors = ray.remote(RolloutWorker).options(**{**defaults, **options, **required})
        self._workers: dict[int, Any] = {}  # Ray's handles

    async def worker(self, number: int) -> Any:
        """The worker of that number, started if there is none. Raises `WorkerLostError`, or what its start raised."""
        if number not in self._workers:
            worker = self._actors.remote(self._setup)
            try:
                await call(worker, "start", seconds=START_TIMEOUT)
            except BaseException:  # cancelled too: the actor is not among the pool's yet
                kill(worker)
                raise
            self._workers[number] = worker
        return self._workers[number]

    def discard(self, number: int) -> None:
        """Forget the worker of that number, if there is one, and end its process if it lives."""
        worker = self._workers.pop(number, None)
        if worker is not None:
            kill(worker)

    async def end_run(self) -> None:
        """Cancel the episodes of all workers, and wait until they have cleaned up. A worker that cannot is killed."""
        await self._all("end")

    async def close(self) -> None:
        await self._all("close")
        for number in list(self._workers):
            self.discard(number)

    async def _all(self, method: str) -> None:
        await asyncio.gather(*(self._end(number, method) for number in self._workers))

    async def _end(self, number: int, method: str) -> None:
        try:
            await call(self._workers[number], method, seconds=CLOSE_TIMEOUT)
        except Exception as error:  # noqa: BLE001  the run's results are whole; its process ends now
            _log.warning("worker %d did not clean up: %s", number, error_text(error))
            self.discard(number)


class RayRun:
    """One call of `RayRunner.stream`: hands out jobs, puts trajectories into `finished`, and replaces workers that die.

    `max_concurrent` of the config is each worker's. Observers hear of a job when it is handed out, and when its
    trajectories are here. The decoder learns the workers' tokenizer here, `roles` the trained ones of each env that has
    roles, by its name, and `metrics` get each worker's figures, by its number.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        pool: WorkerPool,
        config: RunConfig,
        *,
        env: EnvFactory,
        observers: Sequence[EpisodeObserver],
        decoder: TextDecoder,
        metrics: dict[int, dict[str, Any]],
        roles: dict[str, tuple[str, ...]],
    ) -> None:
        self._scheduler, self._pool, self._config = scheduler, pool, config
        self._env, self._observers, self._decoder, self._metrics = env, observers, decoder, metrics
        self._roles = roles
        most = config.max_concurrent
        self._room = most if isinstance(most, int) else most.start
        self._packed_config = cloudpickle.dumps(config)
        self._dispatcher = Dispatcher()
        self._senders: dict[WorkerSlots, _JobSender] = {}
        self._numbers = itertools.count()
        self._unfinished: dict[tuple[str, int], PendingJob] = {}
        self._exhausted = False
        self._places = asyncio.Event()
        self._begun = False
        self.broken: Exception | None = None
        self._working = pool.size
        self.failures = FailureLog()
        scheduler.tell_cuts(self._cut)
        self.finished: BoundedStream[Trajectory] = BoundedStream(self._room)

    async def play(self, ready: Sequence[Trajectory], first: Job | None) -> None:
        """Play this job and all that follow, and end the stream; with an error if the run cannot go on."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._hand_out(ready, first))
                for number in range(self._pool.size):
                    tasks.create_task(self._keep_worker(number))
        except asyncio.CancelledError:
            self.finished.end(EngineError("the run was cancelled from outside"))
            raise
        except BaseExceptionGroup as errors:
            self.finished.end(errors.exceptions[0])

    def break_off(self, error: Exception) -> None:
        """Hand out no further job; the stream ends when those that run have finished, and the run raises `broken`."""
        self.broken, self._exhausted = self.broken or error, True
        self._places.set()
        self._end_if_done()

    # ------------------------------------------------------------------ jobs

    async def _hand_out(self, ready: Sequence[Trajectory], job: Job | None) -> None:
        await self.finished.send_all(ready, lambda: self._scheduler.over)
        await self._send_decided()
        while job is not None and not self._exhausted:
            entry = PendingJob(next(self._numbers), job)
            self._unfinished[job.member] = entry
            self._dispatcher.waiting.append(entry)
            for observer in self._observers:
                observer.began(job)
            self._dispatch()
            while not self._dispatcher.wants_more and not self._exhausted:
                self._places.clear()
                await self._places.wait()
            await self.finished.room()  # a slow consumer gets no more episodes than wait for it
            if not self._exhausted:
                job = await self._scheduler.next()
                self._cut()
        self._exhausted = True
        self._end_if_done()

    def _dispatch(self) -> None:
        for slots, entry in self._dispatcher.dispatch():
            self._senders[slots].send(entry)
        self._places.set()

    async def _deliver(self, entry: PendingJob, trajectories: Sequence[Trajectory]) -> None:
        """Hand a job's trajectories to the scheduler, and what it gives to the consumer, when there is room for it."""
        for trajectory in trajectories:
            for observer in self._observers:
                observer.ended(entry.job, trajectory)
            self.failures.add(trajectory)
        ready = finish(self._scheduler, entry.job, trajectories)
        if self._unfinished.get(entry.job.member) is entry:
            del self._unfinished[entry.job.member]
        self._cut()
        await self.finished.send_all(ready, lambda: self._scheduler.over)
        await self._send_decided()

    async def _send_decided(self) -> None:
        ready = await self._scheduler.decide()
        self._cut()
        await self.finished.send_all(ready, lambda: self._scheduler.over)

    def _cut(self) -> None:
        """End the episodes that the scheduler wants ended; one that has not begun, when it does."""
        for cut in self._scheduler.cuts():
            if cut.how is Stragglers.CARRY:
                raise ConfigError(CANNOT_CARRY)
            entry = self._unfinished.get(cut.job.member)
            if entry is not None:
                entry.cut = True
                for slots, sender in self._senders.items():
                    if entry.number in slots.playing:
                        sender.cut(entry)

    def _end_if_done(self) -> None:
        if self._exhausted and not self._dispatcher.open:
            self.finished.end()

    # ------------------------------------------------------------------ workers

    async def _keep_worker(self, number: int) -> None:
        """Keep one worker playing, and replace it when it dies."""
        failures = 0
        while True:
            try:
                worker = await self._pool.worker(number)
                wanted = self._decoder.packed is None
                about: WorkerFacts | None = await call(
                    worker, "begin", self._packed_config, wanted, seconds=START_TIMEOUT
                )
                if about is not None:
                    self._decoder.packed = about.tokenizer
                    self._roles.update(about.roles)
                if any(len(roles) > 1 for roles in self._roles.values()):
                    self._scheduler.require_roles()
            except Exception as error:
                self._pool.discard(number)  # it may have died since the run before
                # Where no worker has ever played, an error of the user's is the likely reason, and is raised as it is.
                if not self._begun and not isinstance(error, WorkerLostError):
                    raise
                failures += 1
                _log.warning("worker %d did not start: %s", number, error_text(error))
                if failures >= MAX_STARTS:
                    self._give_up(number, error)
                    return
                await asyncio.sleep(START_PAUSE * 2.0 ** (failures - 1))
                continue
            failures, self._begun = 0, True
            lost = await self._work(number, worker)
            self._pool.discard(number)
            _log.warning("worker %d is lost and replaced, and what it played is played again: %s", number, lost)

    def _give_up(self, number: int, error: Exception) -> None:
        self._working -= 1
        if not self._working:
            raise ClusterError(f"no worker can be started; the last one: {error_text(error)}") from error
        _log.error("worker %d cannot be started, and the others go on without it", number)

    async def _work(self, number: int, worker: Any) -> WorkerLostError:
        """Play on a worker until it is lost; its jobs then wait for another one."""
        slots = WorkerSlots(self._room)
        sender = self._senders[slots] = _JobSender(worker)
        self._dispatcher.workers.append(slots)
        sending = asyncio.create_task(sender.run())
        sending.add_done_callback(self._on_sent)
        try:
            self._dispatch()
            await self._collect(number, worker, slots)
        except WorkerLostError as error:
            failed = self._dispatcher.worker_died(slots)
            del self._senders[slots]
            self._dispatch()
            for entry in failed:
                await self._deliver(entry, self._failed(entry, error))
            self._dispatch()
            self._end_if_done()
            return error
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        raise AssertionError("a worker's run ends with an error")

    def _on_sent(self, sending: asyncio.Task[None]) -> None:
        if not sending.cancelled() and (error := sending.exception()) is not None:
            self.finished.end(error)  # a job that cannot be sent would be waited for, for ever

    async def _collect(self, worker_number: int, worker: Any, slots: WorkerSlots) -> None:
        taken, tools, warnings = 0, list[Tools](), 0
        while True:
            reply: WorkerReply = await call(worker, "collect", taken, len(tools), warnings, seconds=UNRESPONSIVE)
            tools += reply.tools
            warnings += len(reply.warnings)
            for text in reply.warnings:
                _log.warning("worker %d: %s", worker_number, text)
            taken += len(reply.results)
            slots.room = reply.room
            self._metrics[worker_number] = reply.metrics
            for number, data in reply.results:
                entry = slots.playing.get(number)
                if entry is not None:
                    await self._deliver(entry, [unpack(packed, tools, self._decoder) for packed in data])
                    del slots.playing[number]
            if reply.broken is not None:
                raise reply.broken
            self._dispatch()
            self._end_if_done()

    def _failed(self, entry: PendingJob, error: WorkerLostError) -> list[Trajectory]:
        cause = ClusterError(f"its worker died {entry.deaths} times, the last time with nothing else to do: {error}")
        env_id = self._env.member(entry.job.task).env_id
        return [
            replace(never, id=f"{never.group_id}-{never.sample_index}-worker-died", stop_reason=StopReason.WORKER_DIED)
            for never in lost_job(entry.job, self._roles.get(env_id, ()), self._config, env_id, cause, ())
        ]


class _JobSender:
    """Sends a worker its jobs: those that came while the last call was under way go with the next one."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._entries: list[PendingJob] = []
        self._cuts: list[int] = []
        self._news = asyncio.Event()

    def send(self, entry: PendingJob) -> None:
        self._entries.append(entry)
        if entry.cut:
            self._cuts.append(entry.number)
        self._news.set()

    def cut(self, entry: PendingJob) -> None:
        self._cuts.append(entry.number)
        self._news.set()

    async def run(self) -> None:
        """Send until cancelled, or until the worker is lost, which its collector finds out too."""
        while True:
            await self._news.wait()
            self._news.clear()
            entries, self._entries = self._entries, []
            cuts, self._cuts = self._cuts, []
            jobs = pickle.dumps([(entry.number, entry.job) for entry in entries], protocol=5)
            try:
                await call(self._worker, "add", jobs, cuts, seconds=UNRESPONSIVE)
            except WorkerLostError:
                return
