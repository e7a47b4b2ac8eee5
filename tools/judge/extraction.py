"""`extract_program`: the program in a model's text."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["fenced", "incomplete_fenced", "heuristic", "empty"]
"""Origin of a program, in SandboxFusion's words: in a fence, in one that is not closed, without a fence, absent."""

_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([^\n`]*)$", re.MULTILINE)

_ALIASES = {
    "python": ("py", "python3"),
    "cpp": ("c++",),
    "nodejs": ("javascript", "js"),
    "bash": ("sh", "shell"),
    "csharp": ("c#",),
    "rust": ("rs",),
    "julia": ("jl",),
    "typescript": ("ts",),
    "D_ut": ("d",),
    "go": ("golang",),
    "go_test": ("go",),
    "kotlin_script": ("kotlin",),
    "pytest": ("python", "py", "python3"),
}
"""Words behind a fence for a language, beside its name."""


def language_of(tag: str) -> str:
    """Return the language of a fence's tag; the tag itself, if it is no other word for one."""
    return tag if tag in _ALIASES else next((name for name, words in _ALIASES.items() if tag in words), tag)


class Extracted(NamedTuple):
    """A program in a text; its source is empty if there is none."""

    code: str
    kind: Kind


class _Block(NamedTuple):
    tag: str
    code: str
    closed: bool


def extract_program(text: str, language: str = "python", *, which: Literal["first", "last"] = "last") -> Extracted:
    """Return the program in a model's text.

    Blocks with the language's tag go before those without a tag, and these before others; of equals the first
    (SandboxFusion's choice) or the last. A block that is not closed counts if no block is. Without any fence, a text
    that reads as a Python program is taken whole, or from its first line that begins one.
    """
    blocks = _blocks(text)
    for closed, kind in ((True, "fenced"), (False, "incomplete_fenced")):
        code = _choose([block for block in blocks if block.closed is closed], language, which)
        if code is not None:
            return Extracted(code, kind)  # type: ignore[arg-type]  # mypy widens the literal to str
    code = _bare_python(text) if language in ("python", "pytest") else ""
    return Extracted(code, "heuristic" if code else "empty")


def _blocks(text: str) -> list[_Block]:
    blocks, place = [], 0
    while (opening := _FENCE.search(text, place)) is not None:
        mark, tag = opening.group(1), opening.group(2).strip().partition(" ")[0].lower()
        closing = re.compile(rf"^[ \t]*{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
        end = closing.search(text, opening.end() + 1)
        stop = len(text) if end is None else end.start()
        blocks.append(_Block(tag, text[opening.end() + 1 : stop].replace("\r", "").removesuffix("\n"), end is not None))
        if end is None:
            break
        place = end.end()
    return blocks


def _choose(blocks: list[_Block], language: str, which: str) -> str | None:
    names = (language.lower(), *_ALIASES.get(language, ()))
    for wanted in (
        [block for block in blocks if block.tag in names],
        [block for block in blocks if not block.tag],
        blocks,
    ):
        if wanted:
            return wanted[0 if which == "first" else -1].code
    return None


def _bare_python(text: str) -> str:
    begins = re.search(r"^(?:(?:async )?def|class|import|from|@)\b[^\n]*", text, re.MULTILINE)
    for code in (text, text[begins.start() :] if begins else ""):
        if begins and _compiles(code):
            return code.strip("\n")
    return ""


def _compiles(code: str) -> bool:
    try:
        compile(code, "<text>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
