r"""Numbers of texts, exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest

from toolgym.tools.answers.numbers import last_number_place, read_number
from toolgym.tools.answers.tokens import read_tokens


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("58", 58),
        ("-58", -58),
        ("−58", -58),
        ("+58", 58),
        ("58.", 58),
        ("5,800", 5800),
        ("5{,}800", 5800),
        (r"5\,800", 5800),
        (r"5,\!800", 5800),
        ("5 800", 5800),
        ("5\u202f800", 5800),
        ("1,234,567.5", Fraction("1234567.5")),
        ("2{,}5", Fraction("2.5")),
        (".75", Fraction("0.75")),
        ("5.8e3", 5800),
        (r"5.8 \times 10^3", 5800),
        (r"5.8 \cdot 10^{-3}", Fraction("0.0058")),
        ("5.8×10³", 5800),
        ("3/8", Fraction(3, 8)),
        (r"\frac{3}{8}", Fraction(3, 8)),
        (r"\frac38", Fraction(3, 8)),
        (r"-\dfrac{3}{8}", Fraction(-3, 8)),
        (r"\frac{-3}{8}", Fraction(-3, 8)),
        (r"2\frac{3}{8}", Fraction(19, 8)),
        ("2 3/8", Fraction(19, 8)),
        ("½", Fraction(1, 2)),
        (r"0.\overline{27}", Fraction(3, 11)),
        (r"1.2\dot{3}", Fraction(37, 30)),
        (r"\$12.50", Fraction("12.5")),
        ("$12.50", Fraction("12.5")),
        ("-$7", -7),
        ("40 %", 40),
        (r"40\%", 40),
        (r"58\text{ cm}^2", 58),
        ("58 apples", 58),
        ("58 (in 4 steps)", 58),
        ("58 apples in 4 boxes", 58),
        ("58 m", 58),
        ("58个", 58),
        ("3万", 30000),
        ("3 million", 3_000_000),
        ("x = 58", 58),
        ("40 + 18 = 58", 58),
        ("The answer is 58.", 58),
        ("**58**", 58),
        ("(58)", 58),
        (r"\boxed{58}", 58),
        (r"58^\circ", 58),
        ("58x", None),
        ("58m", None),
        ("58^2", None),
        ("58!", None),
        ("58_7", None),
        ("58 + 1", None),
        ("58, 59", None),
        ("58 or 59", None),
        ("58 to 59", None),
        ("not 58", None),
        ("> 58", None),
        (r"\ne 58", None),
        (r"\sqrt{58}", None),
        (r"58\pi", None),
        ("1/0", None),
        ("1e999999", None),
        ("9" * 2000, None),
        ("one", None),
        ("", None),
    ],
)
def test_read_number(text, number):
    assert read_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("40 and then 58", 58),
        ("40 + 18 = 58", 58),
        ("58 m^2", 58),
        ("58 birds (of 70)", 58),
        (r"so \frac{3}{8}", Fraction(3, 8)),
        ("x^2 and x_3", None),
        ("word", None),
    ],
)
def test_last_number(text, number):
    place = last_number_place(read_tokens(text))
    assert (None if place is None else place[0]) == number


@pytest.mark.parametrize(
    "text", ["1/" * 2000 + "1", r"\frac{1}{" * 400, "(" * 4000, "1 1/1" * 800, "-" * 4000, "{" * 4000]
)
def test_nested_numbers_do_not_recurse_without_end(text):
    assert read_number(text) is None
    last_number_place(read_tokens(text))
