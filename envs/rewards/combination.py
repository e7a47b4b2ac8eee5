"""`weighted`: several scorers as one."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping
from typing import Any

from toolgym.envs.rewards.base import Outcome, OutcomeScorer, Score, Scorer, outcome_scorer
from toolgym.tools.errors import ConfigError


def weighted(parts: Mapping[str, tuple[float, Scorer]]) -> OutcomeScorer:
    """Return a scorer that adds up others, given as `{name: (weight, scorer)}`; a weight of 0 only reports.

    Each part is a component of the score under its name, without its weight; the components of a part `judge` are
    `judge/NAME`. Parts that are async run at the same time. If one raises, so does the whole, and the others are
    cancelled. A part that has nothing to say, as a function of a text and a task if there is no answer, counts 0. A
    part or score that is not usable is a `ConfigError`, which names it.

    Example:
        >>> from toolgym.envs.rewards import called, exact, weighted
        >>> scorer = weighted({"answer": (1.0, exact()), "tool": (0.1, called())})
    """
    if not isinstance(parts, Mapping) or not parts:
        raise ConfigError(f"weighted takes {{'name': (weight, scorer)}} with at least one part, got {parts!r}")
    scorers = {name: _checked(name, part) for name, part in parts.items()}

    async def score(outcome: Outcome) -> Score:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {name: group.create_task(_run(scorer, outcome)) for name, (_, scorer) in scorers.items()}
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        scores = {name: _score(name, task.result()) for name, task in tasks.items()}
        total = math.fsum(scorers[name][0] * part.value for name, part in scores.items())
        components: dict[str, float] = {}
        for name, part in scores.items():
            components[name] = part.value
            components |= {f"{name}/{inner}": value for inner, value in part.components.items()}
        return Score(total, components)

    return score


def _checked(name: Any, part: Any) -> tuple[float, OutcomeScorer]:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a part of weighted needs a name, got {name!r}")
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise ConfigError(f"the part {name!r} of weighted must be (weight, scorer), got {part!r}")
    weight, scorer = part
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError(f"the weight of {name!r} must be a finite number, got {weight!r}")
    try:
        return float(weight), outcome_scorer(scorer)
    except ConfigError as error:
        raise ConfigError(f"the part {name!r} of weighted: {error}") from error


def _score(name: str, value: Any) -> Score:
    try:
        score = Score(0.0) if value is None else Score.of(value)
    except ConfigError as error:
        raise ConfigError(f"the part {name!r} of weighted: {error}") from error
    if not math.isfinite(score.value):
        raise ConfigError(f"the part {name!r} of weighted gave {score.value!r}, which is not finite")
    return score


async def _run(scorer: OutcomeScorer, outcome: Outcome) -> Any:
    value = scorer(outcome)
    return await value if inspect.isawaitable(value) else value
