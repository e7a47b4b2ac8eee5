"""Compares answers with `math-verify`: the work of a `ProcessPool`, which imports nothing of toolgym."""

from __future__ import annotations

import re


def load() -> None:
    import math_verify  # noqa: F401


def compare(truth: str, answer: str) -> str:
    """Return `right`, `wrong`, or `no truth` if the ground truth cannot be read as mathematics."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    configs = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    boxed = f"\\boxed{{{truth}}}"
    marked = truth if "\\boxed" in truth or re.search(r"(?<!\\)\$", truth) else boxed  # `\$` is a dollar
    # Without time-outs of its own, which need signals: the parent has a deadline.
    gold = parse(marked, configs, parsing_timeout=None) or parse(boxed, configs, parsing_timeout=None)
    if not gold:
        return "no truth"
    return "right" if verify(gold, parse(answer, configs, parsing_timeout=None), timeout_seconds=None) else "wrong"
