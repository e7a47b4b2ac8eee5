"""`TokenIds`: checked ids, so that a context that grows is neither checked nor copied again at every turn."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from toolgym.tools.errors import ConfigError


class TokenIds(Sequence[int]):
    """Whole numbers in order, equal to a tuple of the same numbers, with the `least` and the `greatest`, 0 if there is
    none. When a context grows, only the ids behind the first ones are copied, and the episodes of a group share those
    of their prompt. Raises `ConfigError` if one is no whole number."""

    __slots__ = ("_array", "_first", "_rest", "_size", "greatest", "least")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        # Plain tuples: the garbage collector does not look into those of numbers, but would look into a subclass.
        self._rest: tuple[int, ...] = ()
        array = _whole_numbers(ids)
        self._size = len(array)
        if self._size:
            self.least, self.greatest = int(array.min()), int(array.max())
        else:
            self.least = self.greatest = 0
        if 0 <= self.least <= self.greatest < 2**31:
            self._first = _plain(array, self.greatest)
            self._array: NDArray[np.int32] | None = _read_only(array.astype(np.int32))
        else:
            self._array = None
            self._first = tuple(array.tolist())

    def followed_by(self, ids: Iterable[int]) -> TokenIds:
        """These ids and others behind them; only those are checked."""
        more = ids if isinstance(ids, TokenIds) else TokenIds(ids)
        if not self._size or not more._size:
            return more if more._size else self
        copy = object.__new__(TokenIds)
        copy._array = None
        copy._first, copy._rest = self._first, self._rest + more.as_tuple()
        copy._size = self._size + more._size
        copy.least = self.least if self.least < more.least else more.least
        copy.greatest = self.greatest if self.greatest > more.greatest else more.greatest
        return copy

    def as_tuple(self) -> tuple[int, ...]:
        """The ids as a tuple, joined again at each call if they have grown."""
        return self._first + self._rest

    def begins_with(self, other: TokenIds) -> bool:
        if self._first is other._first:  # of one conversation: no need to join
            return self._rest[: len(other._rest)] == other._rest
        return self[: len(other)] == other.as_tuple()

    @property
    def array(self) -> NDArray[np.int32]:
        """The ids as a read-only array, int32 `[tokens]`. Raises `ConfigError` if an id does not fit."""
        if self._array is None:
            if not 0 <= self.least <= self.greatest < 2**31:
                raise ConfigError(f"token ids must be from 0 to 2**31 - 1, got {self.least} to {self.greatest}")
            self._array = _read_only(np.fromiter(self, np.int32, self._size))
        return self._array

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return iter(self.as_tuple())

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...

    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        before = len(self._first)
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step == 1 and start >= before:  # the present turn: no need to join all
                return self._rest[start - before : max(start, stop) - before]
        elif -len(self._rest) <= at < 0:
            return self._rest[at]
        return self.as_tuple()[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self.as_tuple() == other.as_tuple()
        return self.as_tuple() == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.as_tuple())

    def __reduce__(self) -> tuple[type[TokenIds], tuple[tuple[int, ...]]]:
        return TokenIds, (self.as_tuple(),)

    def __repr__(self) -> str:
        return f"TokenIds({self.as_tuple()!r})"


def _whole_numbers(ids: Iterable[int]) -> NDArray[Any]:
    """The ids as an array `[tokens]`; NumPy checks them in half of the time that Python needs."""
    try:
        values = ids if isinstance(ids, np.ndarray) else tuple(ids)
        array = np.asarray(values)
        if array.ndim == 1 and array.dtype.kind in "iu":
            return array
        return np.array([*map(operator.index, values)], dtype=object)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"token ids must be integers: {error}") from error


_numbers: NDArray[Any] = np.arange(2**10).astype(object)

_MOST_NUMBERS = 2**20


def _plain(array: NDArray[Any], greatest: int) -> tuple[int, ...]:
    """Whole numbers as a tuple in which equal ones are the same object: else each id would take 32 bytes more."""
    global _numbers
    if greatest >= _MOST_NUMBERS:
        return tuple(array.tolist())
    numbers = _numbers
    if greatest >= len(numbers):
        numbers = np.arange(1 << greatest.bit_length()).astype(object)
        if len(numbers) > len(_numbers):
            _numbers = numbers
    return tuple(numbers[array.astype(np.intp, copy=False)].tolist())


def _read_only(array: NDArray[np.int32]) -> NDArray[np.int32]:
    array.flags.writeable = False
    return array


def is_control(token: Any) -> bool:
    """Whether an added token is one that a text is always cut at, and not a word of letters, or white space."""
    core = token.content.replace("\u2581", "").strip()  # sentencepiece's sign for a space
    return bool(core) and (token.special or not core.isalnum())
