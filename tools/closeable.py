"""`AsyncCloseable`: `async with` for what has an async `close`; `closed_on_error` for what outlives its block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self


class AsyncCloseable(ABC):
    @abstractmethod
    async def close(self) -> None:
        """Free everything. Closing twice is fine."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


@asynccontextmanager
async def closed_on_error(close: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        await close()
        raise
