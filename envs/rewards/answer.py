"""`exact` and `numeric`: the answer that a text marks, compared with the ground truth."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from toolgym.envs.rewards.base import Outcome, OutcomeScorer
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.library.final_answer import half_width, score_final_answer, without_thinking

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|[{}]")
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_CHOICE = re.compile(r"\(?([A-Za-z])\)?[.:]?")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?:/\d+)?")
MAX_EXPONENT = 400
"""Largest exponent of a number: a longer number takes long to write out."""


def marked_answer(text: str) -> str | None:
    """Return the answer that a text marks, outside of its thinking; None if it marks none.

    The first of these marks that occurs counts, at its last place: the line behind `####` (GSM8K), `\\boxed{...}`
    (MATH), `<answer>...</answer>` (DeepSeek-R1, Search-R1).
    """
    spoken = without_thinking(text)
    for answers in (_HASHES.findall(spoken), _boxed(spoken), _tagged(spoken)):
        if answers:
            return str(answers[-1]).strip()
    return None


def plain_choice(text: str) -> str:
    """Return the letter of a choice (`A` of `A.`, `(A)` and `A)`), and any other text without white space around it."""
    letter = _CHOICE.fullmatch(text.strip())
    return letter[1] if letter else text.strip()


def exact(*, ignore_case: bool = False) -> OutcomeScorer:
    """Return a scorer: 1 if the answer is the ground truth, character by character, else 0.

    The answer is what the final text marks (see `marked_answer`), or all of it outside of its thinking. `A.` and `(A)`
    are `A`. A ground truth may be text, a number, true or false, or a list of these, any of which is right.
    """

    def form(text: str) -> str:
        return plain_choice(text).casefold() if ignore_case else plain_choice(text)

    def score(outcome: Outcome) -> float:
        marked = marked_answer(outcome.final_text)
        answer = form(without_thinking(outcome.final_text) if marked is None else marked)
        truths = [form(text) for text in truth_texts(outcome.task.ground_truth)]
        return float(bool(answer) and answer in truths)

    return score


def numeric(*, tolerance: float = 0.0) -> OutcomeScorer:
    """Return a scorer: 1 if the answer is the number of the ground truth, else 0.

    The number is that of the marked answer (see `marked_answer`), or the last one of the final text outside of its
    thinking. It may have thousands separators, an exponent, or be a fraction. `tolerance` is a part of the truth: 0.01
    is one percent. A ground truth that is no number is a `ConfigError`.
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < float("inf"):
        raise ConfigError(f"tolerance must be a number of at least 0, got {tolerance!r}")

    def score(outcome: Outcome) -> float:
        truths = [_require_number(text) for text in truth_texts(outcome.task.ground_truth)]
        marked = marked_answer(outcome.final_text)
        answer = last_number(without_thinking(outcome.final_text) if marked is None else marked)
        if answer is None:
            return 0.0
        return float(any(abs(answer - truth) <= abs(truth) * Fraction(tolerance) for truth in truths))

    return score


def final_answer_score(text: str, task: Task) -> float:
    """1 for a text whose `#### answer` equals the ground truth of the task, else 0: a `Scorer`."""
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


def last_number(text: str) -> Fraction | None:
    numbers = _NUMBER.findall(half_width(text))
    return _fraction(numbers[-1]) if numbers else None


def _require_number(text: str) -> Fraction:
    number = last_number(marked_answer(text) or text)
    if number is None:
        raise ConfigError(f"a number is compared with a number, got the ground truth {shorten(repr(text))}")
    return number


def _fraction(text: str) -> Fraction | None:
    plain, _, below = text.replace(",", "").partition("/")
    exponent = re.search(r"[eE]([-+]?\d+)$", plain)
    if exponent is not None and (len(exponent[1]) > 5 or abs(int(exponent[1])) > MAX_EXPONENT):
        return None
    if max(len(plain), len(below)) > 4 * MAX_EXPONENT or (below and not int(below)):
        return None
    return Fraction(plain) / (int(below) if below else 1)


def _boxed(text: str) -> list[str]:
    r"""The content of the last `\boxed{...}` whose braces close, ordered by their ends; inner braces are part of it.

    Only that one is cut out of the text: the contents of nested boxes would take quadratic memory.
    """
    last, open_braces = None, []
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_braces.append(brace)
        elif open_braces and (opened := open_braces.pop())[0] != "{":
            last = (opened.end(), brace.start())
    return [] if last is None else [text[slice(*last)]]


def _tagged(text: str) -> list[str]:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return [text[start + len("<answer>") : end]] if start >= 0 else []
