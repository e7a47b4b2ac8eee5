"""`clean_code`: the program in what a model sent as its code."""

from __future__ import annotations

import re

FENCE_HINT = "[Send the code only, without ``` marks and without text around it]"

_SPACES = "\xa0\u1680\u2000-\u200a\u202f\u205f\u3000"
_INVISIBLE = "\u200b\u2060\ufeff"
_ODD = re.compile(f"[{_SPACES}{_INVISIBLE}]")
_ODD_SPACE = re.compile(f"[{_SPACES}]")
_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n`]*")
_FENCE_LINE = re.compile(r"^[ \t]{0,3}(?:```|~~~)", re.MULTILINE)
_PYTHON_NAMES = ("", "py", "python", "python3", "ipython", "tool_code", "code")
# Texts and comments of Python. A text of one line ends with the line at the latest.
_LITERAL = re.compile(
    r'"""(?:[^\\"]|\\.|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^\\']|\\.|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^\\"\n]|\\.)*+(?:"|(?=\n)|\Z)'
    r"|'(?:[^\\'\n]|\\.)*+(?:'|(?=\n)|\Z)"
    r"|#[^\n]*",
    re.DOTALL,
)


def clean_code(code: str, language: str = "python") -> str:
    """Return the program without what surrounds it by mistake.

    A byte order mark at the start is removed. Of an input that is one fenced block of Markdown, the content remains.
    For Python, this also holds for a fenced block with text around it, if it is the only one, and line ends become
    newlines, as Python itself reads them. Spaces and invisible characters that Python refuses become plain spaces, or
    nothing, outside of texts and comments. Nothing within a text of the program changes.
    """
    code = code.removeprefix("\ufeff")
    if language == "python" and "\r" in code:
        code = code.replace("\r\n", "\n").replace("\r", "\n")
    code = _unfenced(code, language)
    if language == "python" and _ODD.search(code):
        code = _with_plain_spaces(code.removeprefix("\ufeff"))
    return code


def has_fence(code: str) -> bool:
    """Whether lines of a Python program are fences of Markdown, so that the program cannot be parsed."""
    return "```" in code and bool(_fences(code))


def _unfenced(code: str, language: str) -> str:
    if "```" not in code and "~~~" not in code:
        return code
    content = _content_of_block(code.strip())
    if content is not None and not (_fences(content) if language == "python" else _FENCE_LINE.search(content)):
        return content
    if language != "python":
        return code
    fences = _fences(code)
    if len(fences) == 2 and fences[0][2] in _PYTHON_NAMES and not fences[1][2]:
        return code[fences[0][1] + 1 : fences[1][0]]
    if len(fences) == 1:
        start, end, name = fences[0]
        before, after = code[:start], code[end + 1 :]
        if not before.strip() and after.strip():  # the closing fence is missing
            return after
        if not after.strip() and not name:
            return before
    return code


def _content_of_block(text: str) -> str | None:
    """Return the content of a text that begins and ends with a fence."""
    first, _, rest = text.partition("\n")
    fence = _FENCE.fullmatch(first)
    if fence is None or not rest.endswith(fence[1]):
        return None
    content = rest.removesuffix(fence[1]).rstrip(" \t")
    return None if content.endswith(fence[1][0]) else content


def _fences(code: str) -> list[tuple[int, int, str]]:
    """Return start, end and language of each line of a program that is a fence, and not within a text of the program.

    A text that never ends cannot be one of the program: its quotes stand in the words around it.
    """
    fences = []
    at = 0
    inside_until = 0
    for literal in _LITERAL.finditer(code):
        if literal.start() < inside_until:
            continue
        fences += _fence_lines(code, at, literal.start())
        at = inside_until = literal.end()
    return fences + _fence_lines(code, at, len(code))


def _fence_lines(code: str, start: int, end: int) -> list[tuple[int, int, str]]:
    lines = []
    at = start
    while (mark := code.find("```", at, end)) >= 0:
        line_start = code.rfind("\n", 0, mark) + 1
        line_end = code.find("\n", mark)
        line_end = len(code) if line_end < 0 else line_end
        fence = _FENCE.fullmatch(code, line_start, line_end)
        if fence is not None and line_start >= start:
            lines.append((line_start, line_end, fence[2].lower()))
        at = line_end
        if at >= end:
            break
    return lines


def _with_plain_spaces(code: str) -> str:
    pieces = []
    at = 0
    for literal in _LITERAL.finditer(code):
        pieces += [_plain(code[at : literal.start()]), literal[0]]
        at = literal.end()
    return "".join([*pieces, _plain(code[at:])])


def _plain(text: str) -> str:
    return _ODD.sub("", _ODD_SPACE.sub(" ", text))
