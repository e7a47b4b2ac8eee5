"""Rewrites what notebook cells may contain beyond Python (`!command`, magics) to Python, line by line."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

SHELL = "__shell__"
"""The name that a rewritten cell calls `run_shell` by."""

_MARKS = re.compile(r"""\\.|'''|\"""|['"#()\[\]{}]""")
_ASSIGNED = re.compile(r"([\w.\[\]'\", ]+=\s*)([!%].*)")
_HELP = re.compile(r"\?{1,2}\s*[\w.]+|[\w.]+\?{1,2}")
_HOLE = re.compile(r"\{\{|\}\}|\{[^{}]+\}|\$[A-Za-z_]\w*")


def silenced(code: str, last: ast.stmt) -> bool:
    """Whether a semicolon follows a cell's last statement: then Jupyter echoes nothing. Comments do not count."""
    if ";" not in code:
        return False
    # The parser counts lines as Python does, which `splitlines` does not, and columns in bytes.
    lines = code.replace("\r\n", "\n").replace("\r", "\n").encode().split(b"\n")
    end, column = last.end_lineno or 0, last.end_col_offset or 0
    rest = b"\n".join([lines[end - 1][column:], *lines[end:]])
    return b";" in rest.partition(b"#")[0]


def plain(code: str) -> str:
    """Rewrite a cell that is not Python to Python, as far as notebooks allow it; lines keep their numbers.

    - `!command` and `names = !command` run, see `run_shell`.
    - The code after `%time` and `%%time` runs, untimed. `%matplotlib` does nothing: figures are shown without it.
    - Other magics, and `name?`, print a sentence that says so. A cell that begins with one like `%%bash` is all of
      that language, and only prints the sentence.
    """
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    lines = [line.removeprefix(indent) for line in lines]
    if first.lstrip().startswith("%%"):
        at = next(at for at, line in enumerate(lines) if line.strip())
        if lines[at].split() != ["%%time"]:
            return _unavailable(lines[at])
        lines[at] = ""
    answered: list[str] = []
    quote, depth, continued = "", 0, False
    while len(answered) < len(lines):
        line = lines[len(answered)]
        if not (quote or depth or continued) and _is_magic(line):
            joined = 1
            while line.rstrip().endswith("\\") and len(answered) + joined < len(lines):
                line = line.rstrip()[:-1] + lines[len(answered) + joined].strip()
                joined += 1
            answered += [_answered(line), *[""] * (joined - 1)]
        else:
            quote, depth = _follow(line, quote, depth)
            continued = line.rstrip("\r").endswith("\\")
            answered.append(line)
    return "\n".join(answered)


def run_shell(command: str, catch: bool = False) -> list[str] | None:
    """Run `!command` for a cell. `{expression}` and `$name` are replaced by the cell's values, if it has them;
    otherwise the shell gets them. With `catch`, the lines of its output and errors are returned instead of printed."""
    frame = sys._getframe(1)
    sys.stdout.flush()
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if catch else {}
    done = subprocess.run(_filled(command, frame.f_globals, frame.f_locals), shell=True, check=False, **output)  # type: ignore[call-overload]
    return done.stdout.decode("utf-8", "replace").splitlines() if catch else None


def _filled(command: str, global_names: dict[str, Any], local_names: Mapping[str, Any]) -> str:
    def fill(hole: re.Match[str]) -> str:
        text = hole[0]
        if text in ("{{", "}}"):
            return text[0]
        if text[0] == "{":
            return str(eval(text[1:-1].strip(), global_names, local_names))
        name = text[1:]
        names = local_names if name in local_names else global_names
        return str(names[name]) if name in names else text

    try:
        return _HOLE.sub(fill, command)
    except Exception:  # noqa: BLE001  the braces are meant for the shell
        return command


def _is_magic(line: str) -> bool:
    bare = line.strip()
    return bare.startswith(("%", "!")) or bool(_ASSIGNED.fullmatch(bare) or _HELP.fullmatch(bare.rstrip("; ")))


def _answered(line: str) -> str:
    bare = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    assigned = _ASSIGNED.fullmatch(bare)
    target, bare = assigned.groups() if assigned else ("", bare)
    magic, _, rest = bare.partition(" ")
    if bare.startswith("!"):
        catch = ", True" if target else ""
        return f"{indent}{target}{SHELL}({bare.lstrip('!').strip()!r}{catch})"
    if magic == "%matplotlib":
        return f"{indent}pass"
    if magic == "%time" and rest.strip() and not rest.lstrip().startswith("-"):
        return f"{indent}{target}{rest.lstrip()}"
    if bare.startswith("%%"):
        return line  # only a cell's first line may be a cell magic
    return f"{indent}{target}{_unavailable(bare)}"


def _follow(line: str, quote: str, depth: int) -> tuple[str, int]:
    """The quotes that are open after a line of Python, and how many brackets."""
    for mark in _MARKS.findall(line):
        if quote:
            quote = "" if mark == quote else quote
        elif mark == "#":
            break
        elif mark[0] in "'\"":
            quote = mark
        elif mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth = max(0, depth - 1)
    return quote if len(quote) == 3 else "", depth


def _unavailable(line: str) -> str:
    return f"print({f'[{line.split()[0]} is not available here: this is plain Python]'!r})"
