"""`Branching`: where the episodes of a run branch, and into how many continuations. A branch begins between two turns,
with a fork of the env, and is then an episode like any other. If an env cannot be forked, the log says so."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from toolgym.rollout.episode.episode import Episode
from toolgym.rollout.job import Job
from toolgym.rollout.seeds import derive_seed
from toolgym.rollout.tokens.conversation import Conversation
from toolgym.rollout.trajectory.trajectory import Turn
from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.errors import ConfigError, error_text, require_whole_number, shorten

_log = logging.getLogger("toolgym.rollout")
_warnings = LogThrottle(60.0)


@dataclass(frozen=True)
class BranchPoint:
    """An episode between two turns; `turns` and `reward` of a branch contain what was before it. Do not change them."""

    job: Job
    turns: tuple[Turn, ...]
    reward: float
    conversation: Conversation


Continuations = Callable[[int, BranchPoint], int]
"""From the number of the next turn, and what is known of the episode, to the number of its continuations: 1 and less do
not branch. It must not block, and must give the same for the same point if a run is to be reproducible."""


@dataclass(frozen=True)
class Branching:
    """Chooses the turns at which episodes of a run branch.

    Attributes:
        continuations: see `Continuations`; `at_turns`, `by_chance` and `where_unsure` make some.
        max_branches: most branches of one episode, those that branch from its branches included. When an episode
            branches, what is left is shared out among its continuations in equal parts, the rest to the episode itself,
            so that it does not depend on which of them is faster.

    Raises:
        ConfigError: an argument is of the wrong kind or out of range.
    """

    continuations: Continuations
    max_branches: int = 7

    def __post_init__(self) -> None:
        if not callable(self.continuations):
            raise ConfigError(
                f"continuations must be a function of a turn's number and a BranchPoint, such as at_turns(1), got "
                f"{self.continuations!r}"
            )
        require_whole_number("max_branches", self.max_branches, at_least=1)


def at_turns(*turns: int, continuations: int = 2) -> Continuations:
    """Branch before the turns of these numbers, counted from 0 and at least 1."""
    for turn in turns:
        require_whole_number("a turn to branch at", turn, at_least=1)
    if not turns:
        raise ConfigError("at_turns needs the number of at least one turn: at_turns(1) branches before the second")
    require_whole_number("continuations", continuations, at_least=2)
    return lambda turn, point: continuations if turn in turns else 1


def by_chance(probability: float, *, continuations: int = 2) -> Continuations:
    """Branch before any turn with a probability from 0 to 1; the same seeds give the same branches."""
    if not isinstance(probability, int | float) or not 0 <= probability <= 1:
        raise ConfigError(f"probability must be from 0 to 1, got {probability!r}")
    require_whole_number("continuations", continuations, at_least=2)

    def choose(turn: int, point: BranchPoint) -> int:
        seed = point.turns[-1].seed
        drawn = random.random() if seed is None else derive_seed(seed, "branches") / 2**63
        return continuations if drawn < probability else 1

    return choose


def where_unsure(below: float, *, continuations: int = 2) -> Continuations:
    """Branch behind a turn of which the mean log-probability is less than `below`."""
    if not isinstance(below, int | float) or not below < 0:
        raise ConfigError(f"below must be a log-probability, less than 0, got {below!r}")
    require_whole_number("continuations", continuations, at_least=2)

    def choose(turn: int, point: BranchPoint) -> int:
        sequence = point.conversation.sequences[point.turns[-1].sequence]
        sampled = sequence.logprobs[sequence.response_mask > 0]
        last = sampled[len(sampled) - point.turns[-1].generated_tokens :]
        return continuations if len(last) and float(np.mean(last)) < below else 1

    return choose


class Brancher:
    """Branches the episodes of one run. `begin` takes a branch, and owns its env from then on."""

    def __init__(self, branching: Branching, job_of: Callable[[Job], Job], begin: Callable[[Episode], None]) -> None:
        self._branching, self._job_of, self._begin = branching, job_of, begin

    async def between_turns(self, episode: Episode) -> None:
        """Branch an episode here, if it is to. A branch that cannot be made is logged. Raises `ConfigError` if
        `continuations` gave something else than a number, or raised."""
        left = self._branching.max_branches if episode.branches_left is None else episode.branches_left
        wanted = min(self._continuations(episode) - 1, left) if left else 0
        if wanted < 1:
            return
        share = (left - wanted) // (wanted + 1)
        episode.branches_left = left - wanted - share * wanted
        for _ in range(wanted):
            if not await self._branch(episode, share):
                return

    def _continuations(self, episode: Episode) -> int:
        point = BranchPoint(episode.job, episode.turns, episode.reward, episode.conversation)
        try:
            wanted = self._branching.continuations(len(point.turns), point)
        except Exception as error:
            raise ConfigError(f"RunConfig.branching.continuations raised {error_text(error)}") from error
        if not isinstance(wanted, int):
            raise ConfigError(f"RunConfig.branching.continuations must give a whole number, got {wanted!r}")
        return wanted

    async def _branch(self, episode: Episode, branches_left: int) -> bool:
        """Begin one branch, which may make so many of its own. Returns whether there is one."""
        try:
            branch = await episode.fork(lambda: self._job_of(episode.job))
        except Exception as error:  # noqa: BLE001  the episode itself is as it was
            _warn(error)
            return False
        branch.branches_left = branches_left
        self._begin(branch)
        return True


def _warn(error: Exception) -> None:
    """One line a minute for each kind: what fails once often fails each time."""
    more = _warnings.due(type(error).__name__)
    if more is not None:
        since = f" ({more} more since the last of these lines)" if more else ""
        _log.warning("an episode could not branch, and goes on alone: %s%s", shorten(error_text(error)), since)
