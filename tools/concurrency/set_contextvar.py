"""`set_contextvar`: a context variable with a value for the length of a block."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import Generic, TypeVar

T = TypeVar("T")


class set_contextvar(AbstractContextManager[None], Generic[T]):
    """Give a context variable a value inside of the block. A class: as a generator it would take five times as long and
    as much memory, and several of these blocks are around each tool call that waits."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)
