"""`extract_program`: the program in a model's text.

Fences are read as CommonMark has them: the indentation of the opening fence is taken off the lines of its block, so a
block in a list or a quote is read as it is shown. Models also write fences that CommonMark does not know, and these
are read as they were meant:

- a closing fence at the end of a line of code, or after it in the same line;
- an opening fence with a language at the end of a sentence;
- an opening fence with a language while the block before is still open: that block was not closed;
- a fence in a text of a Python program, such as a docstring: it belongs to the program.

The time is linear in the length of the text, whatever it holds.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Literal, NamedTuple

from toolgym.tools.judge.cases import AssertTest, FunctionTest, Test

Kind = Literal["fenced", "incomplete_fenced", "heuristic", "empty"]
"""Origin of a program, in SandboxFusion's words: in a fence, in one that is not closed, without a fence, absent."""

_ALIASES = {
    "python": ("py", "python3"),
    "cpp": ("c++", "cxx", "cc"),
    "nodejs": ("javascript", "js", "node"),
    "js": ("javascript", "nodejs", "node"),
    "bash": ("sh", "shell"),
    "csharp": ("c#", "cs"),
    "rust": ("rs",),
    "ruby": ("rb",),
    "julia": ("jl",),
    "typescript": ("ts",),
    "D_ut": ("d",),
    "go": ("golang",),
    "go_test": ("go", "golang"),
    "kotlin_script": ("kotlin", "kt"),
    "pytest": ("python", "py", "python3"),
}
"""Tags of a language in addition to its name."""

_OTHER_TAGS = (
    "c", "java", "php", "perl", "lua", "r", "scala", "swift", "racket", "haskell", "sql", "verilog", "lean", "cuda",
    "text", "txt", "plaintext", "plain", "markdown", "md", "json", "yaml", "html", "xml", "css", "diff", "console",
    "output", "input", "stdin", "stdout", "pseudocode",
)  # fmt: skip
_TAGS = {*_OTHER_TAGS, *map(str.lower, _ALIASES), *itertools.chain(*_ALIASES.values())}
"""Words that are a tag even where a fence stands in an unusual place."""

_SPACE = r"[ \t]*+"
_LEAD = rf"(?P<lead>{_SPACE}(?:(?:[-*+>]|[0-9]{{1,9}}[.)])[ \t]++)*+>?)"
_OPENING = re.compile(
    rf"^{_LEAD}(?:(?P<mark>`{{3,}}+){_SPACE}(?P<tag>[^`\n]*+)|(?P<tilde>~{{3,}}+){_SPACE}(?P<tilde_tag>[^\n]*+))$"
    rf"|^[^`\n]++(?P<late>`{{3,}}+)(?P<late_tag>[\w+#]++){_SPACE}$",
    re.MULTILINE,
)
"""A line that begins a block. `late`: the fence stands at the end of a sentence."""

_TOKEN = re.compile(
    r"\"\"\"|'''|\"(?:\\.|[^\"\\\n])*+\"?|'(?:\\.|[^'\\\n])*+'?|\#[^\n]*+|`{3,}+|(?<![^\n \t])~{3,}+", re.DOTALL
)
"""What a search for a fence in Python's source has to look at."""

_END_OF_TEXT = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in ('"""', "'''")}
_COMMENT = re.compile(r"\s*+(?://|#|\*|--|/\*)")
_LINE_WITH_FENCE = re.compile(r"^[^`~\n]*+(?:`(?!``)[^`~\n]*+|~(?!~~)[^`~\n]*+)*+(?P<mark>`{3,}+|~{3,}+)", re.MULTILINE)
_PYTHON_VERSION = re.compile(r"(?:python|py)[0-9.]++")
_TAG_WORD = re.compile(r"[{.\s]*+(?P<word>[^\s,;:{}=()]++)")

_MOST_OPEN_TEXTS = 16
"""Blocks with a text of Python that is never closed, after which blocks are read without looking for texts. Each one
costs a search to the end of the answer."""


def language_of(tag: str) -> str:
    """Return the language that a fence's tag stands for, or the tag itself if it is not another word for a language."""
    return tag if tag in _ALIASES else next((name for name, words in _ALIASES.items() if tag in words), tag)


