from __future__ import annotations

import time
from typing import NamedTuple

from toolgym.rollout.episode.observer import Phase
from toolgym.rollout.job import Job


class Wait(NamedTuple):
    """Episodes that wait for the same thing; `longest` are the seconds that the first one has waited."""

    phase: Phase
    what: str
    episodes: int
    longest: float


class Waiting:
    """The phase of each running episode. A change takes the same time however many there are."""

    def __init__(self) -> None:
        self._place: dict[int, tuple[Job, tuple[Phase, str]]] = {}  # the job too, so that its id stays its own
        self._since: dict[tuple[Phase, str], dict[int, float]] = {}  # in the order of coming: the first waits longest

    def __len__(self) -> int:
        return len(self._place)

    def enter(self, job: Job, phase: Phase, what: str = "") -> None:
        self.leave(job)
        place = (phase, what)
        self._place[id(job)] = (job, place)
        self._since.setdefault(place, {})[id(job)] = time.monotonic()

    def leave(self, job: Job) -> None:
        """An episode is over. One that is not known is fine."""
        known = self._place.pop(id(job), None)
        if known is not None:
            since = self._since[known[1]]
            del since[id(job)]
            if not since:
                del self._since[known[1]]

    def __contains__(self, job: Job) -> bool:
        return id(job) in self._place

    def end_run(self) -> None:
        """No episode runs any more, those included that were cancelled; those that stand still may go on in another
        run."""
        for job, (phase, _) in list(self._place.values()):
            if phase is not Phase.SUSPENDED:
                self.leave(job)

    def phases(self) -> dict[Phase, int]:
        """Return the number of episodes in each phase that has some. Any thread may ask."""
        counts: dict[Phase, int] = {}
        for (phase, _), since in list(self._since.items()):
            counts[phase] = counts.get(phase, 0) + len(since)
        return counts

    def waits(self) -> list[Wait]:
        """Return the waits, the longest first."""
        now = time.monotonic()
        waits = [
            Wait(*place, len(since), now - next(iter(since.values()))) for place, since in list(self._since.items())
        ]
        return sorted(waits, key=lambda wait: wait.longest, reverse=True)
