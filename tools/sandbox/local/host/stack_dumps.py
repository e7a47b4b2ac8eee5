"""Stacks that `faulthandler` writes when an interpreter crashes, or when the broker asks where a program is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus

HEADER = "Traceback (most recent call last):\n"

_SANDBOX_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep

_DUMP = re.compile(
    r"(?:Fatal Python error: (?P<why>[^\n]{1,200})\n(?:[^\n]*\n)?\n)?"
    r"(?P<stacks>(?:(?:Current thread|Thread) 0x[0-9a-f]+(?: \[[^\n]*\])? \(most recent call first\):\n"
    r'(?:  (?:File "[^"\n]*", line \d+ in [^\n]*|\.\.\.|<no Python frame>)\n)*+(?:\n(?=(?:Current t|T)hread 0x))?)++)'
    r"(?:\nCurrent thread's C stack trace[^\n]*\n(?:  [^\n]*\n)*+)?"
    r"(?:(?: +|(?:Current t|T)hread 0x)[^\n]*\Z)?"  # a line that is not finished
    r"(?:\nExtension modules: [^\n]*\n?)?"
)
_UNFINISHED_HEAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]*(?: [^\n]*)?\Z", re.MULTILINE)
"""All that there is of a dump whose process was killed while it wrote the first line."""

_FRAME = re.compile(r'^  File "([^"\n]*)", line (\d+) in ([^\n]*)$', re.MULTILINE)


class StackDump(NamedTuple):
    """Error output without a dump; why the interpreter crashed, empty if it did not; the stack, as in a traceback."""

    stderr: str
    why: str
    frames: list[str]


def take_dump(stderr: str, source: str, code: str) -> StackDump | None:
    """Take the last dump out of a program's error output. Returns None if there is no dump.

    A dump is unfinished if its process was killed while it wrote; only its whole lines are read.
    Frames of the sandbox are left out, and those outside of the program too. Of several threads, the
    main thread is taken if it runs the program. The source is added to frames of the file whose code is running.

    Args:
        stderr: the program's error output.
        source: the beginning of the program's file name: that of a run, or `<cell ` for a cell of a session.
        code: the text of the program.
    """
    if "hread 0x" not in stderr:
        return None
    matches = [*_DUMP.finditer(stderr)]
    if not matches:
        unfinished = _UNFINISHED_HEAD.search(stderr)
        return unfinished and StackDump(stderr[: unfinished.start()], "", [])
    match = matches[-1]
    stacks = [_FRAME.findall(stack) for stack in match["stacks"].split(" (most recent call first):\n")[1:]]
    # The main thread comes last.
    frames = next((stack for stack in reversed(stacks) if _outermost(stack, source) >= 0), stacks[-1])
    outermost = _outermost(frames, source)
    frames = frames[: outermost + 1] if outermost >= 0 else frames
    frames = [frame for frame in frames if not frame[0].startswith(_SANDBOX_FOLDER)]
    texts = {frames[-1][0]: code.split("\n")} if frames and frames[-1][0].startswith(source) else {}
    lines = [_shown(file, int(number), name, texts) for file, number, name in reversed(frames)]
    return StackDump(stderr[: match.start()] + stderr[match.end() :], match["why"] or "", lines)


def with_stack(result: ExecutionResult, source: str, code: str) -> ExecutionResult:
    """Put the stack of a Python program that crashed, or ran out of time, into the form of a traceback."""
    stopped = result.status in (ExecutionStatus.TIMEOUT, ExecutionStatus.KILLED)
    dump = take_dump(result.stderr, source, code) if stopped else None
    if dump is None:
        return result
    stack = "".join(dump.frames)
    if dump.why and result.status is ExecutionStatus.KILLED:
        stack = f"{HEADER}{stack}Fatal Python error: {dump.why}\n"
    gap = "\n" if dump.stderr and not dump.stderr.endswith("\n") else ""
    return replace(result, stderr=f"{dump.stderr}{gap}{stack}")


def _outermost(frames: Sequence[tuple[str, str, str]], source: str) -> int:
    """Return the position of the last frame of the program, or -1."""
    return max((at for at, frame in enumerate(frames) if frame[0].startswith(source)), default=-1)


def _shown(file: str, number: int, name: str, texts: Mapping[str, list[str]]) -> str:
    lines = texts.get(file, [])
    text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return f'  File "{file}", line {number}, in {name}\n' + (f"    {text}\n" if text else "")
