"""`begin`: a coroutine in a task of its own that takes its first step at once.

Much of what has a deadline ends without ever waiting: a tool that computes, an env's step, a reset. A deadline around
it costs 8 us with this and 45 us with a plain task, a tenth of a turn. Python 3.12 has it as `eager_start`; this module
does the same with what `asyncio` documents for task implementations of others, `_enter_task` and `_leave_task`.
"""

from __future__ import annotations

import asyncio
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Awaitable, Coroutine
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

from toolgym.tools.errors import ToolgymError

T = TypeVar("T")


class ExitError(ToolgymError, RuntimeError):
    """The code called `sys.exit`, which would have ended the event loop."""

    @classmethod
    def of(cls, error: SystemExit) -> ExitError:
        contained = cls(f"SystemExit: {error.code}")
        contained.__cause__ = error
        return contained


def begin(awaitable: Awaitable[T], context: Context | None = None) -> tuple[FirstStep[T], asyncio.Task[T]]:
    """Take the first step of an awaitable, in a context of its own: a copy, if none is passed. Returns what came of it,
    and the task that takes the further ones; if the coroutine has ended, that task ends in the loop's next round,
    without its result."""
    loop = asyncio.get_running_loop()
    context = copy_context() if context is None else context
    coroutine: Any = awaitable if isinstance(awaitable, types.CoroutineType) else awaited(awaitable)
    step: FirstStep[T] = FirstStep(coroutine)
    task: asyncio.Task[T] = loop.create_task(step, context=context)
    caller = asyncio.current_task()
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, task)
    try:
        step.wait_for(context.run(coroutine.send, None))
    except StopIteration as end:
        step.ended, step.value = True, end.value
    except SystemExit as error:
        step.ended, step.error = True, ExitError.of(error)
    except BaseException as error:
        step.ended, step.error = True, error
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise
    finally:
        _leave_task(loop, task)
        if caller is not None:
            _enter_task(loop, caller)
    return step, task


class FirstStep(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine that has taken its first step, as its task drives it. It does not know the task: a cycle of the two
    would stay until the garbage collector finds it."""

    __slots__ = ("__name__", "__qualname__", "_coroutine", "_first", "ended", "error", "value")

    def __init__(self, coroutine: types.CoroutineType[Any, Any, T]) -> None:
        self.__name__, self.__qualname__ = coroutine.__name__, coroutine.__qualname__  # what `repr(task)` shows
        self._coroutine = coroutine
        self._first: Any = None  # what the first step waits for
        self.ended = False
        self.error: BaseException | None = None
        self.value: T

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value

    def wait_for(self, first: Any) -> None:
        """Keep what the first step waits for until the task asks for it."""
        self._first = first
        self._set_blocking(False)  # others may wait for the same future before the task does

    # ------------------------------------------------------------------ as the task drives it

    def send(self, value: Any) -> Any:
        if self.ended:
            raise StopIteration(None)
        if self._first is not None:
            return self._hand_over()
        try:
            return self._coroutine.send(value)
        except SystemExit as error:
            raise ExitError.of(error) from error

    def throw(self, error: Any, *more: Any) -> Any:
        if self.ended:
            raise error
        if self._first is not None and isinstance(error, asyncio.CancelledError) and self._first.cancel():
            return self._hand_over()  # as for any task: what it waits for is cancelled, and ends first
        self._first = None
        try:
            return self._coroutine.throw(error, *more)
        except SystemExit as exit:
            raise ExitError.of(exit) from exit

    def _hand_over(self) -> Any:
        self._set_blocking(True)
        first, self._first = self._first, None
        return first

    def _set_blocking(self, blocking: bool) -> None:
        if asyncio.isfuture(self._first):
            self._first._asyncio_future_blocking = blocking

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        raise TypeError("it is driven by its task")

    @property
    def cr_frame(self) -> types.FrameType | None:
        """For `asyncio.Task.get_stack`."""
        return self._coroutine.cr_frame


async def awaited(value: Awaitable[T]) -> T:
    """Make a coroutine of an awaitable."""
    return await value
