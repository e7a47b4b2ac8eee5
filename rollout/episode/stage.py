from __future__ import annotations

import enum

from toolgym.envs.types import StopReason


class Stage(enum.Enum):
    """A place in the life of an episode, whether it runs or stands still."""

    NEW = enum.auto()
    """Before the end of `reset`."""
    BETWEEN = enum.auto()
    """A turn and its observation are in the conversation, or the first prompt, and the next turn has not begun."""
    SAMPLING = enum.auto()
    STEPPING = enum.auto()
    """The turn is over, and its observation is not in the conversation yet."""
    SCORING = enum.auto()
    """A limit ended the episode, and the env scores it."""
    OVER = enum.auto()

    @property
    def failure(self) -> StopReason:
        """The end of the episode if something unforeseen breaks now."""
        return _FAILURES.get(self, StopReason.ENV_FAILED)


_FAILURES = {
    Stage.NEW: StopReason.RESET_FAILED,
    Stage.BETWEEN: StopReason.ENGINE_FAILED,
    Stage.SAMPLING: StopReason.ENGINE_FAILED,
}


class Asked(enum.Enum):
    """A request to a running episode."""

    CUT = enum.auto()
    SUSPEND = enum.auto()
