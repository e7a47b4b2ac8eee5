"""`Sink`: what gets a copy of each trajectory of a run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from toolgym.rollout.trajectory import Trajectory


@runtime_checkable
class Sink(Protocol):
    """Gets each trajectory of a run as it finishes, before the run's consumer does; `TrajectoryWriter` is one.

    A sink stays its maker's to close.
    """

    def write(self, trajectory: Trajectory) -> None:
        """Take one trajectory. This runs on the event loop, so it must not block for long.

        Raises:
            Exception: an error of any kind ends the run: the episodes that run are played to their end and reach all
                sinks and the consumer, who then gets the error.
        """
