"""`extract_program`: the program in a model's text."""

from __future__ import annotations

import contextlib
import re
from typing import Literal, NamedTuple

Kind = Literal["fenced", "incomplete_fenced", "heuristic", "empty"]
"""Origin of a program, in SandboxFusion's words: in a fence, in one that is not closed, without a fence, absent."""

_BLOCK = re.compile(
    r"^[ \t]{0,3}(?P<mark>(?P<sign>[`~])(?P=sign){2,})[ \t]*(?P<tag>[^\n`]*)$\n?"
    r"(?P<code>.*?)(?P<end>^[ \t]*(?P=mark)(?P=sign)*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)

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


def extract_program(text: str, language: str = "python", *, which: Literal["first", "last"] = "last") -> Extracted:
    """Return the program in a model's text.

    Blocks with the language's tag go before those without a tag, and these before others; of equals the first
    (SandboxFusion's choice) or the last. A block that is not closed counts if no block is. Without any fence, a text
    that reads as a Python program is taken whole, or from its first line that begins one.
    """
    blocks = list(_BLOCK.finditer(text))
    closed = [block for block in blocks if block["end"]]
    if blocks:
        names = (language.lower(), *_ALIASES.get(language, ()))
        tags = {block: block["tag"].strip().partition(" ")[0].lower() for block in closed or blocks}
        ranked = list(tags)[:: 1 if which == "first" else -1]
        best = min(ranked, key=lambda block: (tags[block] not in names, tags[block] != ""))
        return Extracted(best["code"].replace("\r", "").removesuffix("\n"), "fenced" if closed else "incomplete_fenced")
    code = _bare_python(text) if language in ("python", "pytest") else ""
    return Extracted(code, "heuristic" if code else "empty")


def _bare_python(text: str) -> str:
    begins = re.search(r"^(?:(?:async )?def|class|import|from|@)\b[^\n]*", text, re.MULTILINE)
    for code in (text, text[begins.start() :]) if begins else ():
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            compile(code, "<text>", "exec")
            return code.strip("\n")
    return ""
