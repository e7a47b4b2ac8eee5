"""`ProcessPool`: calls of functions on hostile text, in processes that are limited and killed."""

from __future__ import annotations

import atexit
import os
import weakref
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

from toolgym.tools.closeable import closed_on_error
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, with_deadline
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.confined.process import WorkProcess
from toolgym.tools.errors import ToolgymError

START_TIMEOUT = 120.0
"""Wall seconds that a process has to import what it needs."""

MEMORY = 4 << 30
"""Default bytes of address space of a process."""

WALL_FACTOR, WALL_MARGIN = 5, 10
"""A call's default wall limit is `WALL_FACTOR` times its CPU limit plus `WALL_MARGIN` seconds. It ends a call that
sleeps, and is so generous that a busy machine does not reach it."""

Reason = Literal["time", "memory", "died"]

_TEXTS = {"time": "the call took too long", "memory": "the call took too much memory", "died": "the call crashed"}


class OverrunError(ToolgymError):
    """A call on hostile text ended its process: the text's doing, for which a scorer pays 0.

    `reason` is `time` or `memory` for the limit that the call reached, or `died` if it crashed the process.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(_TEXTS[reason])
        self.reason = reason

    @property
    def component(self) -> str:
        """The name of a score's component that says why the score is 0."""
        return {"time": "too_slow", "memory": "too_large", "died": "crashed"}[self.reason]


class WorkError(ToolgymError):
    """The function that was called raised an exception, whose type and text are the message."""


class StartError(ToolgymError, OSError):
    """No process can be started: the infrastructure's failure, whatever the text is."""


class ProcessPool:
    """A pool of child processes that call the functions of one Python file, for all event loops of this process.

    It is for work on text that a policy wrote, which may compute without end, fill the memory or crash: parsers of
    formulas, foreign scorers, large comparisons. The processes are started by the path of `child.py`. They inherit no
    module and no secret of the parent, and do not import the user's main module. A process serves many calls, and ends
    when it has been idle for 30 seconds. It is dropped after a call that overran, was cancelled or crashed. The pool
    ends its idle processes when the interpreter ends; a fork of this process starts its own processes.

    Args:
        work: the Python file. Its functions take what can be pickled and return what is JSON. `load()`, if it has one,
            is called when a process starts, to import what takes long.
        name: what the processes do, for errors: "the process that compares answers".
        memory: bytes of address space that each process may have.
        size: the largest number of processes. Defaults to the number of processors.

    Example:
        >>> pool = ProcessPool(Path("work.py"), name="the process that reads formulas")
        >>> pool.memory
        4294967296
    """

    def __init__(self, work: Path, *, name: str, memory: int = MEMORY, size: int | None = None) -> None:
        self.work, self.name, self.memory = work, name, memory
        self._size = size or os.cpu_count() or 1
        self._reset()
        _pools.add(self)

    async def call(self, function: str, *args: Any, cpu_seconds: float, wall_seconds: float | None = None) -> Any:
        """Call a function of the file in a process, and return what it returns.

        While the call waits for a process, deadlines of `with_deadline` stand still.

        Args:
            function: name of the function.
            args: its arguments; they are pickled.
            cpu_seconds: CPU seconds of the process after which the kernel ends it.
            wall_seconds: wall seconds after which the process is killed. Defaults to 5 times `cpu_seconds` and 10 more.

        Raises:
            OverrunError: the call took too long or too much memory, or crashed the process.
            WorkError: the function raised an exception.
            StartError: no process can be started.
        """
        wall = WALL_FACTOR * cpu_seconds + WALL_MARGIN if wall_seconds is None else wall_seconds
        async with self._places.permit():
            while self._idle:
                process = self._idle.pop()
                try:
                    answer = await self._ask(process, function, args, cpu_seconds, wall)
                    break
                except EOFError:  # perhaps it had ended while it was idle
                    if process.overran:
                        raise OverrunError("time") from None
            else:
                process = await self._start()
                try:
                    answer = await self._ask(process, function, args, cpu_seconds, wall)
                except EOFError as error:
                    raise OverrunError("time" if process.overran else "died") from error
            return _value(answer)

    def end_idle(self) -> None:
        """End the processes that no call uses. Blocks until they have ended."""
        while self._idle:
            self._idle.pop().end()

    async def _ask(
        self, process: WorkProcess, function: str, args: tuple[Any, ...], cpu_seconds: float, wall_seconds: float
    ) -> Any:
        async with _ended_on_error(process):  # with half a call it is of no more use
            try:
                answer = await with_deadline(process.ask(function, args, cpu_seconds, wall_seconds), wall_seconds)
            except DeadlineError as error:
                raise OverrunError("time") from error
            if not isinstance(answer, dict) or "memory" in answer:
                raise OverrunError("memory" if isinstance(answer, dict) else "died")
        self._idle.append(process)
        return answer

    async def _start(self) -> WorkProcess:
        try:
            process = WorkProcess(self.work, self.memory)  # here: a thread could be cancelled, and lose it
            async with _ended_on_error(process):
                first = await with_deadline(process.answer(), START_TIMEOUT)
                if not isinstance(first, dict) or "value" not in first:
                    raise EOFError(str(first.get("failed")) if isinstance(first, dict) else "it is not ready")
        except (OSError, EOFError, DeadlineError) as error:
            raise StartError(f"{self.name} cannot be started: {error}") from error
        return process

    def _reset(self) -> None:
        self._places = LocalRateLimiter(self._size)
        self._idle: list[WorkProcess] = []

    def _forget(self) -> None:
        for process in self._idle:
            process.forget()
        self._reset()


def _value(answer: dict[str, Any]) -> Any:
    if "value" not in answer:
        raise WorkError(str(answer.get("raised")))
    return answer["value"]


def _ended_on_error(process: WorkProcess) -> AbstractAsyncContextManager[None]:
    return closed_on_error(lambda: shielded(in_thread(process.end)))


_pools: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in list(_pools):
        pool._forget()


def _end_all() -> None:
    for pool in list(_pools):
        pool.end_idle()


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_end_all)
