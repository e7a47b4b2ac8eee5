"""The kinds of answers that the grammar of answers tells apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from toolgym.envs.rewards.mathematics.units import Unit


@dataclass(frozen=True)
class Quantity:
    """A number or a formula, perhaps with a unit.

    Attributes:
        formula: the SymPy expression, exact.
        unit: its unit, if it is a known one.
        is_percent: whether a percent sign follows; the formula is without it.
        decimals: the digits after the point if it is written as a decimal, else -1.
        digits: the significant digits of such a decimal.
        parts: whether it has several parts, such as 5 feet 3 inches, which are added up.
    """

    formula: Any
    unit: Unit | None = None
    is_percent: bool = False
    decimals: int = -1
    digits: int = 0
    parts: bool = False


@dataclass(frozen=True)
class Based:
    """Digits in a base: `1011_2`."""

    digits: str
    base: int

    @property
    def value(self) -> int | None:
        try:
            return int(self.digits, self.base)
        except ValueError:
            return None


@dataclass(frozen=True)
class Listing:
    """Several values. `kind` is `bare` for values with only commas between them, and `bracket` for `[a, b]`."""

    items: tuple[Answer, ...]
    kind: Literal["bare", "set", "tuple", "bracket"]


@dataclass(frozen=True)
class Region:
    """Real numbers: an interval, a union of intervals, or what an inequality says of `name`, if it has a name.

    `pair` is the two ends of an open interval, which may as well be a point of the plane.
    """

    points: Any
    name: str = ""
    pair: Listing | None = None


@dataclass(frozen=True)
class ParameterFamily:
    """Values for every integer or real number: `x = 2k, k \\in \\mathbb{Z}`.

    Attributes:
        formulas: the SymPy expressions, with `families.PARAMETER` as the parameter.
        name: the unknown that has these values, such as `x`; empty if the answer does not name it.
        domain: `Z`, `N` or `R`, or empty if the answer does not say it.
        residue: the value before the modulus of a congruence, such as 3 of `n \\equiv 3 \\pmod 5`.
    """

    formulas: tuple[Any, ...]
    name: str = ""
    domain: Literal["Z", "N", "R", ""] = ""
    residue: Answer | None = None


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True)
class Named:
    """A value with a name: `x = 5` and `f(x) = x^2`."""

    name: str
    value: Answer


@dataclass(frozen=True)
class Relation:
    """An equation or inequality that is not of the form of `Named` or `Region`."""

    sign: str
    left: Any
    right: Any


@dataclass(frozen=True)
class Ratio:
    """Terms with colons between them: a ratio or a time of day. `half` is `am` or `pm`."""

    terms: tuple[Answer, ...]
    is_time: bool = False
    half: str = ""


@dataclass(frozen=True)
class Choice:
    """The letter of a choice, or its letters in alphabetical order, and the value of that choice."""

    letter: str
    value: Answer | None = None


@dataclass(frozen=True)
class Words:
    """A text, in lower case and without punctuation."""

    text: str


Answer = Quantity | Based | Listing | Region | ParameterFamily | Matrix | Named | Relation | Ratio | Choice | Words
