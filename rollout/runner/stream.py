from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class BoundedStream(Generic[T]):
    """A queue from many producers, which wait while it is full, to one consumer, which iterates over it with `async
    for`."""

    def __init__(self, room: int) -> None:
        self._items: deque[T] = deque()
        self._room = asyncio.Semaphore(room)
        self._sending = asyncio.Lock()
        self._news = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None

    async def send(self, item: T) -> None:
        """Hand an item to the consumer; wait for room. Behind `end`, items are dropped."""
        if not self._ended:
            await self._room.acquire()
        if self._ended:
            self._room.release()
            return
        self._items.append(item)
        self._news.set()

    async def send_all(self, items: Sequence[T], is_over: Callable[[], bool]) -> None:
        """Send items with none of another call's between them; then end the stream, if it is over."""
        if not items and not is_over():
            return
        async with self._sending:
            for item in items:
                await self.send(item)
            if is_over():
                self.end()

    async def room(self) -> None:
        if not self._ended:
            await self._room.acquire()
            self._room.release()

    def end(self, error: BaseException | None = None) -> None:
        """End the stream: the consumer gets the items that wait, then `error`, if any. Only the first call counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        self._room.release()
        return self._items.popleft()
