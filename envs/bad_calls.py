"""`BadCallPolicy`: the cost of malformed tool calls."""

from __future__ import annotations

import math
from dataclasses import dataclass

from toolgym.tools.errors import ConfigError
from toolgym.tools.keywords import named_fields
from toolgym.tools.schema import CallProblem


@named_fields
@dataclass(frozen=True)
class BadCallPolicy:
    """The cost of malformed tool calls, besides the turn that each took.

    The model always reads what was wrong. Malformed is what has a `CallProblem`: text that cannot be read as a call, a
    call inside of thinking, an unknown tool, wrong arguments, or a call beyond the limit of one turn. A call that a
    tool ran is never malformed, however it ended.

    Example:
        >>> BadCallPolicy(penalty=0.1, max_penalty=0.5).reward(10)  # each costs 0.1, an episode at most 0.5
        -0.5

    Attributes:
        penalty: taken from the reward of the step for each malformed call; at least 0.
        max_penalty: the most that is taken in one episode. None: no limit.
        stop_after: this many malformed calls end the episode; at least 1. None: any number may happen.
        counts: the kinds that cost anything. All by default.
    """

    penalty: float = 0.0
    max_penalty: float | None = None
    stop_after: int | None = None
    counts: frozenset[CallProblem] = frozenset(CallProblem)

    def __post_init__(self) -> None:
        if not (isinstance(self.penalty, int | float) and math.isfinite(self.penalty) and self.penalty >= 0):
            raise ConfigError(f"penalty must be a number of at least 0, got {self.penalty!r}")
        if self.max_penalty is not None and not (isinstance(self.max_penalty, int | float) and self.max_penalty >= 0):
            raise ConfigError(f"max_penalty must be None or at least 0, got {self.max_penalty!r}")
        if self.stop_after is not None and not (isinstance(self.stop_after, int) and self.stop_after >= 1):
            raise ConfigError(f"stop_after must be None or at least 1, got {self.stop_after!r}")
        try:
            object.__setattr__(self, "counts", frozenset(map(CallProblem, self.counts)))
        except (TypeError, ValueError) as error:
            known = ", ".join(CallProblem)
            raise ConfigError(f"counts must name kinds of malformed calls: {error}. Known: {known}") from error

    def reward(self, bad_calls: int) -> float:
        """The cost of this many malformed calls in an episode: 0 or less."""
        cost = self.penalty * bad_calls
        return -min(cost, cost if self.max_penalty is None else self.max_penalty)

    def ends(self, bad_calls: int) -> bool:
        """Whether this many malformed calls end the episode."""
        return self.stop_after is not None and bad_calls >= self.stop_after
