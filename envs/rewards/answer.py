"""`exact` and `numeric`: the answer that a text marks, compared with the ground truth."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from toolgym.envs.rewards.base import Outcome, OutcomeScorer, Score
from toolgym.envs.tasks.task import Task
from toolgym.tools.answers.marks import marked_answer
from toolgym.tools.answers.numbers import read_number
from toolgym.tools.answers.statements import said_answer
from toolgym.tools.concurrency.execution_pool import runs_inline
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.library.final_answer import score_final_answer
from toolgym.tools.message import without_thinking

_CHOICE = re.compile(r"\(?([A-Za-z])\)?[.:]?")


def plain_choice(text: str) -> str:
    """Return the letter of a choice (`A` of `A.`, `(A)` and `A)`), and any other text without white space around it."""
    letter = _CHOICE.fullmatch(text.strip())
    return letter[1] if letter else text.strip()


def exact(*, ignore_case: bool = False) -> OutcomeScorer:
    """Return a scorer: 1 if the answer is the ground truth, character by character, else 0.

    The answer is what the final text marks (see `toolgym.tools.answers.marks.marked_answers`), or all of it outside of
    its thinking. `A.` and `(A)` are `A`. A ground truth may be text, a number, true or false, or a list of these, any
    of which is right.
    """

    def form(text: str) -> str:
        return plain_choice(text).casefold() if ignore_case else plain_choice(text)

    @runs_inline
    def score(outcome: Outcome) -> float:
        marked = marked_answer(outcome.final_text)
        answer = form(without_thinking(outcome.final_text) if marked is None else marked)
        truths = [form(text) for text in truth_texts(outcome.task.ground_truth)]
        return float(bool(answer) and answer in truths)

    return score


def numeric(*, tolerance: float = 0.0) -> OutcomeScorer:
    r"""Return a scorer: 1 if the answer is the number of the ground truth, else 0.

    The number is the whole answer that the final text marks (see `toolgym.tools.answers.marks.marked_answers`), or else
    what it says its answer is (`said_answer`): `\frac{1}{2}` is a half, and `42 (in 3 steps)` is 42. Numbers are exact.
    A formula and a list of values are not a number (see `toolgym.tools.answers.numbers.read_number`).

    Args:
        tolerance: the difference that is allowed, as a part of the ground truth: 0.01 is one percent.

    Raises:
        ConfigError: the tolerance is not usable, or, when scoring, a ground truth is not a number.
    """
    number_score = score_as_number(tolerance=tolerance)
    return runs_inline(lambda outcome: number_score(outcome).value)


def score_as_number(*, tolerance: float = 0.0) -> Callable[[Outcome], Score]:
    """Return `numeric` as a scorer with the components `no_answer` and `unreadable`, which are 0 or 1.

    `no_answer`: the text does not give an answer. `unreadable`: its answer is not a number.
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < float("inf"):
        raise ConfigError(f"tolerance must be a number of at least 0, got {tolerance!r}")

    @runs_inline
    def score(outcome: Outcome) -> Score:
        truths = [_require_number(text) for text in truth_texts(outcome.task.ground_truth)]
        answer = found_answer(outcome.final_text)
        number = None if answer is None else read_number(answer)
        is_right = number is not None and any(
            abs(number - truth) <= abs(truth) * Fraction(tolerance) for truth in truths
        )
        return answer_score(is_right, no_answer=answer is None, unreadable=answer is not None and number is None)

    return score


def found_answer(text: str) -> str | None:
    """Return the answer that a text marks, or else says; None if it gives none."""
    marked = marked_answer(text)
    return said_answer(text) if marked is None else marked


def answer_score(is_right: bool, **remarks: bool) -> Score:
    """Return a score of 1 or 0. Its components tell answers that cannot be read from wrong ones; their means are
    shares of episodes."""
    return Score(float(is_right), {name: float(value) for name, value in remarks.items()})


@runs_inline
def final_answer_score(text: str, task: Task) -> float:
    """Return 1 for a text whose `#### answer` equals the ground truth of the task, else 0: a `Scorer`."""
    return score_final_answer(text, task.ground_truth)


def truth_texts(ground_truth: Any) -> list[str]:
    """Return a ground truth as the texts of which any is right; none for None. An object is a `ConfigError`."""
    if hasattr(ground_truth, "tolist"):  # of NumPy, as pandas reads a Parquet file
        ground_truth = ground_truth.tolist()
    if isinstance(ground_truth, Sequence) and not isinstance(ground_truth, str):
        return [text for truth in ground_truth for text in truth_texts(truth)]
    if isinstance(ground_truth, dict):
        raise ConfigError(
            "an answer is compared with text, a number or a list of these, got the ground truth "
            f"{shorten(repr(ground_truth))}; give the env a scorer of its own"
        )
    if ground_truth is None:
        return []
    return [json.dumps(ground_truth) if isinstance(ground_truth, bool | int | float) else str(ground_truth)]


def _require_number(text: str) -> Fraction:
    number = read_number(marked_answer(text) or text)
    if number is None:
        raise ConfigError(f"a number is compared with a number, got the ground truth {shorten(repr(text))}")
    return number
