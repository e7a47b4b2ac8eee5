r"""Find the answer that a text marks (`marked_answers`), or else says (`said_answer`).

>>> marked_answers("#### Final Answer\n\\boxed{3} and \\boxed{7}")
['3', '7']
>>> said_answer("First 41, then 40. The answer is **42**.")
'42'
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence

from toolgym.tools.answers.numbers import NEGATIONS, last_number_place
from toolgym.tools.answers.tokens import AnswerToken, half_width, read_tokens

MAX_TEXT = 1 << 15
"""Characters from the end of a text in which marks are looked for."""

MAX_SAID = 4096
"""Characters from the end of a text in which an unmarked answer is looked for."""

_HASHES = re.compile(r"(?<!#)####(?!#)[ \t]*(.*)$", re.MULTILINE)
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}]|[{}]")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s{}$]+)")
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)", re.MULTILINE)
_BETWEEN = re.compile(
    r"(?:[\s,;:.&$*()\[\]\\~|]|\\(?:text|mathrm|textbf)\s*\{|[{}]|\b(?:and|or|,|quad|qquad)\b|和|或|与|、|，"
    r"|[A-Za-z](?:_\{?\w\}?)?(?:\([a-z]\))?\s*=)*"
)
_PART = re.compile(
    r"(?:^|\n)[\s#*>-]*(?:(?:part|question|problem|第)\s*)?(?:\(?([a-h]|[ivx]{1,4}|\d)[).:、]|\(([a-h]|[ivx]{1,4}|\d)\))"
    r"|\bpart\s+\(?([a-h]|[ivx]{1,4}|\d)\)?",
    re.IGNORECASE,
)
_PHRASE = re.compile(
    r"\b(?:final\s+|correct\s+|right\s+)?(?:answer|result)\b[^\n.:=]{0,60}?(?:\bis\b|\bare\b|[:=])"
    r"|答案\s*(?:是|为|[:=])",
    re.IGNORECASE,
)
_MATH = re.compile(
    r"\$\$(.{1,500}?)\$\$|(?<![\\$])\$(?!\$)([^$\n]{1,500}?)(?<!\\)\$|\\\[(.{1,500}?)\\\]|\\\((.{1,500}?)\\\)",
    re.DOTALL,
)
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*|`([^`\n]+)`")
_STOP = re.compile(r"[.?!](?=\s|$|[*_`\"])|。|\n")
_WRAPPED = re.compile(r"\*\*(.+)\*\*|__(.+)__|`+([^`]+)`+|\*(.+)\*|\"(.+)\"", re.DOTALL)


def without_thinking(text: str) -> str:
    return text.rpartition("</think>")[2].partition("<think>")[0]


def marked_answers(text: str) -> list[str]:
    r"""Return the answer that a text marks, outside of its thinking: several texts if it has several parts.

    What stands between the last `<answer>` tags is read first, and within it, or else in the whole text, `\boxed{...}`
    and then the line after `####`. Boxes with nothing but a comma or a word such as "and" between them are parts of one
    answer, and so are the boxes of labelled parts; otherwise the last box counts. A line after `####` that is a
    heading, or in a block of code, is not an answer.
    """
    spoken = without_thinking(text)[-MAX_TEXT:]
    tagged = _tagged(spoken)
    if tagged is not None:
        return _boxed(tagged) or _after_hashes(tagged) or [bare(tagged)]
    return _boxed(spoken) or _after_hashes(spoken)


def marked_answer(text: str) -> str | None:
    """Return the answer that a text marks as one text, its parts with commas between them; None if it marks none."""
    answers = marked_answers(text)
    return ", ".join(answers) if answers else None


def said_answer(text: str) -> str | None:
    """Return what an unmarked text says its answer is, outside of its thinking; None if it says none.

    That is what follows "the answer is", or else the last formula, bold text or number, unless its sentence has a
    "not".
    A text that is a formula or a number as a whole is its own answer.
    """
    spoken = half_width(without_thinking(text)[-MAX_SAID:]).strip()
    if "\\boxed" in spoken or "\\fbox" in spoken:
        return None  # an empty box, or one that does not close
    phrases = list(_PHRASE.finditer(spoken))
    if phrases:
        return _rest_of_sentence(spoken, phrases[-1].end()) or None
    tokens = read_tokens(spoken)
    if "\n" not in spoken and not any(token.kind == "word" and not token.upright for token in tokens):
        return bare(spoken) or None
    place = max(
        (match.span() for pattern in (_MATH, _BOLD) for match in pattern.finditer(spoken)), key=_end, default=None
    )
    sentence = 0 if place is None else (stop.end() if (stop := _STOP.search(spoken, place[1])) else len(spoken))
    later = read_tokens(spoken[sentence:])
    number = last_number_place(later if place else tokens)
    if number is not None:
        among = later if place else tokens
        return None if _is_denied(among, number[1]) else _written(among[number[1] : number[2]])
    if place is None:
        return None
    start = max((stop.end() for stop in _STOP.finditer(spoken, 0, place[0])), default=0)
    return None if _is_denied(read_tokens(spoken[start : place[0]])) else bare(spoken[place[0] : place[1]])


def bare(text: str) -> str:
    """Return an answer without the Markdown around it: `**73**`, `#### 73`, `` `73` `` and `"73"` are `73`."""
    while True:
        text = text.strip().lstrip("#").strip()
        wrapped = _WRAPPED.fullmatch(text)
        inner = next(filter(None, wrapped.groups()), "") if wrapped else ""
        if not inner or inner.count("**") % 2 or "`" in inner:
            return text
        text = inner


def hash_answer(text: str) -> str | None:
    """Return the answer after the last `####` of a text; None if there is none, or if that line is a heading."""
    answers = _after_hashes(text)
    return answers[0] if answers else None


def _end(span: tuple[int, int]) -> int:
    return span[1]


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
    r"""The contents of the boxes that are the answer: of the last one, and of those that belong to it."""
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
    return [bare(text[start:end]) for _, start, end in chosen]


def _labelled(text: str, groups: Sequence[list[tuple[int, int, int]]]) -> list[list[tuple[int, int, int]]]:
    """The last group of boxes of each part of the answer, if the text labels its parts, such as (a) and (b)."""
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


def _rest_of_sentence(text: str, at: int) -> str:
    rest = re.sub(r"^[\s*_:：]+", "", text[at:])
    formula = _MATH.match(rest)
    if formula:
        stop = _STOP.search(rest, formula.end())
        return bare(rest[: stop.start()] if stop else rest)
    stop = _STOP.search(rest)
    sentence = rest[: stop.start()] if stop else rest
    return bare(sentence.rstrip("*_ ") if sentence.count("**") % 2 else sentence)


def _is_denied(tokens: Sequence[AnswerToken], end: int | None = None) -> bool:
    """Whether the sentence before a token has a word such as "not"."""
    sentence: list[AnswerToken] = []
    for token in tokens[:end]:
        sentence = [] if token.is_symbol(".", "?", "!", ";") else [*sentence[-40:], token]
    return any(token.is_word(*NEGATIONS) or token.is_command("ne", "not") for token in sentence)


def _written(tokens: Sequence[AnswerToken]) -> str:
    """Tokens as text that reads as the same tokens."""
    texts = []
    for token in tokens:
        text = token.text
        if token.kind == "command":
            text = f"\\{text} "
        elif token.kind == "repeating":
            whole, _, repeated = text.rstrip(")").partition("(")
            text = f"{whole}\\overline{{{repeated}}}"
        texts.append(f" {text}" if token.spaced else text)
    return "".join(texts).strip()
