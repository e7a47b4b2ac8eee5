"""Answers to questions: exact match and F1 of words, and the answer between `<answer>` tags.

Normalisation, exact match and F1 are SQuAD's (https://arxiv.org/abs/1606.05250, section 6.1); that a yes or no is right
or wrong as a whole is HotpotQA's rule (https://arxiv.org/abs/1809.09600). The tags, and a part of the reward for the
form, are Search-R1's (https://arxiv.org/abs/2503.09516).
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

from toolgym.envs.rewards.base import Outcome, Score
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.library.final_answer import without_thinking

Measure = Literal["em", "f1"]

_WHOLE = ("yes", "no", "noanswer")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_OPEN, _CLOSE = "<answer>", "</answer>"
_TAG = re.compile(r"</?(?:think|answer)>")
_FORM: tuple[list[str], ...] = ([], ["<think>", "</think>"], ["</think>"])
"""Tags that may stand before an answer's: a generation prompt may have opened the thinking."""


def normalize_answer(text: str) -> str:
    """Return an answer as SQuAD compares it.

    >>> normalize_answer("The  Eiffel-Tower!")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _compared(text: str) -> str:
    """An answer as it is compared: `A` is an answer too, which `A.` equals and an empty one does not."""
    lower = text.strip().lower()
    return normalize_answer(text) or lower.translate(_NO_PUNCTUATION).strip() or lower


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """Return 1.0 if the answer is one of the right ones, both normalised; else 0.0. An empty answer is never right."""
    return float(_compared(answer) in map(_compared, golds))


def f1(answer: str, golds: Sequence[str]) -> float:
    """Return the F1 of the answer's words, for the right answer with the highest.

    >>> round(f1("the tall Eiffel Tower", ["Eiffel Tower", "La tour Eiffel"]), 2)
    0.8
    """
    return max((_f1(_compared(answer), _compared(gold)) for gold in golds), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer == gold:
        return 1.0
    if answer in _WHOLE or gold in _WHOLE:
        return 0.0
    words, right = answer.split(), gold.split()
    common = sum((collections.Counter(words) & collections.Counter(right)).values())
    return 2 * common / (len(words) + len(right)) if common else 0.0


def tagged_answer(text: str) -> str | None:
    """Return the text in the last `<answer>…</answer>` of a text, outside of thinking; None if there is none.

    Tags are paired from the left: an answer begins at the first opening tag after the end of the answer before it. The
    search is linear, also in a text of many opening tags.
    """
    spoken, answer, at = without_thinking(text), None, 0
    while (start := spoken.find(_OPEN, at)) >= 0 and (end := spoken.find(_CLOSE, start)) >= 0:
        answer, at = spoken[start + len(_OPEN) : end], end + len(_CLOSE)
    return None if answer is None else answer.strip()


def has_answer_form(text: str) -> bool:
    """Whether a text is one `<answer>…</answer>` that is not empty, at its end, maybe after `<think>…</think>`."""
    tags = _TAG.findall(text)
    whole = tags[-2:] == ["<answer>", "</answer>"] and text.rstrip().endswith("</answer>")
    return whole and tags[:-2] in _FORM and bool(tagged_answer(text))


def gold_answers(task: Task) -> list[str]:
    """Return the right answers of a task, any of which will do; without any, raise `ConfigError`.

    Its ground truth is a text, a list of texts, or an object with these in `target` (Search-R1); if it has none,
    `golden_answers` of its row (FlashRAG). Numbers are taken as text.
    """
    truth = task.ground_truth
    if isinstance(truth, dict):
        truth = truth.get("target")
    if truth is None:
        truth = task.row.get("golden_answers", task.extra_info.get("golden_answers"))
    listed = [truth] if isinstance(truth, str | int | float) else truth
    if hasattr(listed, "tolist"):  # an array, as pandas reads a Parquet file
        listed = listed.tolist()
    if not isinstance(listed, list | tuple) or not listed or not all(map(_is_answer, listed)):
        raise ConfigError(
            f"task {task.id!r} of a question needs its answers as ground truth: a text, a list of texts, or "
            f"{{'target': [...]}}, got {shorten(repr(task.ground_truth))}"
        )
    return [str(answer) for answer in listed]


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float) and bool(str(value).strip())


class AnswerScorer(NamedTuple):
    """Scores the answer between `<answer>` tags.

    The reward is `(1 - format_weight) * measure + format_weight * format`. Components: `em`, `f1` and `format` (1 for
    `has_answer_form`); all three are 0 for an episode that ended without an answer.
    """

    measure: Measure = "em"
    format_weight: float = 0.0

    @property
    def runs_inline(self) -> bool:
        return True

    @classmethod
    def checked(cls, measure: Measure, format_weight: float) -> AnswerScorer:
        if measure not in get_args(Measure):
            raise ConfigError(f"reward must be one of {', '.join(get_args(Measure))}, got {measure!r}")
        if isinstance(format_weight, bool) or not isinstance(format_weight, int | float) or not 0 <= format_weight <= 1:
            raise ConfigError(f"format_weight must be a number from 0 to 1, got {format_weight!r}")
        return cls(measure, format_weight)

    def __call__(self, outcome: Outcome) -> Score:
        golds, text = gold_answers(outcome.task), outcome.final_text
        answer = tagged_answer(text)
        parts = {
            "em": 0.0 if answer is None else exact_match(answer, golds),
            "f1": 0.0 if answer is None else f1(answer, golds),
            "format": float(has_answer_form(text)),
        }
        value = (1 - self.format_weight) * parts[self.measure] + self.format_weight * parts["format"]
        return Score(value, parts)
