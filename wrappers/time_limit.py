"""`TimeLimit`: ends an episode after a number of seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.types import EpisodeFailedError, ResetOptions, ResetResult, StopReason
from toolgym.tools.concurrency.deadline import CANCEL_GRACE, with_deadline
from toolgym.tools.errors import check_seconds
from toolgym.wrappers.limit import Limit

T = TypeVar("T")


class TimeLimit(Limit):
    """Ends an episode with `StopReason.EPISODE_TIMEOUT` so many seconds after its `reset` began.

    The step that is under way then is cancelled, and the env inside frees what the episode held. That reason is a
    failure, so nothing is scored and no trainer learns from the episode: how long it took says more of the machine than
    of the policy. The policy's own time counts, and so does the wait for permits.

    Args:
        seconds: wall seconds of an episode.

    Raises:
        ConfigError: `seconds` is no positive number.

    Example:
        >>> import asyncio, toolgym
        >>> async def main():
        ...     async with TimeLimit(toolgym.make("CodeInterpreter-v0"), seconds=0.3) as env:
        ...         await env.reset()
        ...         await asyncio.sleep(0.4)  # the policy thinks
        ...         return str((await env.step("#### 1")).stop_reason)
        >>> asyncio.run(main())
        'episode_timeout'
    """

    def __init__(self, env: BaseEnv, seconds: float) -> None:
        super().__init__(env)
        check_seconds(seconds=seconds)
        self.seconds = seconds
        self._deadline: float | None = None  # on the clock of `time.monotonic`; None before the first reset

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        self._deadline = time.monotonic() + self.seconds
        begin = super().reset
        try:
            return await self._in_time(lambda: begin(seed=seed, options=options), self._deadline)
        except _TimeUpError:
            raise EpisodeFailedError(
                StopReason.EPISODE_TIMEOUT, f"the episode did not begin within {self.seconds:g} seconds"
            ) from None

    async def limited_step(self, action: Action) -> StepResult:
        if self._deadline is None:
            return await self.env.step(action)  # which refuses it
        try:
            return await self._in_time(lambda: self.env.step(action), self._deadline)
        except _TimeUpError:
            return await self.end(StepResult([], 0.0, False, {}), StopReason.EPISODE_TIMEOUT)

    async def _in_time(self, call: Callable[[], Coroutine[Any, Any, T]], deadline: float) -> T:
        """Await a call until the deadline. `_TimeUpError`: it was cancelled, or never made."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise _TimeUpError
        try:
            # The inner one leaves behind what ignores its cancellation. It stops while the call waits for a permit.
            async with asyncio.timeout(left) as timeout:
                return await with_deadline(call(), left + CANCEL_GRACE)
        except TimeoutError:
            if timeout.expired():
                raise _TimeUpError from None
            raise


class _TimeUpError(Exception):
    """The episode's time is up."""
