"""`matches`: match a user's regular expression on a policy's text in a process of a `ProcessPool`.

Python's `re` may need centuries for thirty characters, and holds the event loop while it works.
"""

from __future__ import annotations

from pathlib import Path

from toolgym.tools.confined.pool import OverrunError, ProcessPool

SECONDS = 1.0
"""CPU seconds for one match."""

_pool = ProcessPool(
    Path(__file__).with_name("pattern_work.py"), name="the process that matches regular expressions", memory=1 << 30
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
