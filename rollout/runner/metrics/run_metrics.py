from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.job import Job
from toolgym.rollout.runner.metrics.counts import EventCounts, RunClock
from toolgym.rollout.runner.metrics.figures import figures
from toolgym.tools.concurrency.loop_watch import Lag, LoopWatch, watch_loop
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from toolgym.rollout.engines.base import Generation, SamplingParams
    from toolgym.rollout.models.token_ids import TokenIds
    from toolgym.rollout.tokens.conversation import Conversation
    from toolgym.rollout.trajectory.trajectory import Trajectory, Turn


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


class RunMetrics(EpisodeObserver):
    """Counts what the episodes of one run, or of several, do: per tool, per env, and of the engine and this process.

    Give it to a runner as an observer. If episodes are played in other processes, give it as a sink: then it counts
    each trajectory when it arrives, and knows nothing of the requests in between. An event takes some microseconds;
    `docs/metrics.md` lists the figures. `MetricsServer` serves them to Prometheus.

    Example:
        >>> import asyncio
        >>> from toolgym.envs import ArithmeticTasks
        >>> from toolgym.rollout import RunConfig, Runner, RunMetrics, open_engine
        >>> async def main(metrics):
        ...     async with open_engine("tiny") as engine:
        ...         runner = Runner("CodeInterpreter-v0", engine, observers=[metrics], config=RunConfig(seed=0))
        ...         await runner.run(ArithmeticTasks().take(2))
        ...     return metrics.metrics()
        >>> figures = asyncio.run(main(RunMetrics()))
        >>> figures["rollout/episodes/finished"], figures["rollout/engine/prefix_drift"]
        (2.0, 0.0)
    """

    def __init__(self) -> None:
        self._waiting = Waiting()
        self._playing: dict[int, _Played] = {}
        self._runs = 0
        self._observes = False
        self._watching = contextlib.ExitStack()
        self._watch: LoopWatch | None = None
        self.reset()

    # ------------------------------------------------------------------ what is read

    def metrics(self, prefix: str = "rollout/") -> dict[str, float]:
        """The figures since the last `reset`, as a trainer's logger takes them, each with `prefix`. What has no value
        yet, such as the mean of no rewards, is left out."""
        running = len(self._playing) if self._observes else None
        return figures(self.counts, self.clock, self.running, running=running, lag=self.lag, prefix=prefix)

    def reset(self) -> None:
        """Begin again with every figure. Episodes that run go on; turns that they had before no longer count."""
        self.counts = EventCounts()
        self.clock = RunClock(running=self._runs > 0)

    @property
    def lag(self) -> Lag | None:
        """Lateness of the event loop in the present run, or in the last one; None before the first."""
        return None if self._watch is None else self._watch.lag()

    @property
    def running(self) -> dict[Phase, int]:
        return self._waiting.phases()

    @property
    def waiting(self) -> list[Wait]:
        return self._waiting.waits()

    # ------------------------------------------------------------------ what is heard

    def run_began(self) -> None:
        self._runs += 1
        self._observes = True
        if self._runs == 1:
            self.clock.start()
            self._watch = self._watching.enter_context(watch_loop())

    def run_ended(self) -> None:
        self._runs -= 1
        if not self._runs:
            self.clock.stop()
            self._watching.close()
            self._waiting.end_run()
            self._playing = {key: played for key, played in self._playing.items() if played.job in self._waiting}

    def began(self, job: Job) -> None:
        self._observes = True
        self._playing[id(job)] = _Played(job)

    def waits(self, job: Job, phase: Phase, what: str = "") -> None:
        self._waiting.enter(job, phase, what)

    def asked(self, job: Job, prompt_ids: TokenIds, params: SamplingParams) -> None:
        played, counts = self._playing[id(job)], self.counts
        counts.requests += 1
        before = played.prompt_ids
        if before is not None:
            end = len(before) + len(played.generated)
            if not prompt_ids.begins_with(before) or tuple(prompt_ids[len(before) : end]) != played.generated:
                counts.drifted += 1
        played.prompt_ids, played.generated = prompt_ids, ()

    def generated(self, job: Job, generation: Generation) -> None:
        self._playing[id(job)].generated = tuple(generation.token_ids)

    def turned(self, job: Job, turn: Turn, conversation: Conversation) -> None:
        played = self._playing[id(job)]
        self.counts.add_turn(turn)
        played.turns += 1
        if conversation.number != turn.sequence:  # a new sequence has begun, which owes the one before nothing
            self.counts.rewritten += 1
            played.prompt_ids = None

    def ended(self, job: Job, trajectory: Trajectory) -> None:
        self._waiting.leave(job)
        played = self._playing.pop(id(job), None)  # an episode without an env never began
        self._count(trajectory, trajectory.turns[played.turns if played is not None else 0 :])

    def write(self, trajectory: Trajectory) -> None:
        """Count a trajectory that was played elsewhere; this makes the object a sink.

        Raises:
            ConfigError: it is an observer as well, so that episodes would count twice.
        """
        if self._observes:
            raise ConfigError("a RunMetrics is given to a runner as an observer or as a sink, not as both")
        self._count(trajectory, trajectory.turns[trajectory.branch_turn or 0 :])

    def _count(self, trajectory: Trajectory, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self.counts.add_turn(turn)
        self.counts.add_episode(trajectory)


class _Played:
    """An episode that runs, with its job, so that `id(job)` stays its own, and its last request of the present
    sequence."""

    __slots__ = ("generated", "job", "prompt_ids", "turns")

    def __init__(self, job: Job) -> None:
        self.job, self.turns = job, job.branch_turn or 0  # a branch's earlier turns are its parent's
        self.prompt_ids: TokenIds | None = None
        self.generated: tuple[int, ...] = ()
