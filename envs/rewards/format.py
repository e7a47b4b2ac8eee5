"""`turn_format`: whether the policy's turns have the form that they should."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from toolgym.envs.rewards.base import Outcome, OutcomeScorer
from toolgym.tools.errors import ConfigError

Turns = Literal["last", "all"]

THINK = r"<think>.*?</think>.*\S.*"
"""Thinking between tags, and something behind it: the format of DeepSeek-R1 (arXiv 2501.12948) without answer tags."""


def turn_format(form: str | Callable[[str], bool], *, turns: Turns = "last") -> OutcomeScorer:
    """Return a scorer: the share of turns that have a form, from 0 to 1.

    A turn's text is that of `Outcome.turn_texts`. What a chat template writes before a turn is no part of it: a model
    whose prompt ends with `<think>` does not write that tag.

    Args:
        form: a regular expression that matches the whole text of a turn, white space around it left out; `.` matches
            line ends too. Or a function from the text to whether it has the form.
        turns: the last turn, or all of them.

    Raises:
        ConfigError: `form` is no regular expression and no function, or `turns` is something else.
    """
    if turns not in ("last", "all"):
        raise ConfigError(f"turns must be 'last' or 'all', got {turns!r}")
    has_form = _matches(form) if isinstance(form, str) else form
    if not callable(has_form):
        raise ConfigError(f"a form is a regular expression or a function of a turn's text, got {form!r}")

    def score(outcome: Outcome) -> float:
        texts = outcome.turn_texts if turns == "all" else outcome.turn_texts[-1:]
        return sum(bool(has_form(text)) for text in texts) / len(texts) if texts else 0.0

    return score


def _matches(pattern: str) -> Callable[[str], bool]:
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from error
    return lambda text: compiled.fullmatch(text.strip()) is not None
