r"""Numbers in text, exactly: `read_number` and `last_number_place`.

>>> read_number(r"42\text{ cm}^2"), read_number(r"3 \times 10^3"), read_number(r"\frac{1}{2}"), read_number("42x")
(Fraction(42, 1), Fraction(3000, 1), Fraction(1, 2), None)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from toolgym.tools.answers.tokens import AnswerToken, read_tokens, word_set

MAX_EXPONENT = 400
"""Largest exponent of a number: a longer number takes long to write out."""

MAX_DIGITS = 4 * MAX_EXPONENT
"""Digits of a number that is read."""

MAX_DEPTH = 4
"""Fractions inside of fractions that are read."""

MAX_TEXT = 4096
"""Characters of an answer that is read as a number."""

LABELS = word_set(
    "a about amount answer answers approx approximately are be correct equal equals exactly final finally get "
    "gives have hence is it its just now of only result roughly simply so solution solutions sum that the then "
    "therefore they this thus to total value values was we which will would must should can there x y n"
) | {"答案", "答", "答案是", "答案为", "是", "为", "解", "所以", "因此", "故", "共", "共有", "一共", "约"}
"""Words before a number that say that it is the answer."""

NEGATIONS = word_set(
    "not no never neither nor none non isn aren wasn cannot can't isn't aren't wasn't except without wrong "
    "incorrect impossible false unlike doesn don didn won wouldn shouldn couldn hasn haven hadn"
) | {"不", "不是", "非", "错"}

MULTIPLIERS = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "百": 10**2, "千": 10**3, "万": 10**4, "亿": 10**8,
}  # fmt: skip
"""Words after a number that change its value."""

_JOINS = word_set("or and to through between versus vs plus minus times over more less fewer divided squared")
_UNIT_LETTERS = frozenset("mgsLlhNJWVKFCA")
CURRENCIES = ("$", "euro", "pounds", "yen")
"""Names of the commands that are signs of a currency."""

_NOT_DIGITS = re.compile(r"[.eE]")


def fraction_of(text: str) -> Fraction | None:
    """Return a decimal, perhaps with an exponent, as a fraction; None if it is too long to be written out."""
    mantissa, _, exponent = text.lower().partition("e")
    digits = exponent.lstrip("+-")
    if len(mantissa) > MAX_DIGITS or len(digits) > 5 or (digits and int(digits) > MAX_EXPONENT):
        return None
    return Fraction(text)


def repeating_fraction(text: str) -> Fraction | None:
    """Return a repeating decimal, which a token has as `whole.fixed(repeated)`, as a fraction."""
    whole, fixed, repeated = re.split(r"[.(]", text.rstrip(")"))
    if len(text) > MAX_DIGITS:
        return None
    scale = 10 ** len(fixed)
    period = Fraction(int(repeated), scale * (10 ** len(repeated) - 1))
    return Fraction(int(whole + fixed), scale) + period


def read_number(text: str) -> Fraction | None:
    r"""Return the number that a text is, as a whole; None if it is not one number.

    The number may have a sign, separators of thousands, a currency, an exponent, a percent sign (`50\%` is 50), and may
    be a fraction, a mixed number or a repeating decimal. Words before it that only announce it, a unit and a remark
    after it are allowed; a formula and a second value are not.
    """
    if len(text) > MAX_TEXT:
        return None
    tokens = _announced(_after_equals(read_tokens(text)))
    number, end = _number_at(tokens, 0)
    if number is None:
        return None
    if end < len(tokens) and tokens[end].is_word(*MULTIPLIERS):
        return number * MULTIPLIERS[tokens[end].text.lower()] if _is_remark(tokens[end + 1 :]) else None
    return number if _is_remark(tokens[end:]) else None


def last_number_place(tokens: Sequence[AnswerToken]) -> tuple[Fraction, int, int] | None:
    """Return the last number among tokens, and where it begins and ends. Exponents, indices and coefficients of letters
    are not numbers, nor is a number in brackets that follows another one, as in `42 (in 3 steps)`."""
    last: tuple[Fraction, int, int] | None = None
    at = depth = 0
    while at < len(tokens):
        token = tokens[at]
        depth += token.is_symbol("(", "[") - token.is_symbol(")", "]")
        number, end = _number_at(tokens, at) if _may_begin(tokens, at) else (None, at)
        if number is None:
            at = max(end, at + 1) if token.is_symbol("+", "-") else at + 1
            continue
        tight = end < len(tokens) and not tokens[end].spaced
        glued = tight and (tokens[end].kind == "letter" or tokens[end].is_symbol("^", "_"))
        if not glued and not (depth > 0 and last is not None):
            last = number, at, end
        at = max(end, at + 1)
    return last


def _may_begin(tokens: Sequence[AnswerToken], at: int) -> bool:
    token, before = tokens[at], tokens[at - 1] if at else None
    is_sign = token.is_symbol("+", "-") or token.is_command(*CURRENCIES)
    if not (is_sign or token.kind in ("number", "repeating") or token.is_command("frac")):
        return False
    if before is None:
        return True
    if before.is_symbol("^", "_") or (before.is_symbol("{") and at > 1 and tokens[at - 2].is_symbol("^", "_")):
        return False
    if token.is_symbol("+", "-"):  # of a sum, of a word with a hyphen, or a dash
        after = tokens[at + 1] if at + 1 < len(tokens) else None
        if before.kind == "word" and (after is None or after.spaced):
            return False
        return before.kind not in ("number", "letter", "word") or token.spaced
    return not (before.kind == "letter" and not token.spaced)


def _after_equals(tokens: list[AnswerToken]) -> list[AnswerToken]:
    equals = [at for at, token in enumerate(tokens) if token.is_symbol("=")]
    if any(token.is_command("ne", "not") or token.is_symbol("<", ">", "≠") for token in tokens):
        return []
    return tokens[equals[-1] + 1 :] if equals else tokens


def _announced(tokens: list[AnswerToken]) -> list[AnswerToken]:
    """Drop the words in front of a number which only announce it, unless all is words."""
    at = 0
    while at < len(tokens) and (
        tokens[at].is_word(*LABELS)
        or tokens[at].is_symbol(":", "*", "#", "：")
        or tokens[at].is_command("approx", "therefore", "implies", "Rightarrow")
        or (tokens[at].kind == "letter" and at + 1 < len(tokens) and tokens[at + 1].is_symbol(":"))
    ):
        at += 1
    return tokens[at:]


def _is_remark(tokens: Sequence[AnswerToken]) -> bool:
    """Whether what follows a number leaves its value as it is."""
    tokens = [token for token in tokens if not token.is_symbol("*", "}", "{", "#")]
    while tokens and tokens[-1].is_symbol(".", ",", ";", "!"):
        if tokens[-1].is_symbol("!") and len(tokens) == 1 and not tokens[-1].spaced:
            return False  # a factorial
        tokens.pop()
    if not tokens:
        return True
    first = tokens[0]
    if first.is_symbol("^"):
        return len(tokens) > 1 and tokens[1].is_command("circ") and _is_remark(tokens[2:])
    if first.is_symbol("%") or first.is_command("%", "circ", *CURRENCIES):
        return _is_remark(tokens[1:])
    if first.kind == "letter":
        if len(tokens) > 2 and all(token.kind == "letter" and not token.spaced for token in tokens[1:3]):
            return True  # a word
        return first.spaced and first.text in _UNIT_LETTERS and _is_power(tokens[1:])
    if first.is_symbol("(", ".", ",", ";", "-", ":"):
        return len(tokens) > 1 and tokens[1].kind == "word" and not tokens[1].is_word(*_JOINS, *NEGATIONS)
    return first.kind == "word" and not first.is_word(*_JOINS, *NEGATIONS)


def _is_power(tokens: Sequence[AnswerToken]) -> bool:
    return not tokens or (len(tokens) == 2 and tokens[0].is_symbol("^") and tokens[1].kind == "number")


def _number_at(tokens: Sequence[AnswerToken], at: int, depth: int = 0) -> tuple[Fraction | None, int]:
    """Return the number that begins at a token, and where it ends."""
    if depth > MAX_DEPTH:
        return None, at
    sign = 1
    opened = 0
    while at < len(tokens):
        token = tokens[at]
        if token.is_symbol("-"):
            sign = -sign
        elif token.is_symbol("{", "("):
            opened += 1
        elif not (token.is_symbol("+") or token.is_command(*CURRENCIES)):
            break
        at += 1
    number, at = _unsigned_at(tokens, at, depth)
    for _ in range(opened if number is not None else 0):
        if at < len(tokens) and tokens[at].is_symbol("}", ")"):
            at += 1
    if number is not None and opened:
        number, at = _quotient(number, tokens, at, depth)
    return (None if number is None else sign * number), at


def _unsigned_at(tokens: Sequence[AnswerToken], at: int, depth: int = 0) -> tuple[Fraction | None, int]:
    if at >= len(tokens) or depth > MAX_DEPTH:
        return None, at
    token = tokens[at]
    if token.is_command("frac"):
        return _latex_fraction(tokens, at, depth)
    if token.kind == "repeating":
        return repeating_fraction(token.text), at + 1
    if token.kind != "number":
        return None, at
    number = fraction_of(token.text)
    at += 1
    if number is None:
        return None, at
    if number.denominator == 1 and not _NOT_DIGITS.search(token.text):
        part, end = _fractional_part(tokens, at, depth)
        if part is not None:
            return number + part, end
    power, end = _power_of_ten(tokens, at, depth)
    if power is not None:
        return number * power, end
    return _quotient(number, tokens, at, depth)


def _fractional_part(tokens: Sequence[AnswerToken], at: int, depth: int = 0) -> tuple[Fraction | None, int]:
    """Read the part below 1 of a mixed number, such as `8\\frac{1}{4}` and `8 1/4`."""
    if at < len(tokens) and tokens[at].is_command("frac"):
        part, end = _latex_fraction(tokens, at, depth)
    elif at + 2 < len(tokens) and tokens[at].kind == "number" and tokens[at].spaced and tokens[at + 1].is_symbol("/"):
        part, end = _unsigned_at(tokens, at, depth + 1)
    else:
        return None, at
    return (part, end) if part is not None and 0 < part < 1 else (None, at)


def _latex_fraction(tokens: Sequence[AnswerToken], at: int, depth: int = 0) -> tuple[Fraction | None, int]:
    above, at = _argument(tokens, at + 1, depth)
    below, at = _argument(tokens, at, depth)
    if isinstance(above, str) and below is None and len(above) == 2:  # `\frac12`
        above, below = above[0], above[1]
    numerator, denominator = (fraction_of(part) if isinstance(part, str) else part for part in (above, below))
    if numerator is None or not denominator:
        return None, at
    return numerator / denominator, at


def _argument(tokens: Sequence[AnswerToken], at: int, depth: int = 0) -> tuple[str | Fraction | None, int]:
    if at >= len(tokens):
        return None, at
    if tokens[at].kind == "number":
        return tokens[at].text, at + 1
    if not tokens[at].is_symbol("{"):
        return None, at
    number, end = _number_at(tokens, at + 1, depth + 1)
    closed = end < len(tokens) and tokens[end].is_symbol("}")
    return (number if closed else None), end + 1


def _power_of_ten(tokens: Sequence[AnswerToken], at: int, depth: int = 0) -> tuple[Fraction | None, int]:
    if at + 3 > len(tokens) or not (tokens[at].is_command("times", "cdot") or tokens[at].is_symbol("*", "x")):
        return None, at
    if tokens[at + 1].text != "10" or not (at + 2 < len(tokens) and tokens[at + 2].is_symbol("^")):
        return None, at
    exponent, end = _number_at(tokens, at + 3, depth + 1)
    if exponent is None or exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        return None, at
    return Fraction(10) ** int(exponent), end


def _quotient(number: Fraction, tokens: Sequence[AnswerToken], at: int, depth: int = 0) -> tuple[Fraction | None, int]:
    if at + 1 >= len(tokens) or not tokens[at].is_symbol("/"):
        return number, at
    below, end = (
        _unsigned_at(tokens, at + 1, depth + 1)
        if tokens[at + 1].kind == "number"
        else _number_at(tokens, at + 1, depth + 1)
    )
    if below is None:
        return number, at
    return (None, end) if below == 0 else (number / below, end)
