from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import ray

from toolgym.rollout.runner.ray.cluster import call, kill
from toolgym.rollout.runner.ray.worker import RolloutWorker
from toolgym.tools.errors import error_text

START_TIMEOUT = 600.0
"""Seconds for a worker to start: Ray may have to start a machine for it, and the worker loads what it needs."""

CLOSE_TIMEOUT = 60.0
"""Seconds for a worker to cancel its episodes and to free what it holds, before its process is killed."""

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
        """End all workers: first their episodes and engines, then their processes."""
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
