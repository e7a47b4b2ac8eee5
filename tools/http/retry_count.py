"""Count of the requests of a call that are sent again."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar, Token


class RetryCount:
    """Counts within one call.

    Attributes:
        retries: requests that were sent again so far.
    """

    __slots__ = ("retries",)

    def __init__(self) -> None:
        self.retries = 0


_count: ContextVar[RetryCount | None] = ContextVar("toolgym_retry_count", default=None)


class counted_retries(AbstractContextManager[RetryCount]):
    """Count the retries of the block, and of the tasks that begin in it. A class, as `set_contextvar` is."""

    __slots__ = ("_token",)

    def __enter__(self) -> RetryCount:
        count = RetryCount()
        self._token: Token[RetryCount | None] = _count.set(count)
        return count

    def __exit__(self, *_: object) -> None:
        _count.reset(self._token)


def count_retry() -> None:
    """A request is sent again; where a call is counted, it counts."""
    count = _count.get()
    if count is not None:
        count.retries += 1
