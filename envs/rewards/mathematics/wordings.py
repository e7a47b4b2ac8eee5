"""Answers of words: numerals, choices, and texts with a meaning in mathematics."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

import sympy

from toolgym.envs.rewards.mathematics.formulas import UnreadableError
from toolgym.envs.rewards.mathematics.parts import JOINS, joined
from toolgym.envs.rewards.mathematics.units import read_unit
from toolgym.envs.rewards.mathematics.values import Answer, Choice, Listing, Quantity, Region, Words
from toolgym.tools.answers.numbers import NEGATIONS
from toolgym.tools.answers.tokens import AnswerToken

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
NUMERALS = {word: number for number, word in enumerate(_ONES.split())} | {
    word: 10 * number
    for number, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
}

_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_PARTS = {
    name: number
    for number, names in enumerate(
        ["half halves", "third thirds", "fourth fourths quarter quarters", "fifth fifths", "sixth sixths",
         "seventh sevenths", "eighth eighths", "ninth ninths", "tenth tenths"], 2)
    for name in names.split()
}  # fmt: skip

_EMPTY = re.compile(
    r"(?:there (?:is|are) )?no (?:such |real |integer |valid |possible )*(?:solution|root|value|number|integer)s?"
    r"(?: exists?)?|(?:the )?empty set|none(?: exists?)?|no such .{1,20} exists?|无解|空集|不存在"
)
_REALS = ("all real numbers", "all reals", "all real", "real numbers", "any real number", "全体实数")
_INFINITE = re.compile(r"(?:there (?:are|is) )?(?:an )?infinit(?:e|ely many|e number of)(?: (?:real )?\w+)?")
_SAME_WORDS = {"dne": "does not exist", "limit does not exist": "does not exist", "not defined": "undefined",
               "无数": "infinitely many", "正确": "true", "对": "true", "错误": "false", "错": "false",
               "是": "yes", "否": "no"}  # fmt: skip
_COMPARED = ("more", "less", "fewer", "times", "squared", "cubed", "dozen", "or", "and")
_VERDICTS = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
_CHOICE_LETTERS = "ABCDEFGHIJ"


def as_words(tokens: Sequence[AnswerToken], *, always: bool = False) -> Answer | None:
    """Read a text that has only words. Numerals and words of mathematics become what they mean."""
    plain = [token for token in tokens if not token.is_symbol(".", ",", "'", "-", "!", "?", ":", '"')]
    if not always and not _are_words(plain):
        return None
    text = joined(plain)
    if _is_verdict(tokens):
        return Words(tokens[0].text.lower())
    if _EMPTY.fullmatch(text):
        return Listing((), "set")
    if text in _REALS:
        return Region(sympy.S.Reals)
    if text in ("infinity", "positive infinity"):
        return Quantity(sympy.oo)
    number = numeral(text.split())
    if number is not None:
        return Quantity(sympy.Integer(number))
    if (fraction := fraction_words(text.split())) is not None:
        return Quantity(sympy.Rational(fraction.numerator, fraction.denominator))
    if len(plain) == 1 and len(text) == 1 and plain[0].text in _CHOICE_LETTERS:
        return Choice(plain[0].text)
    if (letters := _several_letters(plain)) is not None:
        return letters
    if len(plain) == 2 and plain[0].is_word("option", "choice", "answer") and plain[1].text in _CHOICE_LETTERS:
        return Choice(plain[1].text)
    if (counted := _counted(plain)) is not None:
        return counted
    if _INFINITE.fullmatch(text):
        return Words("infinitely many")
    text = re.sub(r"^(?:the|an?) ", "", text)
    return Words(_SAME_WORDS.get(text, text))


def _are_words(tokens: Sequence[AnswerToken]) -> bool:
    """Whether tokens are only words. The letter `a` is one if a word follows it."""
    following = [*tokens[1:], None]
    return all(
        token.kind == "word" or (token.text in ("a", "A") and after is not None and after.kind == "word")
        for token, after in zip(tokens, following, strict=True)
    )


def _counted(tokens: Sequence[AnswerToken]) -> Quantity | None:
    """Read a numeral with the thing that it counts, such as "five apples" and "twenty percent"."""
    *words, thing = [token.text.lower() for token in tokens]
    number = numeral(words)
    if number is None or tokens[-1].is_word(*NEGATIONS, *_PARTS, *_SCALES, *_COMPARED):
        return None
    return Quantity(sympy.Integer(number), read_unit(tokens[-1:]), is_percent=thing == "percent")


def _is_verdict(tokens: Sequence[AnswerToken]) -> bool:
    """Whether an answer is "yes", "no", "true" or "false" with a remark that does not contradict it."""
    verdict = tokens[0].text.lower()
    if verdict not in _VERDICTS or len(tokens) < 3 or not tokens[1].is_symbol(",", ";", ".", ":", "-", "!", "("):
        return False
    contrary = {_VERDICTS[verdict], *(NEGATIONS if verdict in ("yes", "true") else ())}
    return not any(token.is_word(*contrary, "or", "maybe", "perhaps") for token in tokens[1:])


def _several_letters(tokens: Sequence[AnswerToken]) -> Choice | None:
    """Read the letters of several right choices, such as `ABD`, in alphabetical order."""
    text = "".join(token.text for token in tokens)
    is_choice = 1 < len(text) <= len(_CHOICE_LETTERS) and set(text) <= set(_CHOICE_LETTERS)
    return Choice("".join(sorted(text))) if is_choice and len(set(text)) == len(text) else None


def numeral(words: Sequence[str]) -> int | None:
    """Return the number that English words name, up to the millions; None if they do not name one."""
    total, part, last = 0, 0, ""
    words = ["one", *words[1:]] if len(words) > 1 and words[0] == "a" and words[1] in _SCALES else words
    for word in words:
        scale = _SCALES.get(word)
        if word == "and":
            if last not in _SCALES:
                return None
        elif scale == 100 and 0 < part < 100:
            part *= 100
        elif scale is not None and scale > 100 and 0 < part < 1000:
            total, part = total + part * scale, 0
        elif word in NUMERALS and _fits(NUMERALS[word], part, last):
            part += NUMERALS[word]
        else:
            return None
        last = word
    return total + part if words and last != "and" else None


def _fits(number: int, part: int, last: str) -> bool:
    """Whether a numeral may stand after the others: 7 after 20, 27 after 100, but not 7 after 5 or 11."""
    if not last or last in _SCALES or last == "and":
        return part % 100 == 0
    return part % 100 >= 20 and part % 10 == 0 and 0 < number < 10


def fraction_words(words: Sequence[str]) -> Fraction | None:
    """Return the fraction that words such as "two thirds" and "half" name; None if they do not name one."""
    if len(words) not in (1, 2) or words[-1] not in _PARTS or (len(words) == 1 and words[0] != "half"):
        return None
    count = 1 if len(words) == 1 or words[0] == "a" else numeral(words[:1])
    return Fraction(count, _PARTS[words[-1]]) if count else None


def as_choice(tokens: Sequence[AnswerToken], read: Callable[[Sequence[AnswerToken]], Answer]) -> Choice | None:
    """Read a letter in brackets, or with a sign after it, and perhaps the value of that choice."""
    at = 1 if tokens[0].is_word("option", "choice", "answer") else 0
    if at == 1 and len(tokens) > 2 and tokens[1].is_word("is"):
        at = 2
    is_open = at < len(tokens) and tokens[at].is_symbol("(")
    at += is_open
    letter = tokens[at] if at < len(tokens) else None
    if letter is None or letter.kind not in ("letter", "word") or letter.text not in _CHOICE_LETTERS:
        return None
    rest = tokens[at + 1 :]
    if rest and not is_open and at == 0 and all(token.kind == "letter" and not token.spaced for token in rest):
        return _several_letters(tokens)
    if not rest and not is_open:
        return Choice(letter.text)
    if not rest or not rest[0].is_symbol(*((")",) if is_open else (")", ".", ":"))):
        return None
    rest = rest[1:]
    if not rest:
        return Choice(letter.text)
    if rest[0].is_word(*JOINS) or rest[0].is_symbol(",", ";", "=", "("):
        return None
    try:
        return Choice(letter.text, read(rest))
    except UnreadableError:
        return Choice(letter.text, Words(joined(rest)))
