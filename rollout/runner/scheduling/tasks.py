from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sized
from typing import Any

from toolgym.envs.tasks.task import Task
from toolgym.tools.concurrency.deadline import SelfCancelledError
from toolgym.tools.errors import ConfigError, error_text, shorten

Tasks = Iterable[Task] | AsyncIterable[Task]
"""The tasks of a run: a list, a generator that may have no end, an async generator."""

CLOSE_TIMEOUT = 10.0

_END = object()

_log = logging.getLogger("toolgym.rollout")


class TaskFeed:
    """Draws tasks when they are asked for, and none ahead; `size` is None if nothing says how many there are. One
    asyncio task draws all items of an async iterable, so it may hold a timeout or a task group across them."""

    def __init__(self, tasks: Tasks) -> None:
        items: Any = tasks
        if isinstance(items, str | bytes | Mapping | Task) or not isinstance(items, Iterable | AsyncIterable):
            raise ConfigError(
                "tasks must be toolgym Tasks in a list, or in anything else to iterate over (`source.take(8)` gives a "
                f"list), got {shorten(repr(items))}"
            )
        if isinstance(items, list | tuple):
            for number, task in enumerate(items):
                _require_task(task, number)
        self.over = False
        self.size = len(items) if isinstance(items, Sized) else None
        self._drawn = 0
        self._items: Iterator[Any] | _Drawer = iter(items) if isinstance(items, Iterable) else _Drawer(aiter(items))

    async def next(self, news: asyncio.Event) -> Task | None:
        """The next task; None if there is none any more (then `over` is true), or `news` was set first."""
        if self.over:
            return None
        if isinstance(self._items, _Drawer):
            if not await self._items.ready(news):
                return None
            task = self._items.take()
        else:
            task = next(self._items, _END)
        if task is _END:
            self.over = True
            return None
        self._drawn += 1
        return _require_task(task, self._drawn - 1)

    def take_drawn(self) -> Task | None:
        """The task that an async iterable has given and that nothing has taken, if there is one."""
        if not isinstance(self._items, _Drawer) or (task := self._items.drawn()) is _END:
            return None
        return _require_task(task, self._drawn)

    async def close(self) -> None:
        self.over = True
        if isinstance(self._items, _Drawer):
            await self._items.close()


class _Drawer:
    """Draws from an async iterator, in an asyncio task of its own."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items
        self._drawing: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        self._drawn: asyncio.Future[Any] | None = None
        self._closing = False

    async def ready(self, news: asyncio.Event) -> bool:
        """Wait until `take` has an item, or the end of all; False: `news` was set before that."""
        if self._drawn is None:
            self._drawn = asyncio.get_running_loop().create_future()
            self._asked.set()
        if self._drawing is None:
            self._drawing = asyncio.create_task(self._draw(), name="toolgym tasks of a run")
        elif self._drawing.done() and not self._drawn.done():
            self._drawn.set_exception(SelfCancelledError("what draws the tasks of the run was cancelled from outside"))
        hearing = asyncio.create_task(news.wait())
        try:
            await asyncio.wait({self._drawn, hearing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hearing.cancel()
        return self._drawn.done()

    def take(self) -> Any:
        assert self._drawn is not None
        drawn, self._drawn = self._drawn, None
        return drawn.result()

    def drawn(self) -> Any:
        """The item that was drawn and not taken, if there is one; else `_END`."""
        if self._drawn is None or not self._drawn.done() or self._drawn.exception() is not None:
            return _END
        return self.take()

    async def close(self) -> None:
        self._closing = True
        drawing = self._drawing or asyncio.create_task(self._close())
        if self._drawing is not None:
            drawing.cancel()
        done, _ = await asyncio.wait({drawing}, timeout=CLOSE_TIMEOUT + 1.0)
        if not done:
            _log.warning("the async iterable of tasks ignores that it was cancelled, and was left behind")

    async def _draw(self) -> None:
        try:
            await self._asked.wait()
            async for item in self._items:
                self._asked.clear()
                self._give(item)
                await self._asked.wait()
            self._give(_END)
        except Exception as error:  # noqa: BLE001  raised where the item is taken
            assert self._drawn is not None
            self._drawn.set_exception(
                RuntimeError(f"the iterable of tasks raised {error!r}") if isinstance(error, StopIteration) else error
            )
        except asyncio.CancelledError:
            if self._closing or self._drawn is None or self._drawn.done():
                raise
            self._drawn.set_exception(SelfCancelledError("the async iterable of tasks was cancelled from within"))
        finally:
            await self._close()

    def _give(self, item: Any) -> None:
        assert self._drawn is not None
        self._drawn.set_result(item)

    async def _close(self) -> None:
        close = getattr(self._items, "aclose", None)
        if close is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await close()
        except Exception as error:  # noqa: BLE001  the run's results are whole
            _log.warning("closing the async iterable of tasks failed: %s", error_text(error))


def _require_task(task: object, number: int) -> Task:
    if not isinstance(task, Task):
        raise ConfigError(f"tasks must hold toolgym Tasks (see `Task.from_row`), got {shorten(repr(task))} at {number}")
    return task
