"""`collapse_errors`: error output without the lines that a model cannot use.

Frames of the program itself are kept. Frames of libraries become one line, and so do repeated lines and recursion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_PERIOD = 8
"""Most lines, or frames, of a group whose repetitions are collapsed."""

_FRAME = re.compile(r'(?P<prefix>[ |]*?)  File "(?P<file>[^"]*)", line (?P<line>\d+)(?:,? in (?P<name>.*))?')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/([^/]+)|/lib(?:64)?/python3[^/]*/(?!(?:site|dist)-packages/)([^/]+)")
_FROZEN = re.compile(r"<frozen ([\w.]+)>|<__array_function__ internals>")
_SANDBOX = re.compile(r"/tools/sandbox/local/(?:child|zygote|broker|kernel)/\w+\.py$|/tools/confined/\w+\.py$")
_DUMP = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+ (?:\[.*\] )?\(most recent call first\):")
_REPEATED = re.compile(r"[ |]*\[Previous line repeated (\d{1,9}) more times?\]")
_EXTENSIONS = re.compile(r"Extension modules: .* \(total: \d+\)")


@dataclass
class _Frame:
    """One frame of a stack. `name` is the function, or None where a SyntaxError shows its line. `repeats` is how often
    Python says that the frame comes again."""

    prefix: str
    file: str
    name: str | None
    lines: list[str] = field(default_factory=list)
    repeats: int = 0

    @property
    def library(self) -> str:
        """The library that the frame belongs to. Empty for a frame of the program."""
        match = _LIBRARY.search(self.file)
        if match is not None:
            return (match[1] or match[2]).removesuffix(".py")
        if self.file.endswith((".pyx", ".pxi", ".pxd")):
            return (self.name or self.file).partition(".")[0]
        frozen = _FROZEN.fullmatch(self.file)
        return "" if frozen is None else (frozen[1] or "numpy").partition(".")[0]


def collapse_errors(text: str) -> str:
    """Shorten error output without a loss of what the model can act on.

    In each stack of a traceback, consecutive frames of libraries become `... 14 frames in pandas ...`, and frames of
    the sandbox are removed. A stack without a frame of the program keeps its last one. Repeated groups of lines or
    frames are shown once, with the number of repetitions. Runs in linear time.
    """
    lines = text.split("\n")
    shown: list[str] = []
    plain: list[str] = []
    at = 0
    while at < len(lines):
        frame = _FRAME.fullmatch(lines[at])
        if frame is None:
            if not (_EXTENSIONS.fullmatch(lines[at]) or _DUMP.fullmatch(lines[at])):
                plain.append(lines[at])
            at += 1
            continue
        stack, at = _read_stack(lines, at)
        shown += collapse_repeated(plain)
        plain = []
        shown += _show_stack(stack)
    return "\n".join([*shown, *collapse_repeated(plain)])


def collapse_repeated(lines: Sequence[str], noun: str = "line") -> list[str]:
    """Show groups of equal consecutive lines once, with the number of further repetitions, where that is shorter."""
    shown: list[str] = []
    at = 0
    while at < len(lines):
        period, repeats = _repetition(lines, at)
        group = [*lines[at : at + period]]
        note = _repetition_note(period, repeats, noun)
        if repeats and sum(map(len, group)) * repeats + period * repeats > len(note) + 1:
            shown += [*group, note]
            at += period * (repeats + 1)
        else:
            shown.append(lines[at])
            at += 1
    return shown


def _repetition(lines: Sequence[str], at: int) -> tuple[int, int]:
    """Return the period of the repetition that begins at a line, and how often the group comes again."""
    for period in range(1, MAX_PERIOD + 1):
        if at + 2 * period > len(lines):
            break
        if lines[at] != lines[at + period] or not any(map(str.strip, lines[at : at + period])):
            continue
        end = at + period
        while end < len(lines) and lines[end] == lines[end - period]:
            end += 1
        repeats = (end - at) // period - 1
        if repeats > 1 or (repeats == 1 and period > 2):
            return period, repeats
    return 1, 0


def _repetition_note(period: int, repeats: int, noun: str) -> str:
    times = f"repeated {repeats} time{'s' if repeats > 1 else ''}"
    return f"... [{times}] ..." if period == 1 else f"... [the last {period} {noun}s {times}] ..."


def _read_stack(lines: Sequence[str], at: int) -> tuple[list[_Frame], int]:
    stack: list[_Frame] = []
    while at < len(lines):
        match = _FRAME.fullmatch(lines[at])
        if match is None:
            break
        frame = _Frame(match["prefix"], match["file"], match["name"], [lines[at]])
        at += 1
        while at < len(lines) and lines[at].startswith(f"{frame.prefix}    ") and not _FRAME.fullmatch(lines[at]):
            frame.lines.append(lines[at])
            at += 1
        repeated = _REPEATED.fullmatch(lines[at]) if at < len(lines) else None
        if repeated is not None:
            at += 1
            frame.repeats = int(repeated[1])
            while stack and stack[-1].lines == frame.lines:
                stack.pop()
                frame.repeats += 1
        stack.append(frame)
    return stack, at


def _show_stack(stack: Sequence[_Frame]) -> list[str]:
    stack = [frame for frame in stack if not _SANDBOX.search(frame.file)]
    program = {id(frame) for frame in stack if frame.name is None or not frame.library}
    if not program and stack:
        program = {id(stack[-1])}
    items: list[str] = []
    libraries: list[str] = []
    prefix = ""
    for frame in stack:
        if id(frame) not in program:
            libraries += [frame.library] * (1 + frame.repeats)
            prefix = frame.prefix
            continue
        items += _library_note(prefix, libraries)
        libraries = []
        items.append("\n".join(frame.lines))
        if frame.repeats:
            items.append(_repetition_note(1, frame.repeats, "frame"))
    items += _library_note(prefix, libraries)
    return collapse_repeated(items, "frame")


def _library_note(prefix: str, libraries: Sequence[str]) -> list[str]:
    if not libraries:
        return []
    names = [*dict.fromkeys(libraries)]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:2])}{' and others' if len(names) > 2 else ''}"
    return [f"{prefix}  ... {len(libraries)} frame{'s' if len(libraries) > 1 else ''} in {listed} ..."]
