"""The `#### answer` convention: find the answer in a text, and compare it with the ground truth."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from toolgym.tools.errors import ConfigError

_MARK = re.compile(r"####[ \t]*([^\n]*)")
_NUMBER = re.compile(r"\$?\s*([-+]?\$?\s*(?:\d[\d,]*(?:\.\d+)?|\.\d+))")

_HALF_WIDTH = {0xFF00 + at: 0x20 + at for at in range(1, 0x5F)} | {0x2212: ord("-")}


def half_width(text: str) -> str:
    """Return a text with full-width letters, digits and signs as in ASCII, and the minus of mathematics as `-`."""
    return text.translate(_HALF_WIDTH)


def without_thinking(text: str) -> str:
    return text.rpartition("</think>")[2].partition("<think>")[0]


def final_answer(text: str) -> str | None:
    """The answer after the last `####` of a text (GSM8K's convention), outside of `<think>` blocks; None if there is
    none. A number is returned without currency signs and thousands separators; anything else as the rest of the
    line."""
    answers = _MARK.findall(without_thinking(text))
    if not answers:
        return None
    line: str = answers[-1].strip()
    number = _NUMBER.match(half_width(line))
    if number:
        return re.sub(r"[$,\s]", "", number.group(1))
    return line or None


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
    answer = final_answer(text)
    if answer is None or ground_truth is None:
        return 0.0
    truth = ground_truth if isinstance(ground_truth, str) else json.dumps(ground_truth)
    left, right = _number(answer), _number(truth)
    if left is not None and right is not None:
        return float(left == right)
    line = _MARK.findall(without_thinking(text))[-1].strip()  # such as 1/2, whose number is 1
    return float(truth.strip() in (answer, line))


def _number(text: str) -> Decimal | None:
    try:
        value = Decimal(re.sub(r"[$,\s]", "", half_width(text)))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None
