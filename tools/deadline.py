"""A deadline that holds even when the awaited code ignores cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_GRACE = 2.0
"""Seconds that cancelled code gets to clean up before it is left behind."""

_log = logging.getLogger("toolgym.tools")
_left_behind: set[asyncio.Task[Any]] = set()


class DeadlineError(TimeoutError):
    """The deadline passed. `stuck` tells whether the code also ignored its cancellation."""

    def __init__(self, seconds: float, *, stuck: bool) -> None:
        super().__init__(f"did not finish within {seconds:g} seconds")
        self.seconds = seconds
        self.stuck = stuck


class ExitError(RuntimeError):
    """The code called `sys.exit`, which would have ended the event loop."""


class SelfCancelledError(RuntimeError):
    """The code was cancelled from within, as by awaiting something that had been cancelled; nobody wanted that."""


async def with_deadline(coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
    """Await a coroutine for at most `seconds`.

    `asyncio.wait_for` waits for the cancelled code to end, however long that takes; foreign code may never end. Here
    it gets `CANCEL_GRACE` seconds and is then left behind, with a line in the log.

    Raises:
        DeadlineError: the deadline passed.
        ExitError: the code called `sys.exit`.
        SelfCancelledError: the code raised `CancelledError` though neither the caller nor the deadline cancelled it;
            passed on, it would look like the caller's own cancellation, and whoever waits for an answer would wait
            for ever.
    """
    task = asyncio.ensure_future(_contained(coroutine))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if done:
        if task.cancelled():
            raise SelfCancelledError("the code awaited something that had been cancelled")
        return task.result()
    stuck = not await _stop(task)
    raise DeadlineError(seconds, stuck=stuck)


async def _contained(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return await coroutine
    except SystemExit as error:
        raise ExitError(f"SystemExit: {error.code}") from error


async def shielded(awaitable: Awaitable[T]) -> T:
    """Await something to its end even when the caller is cancelled meanwhile; the cancellation comes after.

    For what must not be left half done, clean-up above all. It must have deadlines of its own.
    """
    task = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:  # noqa: BLE001  raised again below, by result()
            break
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()


async def _stop(task: asyncio.Task[Any]) -> bool:
    """Cancel a task and wait a little for it. Returns whether it ended."""
    _left_behind.add(task)  # asyncio itself refers to tasks weakly, and this wait may be cancelled too
    task.add_done_callback(_forget)  # it was cancelled on purpose; whatever it says now has nobody to hear it
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=CANCEL_GRACE)
    if not done:
        _log.warning("code that overran its deadline ignores cancellation and was left behind: %r", task)
    return bool(done)


def _forget(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()
