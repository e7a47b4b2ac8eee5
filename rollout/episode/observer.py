"""`EpisodeObserver`: what hears of an episode while it is played, for progress, metrics and journals."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolgym.rollout.job import Job
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from toolgym.rollout.engines.base import Generation, SamplingParams
    from toolgym.rollout.models.token_ids import TokenIds
    from toolgym.rollout.tokens.conversation import Conversation
    from toolgym.rollout.trajectory.trajectory import Trajectory, Turn


class Phase(enum.StrEnum):
    """The thing that an episode waits for."""

    RESET = "reset"
    """The env's `reset`."""
    ENGINE = "engine"
    """A turn of the policy."""
    ENV = "env"
    """The env's `step`: its tools, or its scorer."""
    CONTEXT = "context"
    """The chat template and the context policies."""
    FORK = "fork"
    """The env's `fork`: the episode branches."""
    SUSPENDED = "suspended"
    """Nothing: it stands still until it is run again."""


class EpisodeObserver:
    """Hears of the episodes of a run, on its event loop. Each method does nothing here, and must not block.

    What a method raises ends the run with that error, as an error in a sink does: the episodes that run are played to
    their end. From `run_began` it comes before anything is played.
    """

    def run_began(self) -> None:
        """A run begins: a call of `Runner.stream`. Its episodes follow. Several runs may go on at the same time."""

    def run_ended(self) -> None:
        """A run is over, however it ended: none of its episodes is played any more."""

    def began(self, job: Job) -> None:
        """An episode begins. Followed by `waits(RESET)`, unless it is stopped before; for a branch (`job.parent`) by
        `waits` of its first turn."""

    def waits(self, job: Job, phase: Phase, what: str = "") -> None:
        """An episode enters a phase.

        Args:
            job: the episode's.
            phase: what it waits for from now on.
            what: more about it: in `Phase.ENV` the names of the tools that the turn calls, with commas between.
        """

    def asked(self, job: Job, prompt_ids: TokenIds, params: SamplingParams) -> None:
        """A request goes to the engine: a turn, or a further part of one that was aborted.

        Args:
            job: the episode's.
            prompt_ids: the ids that the engine gets, all of them.
            params: how it is to sample.
        """

    def generated(self, job: Job, generation: Generation) -> None:
        """The engine has answered the request, and its answer is in order. A request that fails has no such call."""

    def turned(self, job: Job, turn: Turn, conversation: Conversation) -> None:
        """A turn is over and its observation is in the conversation: the next call of the engine is that of the next
        turn. The last turn of an episode is followed by `ended` only."""

    def ended(self, job: Job, trajectory: Trajectory) -> None:
        """An episode is over. A cancelled one ends without this call, and so does one that stays suspended. One whose
        env could not be made has no other call."""


def checked_observers(observers: Sequence[EpisodeObserver]) -> tuple[EpisodeObserver, ...]:
    """Return the observers of a runner.

    Raises:
        ConfigError: they are not in a list, or one of them is no observer.
    """
    if not isinstance(observers, Sequence):
        raise ConfigError(f"observers must be a list of observers, got {observers!r}")
    for observer in observers:
        if not isinstance(observer, EpisodeObserver):
            raise ConfigError(f"an observer must be an EpisodeObserver, got {observer!r}")
    return tuple(observers)


def observed_run(observers: Sequence[EpisodeObserver]) -> contextlib.ExitStack:
    """Tell observers that a run begins. Closing what is returned tells them that it is over, the last one first."""
    with contextlib.ExitStack() as stack:
        for observer in observers:
            observer.run_began()
            stack.callback(observer.run_ended)
        return stack.pop_all()


class GuardedObserver(EpisodeObserver):
    """Tells another observer of episodes. What that raises goes to `broken`, and no episode meets it.

    Args:
        observer: the other one.
        broken: gets each error.
    """

    def __init__(self, observer: EpisodeObserver, broken: Callable[[Exception], None]) -> None:
        for name in ("began", "waits", "asked", "generated", "turned", "ended"):
            setattr(self, name, _guarded(getattr(observer, name), broken))


def _guarded(tell: Callable[..., None], broken: Callable[[Exception], None]) -> Callable[..., None]:
    def guarded(*event: object) -> None:
        try:
            tell(*event)
        except Exception as error:  # noqa: BLE001  the run raises it
            broken(error)

    return guarded
