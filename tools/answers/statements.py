r"""Find the answer that a text states without marking it (`said_answer`), and what it takes back.

>>> said_answer("First 41, then 40. The answer is **42**, since 6 * 7 = 42.")
'42'
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolgym.tools.answers.numbers import NEGATIONS, last_number_place
from toolgym.tools.answers.sentences import last_number_span, values_around
from toolgym.tools.answers.tokens import AnswerToken, half_width, read_tokens, word_set
from toolgym.tools.message import without_thinking

MAX_SAID = 4096
"""Characters from the end of a text in which an unmarked answer is looked for."""

MAX_WRAPS = 16
"""Layers of quotes and Markdown that are removed from an answer."""

_VERBS = r"(?:\b(?:is|are|be|equals?|becomes)\b|[:=])"
_PHRASE = re.compile(
    rf"\b(?:answer|result|(?:correct|right|best)\s+(?:option|choice))s?\b(?P<gap>[^\n.:=]{{0,60}}?){_VERBS}"
    r"|\bsolutions?(?:\s+set)?\s+(?:is|are)\s{0,4}:?(?=\s{0,4}(?:[$\\\d(\[{-]|[a-z]\s*[=<>≤≥]))"
    r"|^[ \t#*_]*(?:the\s+)?(?:final\s+|correct\s+)?answer[ \t*_]*(?=\n)"
    r"|【答案】|(?:答案|正确选项|正确答案)\s*(?:是|为|选|[:=])|(?:故选|应选|因此选|所以选|故答案为|选择)\s*(?:是|为|[:=])?"
    r"|(?:选|\b(?:choose|pick|select))\s*(?=\(?[A-J]\)?(?:\W|$))",
    re.IGNORECASE | re.MULTILINE,
)
_VERDICT = re.compile(
    r"\b(?:option|choice|answer)\s*\(?([A-J])\)?\s+is\s+(?:the\s+)?(?:correct|right|best)|\(([A-J])\)\s+is\s+"
    r"(?:the\s+)?(?:correct|right|best)|([A-J])\s*项?\s*(?:是)?正确"
    r"|\b([A-J])\s+is\s+the\s+(?:correct|right|best)\s+(?:answer|choice|option)",
    re.IGNORECASE,
)
_MATH = re.compile(
    r"\$\$(.{1,500}?)\$\$|(?<![\\$])\$(?:(?=\s)([^$\n]{1,500}?\s)|(?![\s$])([^$\n]{1,500}?)(?<![\s\\]))\$(?!\d)"
    r"|\\\[(.{1,500}?)\\\]|\\\((.{1,500}?)\\\)",
    re.DOTALL,
)
_OPEN_MATH = re.compile(r"(?<![\\$\d])\$(?=[A-Za-z\\({])|\\[(\[]")
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*|`([^`\n]+)`")
_STOP = re.compile(r"[.?!](?=\s|$|[*_`\"])|。|\n")
_WRAPPED = re.compile(r"\*\*(.+)\*\*|__(.+)__|`+([^`]+)`+|\*(.+)\*|\"(.+)\"", re.DOTALL)
_BULLET = re.compile(r"[ \t]*[-*•][ \t]+([^\n]+)(?:\n|$)")
_CHOICE_LINE = re.compile(r"\(?[A-J]\)?[.):][ \t]+[^\n]*")
_REPLY = re.compile(r"(?:yes|no|true|false)\b[,.;:]", re.IGNORECASE)
_STATEMENT = re.compile(
    r"\b(?:is|are|be|equals)\s(?:an?\s|the\s)?(?:\*\*)?(?!(?:not|no|an?|the|as|to|in|of)\b)([A-Za-z]{2,}|[-+]?(?:∞|\\infty))(?:\*\*)?[.!]?$"
    r"|\b(does not exist|(?:has|have|is|are) no (?:real )?solutions?)[.!]?$",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"(?<![\s,;])[\s,;]+(?:\(?(?:since|because|as|which|where|when|given|using|assuming|not|rather\s+than|instead\s+of)"
    r"|by\s+(?:\w+ing|the))\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"(?<![\s,;])[\s,;]+and\s+(?:so|hence|thus|therefore|we|i|this|that|it|the|you|he|she|they|there)\b", re.IGNORECASE
)
_DESCRIBED = re.compile(r"(?:the|an?|found|obtained|derived|given|based|computed|as)\s+\w+\s+\w", re.IGNORECASE)
_REFUTED = re.compile(
    r"\b(?:is|are|was|were|be)(?:n't|\s+not)?\s+(?:wrong|incorrect|impossible|invalid|too\s)"
    r"|\b(?:isn't|is\s+not|are\s+not|cannot\s+be|can't\s+be)\s+(?:right|correct|possible|valid|the\s|an?\s|enough)"
    r"|\b(?:does|do|did)(?:n't|\s+not)\s+(?:work|fit|satisfy|hold|match)\b",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"\b(?:whether|suppose|assume|maybe|perhaps)\b|\blet(?:'s|\s+us|\s+me)\s+(?:\w+\s+)?"
    r"(?:check|try|test|verify|see|consider|guess)\b|\blet\s+\$?[a-z]\b|\b(?:candidates|options)\s{0,3}:",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"[\s,;*$\\()\[\]`]*(?:(?:and|or|和|或|与|及)\b)?[\s*$\\()\[\]`]*")
_WITHDRAWN = re.compile(
    r"(?:\b(?:that|this|it|which|answer|result)(?:'s|\s{1,4}(?:is|was))|\}[\s$]{0,8}(?:is|was))\s{1,4}"
    r"(?:wrong|incorrect|not\s{1,4}(?:right|correct)|a\s{1,4}mistake)\b"
    r"|\bi\s(?:have\s)?(?:made|did)\s(?:a\smistake|an\serror)\b|\bscratch\sthat\b",
    re.IGNORECASE,
)
_UNFINISHED = frozenset("=+-*/^<>")
_DANGLING = word_set("to the and or of is are that then we need with by for from so if an which because when i")
"""Words that do not end a sentence."""
_SECOND_THOUGHT = re.compile(r"\b(?:wait|actually|hmm|oops|sorry|correction)\b|\bno[,.!]", re.IGNORECASE)
_MARK = re.compile(r"\\(?:boxed|fbox)\b|(?<!#)####(?!#)|</answer>")


def said_answer(text: str) -> str | None:
    """Return what an unmarked text says its answer is, outside of its thinking; None if it says none.

    That is what follows "the answer is", or else the last formula, bold text or number, with the values that it lists
    before it. A sentence that denies it, asks, or only tries it does not count.
    A text that is a formula, a number, a choice or a word as a whole is its own answer.
    """
    spoken = half_width(without_withdrawn(without_thinking(text)[-MAX_SAID:])).strip()
    if "\\boxed" in spoken or "\\fbox" in spoken:
        return None  # an empty box, or one that does not close
    phrases, verdicts = list(_PHRASE.finditer(spoken)), list(_VERDICT.finditer(spoken))
    if verdicts and (not phrases or verdicts[-1].end() >= phrases[-1].end()):
        return ", ".join(dict.fromkeys(next(filter(None, verdict.groups())).upper() for verdict in verdicts))
    if phrases:
        return _after_phrase(spoken, phrases)
    reply = _replied(spoken)
    if reply is not None and reply[0].isupper() and " " not in reply:
        return reply  # 100 days later it is Tuesday
    tokens = read_tokens(spoken)
    if "\n" not in spoken and _is_answer(spoken, tokens):
        return bare(spoken) or None
    return _concluded(spoken, tokens) or reply


def without_withdrawn(text: str) -> str:
    """Return what a text says after it took its answer back; all of it if it did not, or if it marks an answer later.

    Words such as "wait" take an answer back only if the text says afterwards what the answer is.
    """
    last_mark = max((mark.end() for mark in _MARK.finditer(text)), default=0)
    withdrawn = [match.end() for match in _WITHDRAWN.finditer(text, max(last_mark - 1, 0))]
    if withdrawn:
        return text[withdrawn[-1] :]
    thoughts = [match.end() for match in _SECOND_THOUGHT.finditer(text, last_mark)]
    if last_mark and thoughts and any(phrase.start() > thoughts[0] for phrase in _PHRASE.finditer(text, thoughts[0])):
        return text[thoughts[0] :]
    return text


def bare(text: str) -> str:
    """Return an answer without the Markdown around it: `**73**`, `#### 73`, `` `73` `` and `"73"` are `73`.

    At most `MAX_WRAPS` layers are removed, so that thousands of nested quotes take linear time.
    """
    for _ in range(MAX_WRAPS):
        text = text.strip().lstrip("#").strip()
        wrapped = _WRAPPED.fullmatch(text)
        inner = next(filter(None, wrapped.groups()), "") if wrapped else ""
        if not inner or inner.count("**") % 2 or "`" in inner:
            return text
        text = inner
    return text


def _is_answer(text: str, tokens: Sequence[AnswerToken]) -> bool:
    """Whether all of a line is an answer: it has no words, is a choice with its text, or has only a few words."""
    words = [token for token in tokens if token.kind == "word" and not token.upright]
    if not words or _CHOICE_LINE.fullmatch(text):
        return True
    return len(words) == len(tokens) <= 3 and not _is_denied(tokens)


def _after_phrase(text: str, phrases: Sequence[re.Match[str]]) -> str | None:
    """Return what follows the last phrase such as "the answer is" that does not only describe the answer."""
    for phrase in reversed(phrases):
        rest = _rest_of_sentence(text, phrase.end())
        if phrase is phrases[0] or not _DESCRIBED.match(rest):
            return None if _is_denied(read_tokens(phrase["gap"] or "")) else rest or None
    return None


def _rest_of_sentence(text: str, at: int) -> str:
    rest = re.sub(r"^[\s_:：]+", "", text[at:])
    bullets, start = [], 0
    while (bullet := _BULLET.match(rest, start)) is not None:
        bullets.append(bare(bullet[1]))
        start = bullet.end()
    if bullets:
        return ", ".join(bullets)
    rest = re.sub(r"^[\s*_:：]+", "", rest)
    formula = _MATH.match(rest)
    stop = _STOP.search(rest, formula.end() if formula else 0)
    sentence = _without_reason(rest[: stop.start()] if stop else rest, formula.end() if formula else 1)
    return bare(sentence.rstrip("*_ ") if sentence.count("**") % 2 else sentence)


def _without_reason(sentence: str, start: int) -> str:
    """Drop the clause after an answer that gives its reason, unless that clause refutes it."""
    reason = _REASON.search(sentence, start)
    clause = _CLAUSE.search(sentence, start, reason.start() if reason else len(sentence))
    if clause and not re.search(r"[\d$\\]", sentence[clause.end() :]):
        reason = clause
    if reason is None or _REFUTED.search(sentence, start):
        return sentence
    return sentence[: reason.start()]


def _concluded(text: str, tokens: Sequence[AnswerToken]) -> str | None:
    """Return the last formula, bold text or number of a text."""
    last_line = text[text.rfind("\n") + 1 :]
    is_unfinished = bool(tokens) and (tokens[-1].text in _UNFINISHED or tokens[-1].is_word(*_DANGLING))
    if is_unfinished or _OPEN_MATH.search(_MATH.sub("", last_line)):
        return None  # it was cut
    places = sorted(match.span() for pattern in (_MATH, _BOLD) for match in pattern.finditer(text))
    if not places:
        return _last_values(text, 0)
    last = max(places, key=lambda span: span[1])
    stop = _STOP.search(text, last[1])
    after = stop.end() if stop else len(text)
    if last_number_place(read_tokens(text[after:])) is not None:
        return _last_values(text, after)
    begin = last[0]
    for span in reversed(places):
        if 0 <= begin - span[1] < 20 and _BETWEEN.fullmatch(text, span[1], begin):
            begin = span[0]
    if _is_doubtful(text, begin, last[1]):
        return None
    return bare(text[begin : last[1]])


def _replied(text: str) -> str | None:
    """Return the word that the last sentence of a text states, or all of a last line that replies "yes" or "no"."""
    last_line = bare(text[text.rfind("\n") + 1 :])
    if _REPLY.match(last_line):
        return last_line
    stops = [stop.end() for stop in _STOP.finditer(last_line) if stop.end() < len(last_line)]
    begin = stops[-1] if stops else 0
    statement = _STATEMENT.search(last_line, begin)
    if statement is None or _is_denied(read_tokens(last_line[begin : statement.start()])):
        return None
    return statement[1] or statement[2]


def _is_doubtful(text: str, begin: int, end: int) -> bool:
    """Whether the sentence around an answer denies it, asks, only tries it, or announces what follows."""
    start = max((stop.end() for stop in _STOP.finditer(text, 0, begin)), default=0)
    stop = _STOP.search(text, end)
    before, after = text[start:begin], text[end : stop.start() if stop else len(text)]
    asks = stop is not None and stop[0] == "?"
    announces = after.rstrip(" *_").endswith(":")
    return (
        asks
        or announces
        or _is_denied(read_tokens(before))
        or _HEDGED.search(before) is not None
        or _REFUTED.search(after) is not None
    )


def _is_denied(tokens: Sequence[AnswerToken]) -> bool:
    return any(token.is_word(*NEGATIONS) or token.is_command("ne", "not") for token in tokens)


def _last_values(text: str, start: int) -> str | None:
    """Return the last number after `start` with the formula around it, and the values that are listed before it."""
    begins = [start, *(stop.end() for stop in _STOP.finditer(text, start))]
    for begin, end in zip(reversed(begins), reversed([*begins[1:], len(text)]), strict=True):
        sentence = text[begin:end]
        tokens = read_tokens(sentence)
        span = last_number_span(tokens)
        if span is None:
            continue
        tried = _HEDGED.search(sentence) or _REFUTED.search(sentence) or sentence.rstrip(" *_").endswith(("?", ":"))
        return None if tried or _is_denied(tokens[: span[0]]) else values_around(tokens, *span)
    return None
