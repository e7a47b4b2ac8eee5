"""Checks that may take very long for a text that was written to that end: regular expressions, and Python's parser.

Python's `re` may need centuries for thirty characters, and Python's parser may take all memory. Both hold the event
loop while they work. So a policy's text is checked in a process of a `ProcessPool`.
"""

from __future__ import annotations

from pathlib import Path

from toolgym.tools.confined.pool import OverrunError, ProcessPool

SECONDS = 1.0
"""CPU seconds for one check."""

_pool = ProcessPool(
    Path(__file__).with_name("costly_work.py"), name="the process that matches regular expressions", memory=1 << 30
)


async def matches(pattern: str, text: str, *, flags: int = 0, whole: bool = False) -> bool:
    """Return whether a regular expression occurs in a text, or matches the whole text.

    Args:
        pattern: the user's regular expression, which compiles.
        text: the policy's text. A text that takes longer than `SECONDS` does not match.
        flags: flags of `re`.
        whole: whether the expression must match the whole text.
    """
    try:
        return bool(await _pool.call("match", pattern, flags, whole, text, cpu_seconds=SECONDS))
    except OverrunError:
        return False


async def is_python_program(text: str) -> bool:
    """Return whether a text is a program of Python. A text that takes longer than `SECONDS` to parse is not."""
    try:
        return bool(await _pool.call("is_python_program", text, cpu_seconds=SECONDS))
    except OverrunError:
        return False
