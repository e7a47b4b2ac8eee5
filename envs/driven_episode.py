"""`DrivenEpisode`: the episodes of an env for a caller that takes the turns itself."""

from __future__ import annotations

import contextlib
import enum
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.failure import failing, finite_reward, reason_to_end
from toolgym.envs.tasks.task import Task, task_seed
from toolgym.envs.types import EpisodeFailedError, ResetOptions, ResetResult, StopReason
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import ConfigError, EpisodeError

TIMEOUT = 600.0
"""Seconds for one call of an env that has no deadlines of its own."""

T = TypeVar("T")


class EpisodeStage(enum.Enum):
    """Stage of an episode; the values are for error messages."""

    NEW = "it was not reset yet"
    UNDER_WAY = "it is under way"
    OVER = "it is over"
    CLOSED = "it was closed"


class DrivenEpisode:
    """Drives an env: one episode after the other, each call under a deadline. Not safe for concurrent calls.

    A call fails if the env raises, overruns the deadline, gives a reward that is not finite, or ends the episode with a
    failure. Then the episode is over with that `stop_reason`; one whose call is cancelled is over with `ABORTED`.

    Args:
        env: the env; closed with this object.
        reset_timeout: wall seconds for `reset`; `math.inf`: no deadline. None: `TIMEOUT`, or no deadline around an env
            that keeps deadlines itself.
        step_timeout: the same for `step` and `truncate`.
        queue_timeout: wall seconds that a call may wait for permits, which counts for no other deadline; None: as long
            as it may run.

    Attributes:
        stop_reason: why the episode is over; None while it goes on, and before the first.
        reward: sum of the episode's rewards so far.
        steps: turns of the episode that the env has taken.
    """

    def __init__(
        self,
        env: BaseEnv,
        *,
        reset_timeout: float | None = None,
        step_timeout: float | None = None,
        queue_timeout: float | None = None,
    ) -> None:
        self.env = env
        self.stage = EpisodeStage.NEW
        self.stop_reason: StopReason | None = None
        self.reward = 0.0
        self.steps = 0
        self._reset_timeout, self._step_timeout, self._queue_timeout = reset_timeout, step_timeout, queue_timeout

    @property
    def over(self) -> bool:
        return self.stage is not EpisodeStage.UNDER_WAY

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        """Begin an episode as `BaseEnv.reset` does. After a `ConfigError`, which passes through, it is over.

        A task without a seed gets `task_seed`, so that a trainer which plays a task several times compares episodes
        that begin in the same state.
        """
        task = options.get("task") if isinstance(options, Mapping) else None
        if seed is None and isinstance(task, Task):
            seed = task_seed(task)
        self.stop_reason, self.reward, self.steps = None, 0.0, 0
        with self._ending(StopReason.RESET_FAILED, unless=ConfigError):
            begun = await self._in_time(lambda: self.env.reset(seed=seed, options=options), self._reset_timeout)
        self.stage = EpisodeStage.UNDER_WAY
        return begun

    async def step(self, action: Action, *, timeout: float | None = None) -> StepResult:
        """Take one turn; `timeout`, in seconds, replaces that of all steps. `EpisodeError`: no episode is under way."""
        result = await self._earn(lambda: self.env.step(action), timeout)
        self.steps += 1
        return result

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        """End the episode at a limit of the caller's, and have the env score it. Raises as `step` does."""
        result = await self._earn(lambda: self.env.truncate(reason, turn), None)
        self.steps += turn is not None
        if not self.over:  # an env may leave the end to its caller
            self._end(reason)
        return result

    async def close(self) -> None:
        """End the episode, if one is under way with `ABORTED`, and close the env."""
        if not self.over:
            self._end(StopReason.ABORTED)
        self.stage = EpisodeStage.CLOSED
        await self.env.close()

    async def _earn(self, call: Callable[[], Coroutine[Any, Any, StepResult]], timeout: float | None) -> StepResult:
        if self.over:
            why = self.stage.value if self.stop_reason is None else f"{self.stage.value} ({self.stop_reason})"
            raise EpisodeError(f"no episode is under way, for {why}; reset to begin one")
        with self._ending(StopReason.ENV_FAILED):
            result = await self._in_time(call, self._step_timeout if timeout is None else timeout)
            reason = reason_to_end(result)
            self.reward += finite_reward(result.reward)
        if reason is not None:
            self._end(reason)
        return result

    async def _in_time(self, call: Callable[[], Coroutine[Any, Any, T]], seconds: float | None) -> T:
        if seconds is None:
            seconds = math.inf if self.env.keeps_deadlines else TIMEOUT
        return await (call() if seconds == math.inf else with_deadline(call(), seconds, queue=self._queue_timeout))

    @contextlib.contextmanager
    def _ending(self, failed: StopReason, unless: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        try:
            with failing(failed, StopReason.ENV_TIMEOUT, unless=unless):
                yield
        except BaseException as error:
            if isinstance(error, EpisodeFailedError):
                failed = error.stop_reason
            elif not isinstance(error, Exception):
                failed = StopReason.ABORTED
            self._end(failed)
            raise

    def _end(self, reason: StopReason) -> None:
        self.stage, self.stop_reason = EpisodeStage.OVER, reason
