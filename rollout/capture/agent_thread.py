"""`AgentThread`: one agent in a thread of its own, so that an agent that blocks stops nothing but itself."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from toolgym.tools.concurrency.blocking import DaemonThread, contained, function_name
from toolgym.tools.concurrency.deadline import CANCEL_GRACE, log_overrun
from toolgym.tools.concurrency.eager_task import awaited


class AgentThread:
    """Calls a function in a new thread, with the caller's context variables. A coroutine that the function returns is
    run there too, on an event loop of the thread.

    The thread is a daemon. A blocking function cannot be stopped: `stop` leaves it behind.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._name = call, function_name(call)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._ended: Future[None] | None = None

    async def result(self) -> Any:
        """Start the thread, and return the function's result. Cancelling this call leaves the thread to `stop`. Raises
        what the function raises, `ExitError` for `sys.exit` and the like, and `NoThreadError`."""
        thread = DaemonThread("toolgym-agent")
        outcome: Future[Any] = Future()
        self._ended = thread.submit(contextvars.copy_context().run, self._serve, outcome)
        thread.shutdown(wait=False)
        return await asyncio.wrap_future(outcome)

    async def stop(self, grace: float = CANCEL_GRACE) -> bool:
        """Cancel a coroutine, and wait for the end of the thread. Returns False, and logs it, if the thread still runs
        after `grace` seconds."""
        if self._ended is None or self._ended.done():
            return True
        self._cancelled = True
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.wrap_future(self._ended)
        if not self._ended.done():
            log_overrun(self._name, f"the agent {self._name}, whose thread blocks")
        return self._ended.done()

    # ------------------------------------------------------------------ in the thread

    def _serve(self, outcome: Future[Any]) -> None:
        try:
            value = contained(self._call, (), {})
            if inspect.isawaitable(value):
                with asyncio.Runner() as runner:
                    # The result is set before the runner waits for tasks and threads that the agent left behind.
                    outcome.set_result(contained(runner.run, (self._awaited(value),), {}))
            else:
                outcome.set_result(value)
        except BaseException as error:  # noqa: BLE001  the caller gets it, unless it was cancelled
            if not outcome.done():
                outcome.set_exception(error)

    async def _awaited(self, value: Any) -> Any:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._cancelled:
            value.close()
            raise asyncio.CancelledError
        return await awaited(value)