class Extracted(NamedTuple):
    """A program in a text. Its source is empty if the text has none."""

    code: str
    kind: Kind


def extract_program(
    text: str,
    language: str = "python",
    *,
    which: Literal["first", "last"] = "last",
    defines: Collection[str] = (),
    bare: bool = True,
) -> Extracted:
    """Return the program in a model's text.

    Blocks that define one of the names are preferred, so that a usage example after the program is not taken for the
    program. Blocks with the language's tag are preferred to blocks without a tag, and these to blocks with another tag.
    Of equals, the first (SandboxFusion's choice) or the last block is taken. A block that is not closed counts only if
    no block is closed. Without any fence, a text that reads as a Python program is taken whole, or from the first line
    that begins a program.

    Args:
        text: the model's text, without its thinking.
        language: language of the program, as the sandbox names it.
        which: whether the first or the last of equal blocks is taken.
        defines: names of functions and classes, one of which the program has to define.
        bare: whether a text without a fence may be a program. This asks Python's parser about the text.
    """
    names = {language.lower(), *_ALIASES.get(language, ())}
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    blocks = list(_blocks(text, names))
    if blocks:
        closed = [block for block in blocks if block.closed]
        ranked = (closed or blocks)[:: 1 if which == "first" else -1]
        definition = _definition(defines)

        def rank(block: _Block) -> tuple[bool, bool, bool]:
            is_defined = definition is None or definition.search(text, block.start, block.end) is not None
            return (not is_defined, block.tag not in names, block.tag != "")

        return Extracted(min(ranked, key=rank).code(text), "fenced" if closed else "incomplete_fenced")
    code = _bare_python(text) if bare and language in ("python", "pytest") else ""
    return Extracted(code, "heuristic" if code else "empty")


def names_to_define(tests: Iterable[Test]) -> set[str]:
    """Return the names of functions and classes that tests call, one of which a program has to define."""
    names: set[str] = set()
    for test in tests:
        if isinstance(test, FunctionTest):
            names.add(test.function)
        elif isinstance(test, AssertTest):
            names.update(test.entry_points)
    return names


def _definition(names: Collection[str]) -> re.Pattern[str] | None:
    """Return a pattern for the definition of one of some names; None if there are no names."""
    if not names:
        return None
    words = "|".join(map(re.escape, sorted(names)))
    return re.compile(rf"^[ \t>]*+(?:(?:async[ \t]++)?(?:def|class)[ \t]++(?:{words})\b|(?:{words})[ \t]*+=)", re.M)


class _Block(NamedTuple):
    """A fenced block: where its code is in the text, and what its lines are indented by.

    Attributes:
        tag: first word after the opening fence, in lower case.
        start: index of the first character of the code.
        end: index after the last character of the code.
        closed: whether the block has a closing fence.
        indent: columns of indentation that belong to the fence and not to the code.
        quotes: marks of a quote, `>`, in front of each line.
    """

    tag: str
    start: int
    end: int
    closed: bool
    indent: int = 0
    quotes: int = 0

    def code(self, text: str) -> str:
        code = text[self.start : self.end]
        if self.indent or self.quotes:
            code = "\n".join(_dedent(line, self.indent, self.quotes) for line in code.split("\n"))
        return code.removesuffix("\n")


def _dedent(line: str, indent: int, quotes: int) -> str:
    """Take up to `indent` columns of blanks off a line, after up to `quotes` marks of a quote."""
    for _ in range(quotes):
        line = line.lstrip(" \t").removeprefix(">").removeprefix(" ")
    column = index = 0
    while column < indent and line[index : index + 1] in (" ", "\t"):
        column = column + 1 if line[index] == " " else column // 4 * 4 + 4
        index += 1
    return " " * max(0, column - indent) + line[index:]


