"""Score what a model reads of programs: which marks are in the text, and how many characters it has."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from toolgym.testing.observations.case import ObservedProgram
from toolgym.tools.base import BaseTool

Reader: TypeAlias = Callable[[str, float], Awaitable[str]]
"""Runs one cell with a time limit in seconds, and returns the text that a model reads."""

OpenReader: TypeAlias = Callable[[], AbstractAsyncContextManager[Reader]]
"""Opens a session for one program."""

_LOOK = "import importlib.util\nprint('installed:', importlib.util.find_spec({module!r}) is not None)"


@dataclass(frozen=True)
class CellScore:
    """The observation of one cell, with its marks.

    Attributes:
        program: name of the program.
        index: position of the cell in the program.
        text: the observation.
        marks: kinds of marks that it has to show.
        missing: kinds of marks that it lacks.
    """

    program: str
    index: int
    text: str
    marks: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """Sums over cells: marks in all, marks that the texts show, and characters of the texts."""

    cells: int
    marks: int
    shown: int
    characters: int

    @classmethod
    def of(cls, scores: Iterable[CellScore]) -> Summary:
        scores = [*scores]
        marks = sum(len(score.marks) for score in scores)
        missing = sum(len(score.missing) for score in scores)
        return cls(len(scores), marks, marks - missing, sum(len(score.text) for score in scores))


async def score_program(program: ObservedProgram, read: Reader) -> list[CellScore]:
    """Run a program's cells in one session, and score their texts."""
    scores = []
    for index, cell in enumerate(program.cells):
        text = await read(cell.code, cell.timeout)
        scores.append(CellScore(program.name, index, text, tuple(cell.marks), tuple(cell.missing(text))))
    return scores


async def score_programs(programs: Sequence[ObservedProgram], open_reader: OpenReader) -> list[CellScore]:
    """Score programs, each in its own session. Programs whose modules are not installed there are left out."""
    scores = []
    for program in programs:
        async with open_reader() as read:
            if await absent_module(program, read) is None:
                scores += await score_program(program, read)
    return scores


async def absent_module(program: ObservedProgram, read: Reader) -> str | None:
    """Return a module that a program needs and that is not installed where cells run, or None."""
    for module in program.needs:
        if "installed: True" not in await read(_LOOK.format(module=module), 30.0):
            return module
    return None


@contextlib.asynccontextmanager
async def tool_reader(tool: BaseTool, argument: str = "code", **create_kwargs: Any) -> AsyncIterator[Reader]:
    """Open an episode of a tool for `score_program`.

    Args:
        tool: a tool that runs code, such as `CodeInterpreterTool`.
        argument: name of the tool's argument that takes the code.
        create_kwargs: those of the tool.
    """
    episode = await tool.create(**create_kwargs)

    async def read(code: str, timeout: float) -> str:
        result = await tool.execute(episode, {argument: code}, timeout=timeout)
        return str(result.text)

    try:
        yield read
    finally:
        await tool.release(episode)
