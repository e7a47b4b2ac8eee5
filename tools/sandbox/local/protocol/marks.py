"""Marks in a cell's standard output: where values were shown, with their text, and where the output was cleared.

The host sends a random token with each cell, and removes the marks with it from the output. A mark has the form of an
escape sequence, which terminals do not show. A program that finds the token can do no more than place what it shows.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ECHO = -1
"""Serial number of the last expression's value, which is shown after the output and has no mark."""

_TOKEN = re.compile(r"[0-9a-f]{16,64}")


class Shown(NamedTuple):
    """A value that was shown: its serial number, its place in the output without marks, and its text."""

    serial: int
    offset: int
    text: str


class UnmarkedOutput(NamedTuple):
    """Output without marks. `cleared` is the offset of the last clearing with output after it, or 0."""

    text: str
    shown: list[Shown]
    cleared: int


def block(token: str, serial: int, text: str) -> str:
    """Return what the child prints when it shows a value."""
    return f"\x1b]{token};{serial}\x07{text}\x1b]{token};e\x07"


def clearing(token: str) -> str:
    """Return what the child prints when its output is cleared."""
    return f"\x1b]{token};c\x07"


def read(output: str, token: str) -> UnmarkedOutput:
    """Take the marks out of the output. Where a part of the output was dropped, a mark may lack its counterpart."""
    if not _TOKEN.fullmatch(token) or token not in output:
        return UnmarkedOutput(output, [], 0)
    texts: list[str] = []
    shown: list[Shown] = []
    size = cleared = 0
    pieces = re.split(rf"\x1b\]{token};(\d{{1,9}}|[ce])\x07", output)
    at = 1
    texts.append(pieces[0])
    size += len(pieces[0])
    while at < len(pieces):
        kind, text = pieces[at], pieces[at + 1]
        if kind.isdecimal() and at + 2 < len(pieces) and pieces[at + 2] == "e":
            shown.append(Shown(int(kind), size, text))
            text = pieces[at + 3]
            at += 2
        elif kind == "c":
            cleared = size
        texts.append(text)
        size += len(text)
        at += 2
    output = "".join(texts)
    if cleared == size and not any(value.offset == size for value in shown):
        cleared = 0
    return UnmarkedOutput(output, shown, cleared)
