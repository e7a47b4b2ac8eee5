"""Find the last number of a sentence, with the formula, unit and list around it."""

from __future__ import annotations

from collections.abc import Sequence

from toolgym.tools.answers.numbers import CURRENCIES, MULTIPLIERS, last_number_place
from toolgym.tools.answers.tokens import AnswerToken, word_set

_JOINS = word_set("and or 和 或 与 及")
_LIST_LEADS = word_set("is are be values roots solutions answers numbers candidates")
_FORMULA_SIGNS = frozenset("+-*/^=<>|_:(){}[]")
_FORMULA_COMMANDS = word_set(
    "frac sqrt pi times cdot div le ge ne approx pm mp infty log ln sin cos tan binom circ alpha beta theta $ euro "
    "pounds"
)
_UNIT_WORDS = word_set(
    "percent cents dollars degrees radians second seconds minute minutes hour hours day days week weeks month months "
    "year years mm cm m km meter meters kilometer kilometers centimeter centimeters inch inches foot feet yard yards "
    "mile miles g gram grams kg kilogram kilograms pound pounds ounce ounces liter liters ml"
)
_UNIT_LETTERS = frozenset("mgshlL")
_COMPARED = word_set("less more greater fewer larger smaller higher lower")
_ARTICLES = frozenset("aAI")
"""Letters that are words in prose."""


def last_number_span(tokens: Sequence[AnswerToken]) -> tuple[int, int] | None:
    """Return where the last number of a sentence stands, coefficients such as that of `16x` included."""
    place = last_number_place(tokens)
    span = (place[1], place[2]) if place else None
    depth = 0
    for at, token in enumerate(tokens):
        depth += token.is_symbol("(", "[") - token.is_symbol(")", "]")
        is_later = span is None or at >= span[1]
        if token.kind == "number" and is_later and depth <= 0 and not (at and tokens[at - 1].is_symbol("^", "_", "{")):
            span = at, at + 1
    return span


def values_around(tokens: Sequence[AnswerToken], first: int, last: int) -> str:
    """Return the values that a sentence lists up to a number, or else the formula around it after its last `=`."""
    begin, end = _formula_around(tokens, first, last)
    if begin > 1 and tokens[begin - 1].is_word("than") and tokens[begin - 2].is_word(*_COMPARED):
        return written(tokens[begin - 2 : end])
    listed = _first_part(tokens, begin, end)
    listed = _first_listed(tokens, begin) if listed == begin else listed
    return written(tokens[listed if listed < begin else _after_equals(tokens, begin, first) : end])


def _formula_around(tokens: Sequence[AnswerToken], first: int, last: int) -> tuple[int, int]:
    """Return the span of the formula, or of the tuple, set or interval, of which a number is the end."""
    begin, end = _brackets_around(tokens, first) or (first, last)
    while begin and _continues(tokens, begin - 1):
        begin -= 1
    while end < len(tokens) and (following := _end_of_following(tokens, end)) > end:
        end = following
    while begin < first and (
        (tokens[begin].is_symbol(":", "|", ">", "=") and not tokens[begin + 1].is_symbol("="))
        or (tokens[begin].is_symbol("-") and tokens[begin + 1].spaced)
    ):
        begin += 1
    if begin < first and tokens[begin].is_symbol(*"+*/^_)]}"):
        begin = first
    depth = sum(_opens(token) - _closes(token) for token in tokens[begin:end])
    return (begin, end) if depth == 0 or _closes(tokens[end - 1]) else (first, last)


def _brackets_around(tokens: Sequence[AnswerToken], at: int) -> tuple[int, int] | None:
    """Return the span of the brackets around a number that hold several values, such as `(3, -2)` and `[2, 5)`."""
    begin, end = at, at
    while begin and not _opens(tokens[begin]) and _is_value(tokens[begin - 1]):
        begin -= 1
    while end < len(tokens) and _is_value(tokens[end]) and not _closes(tokens[end]):
        end += 1
    if end == len(tokens) or not (_opens(tokens[begin]) and _closes(tokens[end])):
        return None
    has_several = any(token.is_symbol(",", ";") for token in tokens[begin:end])
    return (begin, end + 1) if has_several else None


def _opens(token: AnswerToken) -> bool:
    return token.is_symbol("(", "[", "{") or token.is_command("{", "langle")


def _closes(token: AnswerToken) -> bool:
    return token.is_symbol(")", "]", "}") or token.is_command("}", "rangle")


def _is_value(token: AnswerToken) -> bool:
    """Whether a token may stand in brackets that hold several values."""
    is_name = token.kind in ("number", "repeating", "letter")
    return is_name or token.is_symbol(",", ";") or _opens(token) or _closes(token) or _is_sign(token)


def _is_sign(token: AnswerToken) -> bool:
    return token.is_symbol(*_FORMULA_SIGNS) or token.is_command(*_FORMULA_COMMANDS)


