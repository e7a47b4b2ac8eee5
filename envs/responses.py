"""Return values of `ToolEnv.respond`: `End`, or `Continue`."""

from __future__ import annotations

from typing import NamedTuple

from toolgym.envs.types import StopReason
from toolgym.tools.message import Message


class End(NamedTuple):
    """Returned by `ToolEnv.respond` to end the episode.

    Attributes:
        stop_reason: why. The scorer sees it.
        reward: added to the reward of the step, besides the score.
    """

    stop_reason: StopReason = StopReason.ANSWERED
    reward: float = 0.0


class Continue(NamedTuple):
    """Returned by `ToolEnv.respond` to go on.

    Attributes:
        messages: what the policy reads next; at least one.
        reward: the reward of the turn.
    """

    messages: list[Message]
    reward: float = 0.0