def _blocks(text: str, names: Collection[str]) -> Iterator[_Block]:
    """Yield the fenced blocks of a text in their order."""
    position, texts_left, reads_python = 0, _MOST_OPEN_TEXTS, "python3" in names
    while opening := _OPENING.search(text, position):
        lead, ticks, ticks_tag, tildes, tildes_tag, late, late_tag = opening.groups()
        mark = ticks or tildes or late
        tag = _tag(ticks_tag or tildes_tag or late_tag or "")
        if late and tag not in _TAGS:
            position = opening.end()
            continue
        start = min(opening.end() + 1, len(text))
        is_python = reads_python and (not tag or tag in names)
        end = _python_end(text, start, mark) if is_python and texts_left else None
        if end is None:
            texts_left -= is_python
            end = _plain_end(text, start, mark, names, is_foreign=bool(tag) and tag not in names)
        quotes = lead.count(">") if lead else 0
        indent = len((lead[lead.rfind(">") + 1 :].removeprefix(" ") if quotes else lead).expandtabs(4)) if lead else 0
        yield _Block(tag, start, end.code, end.closed, indent, quotes)
        position = end.next


class _End(NamedTuple):
    """The end of a block: of its code, and of the text that belongs to it."""

    code: int
    next: int
    closed: bool


def _tag(info: str) -> str:
    """Return the language in what follows an opening fence: `python:main.py`, `{.python}`, `Python3 title=x`."""
    word = _TAG_WORD.match(info) if info else None
    tag = word["word"].lower() if word else ""
    return "python" if _PYTHON_VERSION.fullmatch(tag) else tag


def _fence_end(text: str, begin: int, line: int, mark_end: int, *, in_code: bool = False) -> _End | None:
    """Return the end of a block at a fence, or None if the fence is not one.

    Args:
        text: the whole text.
        begin: index of the fence.
        line: index of its line's first character.
        mark_end: index after the fence.
        in_code: whether the fence is known to be no part of the line's code.
    """
    stop = text.find("\n", mark_end)
    stop = len(text) if stop < 0 else stop
    before, after = text[line:begin], text[mark_end:stop].strip()
    if not before.strip(" \t>"):
        if after and _tag(after) in _TAGS:
            return _End(line, line, closed=False)  # the next block begins here
        return _End(line, stop, closed=True)
    if in_code or (not after and not _COMMENT.match(before)):
        return _End(begin, stop, closed=True)
    return None


def _python_end(text: str, start: int, mark: str) -> _End | None:
    """Return the end of a block of Python's source. None if a text in it is never closed, so that it cannot be read."""
    position = line = seen = start
    while token := _TOKEN.search(text, position):
        begin, position = token.span()
        word = token.group()
        newline = text.rfind("\n", seen, begin)
        line, seen = (newline + 1 if newline >= 0 else line), begin
        if word in _END_OF_TEXT:
            end = next((end for end in _END_OF_TEXT[word].finditer(text, position) if end.group() == word), None)
            if end is None:
                return None
            position = end.end()
        elif word[0] == "#":
            fence = word.rstrip().rfind(mark)
            is_late = fence >= 0 and word.rstrip().strip("`").count("`") == 0 and bool(text[line:begin].strip())
            if is_late and (ending := _fence_end(text, begin + len(word.rstrip().rstrip("`")), line, position)):
                return ending
        elif word.startswith(mark) and (ending := _fence_end(text, begin, line, position, in_code=word[0] == "`")):
            return ending
    return _End(len(text), len(text), closed=False)


def _plain_end(text: str, start: int, mark: str, names: Collection[str], *, is_foreign: bool) -> _End:
    """Return the end of a block of another language, or of Python's source that cannot be read.

    Within a block with another tag, such as a whole answer in Markdown, a fence with the language's tag begins a block.
    """
    for match in _LINE_WITH_FENCE.finditer(text, start):
        fence = match["mark"]
        begin, end = match.span("mark")
        if fence.startswith(mark):
            ending = _fence_end(text, begin, match.start(), end)
            if ending is not None:
                return ending
        elif is_foreign and fence[0] == mark[0]:
            ending = _fence_end(text, begin, match.start(), end)
            stop = text.find("\n", end)
            if ending is not None and not ending.closed and _tag(text[end : stop if stop >= 0 else None]) in names:
                return ending
    return _End(len(text), len(text), closed=False)


def _bare_python(text: str) -> str:
    begins = re.search(r"^(?:(?:async )?def|class|import|from|@)\b[^\n]*", text, re.MULTILINE)
    for code in (text, text[begins.start() :]) if begins else ():
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            compile(code, "<text>", "exec")
            return code.strip("\n")
    return ""
