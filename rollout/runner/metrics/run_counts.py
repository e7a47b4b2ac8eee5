from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass
class RunCounts:
    """Numbers of one run, which grow while it runs.

    Attributes:
        groups_begun: tasks that were drawn, without the groups that an earlier run carried over.
        groups_kept: whole groups that the consumer got.
        groups_filtered: whole groups that the plan's filter dropped.
        groups_cut: groups that had not ended when the run had enough: dropped, or kept as far as they got.
        groups_carried: groups that a later run goes on with.
        episodes_dropped: episodes whose trajectory no consumer gets: ended or cut, beyond what their group needed.
        episodes_cut: running episodes that were asked to end or to stand still.
        refills: episodes that the infrastructure broke off, and that were sampled again.
    """

    groups_begun: int = 0
    groups_kept: int = 0
    groups_filtered: int = 0
    groups_cut: int = 0
    groups_carried: int = 0
    episodes_dropped: int = 0
    episodes_cut: int = 0
    refills: int = 0

    def to_dict(self) -> dict[str, float]:
        """The numbers for a trainer's logger, as `run/NAME`."""
        return {f"run/{name}": float(value) for name, value in dataclasses.asdict(self).items()}

    def __str__(self) -> str:
        counts = {name.replace("_", " "): value for name, value in dataclasses.asdict(self).items() if value}
        return ", ".join(f"{name}: {value}" for name, value in counts.items()) or "nothing"
