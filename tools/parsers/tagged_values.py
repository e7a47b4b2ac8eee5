"""Values between tags that nothing escapes, as `<parameter=key>value</parameter>`."""

from __future__ import annotations

import re

from toolgym.tools.errors import ToolgymError
from toolgym.tools.parsers.scan import TurnBuilder, region_end


class MalformedError(ToolgymError, ValueError):
    """A call is not written as its format wants it; `at` is where, and `name` the tool's, as far as it was read."""

    def __init__(self, why: str, at: int, name: str = "") -> None:
        super().__init__(why)
        self.at, self.name = at, name


def read_value(
    text: str, start: int, key: str, name: str, *, opening: str, close: str, follows: re.Pattern[str]
) -> tuple[str, int]:
    """Return the value that begins at `start`, and the place behind its closing tag.

    The value may hold its own closing tag, as code about such tags does: the first one counts after which the format
    goes on (`follows`). So it may be two values: one is refused in which an opening tag begins a line, or stands
    behind a closing tag.
    """
    end = text.find(close, start)
    while end != -1 and not follows.match(text, end + len(close)):
        end = text.find(close, end + len(close))
    if end == -1:
        raise MalformedError(f"the value of {key!r} has no closing {close}", start, name)
    value = text[start:end]
    if -1 < value.find(close) < value.rfind(opening) or re.search(rf"(?m)^[^\S\n]*{re.escape(opening)}", value):
        why = f"the value of {key!r} has no closing {close}, or holds {opening!r} itself, which cannot be told apart"
        raise MalformedError(why, end, name)
    return value, end + len(close)


def add_malformed(
    turn: TurnBuilder, error: MalformedError, text: str, start: int, *, opening: str, close: str, shape: str
) -> int:
    end, closed = region_end(text, error.at, close, opening)
    if not closed:
        turn.add_unclosed(close, text[start:end], error.name)
        return end
    turn.add_misread(str(error), f"Write it as:\n{shape}", text[start:end], error.name)
    return end + len(close)
