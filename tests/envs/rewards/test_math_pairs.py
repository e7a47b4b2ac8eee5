r"""Labelled pairs of a ground truth and a turn: no right answer is refused, and no wrong one is paid."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path

import pytest

from toolgym.envs.rewards.answer import found_answer

pytestmark = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs the extra math")

PAIRS = [json.loads(line) for line in Path(__file__).with_name("math_pairs.jsonl").read_text("utf-8").splitlines()]

ROUNDS = [json.loads(line) for line in Path(__file__).with_name("math_rounds.jsonl").read_text("utf-8").splitlines()]

REFUSED = [(r"\frac{11}{3}", r"\boxed{3 \text{ and } \frac{2}{3}}")]
"""A right answer that is refused, because it may as well be two values."""

SPRAYS = [
    "{a} or {b}", r"\boxed{{{a} \text{{ or }} {b}}}", r"\boxed{{{a}, {b}}}", r"\boxed{{{a}}}, \boxed{{{b}}}",
    r"\boxed{{{a}}} \boxed{{{b}}}", r"First \boxed{{{a}}}. Then \boxed{{{b}}}", "#### {a}\n#### {b}",
    "#### {a} or {b}", "<answer>{a}</answer><answer>{b}</answer>", r"<answer>{a}</answer>\boxed{{{b}}}",
    r"\boxed{{{a}}}" "\n#### {b}", "The answer is {a}. The answer is {b}.", "The answer is {a} ({b}).", "{a}\n{b}",
    "**{a}** and **{b}**", "${a}$ or ${b}$", r"\boxed{{{a} = {b}}}", r"\boxed{{{a} \approx {b}}}",
    r"\boxed{{{a} / {b}}}", r"\boxed{{{a} \text{{ or maybe }} {b}}}", r"\boxed{{\pm {a}, {b}}}",
    r"\boxed{{{a}; {b}}}", r"\boxed{{({a}, {b})}}", r"\boxed{{[{a}, {b}]}}", r"\boxed{{\{{{a}, {b}\}}}}",
    r"\boxed{{x = {a} \text{{ or }} x = {b}}}", r"\boxed{{{a}:{b}}}", r"\boxed{{{a} \le x \le {b}}}",
    r"\boxed{{\begin{{pmatrix}}{a}\\{b}\end{{pmatrix}}}}", r"\boxed{{{a}\text{{ (}}{b}\text{{)}}}}",
    r"\boxed{{{a} \quad {b}}}", r"\boxed{{{a} \cdot 1 = {b}}}", "Answer: {a}, Answer: {b}",
    r"\boxed{{\text{{(A) }}{a}\text{{ (B) }}{b}}}", r"\boxed{{{a}_{{{b}}}}}", r"\boxed{{{a}\text{{ not }}{b}}}",
    r"(a) \boxed{{{a}}}" "\n" r"(b) \boxed{{{b}}}", r"\boxed{{{a}!{b}}}", r"\boxed{{{a}^{{{b}}}}}",
    r"\boxed{{{a}\%{b}}}", "<think>{a}</think>{b}", r"\boxed{{{a} \ne {b}}}", r"\boxed{{{a},{b}}}",
    r"\boxed{{{a} \pmod{{{b}}}}}", "The ratio is {a} to {b}.", r"\boxed{{{a}}}. Wait, the answer is {b}.",
    r"\boxed{{{a}}} is wrong. It is {b}.", "The answer is {a}, not {b}.", "Candidates: {a}, {b}", "It is {a} or {b}.",
    r"\boxed{{{a} + {b}k, k \in \mathbb{{Z}}}}", r"\boxed{{\{{{a}, {b}\}} \cup \{{{a}\}}}}", "- {a}\n- {b}",
    "Answer:\n- {a}\n- {b}", r"\boxed{{n \equiv {a} \pmod{{{b}}}}}", r"\boxed{{{a} < {b}}}", "Yes, {a}. No, {b}.",
]  # fmt: skip
"""Turns that hold two values."""


def verdict(gold, text):
    from toolgym.envs.rewards.math_worker import compare

    answer = found_answer(text)
    return compare(gold, answer) == "right" if answer else False


def wrong_verdicts(pairs):
    return [(pair["gold"], pair["text"]) for pair in pairs if verdict(pair["gold"], pair["text"]) != pair["label"]]


def test_every_tenth_pair_is_judged_by_its_label():
    assert wrong_verdicts(PAIRS[::10]) == []


@pytest.mark.long
def test_every_pair_is_judged_by_its_label():
    assert wrong_verdicts(PAIRS) == []


def test_every_tenth_pair_of_the_rounds_is_judged_by_its_label():
    assert set(wrong_verdicts(ROUNDS[::10])) <= set(REFUSED)


@pytest.mark.long
def test_every_pair_of_the_rounds_is_judged_by_its_label():
    assert wrong_verdicts(ROUNDS) == REFUSED


def test_no_spray_is_paid_for_two_truths():
    values = [("37", "62"), (r"\frac{1}{3}", "0.5"), ("12", "120")]
    for template, pair in itertools.product(SPRAYS, values):
        for a, b in (pair, pair[::-1]):
            text = template.format(a=a, b=b)
            assert sum(verdict(truth, text) for truth in (a, b)) < 2, text


@pytest.mark.parametrize(
    ("text", "truths"),
    [
        (r"\boxed{37}", ["37"]),
        (r"\boxed{0.37}", ["0.37"]),
        (r"\boxed{37\text{ cm}}", ["37"]),
        (r"\boxed{37\%}", ["37", "0.37"]),
        (r"\boxed{0.37\%}", ["0.0037"]),
        (r"\boxed{37^\circ}", ["37", r"\frac{37\pi}{180}"]),
    ],
)
def test_an_answer_meets_only_the_ground_truths_that_it_equals(text, truths):
    numbers = ("37", "0.37", "3700", "0.0037", r"\frac{37\pi}{180}")
    assert [truth for truth in numbers if verdict(truth, text)] == truths
