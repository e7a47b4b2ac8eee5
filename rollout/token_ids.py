"""`TokenIds`: ids that are known to be ids, so that a context that grows is neither checked nor copied anew at every
turn."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from toolgym.tools.errors import ConfigError


class TokenIds(Sequence[int]):
    """Whole numbers in order, such as a prompt and what followed it, with the least and the greatest of them.

    It is equal to a tuple of the same numbers. The ids that came first are kept apart from those behind them: where a
    context grows, only the latter are copied, and the episodes of a group share the ids of their prompt.

    Attributes:
        least: the least id; 0 where there is none.
        greatest: the greatest id; 0 where there is none.

    Raises:
        ConfigError: one is no whole number.
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        # Plain tuples: the garbage collector does not look into those of numbers, but would look into a subclass.
        self._first = _whole_numbers(ids)
        self._rest: tuple[int, ...] = ()
        self.least, self.greatest = (min(self._first), max(self._first)) if self._first else (0, 0)

    def followed_by(self, ids: Iterable[int]) -> TokenIds:
        """These ids and others behind them. Only those are looked at.

        Raises:
            ConfigError: one is no whole number.
        """
        more = _whole_numbers(ids)
        if not self or not more:
            return TokenIds(more) if more else self
        made = TokenIds()
        made._first, made._rest = self._first, self._rest + more
        made.least, made.greatest = min(self.least, *more), max(self.greatest, *more)
        return made

    def as_tuple(self) -> tuple[int, ...]:
        """The ids as a tuple, made anew at each call where they have grown."""
        return self._first + self._rest

    @cached_property
    def array(self) -> NDArray[np.int32]:
        """The ids as a read-only array, int32 `[tokens]`.

        Raises:
            ConfigError: an id does not fit.
        """
        if not 0 <= self.least <= self.greatest < 2**31:
            raise ConfigError(f"token ids must be from 0 to 2**31 - 1, got {self.least} to {self.greatest}")
        made = np.fromiter(self, np.int32, len(self))
        made.flags.writeable = False
        return made

    def __len__(self) -> int:
        return len(self._first) + len(self._rest)

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

    def __repr__(self) -> str:
        return f"TokenIds({self.as_tuple()!r})"


def _whole_numbers(ids: Iterable[int]) -> tuple[int, ...]:
    """The ids as plain numbers.

    Raises:
        ConfigError: one is no whole number.
    """
    try:
        made = tuple(ids)
        return made if set(map(type, made)) <= {int} else tuple(map(operator.index, made))
    except TypeError as error:
        raise ConfigError(f"token ids must be integers: {error}") from error
