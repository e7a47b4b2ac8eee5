"""`Sink`: what gets a copy of each trajectory of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError


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


def checked_sinks(sinks: Sequence[Sink]) -> tuple[Sink, ...]:
    """The sinks of a runner.

    Raises:
        ConfigError: they are not in a list, or one of them is no sink.
    """
    if not isinstance(sinks, Sequence):
        raise ConfigError(f"sinks must be a list of sinks, got {sinks!r}")
    for sink in sinks:
        if not isinstance(sink, Sink):
            raise ConfigError(f"a sink must have a method `write(trajectory)`, got {sink!r}")
    return tuple(sinks)


def write_to_all(sinks: Sequence[Sink], trajectory: Trajectory, on_error: Callable[[Exception], None]) -> None:
    """Write a trajectory to all sinks. What one raises goes to `on_error`, and the others get it all the same."""
    for sink in sinks:
        try:
            sink.write(trajectory)
        except Exception as error:  # noqa: BLE001  the run raises it when the episodes that run have finished
            on_error(error)
