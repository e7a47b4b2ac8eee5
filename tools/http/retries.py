"""Repetition of calls: failures that are safe to repeat, the schedule of attempts, and `Retry-After`."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import tenacity

from toolgym.tools.errors import ConfigError, ToolgymError

T = TypeVar("T")


class AttemptError(ToolgymError):
    """One attempt at a call failed. The server may have carried the call out, if `sent`, and wants the next attempt
    only `after` so many seconds, if it says so."""

    counts = True

    def __init__(self, message: str, *, sent: bool, after: float | None = None) -> None:
        super().__init__(message)
        self.sent = sent
        self.after = after


class FullError(AttemptError):
    """The server is full (429) and has not begun, so this uses up no attempt."""

    counts = False

    def __init__(self, message: str, after: float | None) -> None:
        super().__init__(message, sent=False, after=after)


@dataclass(frozen=True)
class Retries:
    """Patience of a client. Times are seconds.

    Attributes:
        attempts: how often a call is sent if servers fail. A server that is full (429) did not fail.
        first_delay: before the second attempt at most this; before each further one at most twice as much, drawn evenly
            from 0 up ("full jitter"), so that calls that failed together do not come back together.
        max_delay: the most that this grows to.
        max_retry_after: the most that a server's `Retry-After` is obeyed.
        connect_timeout: for a connection to be made, and for a health check.
        attempt_margin: beyond the call's own time-out, until one attempt is given up. It has to cover the server's
            queue (60 s in our sandbox server).
        patience: beyond the call's own time-out, until the call is given up, all attempts together.
    """

    attempts: int = 5
    first_delay: float = 0.25
    max_delay: float = 8.0
    max_retry_after: float = 60.0
    connect_timeout: float = 5.0
    attempt_margin: float = 90.0
    patience: float = 300.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
                raise ConfigError(f"retries: {name} must be a positive number, got {value!r}")
        if not isinstance(self.attempts, int):
            raise ConfigError(f"retries: attempts must be a whole number, got {self.attempts!r}")

    def obeyed(self, after: float) -> float:
        """Seconds to wait if a server asks for `after`: up to a tenth more, so that not all come at once."""
        return min(after, self.max_retry_after) * random.uniform(1.0, 1.1)


async def repeat(
    attempt: Callable[[], Awaitable[T]],
    retries: Retries,
    *,
    repeatable: bool,
    attempts: int | None = None,
    elsewhere: Callable[[], bool] = lambda: False,
) -> T:
    """Make attempts at a call until one succeeds, or another one would not be safe or not be worth it.

    Only an `AttemptError` is worth another attempt, and one that may have been carried out (`sent`) only if the call is
    `repeatable`. The last one is raised. The caller bounds the time. `elsewhere` says whether another server could take
    the call at once, so that a `Retry-After` holds nothing up.
    """
    limit = attempts or retries.attempts
    jitter = tenacity.wait_random_exponential(multiplier=retries.first_delay, max=retries.max_delay)
    failures = 0

    def is_safe(error: BaseException) -> bool:
        return isinstance(error, AttemptError) and (repeatable or not error.sent)

    def is_last(state: tenacity.RetryCallState) -> bool:
        nonlocal failures
        failures += _error(state).counts
        return failures >= limit

    def pause(state: tenacity.RetryCallState) -> float:
        error = _error(state)
        free = elsewhere()
        if isinstance(error, FullError):
            if free:
                return 0.0
            return jitter(state) if error.after is None else retries.obeyed(error.after)
        if error.after is None or free:
            return jitter(state)
        return max(jitter(state), retries.obeyed(error.after))

    def note(state: tenacity.RetryCallState) -> None:
        if state.attempt_number > 1 and (count := _count.get()) is not None:
            count.retries += 1

    async def awaited() -> T:  # tenacity awaits only what it recognises as a coroutine function, and not a lambda
        return await attempt()

    schedule = tenacity.AsyncRetrying(
        sleep=asyncio.sleep,
        retry=tenacity.retry_if_exception(is_safe),
        stop=is_last,
        wait=pause,
        before=note,
        reraise=True,
    )
    return await schedule(awaited)


def _error(state: tenacity.RetryCallState) -> AttemptError:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, AttemptError)
    return error


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds, at least 0, that a `Retry-After` header asks for (RFC 9110, 10.2.3); None if it asks for
    none. `now` is the present, for dates."""
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = parsedate_to_datetime(text)
        except (ValueError, TypeError, OverflowError):
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        try:
            seconds = (date - (now or datetime.now(UTC))).total_seconds()
        except OverflowError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


class RetryCount:
    """The retries of the tasks that count here, and of those that begin in them."""

    __slots__ = ("retries",)

    def __init__(self) -> None:
        self.retries = 0

    def count(self) -> None:
        """Count those of the running task here from now on."""
        _count.set(self)


_count: ContextVar[RetryCount | None] = ContextVar("toolgym_retry_count", default=None)
