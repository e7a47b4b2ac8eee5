"""Calls between markers, in a section between markers, the name before the JSON arguments: DeepSeek and Kimi."""

from __future__ import annotations

import re
from typing import NamedTuple

from toolgym.tools.parsers.marked_json import read_marked_json
from toolgym.tools.parsers.scan import Read, TurnBuilder, region_end
from toolgym.tools.schema import CallProblem


class Markers(NamedTuple):
    """Marks that open and close a section and a call."""

    section: str
    end_section: str
    open: str
    close: str

    @property
    def pattern(self) -> str:
        """Finds what this reader is called for."""
        return "|".join(map(re.escape, (self.open, self.section, self.end_section)))


def section_reader(markers: Markers, head: str, closing: str, shape: str) -> Read:
    """Make the reader of a format.

    Args:
        markers: the format's.
        head: pattern of what stands before the arguments; its group `name` is the tool's name, and its group `id`,
            where it has one, the call's id.
        closing: pattern of what must stand after them; it ends with the marker that closes a call.
        shape: how a call is written, for errors.
    """
    heads, closings = re.compile(head), re.compile(closing)

    def read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
        at = mark.end()
        if mark.group() == markers.end_section:
            return at
        if mark.group() == markers.section:
            return _section(text, at, turn, markers, shape)
        head = heads.match(text, at)
        if head is None:
            end, closed = region_end(text, at, markers.close, markers.open)
            turn.add_error(
                CallProblem.MALFORMED_CALL, _not_understood(text, at, markers.open, shape), text[mark.start() : end]
            )
            return end + len(markers.close) if closed else end
        return read_marked_json(
            text,
            turn,
            start=mark.start(),
            at=head.end(),
            name=head["name"],
            closing=closings,
            close=markers.close,
            openers=(markers.open,),
            shape=shape,
            call_id=head.groupdict().get("id", ""),
        )

    return read


def _section(text: str, at: int, turn: TurnBuilder, markers: Markers, shape: str) -> int:
    """Return where a section's first call begins; without one, the section is an error."""
    end, closed = region_end(text, at, markers.end_section, markers.open, markers.section)
    if text.startswith(markers.open, end):
        return at
    turn.add_error(CallProblem.MALFORMED_CALL, _not_understood(text, at, markers.section, shape), text[at:end])
    return end + len(markers.end_section) if closed else end


def _not_understood(text: str, at: int, after: str, shape: str) -> str:
    return f"The tool call is not understood: got {text[at : at + 40]!r} after {after}. Write it as {shape}."
