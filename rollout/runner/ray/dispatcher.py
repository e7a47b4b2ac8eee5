"""`Dispatcher`: gives jobs to workers, new ones and those whose worker died.

When a worker dies with a job a second time, one of its jobs may be the reason, and nothing says which: each of them is
then played alone by a worker that has nothing else. The one that kills that worker too is the reason, and fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from toolgym.rollout.job import Job

DEATHS_TOGETHER = 2
"""How often a job may lose its worker before it is played alone."""


@dataclass(eq=False)
class PendingJob:
    """A job that is not finished, with a number of its own in the run; `deaths` are those of its workers."""

    number: int
    job: Job
    deaths: int = 0
    alone: bool = False
    cut: bool = False


@dataclass(eq=False)
class WorkerSlots:
    """The jobs of one worker by number, and how many it can take in all. A worker that is `reserved` gets no further
    job but one that is played alone."""

    room: int
    playing: dict[int, PendingJob] = field(default_factory=dict)
    reserved: bool = False

    @property
    def one_job(self) -> bool:
        """Whether it plays one job that must be alone, or is kept for one."""
        return self.reserved or any(entry.alone for entry in self.playing.values())

    @property
    def free(self) -> int:
        """Number of further jobs that it may get."""
        return 0 if self.one_job else self.room - len(self.playing)


class Dispatcher:
    """Gives jobs to workers; the one with the most room gets the next. `suspects` wait for a worker of their own."""

    def __init__(self) -> None:
        self.workers: list[WorkerSlots] = []
        self.waiting: deque[PendingJob] = deque()
        self.suspects: deque[PendingJob] = deque()

    @property
    def wants_more(self) -> bool:
        return not self.waiting and any(slots.free > 0 for slots in self.workers)

    @property
    def open(self) -> int:
        return len(self.waiting) + len(self.suspects) + sum(len(slots.playing) for slots in self.workers)

    def dispatch(self) -> Iterator[tuple[WorkerSlots, PendingJob]]:
        """Give jobs that wait to workers with room, and tell which."""
        for slots in self.workers:
            if self.suspects and not slots.playing:
                entry = self.suspects.popleft()
                entry.alone, slots.reserved = True, False
                slots.playing[entry.number] = entry
                yield slots, entry
        self._reserve()
        while self.waiting:
            roomiest = max(self.workers, key=lambda slots: slots.free, default=None)
            if roomiest is None or roomiest.free <= 0:
                return
            entry = self.waiting.popleft()
            roomiest.playing[entry.number] = entry
            yield roomiest, entry

    def worker_died(self, slots: WorkerSlots) -> list[PendingJob]:
        """Take a worker away that died. Its jobs wait again, before new ones; those are returned that were played alone
        there, and so are the reason: they are played no more."""
        self.workers.remove(slots)
        lost = list(slots.playing.values())
        for entry in lost:
            entry.deaths += 1
        again = [entry for entry in lost if entry.deaths < DEATHS_TOGETHER and not entry.alone]
        self.waiting.extendleft(reversed(again))
        self.suspects.extend(entry for entry in lost if entry.deaths >= DEATHS_TOGETHER and not entry.alone)
        self._reserve()
        return [entry for entry in lost if entry.alone]

    def _reserve(self) -> None:
        """Let one worker become idle while jobs wait for one; none is kept idle otherwise."""
        if not self.suspects:
            for slots in self.workers:
                slots.reserved = False
        elif self.workers and not any(slots.one_job for slots in self.workers):
            min(self.workers, key=lambda slots: len(slots.playing)).reserved = True
