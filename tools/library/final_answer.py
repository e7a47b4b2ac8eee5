"""The `#### answer` convention: find the answer in a text, and compare it with the ground truth."""

from __future__ import annotations

import json
import re
from typing import Any

from toolgym.tools.answers.marks import MAX_TEXT, hash_answer
from toolgym.tools.answers.numbers import read_number
from toolgym.tools.answers.tokens import half_width
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import without_thinking

__all__ = ["final_answer", "half_width", "score_final_answer", "without_thinking"]

_NUMBER = re.compile(r"\$?\s*([-+]?\$?\s*(?:\d[\d,]*(?:\.\d+)?|\.\d+))")


def final_answer(text: str) -> str | None:
    """Return the answer after the last `####` of a text (GSM8K's convention), outside of thinking.

    A plain number is returned without currency signs and thousands separators, and without the words after it. Anything
    else is the rest of the line. None: there is no such line, or it is a heading with text after it.
    """
    line = _line(text)
    number = None if line is None else _NUMBER.match(half_width(line))
    if line is None or number is None:
        return line
    digits = re.sub(r"[$,\s]", "", number.group(1))
    return digits if read_number(digits) == read_number(line) else line


def score_final_answer(text: str, ground_truth: Any) -> float:
    """1.0 if the final answer equals the ground truth, as numbers if both are numbers; 0.0 otherwise.

    The ground truth is text, a number, true or false, or a list of these, any of which is right; with None, no answer
    is. An object is a `ConfigError`: no line of text equals it.
    """
    if isinstance(ground_truth, list | tuple):
        return max((score_final_answer(text, truth) for truth in ground_truth), default=0.0)
    if isinstance(ground_truth, dict):
        raise ConfigError(
            "a final answer is compared with text, a number or a list of these, got the ground truth "
            f"{ground_truth!r}; give the env a scorer of its own"
        )
    line = _line(text)
    if line is None or ground_truth is None:
        return 0.0
    truth = ground_truth if isinstance(ground_truth, str) else json.dumps(ground_truth)
    left, right = read_number(line), read_number(truth)
    if left is not None and right is not None:
        return float(left == right)
    return float(truth.strip() == line)


def _line(text: str) -> str | None:
    return hash_answer(without_thinking(text)[-MAX_TEXT:])
