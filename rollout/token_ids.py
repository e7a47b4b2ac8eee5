"""`TokenIds`: ids that are known to be ids, so that a context that grows is not checked anew at every turn."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from toolgym.tools.errors import ConfigError


class TokenIds(tuple[int, ...]):
    """A tuple of whole numbers that knows its least and its greatest one.

    Attributes:
        least: the least id; 0 where there is none.
        greatest: the greatest id; 0 where there is none.

    Raises:
        ConfigError: one is no whole number.
    """

    least: int
    greatest: int

    def __new__(cls, ids: Iterable[int] = ()) -> Self:
        try:
            made = super().__new__(cls, map(operator.index, ids))
        except TypeError as error:
            raise ConfigError(f"token ids must be integers: {error}") from error
        made.least, made.greatest = (min(made), max(made)) if made else (0, 0)
        return made

    def followed_by(self, ids: Iterable[int]) -> TokenIds:
        """These ids and others behind them. Only those are looked at.

        Raises:
            ConfigError: one is no whole number.
        """
        more = TokenIds(ids)
        if not self or not more:
            return more or self
        made: TokenIds = tuple.__new__(TokenIds, self + more)
        made.least, made.greatest = min(self.least, more.least), max(self.greatest, more.greatest)
        return made

    @cached_property
    def array(self) -> NDArray[np.int32]:
        """The ids as a read-only array, int32 `[tokens]`.

        Raises:
            ConfigError: an id does not fit.
        """
        if not 0 <= self.least <= self.greatest < 2**31:
            raise ConfigError(f"token ids must be from 0 to 2**31 - 1, got {self.least} to {self.greatest}")
        made = np.array(self, dtype=np.int32)
        made.flags.writeable = False
        return made
