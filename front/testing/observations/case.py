"""A cell with the marks that a model must be able to read in its observation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

KINDS = ("output", "value", "line", "error", "figure", "exit", "limit", "state", "absent")
"""Kinds of marks: printed output, the value of the last expression, the cell's own line that failed or was stopped, the
error, that a figure was shown, the exit code or signal, the limit with its size, whether the variables are kept; and
text that must not be there, such as frames of a progress bar that were drawn over."""


@dataclass(frozen=True)
class ObservedCell:
    """One cell.

    Attributes:
        code: the program.
        marks: regular expressions by kind, which the text must match (`absent`: must not match).
        timeout: wall seconds that the cell has.
    """

    code: str
    marks: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 30.0

    def missing(self, text: str) -> list[str]:
        """Return the kinds of marks that a text lacks."""
        return [
            kind for kind, pattern in self.marks.items() if bool(re.search(pattern, text)) is not (kind != "absent")
        ]


@dataclass(frozen=True)
class ObservedProgram:
    """Cells of one session, in order.

    Attributes:
        name: unique name.
        cells: the cells.
        needs: modules that must be installed where the cells run.
        harmful: whether it may harm a machine that does not confine it, such as a fork bomb.
    """

    name: str
    cells: tuple[ObservedCell, ...]
    needs: tuple[str, ...] = ()
    harmful: bool = False

    def __str__(self) -> str:
        return self.name


def cell(code: str, *, timeout: float = 30.0, **marks: str) -> ObservedCell:
    """Make a cell with its marks by kind. Raises ValueError for an unknown kind."""
    unknown = sorted(marks.keys() - {*KINDS})
    if unknown:
        raise ValueError(f"unknown kinds of marks: {unknown}; known: {KINDS}")
    return ObservedCell(code.strip("\n"), marks, timeout)


def program(name: str, *cells: ObservedCell, needs: Iterable[str] = (), harmful: bool = False) -> ObservedProgram:
    return ObservedProgram(name, cells, tuple(needs), harmful)
