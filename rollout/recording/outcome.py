"""`record_outcome` awaits a call and records how it ended; `replay_outcome` ends a call in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolgym.rollout.recording.cassette import Cassette, Recorded, describe_error, described, make_error
from toolgym.tools.concurrency.deadline import DeadlineError, ExitError, SelfCancelledError
from toolgym.tools.errors import ConfigError

T = TypeVar("T")

NEARLY = 0.98
"""A cancellation after this share of the deadline came from the deadline, whose clock started a moment earlier."""


async def record_outcome(
    call: Coroutine[Any, Any, T], deadline: float | None, to_json: Callable[[T], Any], record: Callable[..., None]
) -> T:
    """Await a call, and record its outcome once, before the caller sees it.

    A call that is cancelled is recorded at once, as `deadline` or `cancelled`, even when it ignores the cancellation
    and answers later: its caller has gone on without it.

    Args:
        call: what to await.
        deadline: wall seconds after which the caller gives up; None when it never does.
        to_json: makes the `reply` to record from the result.
        record: takes `reply`, `error` or `ended`, and `seconds`, by name; called once.
    """
    started = time.monotonic()

    def seconds() -> float:
        return round(time.monotonic() - started, 6)

    task = asyncio.ensure_future(_contained(call))
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        elapsed = seconds()
        by_deadline = deadline is not None and elapsed >= deadline * NEARLY
        ended = {"by": "deadline", "seconds": deadline} if by_deadline else {"by": "cancelled"}
        # The disk may be full. The next line that is written raises that error; here it would hide the cancellation.
        with contextlib.suppress(ConfigError):
            record(ended=ended, seconds=elapsed)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not log it
        raise
    if task.cancelled():
        error: BaseException | None = SelfCancelledError("the code awaited something that had been cancelled")
    else:
        error = task.exception()
    if error is not None:
        record(error=describe_error(error), seconds=seconds())
        raise error
    result = task.result()
    record(reply=to_json(result), seconds=seconds())
    return result


async def replay_outcome(cassette: Cassette, found: Recorded, what: str) -> Any:
    """Return what a recorded call returned, or end as it did.

    A call that overran its deadline raises at once what the deadline would have raised. A call that was cancelled
    otherwise (by the deadline of the whole episode) waits until it is cancelled, as it did.

    Args:
        cassette: the recording.
        found: the recorded call.
        what: subject and verb of the message where the recording stopped during the call: "the tool ran".

    Raises:
        CassetteMissError: the recording stopped during the call.
        DeadlineError: it overran its deadline.
        Exception: the recorded error, see `make_error`.
    """
    if "error" in found.outcome:
        raise make_error(found.outcome["error"])
    ended = found.outcome.get("ended")
    if ended is not None:
        if ended["by"] == "deadline":
            raise DeadlineError(ended["seconds"], stuck=False)
        if found.episode not in cassette.trajectories:
            raise cassette.miss(f"{described(found.episode)}: the recording stopped while {what} (line {found.line})")
        await asyncio.Event().wait()
    return found.outcome["reply"]


async def _contained(call: Coroutine[Any, Any, T]) -> T:
    try:
        return await call
    except SystemExit as error:  # in a task, it would end the event loop
        raise ExitError(f"SystemExit: {error.code}") from error
