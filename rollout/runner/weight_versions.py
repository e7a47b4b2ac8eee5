from __future__ import annotations

from toolgym.rollout.engines.base import checked_version
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, EngineError


class WeightVersions:
    """The versions of the weights in the order in which they were published. Names say nothing of the order."""

    def __init__(self, first: str) -> None:
        self._numbers = {first: 0}
        self.newest = first

    def __len__(self) -> int:
        return len(self._numbers)

    def require_new(self, version: str) -> None:
        if checked_version(version) in self._numbers:
            raise ConfigError(
                f"weight version {version!r} was published before, the newest is {self.newest!r}: give each update a "
                "name of its own, such as the number of the training step"
            )

    def publish(self, version: str) -> None:
        self.require_new(version)
        self._numbers[version] = len(self._numbers)
        self.newest = version

    def staleness(self, trajectory: Trajectory) -> int:
        """Versions between the newest one and the oldest that sampled a token of the trajectory; 0 if there is no such
        token."""
        return max(self.ages(trajectory), default=0)

    def age(self, version: str) -> int:
        """Versions between the newest one and this one."""
        return len(self._numbers) - 1 - self._numbers[version]

    def ages(self, trajectory: Trajectory) -> set[int]:
        """The ages of the versions that sampled a token of the trajectory."""
        used = {
            version
            for sequence in trajectory.sequences
            for segment in sequence.segments
            for version, _ in segment.version_runs
        }
        for version in used:
            if version not in self._numbers:
                raise EngineError(
                    f"trajectory {trajectory.id} has tokens of weight version {version!r}, which was not published, so "
                    f"its age is unknown; published are {', '.join(map(repr, list(self._numbers)[-5:]))}: change the "
                    "weights through the queue"
                )
        return set(map(self.age, used))
