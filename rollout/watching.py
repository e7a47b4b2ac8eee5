"""Awaiting something while taking note of how it ends, whatever the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolgym.rollout.cassette import describe_error
from toolgym.tools.deadline import ExitError, SelfCancelledError
from toolgym.tools.errors import ConfigError

T = TypeVar("T")

Note = Callable[..., None]
"""Takes `reply`, `error` or `ended`, and `seconds`, by name."""

NEARLY = 0.98
"""A cancellation after this share of the deadline came from the deadline: its clock starts a moment earlier."""


async def watch(call: Coroutine[Any, Any, T], deadline: float | None, show: Callable[[T], Any], note: Note) -> T:
    """Await a call; note its outcome once, before anyone sees it.

    A call that is cancelled is noted at once, as `deadline` or `cancelled`, even when it ignores the cancellation and
    answers later: its caller has gone on without.

    Args:
        call: what to await.
        deadline: wall seconds after which the caller gives up; None when it never does.
        show: makes the `reply` to note from the result.
        note: called once.
    """
    started = time.monotonic()

    def seconds() -> float:
        return round(time.monotonic() - started, 6)

    task = asyncio.ensure_future(_contained(call))
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        gone = seconds()
        by_deadline = deadline is not None and gone >= deadline * NEARLY
        with contextlib.suppress(ConfigError):  # a full disk: the next line says so, the cancellation must not be lost
            note(ended={"by": "deadline", "seconds": deadline} if by_deadline else {"by": "cancelled"}, seconds=gone)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen: asyncio must not log it as never retrieved
        raise
    if task.cancelled():
        error: BaseException | None = SelfCancelledError("the code awaited something that had been cancelled")
    else:
        error = task.exception()
    if error is not None:
        note(error=describe_error(error), seconds=seconds())
        raise error
    result = task.result()
    note(reply=show(result), seconds=seconds())
    return result


async def _contained(call: Coroutine[Any, Any, T]) -> T:
    try:
        return await call
    except SystemExit as error:  # in a task, it would end the event loop
        raise ExitError(f"SystemExit: {error.code}") from error
