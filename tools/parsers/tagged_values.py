"""Values between tags that nothing escapes, as `<parameter=key>value</parameter>`."""

from __future__ import annotations

import re


def value_end(text: str, start: int, close: str, follows: re.Pattern[str]) -> int:
    """Return the end of the value that begins at `start`; -1 if it has none.

    The value may hold its own closing tag, as code about such tags does: the first one counts after which the format
    goes on. It may look like another value then, so callers refuse values that hold an opening tag.

    Args:
        text: the turn.
        start: where the value begins.
        close: the closing tag.
        follows: what may stand after the closing tag, white space included.
    """
    at = text.find(close, start)
    while at != -1 and not follows.match(text, at + len(close)):
        at = text.find(close, at + len(close))
    return at


def holds_another(value: str, opening: str, close: str) -> bool:
    """Whether a value looks like two: an opening tag begins a line, or stands after a closing one."""
    if -1 < value.find(close) < value.rfind(opening):
        return True
    return re.search(rf"(?m)^[^\S\n]*{re.escape(opening)}", value) is not None