def _after_equals(tokens: Sequence[AnswerToken], begin: int, end: int) -> int:
    """Return where the last side of a chain of equations begins; all of an inequality is needed."""
    if any(token.is_symbol("<", ">") or token.is_command("le", "ge") for token in tokens[begin:end]):
        return begin
    equals = [at for at in range(begin, end) if tokens[at].is_symbol("=") or tokens[at].is_command("approx")]
    return equals[-1] + 1 if equals else begin


def _continues(tokens: Sequence[AnswerToken], at: int) -> bool:
    """Whether a token before a formula belongs to it."""
    token, after = tokens[at], tokens[at + 1]
    if token.kind == "letter":
        if at and tokens[at - 1].is_symbol("'"):
            return False  # it's
        is_operand = after.is_symbol(*_FORMULA_SIGNS) or after.kind == "command"
        return is_operand or (not after.spaced and token.text not in _ARTICLES)
    if token.kind in ("number", "repeating"):
        return not after.spaced or after.kind in ("symbol", "command")
    return _is_sign(token)


def _end_of_following(tokens: Sequence[AnswerToken], at: int) -> int:
    """Return where what belongs to a formula ends: a unit, or something without a blank before it; else `at`."""
    token = tokens[at]
    base = at + sum(other.is_symbol("(", ",") or other.is_word("in") for other in tokens[at : at + 1])
    if base + 1 < len(tokens) and tokens[base].is_word("base"):
        return base + 2 + (base + 2 < len(tokens) and tokens[base + 2].is_symbol(")"))
    if token.is_word("am", "pm"):
        return at + 1
    if token.text in ("a", "p") and [other.text for other in tokens[at + 1 : at + 3]] == [".", "m"]:
        return at + 3
    if token.is_symbol("(") and not token.spaced:
        end = at
        while end < len(tokens) and _is_value(tokens[end]):
            end += 1
            if _closes(tokens[end - 1]):
                return end
        return at
    return at + _follows(tokens, at)


def _follows(tokens: Sequence[AnswerToken], at: int) -> bool:
    """Whether a token after a formula belongs to it: a unit, or something without a blank before it."""
    token = tokens[at]
    if token.is_word(*MULTIPLIERS, *_UNIT_WORDS) or token.is_symbol("%") or token.is_command("%"):
        return True
    if token.kind == "letter":
        return not token.spaced or tokens[at - 1].is_symbol("+", "-", "*", "/")
    if token.kind in ("number", "repeating"):
        return tokens[at - 1].kind in ("symbol", "command") and not tokens[at - 1].is_symbol(")", "]", "}", "%")
    if token.is_symbol("+", "-", "*", "/"):
        return at + 1 < len(tokens) and (tokens[at + 1].kind in ("letter", "number") or _is_math(tokens[at + 1]))
    return not token.spaced and (token.is_symbol("^", "_", "{", "}") or _is_math(token))


def _is_math(token: AnswerToken) -> bool:
    return token.is_command(*_FORMULA_COMMANDS) and not token.is_command(*CURRENCIES)


def _first_part(tokens: Sequence[AnswerToken], first: int, last: int) -> int:
    """Return where a quantity with two units begins whose last part is a span: `1 m 75 cm`."""
    is_unit = first > 1 and (tokens[first - 1].is_word(*_UNIT_WORDS) or tokens[first - 1].text in _UNIT_LETTERS)
    has_unit = tokens[last - 1].is_word(*_UNIT_WORDS) or tokens[last - 1].text in _UNIT_LETTERS
    return first - 2 if is_unit and has_unit and tokens[first - 2].kind == "number" else first


def _first_listed(tokens: Sequence[AnswerToken], first: int) -> int:
    """Return where the list begins whose last value begins at `first`: `40, 41 and 42`."""
    values, has_word, at = 1, False, first
    if at > 1 and tokens[at - 1].is_word("to") and any(token.is_word("ratio") for token in tokens[:at]):
        return at - 2 if tokens[at - 2].kind == "number" else first  # in the ratio of 5 to 3
    while at > 1:
        joins = at - 1
        while joins > 0 and (tokens[joins].is_word(*_JOINS) or tokens[joins].is_symbol(",")):
            joins -= 1
        if joins and joins < at - 1 and tokens[joins].is_word(*_UNIT_WORDS):
            joins -= 1  # 1 hour and 20 minutes
        if joins == at - 1 or tokens[joins].kind not in ("number", "repeating"):
            break
        has_word = has_word or any(token.kind == "word" for token in tokens[joins + 1 : at])
        at, values = joins, values + 1
        while at and _continues(tokens, at - 1) and not tokens[at - 1].is_symbol(":"):
            at -= 1
    is_led = at == 0 or tokens[at - 1].is_symbol(":") or tokens[at - 1].is_word(*_LIST_LEADS)
    return at if has_word or values > 2 or is_led else first


def written(tokens: Sequence[AnswerToken]) -> str:
    """Return tokens as text that reads as the same tokens."""
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
