"""What an episode does, what it was asked for, and what ends it from outside."""

from __future__ import annotations

import enum

from toolgym.tools.errors import ToolgymError


class Asked(enum.Enum):
    """What a running episode was asked for."""

    CUT = enum.auto()
    SUSPEND = enum.auto()


class State(enum.Enum):
    """What an episode does."""

    NEW = enum.auto()
    RUNS = enum.auto()
    STANDS_STILL = enum.auto()
    OVER = enum.auto()


class StoppedError(ToolgymError):
    """The episode was asked for a `Asked`, and has come to where it may stop."""


class CallersError(ToolgymError):
    """What `between_turns` raised, which is its caller's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error
