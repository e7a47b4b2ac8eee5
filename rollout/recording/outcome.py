"""`record_outcome` awaits a call and records how it ended; `replay_outcome` ends a call in the same way."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from toolgym.rollout.recording.cassette import Cassette, CassetteMissError, Recorded
from toolgym.rollout.recording.lines import described
from toolgym.rollout.recording.secrets import scrub
from toolgym.tools import errors
from toolgym.tools.concurrency import deadline
from toolgym.tools.concurrency.deadline import DeadlineError, SelfCancelledError
from toolgym.tools.concurrency.eager_task import ExitError
from toolgym.tools.errors import ConfigError, is_infrastructure

T = TypeVar("T")

NEARLY = 0.98
"""A cancellation after this share of the deadline came from the deadline, whose clock started a moment earlier."""


async def record_outcome(
    call: Coroutine[Any, Any, T], deadline: float | None, to_json: Callable[[T], Any], record: Callable[..., None]
) -> T:
    """Await a call, and record its outcome once, before the caller sees it.

    A call that is cancelled is recorded at once, as `deadline` or `cancelled`, even when it ignores the cancellation
    and answers later: its caller has gone on without it. `record` takes `reply`, which `to_json` makes, `error` or
    `ended`, and `seconds`; the caller gives up after the `deadline`, in wall seconds.
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


async def replay_outcome(cassette: Cassette, recorded: Recorded, what: str) -> Any:
    """Return what a recorded call returned, or end as it did.

    A call that overran its deadline raises at once what the deadline would have raised. A call that was cancelled
    otherwise (by the deadline of the whole episode) waits until it is cancelled, as it did.

    If the recording stopped during the call, that is a miss, whose message has `what` ("the tool ran").
    """
    if "error" in recorded.outcome:
        raise make_error(recorded.outcome["error"])
    ended = recorded.outcome.get("ended")
    if ended is not None:
        if ended["by"] == "deadline":
            raise DeadlineError(ended["seconds"], stuck=False)
        if recorded.episode not in cassette.trajectories:
            raise cassette.miss(
                f"{described(recorded.episode)}: the recording stopped while {what} (line {recorded.line})"
            )
        await asyncio.Event().wait()
    return recorded.outcome["reply"]


async def _contained(call: Coroutine[Any, Any, T]) -> T:
    try:
        return await call
    except SystemExit as error:  # in a task, it would end the event loop
        raise ExitError.of(error) from error


def describe_error(error: BaseException) -> dict[str, Any]:
    described: dict[str, Any] = {"type": type(error).__name__, "message": scrub(str(error))}
    if isinstance(error, DeadlineError):
        described |= {"seconds": error.seconds, "stuck": error.stuck}
    if is_infrastructure(error):
        described["infrastructure"] = True
    return described


def make_error(described: Mapping[str, Any]) -> Exception:
    """Make an exception of the same name and text, and of the same class if that is Python's or the library's."""
    name, message = str(described["type"]), str(described["message"])
    if name == "DeadlineError":
        return DeadlineError(described["seconds"], stuck=described["stuck"])
    if name == "CassetteMissError":
        return CassetteMissError(message)
    base = next((kind for home in (errors, deadline, builtins) if (kind := getattr(home, name, None))), Exception)
    if not (isinstance(base, type) and issubclass(base, Exception)):
        base = Exception
    # Its own constructor may want other arguments, and its text may be made of them.
    remade = type(name, (base,), {"__init__": lambda self: None, "__str__": lambda self: message})
    try:
        error: Exception = remade()
    except TypeError:  # a group of exceptions, which cannot be without its members
        error = type(name, (Exception,), {"__str__": lambda self: message})()
    if described.get("infrastructure"):
        error.__cause__ = OSError(message)
    return error
