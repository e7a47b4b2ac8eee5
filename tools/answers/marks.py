r"""Find the answer that a text marks (`marked_answers`).

>>> marked_answers("#### Final Answer\n\\boxed{3} and \\boxed{7}")
['3', '7']
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence

from toolgym.tools.answers.statements import bare, without_withdrawn
from toolgym.tools.message import without_thinking

MAX_TEXT = 1 << 15
"""Characters from the end of a text in which marks are looked for."""

_HASHES = re.compile(r"(?<!#)####(?!#)[ \t]*(.*)$", re.MULTILINE)
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}]|[{}]")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s{}$]+)")
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)", re.MULTILINE)
_BETWEEN = re.compile(
    r"(?:[\s,;:.&$*()\[\]\\~|]|\\(?:text|mathrm|textbf)\s*\{|[{}]|\b(?:and|or|,|quad|qquad)\b|和|或|与|、|，"
    r"|[A-Za-z](?:_\{?\w\}?)?(?:\([a-z]\))?\s*=)*"
)
_BEFORE_BOX = re.compile(
    r"(?:(?<=[=$({])\s{0,3}(-|\\pm)\s{0,3}|(?<=\n)(-)|(\\pm|\\neq?|≠)\s{0,3}|\b(not)\s{1,3}\$?)\{?$"
)
_AFTER_BOX = re.compile(
    r"\s{0,2}\$?\s{0,2}(_\{[^{}]{1,20}\}|_\w|\^\{[^{}]{1,20}\}|\^\\circ|\^\d|\\?%|\\pi\b|\\sqrt\{[^{}]{1,20}\})"
)
_PART = re.compile(
    r"(?:^|\n)[\s#*>-]*(?:(?:part|question|problem|第)\s*)?(?:\(?([a-h]|[ivx]{1,4}|\d)[).:、]|\(([a-h]|[ivx]{1,4}|\d)\))"
    r"|\bpart\s+\(?([a-h]|[ivx]{1,4}|\d)\)?",
    re.IGNORECASE,
)


def marked_answers(text: str) -> list[str]:
    r"""Return the answer that a text marks, outside of its thinking: several texts if it has several parts.

    What stands between the last `<answer>` tags is read first, and within it, or else in the whole text, `\boxed{...}`
    and then the line after `####`. Boxes with nothing but a comma or a word such as "and" between them are parts of one
    answer, and so are the boxes of labelled parts; otherwise the last box counts. A line after `####` that is a
    heading, or in a block of code, is not an answer.
    """
    spoken = without_withdrawn(without_thinking(text)[-MAX_TEXT:])
    tagged = _tagged(spoken)
    if tagged is not None:
        return _boxed(tagged) or _after_hashes(tagged) or [bare(tagged)]
    return _boxed(spoken) or _after_hashes(spoken)


def marked_answer(text: str) -> str | None:
    """Return the answer that a text marks as one text, its parts with commas between them; None if it marks none."""
    answers = marked_answers(text)
    return ", ".join(answers) if answers else None


def hash_answer(text: str) -> str | None:
    """Return the answer after the last `####` of a text; None if there is none, or if that line is a heading."""
    answers = _after_hashes(text)
    return answers[0] if answers else None


def _tagged(text: str) -> str | None:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end] if start >= 0 else None


def _after_hashes(text: str) -> list[str]:
    fences = _fences(text)
    starts = [start for start, _ in fences]
    last = None
    for line in _HASHES.finditer(text):
        fence = bisect.bisect_right(starts, line.start()) - 1
        if fence < 0 or line.start() >= fences[fence][1]:
            last = line
    if last is None:
        return []
    answer = bare(last[1].strip().rstrip("#"))
    return [answer] if answer and not _is_heading(text, last) else []


def _is_heading(text: str, line: re.Match[str]) -> bool:
    """Whether a line of `####` has text after it and only that before it, and begins with a word of two letters."""
    begins_line = not text[text.rfind("\n", 0, line.start()) + 1 : line.start()].strip(" \t>*")
    is_last = not text[line.end() :].strip()
    return begins_line and not is_last and re.match(r"\W*[^\W\d_]{2}", line[1]) is not None and "\\" not in line[1][:1]


def _fences(text: str) -> list[tuple[int, int]]:
    """Return the spans of blocks of code. A block that is not closed reaches the end."""
    spans, opened = [], None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[1].startswith(opened[1][:3]):
            spans.append((opened.start(), fence.end()))
            opened = None
    return [*spans, (opened.start(), len(text))] if opened is not None else spans


def _boxed(text: str) -> list[str]:
    r"""Return the contents of the last box and of the boxes that belong to it."""
    boxes = [box for box in _boxes(text) if text[box[1] : box[2]].strip()]
    if not boxes:
        bare_boxes = _BARE_BOX.findall(text)
        return [bare_boxes[-1].rstrip(".,")] if bare_boxes else []
    groups: list[list[tuple[int, int, int]]] = []
    for box in boxes:
        if groups and _BETWEEN.fullmatch(text, groups[-1][-1][2] + 1, box[0]):
            groups[-1].append(box)
        else:
            groups.append([box])
    chosen = groups[-1]
    if len(groups) > 1 and (parts := _labelled(text, groups)):
        chosen = [box for group in parts for box in group]
    return [_with_neighbours(text, *box) for box in chosen]


def _with_neighbours(text: str, start: int, begin: int, end: int) -> str:
    r"""Return the content of a box with what changes it from outside, such as `-\boxed{3}` and `\boxed{101}_2`."""
    content = bare(text[begin:end])
    before = _BEFORE_BOX.search(f"\n{text[:start]}" if start < 16 else text[start - 16 : start])
    after = _AFTER_BOX.match(text, end + 1)
    if before is None and after is None:
        return content
    sign = next(filter(None, before.groups()), "") if before else ""
    inner = f"({content})" if re.search(r"[-+,]", content) else content
    return f"{sign} {inner}{after[1] if after else ''}".strip()


def _labelled(text: str, groups: Sequence[list[tuple[int, int, int]]]) -> list[list[tuple[int, int, int]]]:
    """Return the last group of boxes of each part of the answer, if the text labels its parts as (a) and (b)."""
    parts: dict[str, list[tuple[int, int, int]]] = {}
    begins, label = 0, ""
    for group in groups:
        labels = list(_PART.finditer(text, begins, group[0][0]))
        if labels:
            label = next(filter(None, labels[-1].groups())).lower()
        if not label:
            return []
        parts[label] = group
        begins = group[-1][2]
    return list(parts.values()) if len(parts) > 1 else []


def _boxes(text: str) -> list[tuple[int, int, int]]:
    r"""Return the start of each outermost box whose braces close, and the span of its content."""
    boxes: list[tuple[int, int, int]] = []
    open_braces = []
    for brace in _BRACES.finditer(text):
        if brace[0] in (r"\{", r"\}"):
            continue
        if brace[0] != "}":
            open_braces.append(brace)
        elif open_braces and (opened := open_braces.pop())[0] != "{":
            while boxes and boxes[-1][0] > opened.start():
                boxes.pop()  # inside of this one
            boxes.append((opened.start(), opened.end(), brace.start()))
    return boxes
