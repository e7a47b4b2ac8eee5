"""Answers that are one value: a number or formula with its unit, digits in a base, a ratio or a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import sympy

from toolgym.envs.rewards.mathematics.formulas import DEGREE, PLUS_MINUS, UnreadableError, rational, read_formula_at
from toolgym.envs.rewards.mathematics.parts import JOINS, closing_of, split
from toolgym.envs.rewards.mathematics.units import NO_UNIT, UNITS, Unit, read_unit
from toolgym.envs.rewards.mathematics.values import Answer, Based, Listing, Quantity, Ratio
from toolgym.envs.rewards.mathematics.wordings import NUMERALS, numeral
from toolgym.tools.answers.numbers import MULTIPLIERS, NEGATIONS
from toolgym.tools.answers.tokens import AnswerToken, word_set

_CURRENCIES: dict[str, Unit | None] = {"$": UNITS["dollar"], "euro": UNITS["euro"], "pounds": None, "yen": None}
_PERCENT = word_set("percent pct percentage")
_UNSAFE = word_set("to plus minus times over more less fewer than divided squared cubed factorial least most choose")
_SINGLE_UNITS = "mgsLlhNJWV"
_TEMPERATURES = {"C": "celsius", "F": "fahrenheit", "Celsius": "celsius", "Fahrenheit": "fahrenheit"}
_CURRENCY_CODES: dict[str, Unit | None] = {"usd": UNITS["dollar"], "eur": UNITS["euro"], "rs": None, "inr": None}
_MINUTES = re.compile(r"(?:(\d+)°(?:(\d+)'(?:(\d+(?:\.\d+)?)'')?))|(\d+)'(\d+)''")


def as_based(tokens: Sequence[AnswerToken]) -> Based | None:
    r"""Read digits with their base: `1011_2`, `(1011)_{\text{two}}` and `1011 (base 2)`."""
    place = next((at for at, token in enumerate(tokens) if token.is_symbol("_") or token.is_word("base")), 0)
    before = list(tokens[:place])
    while before and (before[-1].is_word("in") or (tokens[place].kind == "word" and before[-1].is_symbol("(", ","))):
        before.pop()
    if len(before) > 2 and before[0].is_symbol("(") and before[-1].is_symbol(")"):
        before = before[1:-1]
    digits = "".join(token.text for token in before)
    index = [
        token for token in tokens[place + 1 :] if not token.is_symbol("{", "}", "(", ")") and not token.is_word("base")
    ]
    if len(index) != 1 or not re.fullmatch("[0-9A-Z]*[0-9][0-9A-Z]*", digits):
        return None
    name = index[0].text.lower()
    base = int(name) if name.isdigit() and len(name) < 3 else NUMERALS.get(name)
    if base is None or not 2 <= base <= 36:
        raise UnreadableError("an index that is not a base")
    return Based(digits, base)


def as_ratio(tokens: Sequence[AnswerToken]) -> Ratio | None:
    parts = split(tokens, (":",), joins=False)
    if len(parts) == 1 and (place := next((at for at, token in enumerate(tokens) if token.is_word("to")), 0)):
        parts = [list(tokens[:place]), list(tokens[place + 1 :])]  # 3 to 2
    if len(parts) < 2 or any(not part for part in parts):
        return None
    half = ""
    text = "".join(token.text for token in parts[-1]).lower().replace(".", "")
    if text.endswith(("am", "pm")):
        half = text[-2:]
        parts[-1] = parts[-1][:1]
    is_time = len(parts) < 4 and all(len(part) == 1 and part[0].text.isdigit() for part in parts)
    is_time = (
        is_time and int(parts[0][0].text) <= 24 and all(len(p[0].text) == 2 and p[0].text < "60" for p in parts[1:])
    )
    return Ratio(tuple(as_quantity(part) for part in parts), is_time, half)


def as_quantity(tokens: Sequence[AnswerToken]) -> Answer:
    currency: Unit | None = None
    is_money = False
    plain = []
    for at, token in enumerate(tokens):
        if token.kind == "command" and token.text in _CURRENCIES:
            currency, is_money = _CURRENCIES[token.text], True
        elif at == 0 and token.is_word(*_CURRENCY_CODES):
            currency, is_money = _CURRENCY_CODES[token.text.lower()], True
        else:
            plain.append(token)
    if not plain:
        raise UnreadableError("a currency alone")
    start = 1 if plain[0].is_symbol("-", "+") else 0
    if not is_money and (spelt := _spelt(plain)) is not None:
        return spelt
    if (parts := _sixtieths(plain)) is not None:
        return parts
    plain = _plain_units(plain)
    end = _unit_letter(plain)
    formula, stop = read_formula_at(plain[:end])
    rest = plain[stop:]
    decimals, digits = _decimal(plain[start:stop])
    quantity = Quantity(formula, currency, decimals=decimals, digits=digits)
    return _expanded(_with_tail(quantity, rest))


def _spelt(tokens: Sequence[AnswerToken]) -> Answer | None:
    """Read a numeral with a unit, such as "twenty-five apples"."""
    if not (tokens[0].is_word(*NUMERALS) or tokens[0].text.lower() == "a"):
        return None
    words = [(at, token.text.lower()) for at, token in enumerate(tokens) if not token.is_symbol("-")]
    for count in range(min(len(words), 9), 0, -1):
        number = numeral([word for _, word in words[:count]])
        if number is not None:
            return _with_tail(Quantity(sympy.Integer(number)), tokens[words[count - 1][0] + 1 :])
    if tokens[0].is_word(*NUMERALS):
        raise UnreadableError("a numeral")
    return None


def _sixtieths(tokens: Sequence[AnswerToken]) -> Quantity | None:
    r"""Read degrees with minutes and seconds, and feet with inches: `36^\circ 52'` and `5'3''`."""
    texts = "".join(token.text for token in tokens if not token.is_symbol("{", "}")).replace('"', "''")
    match = _MINUTES.fullmatch(texts.replace("^circ", "°").replace("circ", "°"))
    if match is None:
        return None
    degrees, minutes, seconds, feet, inches = (Fraction(group or 0) for group in match.groups())
    if match[4]:
        return Quantity(rational(feet + inches / 12), UNITS["foot"])
    return Quantity(rational(degrees + minutes / 60 + seconds / 3600), UNITS["degree"])


def _plain_units(tokens: Sequence[AnswerToken]) -> list[AnswerToken]:
    r"""Return `3\text{ by }4` as a product, `\frac{\text{km}}{\text{h}}` as `km/h`, and `3^{\text{rd}}` as `3`."""
    plain: list[AnswerToken] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        after_number = bool(plain) and plain[-1].kind == "number"
        following = [other for other in tokens[at + 1 : at + 3] if not other.is_symbol("{")][:1]
        if token.is_word("by") and after_number and following and following[0].kind == "number":
            plain.append(token._replace(kind="command", text="times"))
        elif after_number and (end := _ordinal_end(tokens, at)) > at:
            at = end
            continue
        elif after_number and _is_unit_letter(tokens, at):
            plain.append(token._replace(kind="word"))
        elif after_number and token.is_command("Omega") and token.spaced and at == len(tokens) - 1:
            plain.append(token._replace(kind="word", text="ohm"))
        elif after_number and token.is_command("mu") and at + 1 < len(tokens) and tokens[at + 1].upright:
            plain.append(token._replace(kind="word", text="micro"))
        elif after_number and token.is_command("frac") and (quotient := _quotient_of_units(tokens, at)) is not None:
            plain += quotient[0]
            at = quotient[1]
            continue
        else:
            plain.append(token)
        at += 1
    return plain


def _is_unit_letter(tokens: Sequence[AnswerToken], at: int) -> bool:
    """Whether a letter is the unit before a second value, as in `1 m 75 cm`."""
    is_letter = tokens[at].kind == "letter" and tokens[at].spaced and tokens[at].text in _SINGLE_UNITS
    return is_letter and at + 2 < len(tokens) and tokens[at + 1].kind == "number" and tokens[at + 1].spaced


def _ordinal_end(tokens: Sequence[AnswerToken], at: int) -> int:
    """Return the index after the ending (`st`, `nd`, `rd`, `th`) of an ordinal number at `at`; else `at`."""
    texts = [token.text for token in tokens[at : at + 5]]
    plain = [text for text in texts if text not in ("^", "{", "}")]
    is_raised = texts[0] == "^"
    if "".join(plain[:2]) not in ("st", "nd", "rd", "th") and (not plain or plain[0] not in ("st", "nd", "rd", "th")):
        return at
    if not is_raised and tokens[at].spaced:
        return at
    count = 1 if plain[0] in ("st", "nd", "rd", "th") else 2
    end = at
    while count or (end < len(tokens) and is_raised and tokens[end].is_symbol("}")):
        count -= tokens[end].text not in ("^", "{", "}")
        end += 1
    return end


def _quotient_of_units(tokens: Sequence[AnswerToken], at: int) -> tuple[list[AnswerToken], int] | None:
    groups: list[list[AnswerToken]] = []
    for _ in range(2):
        end = closing_of(tokens, at + 1)
        if end is None or not tokens[at + 1].is_symbol("{"):
            return None
        groups.append(list(tokens[at + 2 : end]))
        at = end
    if not all(group and all(token.upright for token in group) for group in groups):
        return None
    slash = AnswerToken("symbol", "/", upright=True)
    return [*groups[0], slash, *groups[1]], at + 1


def _unit_letter(tokens: Sequence[AnswerToken]) -> int:
    """Return the index of a unit of one letter at the end, as in `64 m`. `2m` is a product."""
    at = len(tokens) - 1
    if at > 1 and tokens[at - 1].is_symbol("^"):
        at -= 2
    if at > 0 and tokens[at].kind == "letter" and tokens[at].spaced and tokens[at].text in _SINGLE_UNITS:
        before = tokens[at - 1]
        if before.kind in ("number", "repeating") or before.is_symbol(")", "}"):
            return at
    return len(tokens)


def _decimal(tokens: Sequence[AnswerToken]) -> tuple[int, int]:
    """Return the digits after the point of a plain decimal, and its significant digits."""
    if not tokens or tokens[0].kind != "number":
        return -1, 0
    mantissa, _, exponent = tokens[0].text.lower().partition("e")
    whole, point, fixed = mantissa.partition(".")
    if not point:
        return -1, 0
    shift = int(exponent or 0)
    if len(tokens) > 1:
        texts = [token.text for token in tokens[1:] if not token.is_symbol("{", "}")]
        if len(texts) < 3 or texts[0] not in ("times", "cdot", "*") or texts[1:3] != ["10", "^"]:
            return -1, 0
        try:
            shift = int("".join(texts[3:]))
        except ValueError:
            return -1, 0
    return len(fixed) - shift, len((whole + fixed).lstrip("0"))


def _with_tail(quantity: Quantity, rest: Sequence[AnswerToken]) -> Quantity:
    """Read what follows a number: a percent sign, a unit, a word that multiplies, a remark."""
    if not rest:
        return _with_degrees(quantity)
    half = "".join(token.text for token in rest).lower().replace(".", "")
    if half in ("am", "pm"):  # of the day
        return replace(quantity, unit=Unit(((half, 1),), Fraction(1)))
    first = rest[0]
    if first.is_symbol("%") or first.is_command("%") or first.is_word(*_PERCENT):
        return _remarked(replace(quantity, is_percent=True), rest[1:])
    if first.is_word(*MULTIPLIERS):
        formula = quantity.formula * MULTIPLIERS[first.text.lower()]
        return _with_tail(replace(quantity, formula=formula, decimals=-1), rest[1:])
    if first.kind == "word" and first.text[:1] in MULTIPLIERS and not first.text.isascii():  # 5万元
        formula = quantity.formula * MULTIPLIERS[first.text[0]]
        rest = [first._replace(text=first.text[1:]), *rest[1:]] if first.text[1:] else rest[1:]
        return _with_tail(replace(quantity, formula=formula, decimals=-1), rest)
    quantity = _with_degrees(quantity)
    if quantity.unit == UNITS["degree"] and len(rest) == 1 and first.text in _TEMPERATURES:
        return replace(quantity, unit=UNITS[_TEMPERATURES[first.text]])
    for end in range(len(rest), 0, -1):
        unit = read_unit(rest[:end])
        if unit is None:
            continue
        known = unit if quantity.unit is None else quantity.unit
        if end < len(rest) and rest[end].kind == "number":
            return _added(replace(quantity, unit=known), rest[end:])
        return _remarked(replace(quantity, unit=known), rest[end:])
    return _remarked(quantity, rest)


def _added(quantity: Quantity, rest: Sequence[AnswerToken]) -> Quantity:
    """Add values in a row, such as 5 feet 3 inches, in the base unit."""
    second = as_quantity(rest)
    unit = quantity.unit or NO_UNIT
    if not isinstance(second, Quantity) or second.unit is None or second.unit.dimension != unit.dimension:
        raise UnreadableError("two quantities in a row")
    total = quantity.formula * rational(unit.factor) + second.formula * rational(second.unit.factor)
    return Quantity(total, Unit(unit.dimension, Fraction(1)), parts=True)


def _remarked(quantity: Quantity, rest: Sequence[AnswerToken]) -> Quantity:
    """Accept words after a value that leave it as it is."""
    rest = [token for token in rest if not token.is_symbol(".", ",")]
    if not rest:
        return quantity
    first = rest[0]
    if first.kind == "letter" and first.upright is False and not first.spaced:
        raise UnreadableError("a letter after a value")
    if any(token.kind in ("command",) or token.is_symbol("=", "<", ">", "+", "/", "_") for token in rest):
        raise UnreadableError("a formula after a value")
    if len(rest) == 1 and first.is_word("times"):
        return quantity
    if any(token.is_word(*JOINS, *NEGATIONS, *MULTIPLIERS, *_UNSAFE) for token in rest):
        raise UnreadableError("words after a value that may change it")
    if len(rest) > 1 and first.is_word("of") and rest[1].kind == "number":
        raise UnreadableError("a part of another value")
    if first.kind == "word" or (first.is_symbol("(") and len(rest) > 1 and rest[1].kind == "word"):
        return quantity
    if first.is_symbol("^") and quantity.unit is not None:
        return quantity
    raise UnreadableError("something after a value")


def _with_degrees(quantity: Quantity) -> Quantity:
    formula = quantity.formula
    if not formula.has(DEGREE):
        return quantity
    per_degree = formula.coeff(DEGREE) if formula.is_Add else formula / DEGREE
    if per_degree.has(DEGREE) or sympy.expand(per_degree * DEGREE - formula) != 0:
        raise UnreadableError("degrees inside of a formula")
    return replace(quantity, formula=per_degree, unit=UNITS["degree"])


def _expanded(quantity: Quantity) -> Answer:
    r"""Return both values of a quantity with `\pm`."""
    if not quantity.formula.has(PLUS_MINUS):
        return quantity
    formulas = [quantity.formula.subs(PLUS_MINUS, sign) for sign in (1, -1)]
    return Listing(tuple(replace(quantity, formula=formula) for formula in formulas), "bare")
