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
    RESET = "reset"
    ENGINE = "engine"
    ENV = "env"
    """The env's `step`: its tools, or its scorer."""
    CONTEXT = "context"
    """The chat template and the context policies."""
    FORK = "fork"
    """The env's `fork`: the episode branches."""
    OTHER_ROLE = "other_role"
    """Another role's turn, in an env with several."""
    SUSPENDED = "suspended"
    """Nothing: it stands still until it is run again."""


class EpisodeObserver:
    """Hears of the episodes of a run, on its event loop. Each method does nothing here, and must not block. What one
    raises ends the run with that error: the episodes that run are played to their end."""

    def run_began(self) -> None:
        """A run begins: a call of `Runner.stream`. Several runs may go on at the same time."""

    def run_ended(self) -> None:
        """A run is over, however it ended: none of its episodes is played any more."""

    def began(self, job: Job) -> None:
        """An episode begins. A branch (`job.parent`) goes on with the wait of its first turn; others with `RESET`."""

    def waits(self, job: Job, phase: Phase, what: str = "") -> None:
        """An episode enters a phase; in `Phase.ENV`, `what` is the names of the tools that it calls, by commas."""

    def asked(self, job: Job, prompt_ids: TokenIds, params: SamplingParams) -> None:
        """A request goes to the engine, with all the ids: a turn, or a further part of one that was aborted."""

    def generated(self, job: Job, generation: Generation) -> None:
        """The engine has answered the request, and its answer is in order. A request that fails has no such call."""

    def turned(self, job: Job, turn: Turn, conversation: Conversation) -> None:
        """A turn and its observation are in the conversation. The last turn is followed by `ended` only."""

    def ended(self, job: Job, trajectory: Trajectory) -> None:
        """An episode is over. One that is cancelled, or stays suspended, has no such call; one whose env could not be
        made has no other."""


def checked_observers(observers: Sequence[EpisodeObserver]) -> tuple[EpisodeObserver, ...]:
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
    """Tells another observer of episodes. What that raises goes to `broken`, and no episode meets it."""

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
