"""Blocking functions in threads that end with the interpreter, for the library's own work.

`asyncio.to_thread` runs the processors and four functions at once, for all of an event loop: as many that hang disable
all others. So each piece of the library's work has a thread for itself; tools have a pool that replaces threads that
hang, `toolgym.tools.concurrency.execution_pool`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from toolgym.tools.concurrency.eager_task import ExitError
from toolgym.tools.errors import ToolgymError, error_text

T = TypeVar("T")
P = ParamSpec("P")


class NoThreadError(ToolgymError, RuntimeError):
    pass


class DaemonThread(Executor):
    """An executor of one thread, which does not keep the interpreter from ending. Raises `NoThreadError`."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True)
        self._ended = False
        try:
            self._thread.start()
        except RuntimeError as error:
            raise NoThreadError(str(error)) from error

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._ended:
            raise RuntimeError("the thread takes no further functions")
        future: Future[T] = Future()
        self._calls.put((future, functools.partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended = True
        self._calls.put(None)
        if wait:
            self._thread.join()


def _serve(calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        future, function = call
        if future.set_running_or_notify_cancel():
            try:
                value = function()
            except StopIteration as error:  # no asyncio future takes it: the caller would wait for ever
                future.set_exception(RuntimeError(f"the function of a thread raised {error!r}"))
            except BaseException as error:  # noqa: BLE001  the caller gets it
                future.set_exception(error)
            else:
                future.set_result(value)
        del call, future, function  # what they hold must not live until the next call
        value = None


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread for itself, with the caller's context variables. Raises as `contained`, or
    `NoThreadError`."""
    thread = DaemonThread("toolgym-work")
    future: Future[T] = thread.submit(contextvars.copy_context().run, contained, function, args, kwargs)
    thread.shutdown(wait=False)
    return await asyncio.wrap_future(future)


def contained(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function. What it raises can be raised to the waiting caller, without ending or cancelling it: `ExitError`
    for `sys.exit` and its like, `RuntimeError` for `StopIteration`."""
    try:
        return function(*args, **kwargs)
    except (StopIteration, concurrent.futures.CancelledError) as error:
        raise RuntimeError(f"{function_name(function)} raised {error_text(error)}") from error
    except Exception:
        raise
    except BaseException as error:
        raise ExitError(f"{function_name(function)} raised {error_text(error)}") from error


def function_name(function: Callable[..., Any]) -> str:
    """Without the address of a `repr`, which is another one each time; a model may read it."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
