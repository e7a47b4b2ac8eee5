"""Compares answers with `math-verify`, in a process of its own: lines of JSON in, a line of JSON out for each.

A program, started by its path, which imports nothing of toolgym. SymPy may compute without end, or fill the memory:
then the parent kills it, or an alarm does if the parent is gone; or the limit holds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import resource
import select
import signal
import sys
from typing import Any

IDLE = 30.0
"""Seconds without work after which it ends."""

ALARM = 5
"""Seconds beyond the parent's deadline after which a comparison ends the process."""

MEMORY = 4 * 1024**3
"""Bytes of address space that it may have."""


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


def _serve() -> None:
    import math_verify  # noqa: F401  what takes long is loaded before the first line is asked for

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    answers.write("ready\n")
    answers.flush()
    buffer = b""
    while select.select([0], [], [], IDLE)[0]:
        piece = os.read(0, 1 << 16)
        if not piece:
            return
        buffer += piece
        if not buffer.endswith(b"\n"):
            continue
        asked: dict[str, Any] = json.loads(buffer)
        buffer = b""
        try:
            signal.alarm(math.ceil(asked["timeout"]) + ALARM)  # not handled: it ends the process, whatever runs
            verdict = compare(asked["truth"], asked["answer"])
        except (Exception, RecursionError) as error:  # noqa: BLE001  what cannot be read is no right answer
            verdict = "wrong"
            logging.getLogger("math_worker").debug("comparing failed: %r", error)
        signal.alarm(0)
        answers.write(json.dumps(verdict) + "\n")
        answers.flush()


if __name__ == "__main__":
    sys.setrecursionlimit(5000)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.WARNING)
    _serve()
