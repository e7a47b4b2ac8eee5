"""Which of a trajectory's messages are the policy's turns."""

from __future__ import annotations

from toolgym.rollout.trajectory.trajectory import Trajectory


def turn_places(trajectory: Trajectory) -> list[int]:
    """Places of the turns' messages in `trajectory.messages`, one for each turn; empty where not all are there."""
    places = [place for place, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
    count = len(trajectory.turns)
    return places[-count:] if 0 < count <= len(places) else []
