"""Scorers: from an answer's text to a reward."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_MARK = re.compile(r"####[ \t]*([^\n]*)")
_NUMBER = re.compile(r"\$?\s*([-+]?\$?\s*(?:\d[\d,]*(?:\.\d+)?|\.\d+))")


def final_answer(text: str) -> str | None:
    """The answer after the last `####` of a text, outside of `<think>` blocks; None where there is none.

    The `#### answer` convention is GSM8K's. A number is returned without currency signs and thousands separators;
    anything else as the rest of the line.
    """
    spoken = text.rpartition("</think>")[2]
    spoken = spoken.partition("<think>")[0]
    found = _MARK.findall(spoken)
    if not found:
        return None
    line: str = found[-1].strip()
    number = _NUMBER.match(line)
    if number:
        return re.sub(r"[$,\s]", "", number.group(1))
    return line or None


def score_final_answer(text: str, ground_truth: str | None) -> float:
    """1.0 when the final answer equals the ground truth, as numbers where both are numbers; 0.0 otherwise."""
    answer = final_answer(text)
    if answer is None or ground_truth is None:
        return 0.0
    left, right = _number(answer), _number(ground_truth)
    if left is not None and right is not None:
        return float(left == right)
    return float(answer == ground_truth.strip())


def _number(text: str) -> Decimal | None:
    try:
        value = Decimal(re.sub(r"[$,\s]", "", text))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None
