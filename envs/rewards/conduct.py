"""Scorers of the policy's conduct: the form of its turns, their length, and its calls of tools.

An argument `tool` is a tool's name; None: any tool, also calls whose name could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from toolgym.envs.rewards.base import Outcome, OutcomeScorer
from toolgym.envs.types import ToolCallRecord
from toolgym.tools.concurrency.execution_pool import runs_inline
from toolgym.tools.confined.costly_checks import matches
from toolgym.tools.errors import ConfigError, require_whole_number

Turns = Literal["last", "all"]

THINK = r"<think>.*?</think>.*\S.*"
"""Thinking between tags, and something after it: the format of DeepSeek-R1 (arXiv 2501.12948) without answer tags."""

LINEAR = frozenset({THINK})
"""Patterns that take linear time for every text, so that they are matched in this process."""


def turn_format(form: str | Callable[[str], bool], *, turns: Turns = "last") -> OutcomeScorer:
    """Return a scorer: the share of turns (of `Outcome.turn_texts`) that have a form, from 0 to 1.

    Args:
        form: a regular expression that matches the whole text of a turn, without the white space around it; `.`
            matches line ends too. It is matched in another process, and a text that takes longer than a second of CPU
            time does not have the form. Or a function from the text to whether it has the form.
        turns: the last turn, or all of them.
    """
    if turns not in ("last", "all"):
        raise ConfigError(f"turns must be 'last' or 'all', got {turns!r}")
    if isinstance(form, str):
        return _pattern_scorer(_compiled(form), turns)
    if not callable(form):
        raise ConfigError(f"a form is a regular expression or a function of a turn's text, got {form!r}")
    return lambda outcome: _share([bool(form(text)) for text in _texts(outcome, turns)])


def _pattern_scorer(pattern: re.Pattern[str], turns: Turns) -> OutcomeScorer:
    if pattern.pattern in LINEAR:
        return runs_inline(
            lambda outcome: _share([bool(pattern.fullmatch(text.strip())) for text in _texts(outcome, turns)])
        )

    async def score(outcome: Outcome) -> float:
        texts = [text.strip() for text in _texts(outcome, turns)]
        return _share([await matches(pattern.pattern, text, flags=re.DOTALL, whole=True) for text in texts])

    return score


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from error


def _texts(outcome: Outcome, turns: Turns) -> list[str]:
    return outcome.turn_texts if turns == "all" else outcome.turn_texts[-1:]


def _share(verdicts: Sequence[bool]) -> float:
    return sum(verdicts) / len(verdicts) if verdicts else 0.0


def overlong_penalty(
    max_length: int, buffer: int = 0, *, count: Callable[[str], int] = len, longest_turn: bool = False
) -> OutcomeScorer:
    """Return a scorer: 0 for a response that is short enough, down to -1 for one that is too long.

    All of `Outcome.written` counts. The formula is DAPO's soft overlong punishment (arXiv 2503.14476, equation 13).
    With y the length of the response: 0 up to `max_length - buffer`; `(max_length - buffer - y) / buffer` from there
    to `max_length`; -1 beyond.

    Args:
        max_length: the length beyond which a response has the whole penalty.
        buffer: the lengths before it over which the penalty grows.
        count: the length of a text; by default its characters. For tokens: `lambda text: len(tokenizer.encode(text))`.
        longest_turn: count the longest of the policy's turns, not all of them together.
    """
    require_whole_number("max_length", max_length, at_least=1)
    require_whole_number("buffer", buffer, at_least=0)
    if buffer > max_length:
        raise ConfigError(f"buffer must be at most max_length, {max_length}, got {buffer}")
    if not callable(count):
        raise ConfigError(f"count must be a function from a text to its length, got {count!r}")

    def score(outcome: Outcome) -> float:
        lengths = [count(text) for text in outcome.written]
        length = max(lengths, default=0) if longest_turn else sum(lengths)
        if length <= max_length - buffer:
            return 0.0
        if length > max_length:
            return -1.0
        return (max_length - buffer - length) / buffer

    return runs_inline(score) if count is len else score


def called(tool: str | None = None) -> OutcomeScorer:
    """Return a scorer: 1 if a call reached the tool, else 0. A malformed call, which was not run, does not count."""
    calls = _calls_of(tool)
    return runs_inline(lambda outcome: float(any(call.arguments is not None for call in calls(outcome))))


def called_successfully(tool: str | None = None) -> OutcomeScorer:
    """Return a scorer: 1 if a call of the tool went well (its status is `ok`), else 0."""
    calls = _calls_of(tool)
    return runs_inline(lambda outcome: float(any(call.status == "ok" for call in calls(outcome))))


def failed_calls(tool: str | None = None) -> OutcomeScorer:
    """Return a scorer: the number of calls that failed, malformed ones included, but not by the infrastructure."""
    calls = _calls_of(tool)
    return runs_inline(
        lambda outcome: float(sum(call.status != "ok" and not call.infra_failure for call in calls(outcome)))
    )


def _calls_of(tool: str | None) -> Callable[[Outcome], list[ToolCallRecord]]:
    if not isinstance(tool, str | None):
        raise ConfigError(f"tool must be a tool's name or None, got {tool!r}")
    return lambda outcome: [call for call in outcome.tool_calls if tool is None or call.name == tool]
