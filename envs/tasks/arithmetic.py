"""`ArithmeticTasks`: word problems with numbers too large to guess, generated when they are drawn.

There are many millions of problems. About a tenth of the expressions are kept for testing, in whatever question they
stand, so that training sees no answer of a test. Not covered: division and negative numbers.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import UnknownNameError, nearest
from toolgym.tools.message import system, user

Split = Literal["train", "test"]

SYSTEM_PROMPT = "Compute with the tool. Then end with `#### <answer>`."

HELD_OUT_ONE_IN = 10
"""One expression in this many belongs to the test split."""


@dataclass(frozen=True)
class ArithmeticProblem:
    """A word problem with its Python expression (without spaces), its value, and its `form` such as `(a+b)*c`."""

    question: str
    expression: str
    answer: int
    form: str

    @property
    def split(self) -> Split:
        """The split of the problem; all problems with the same expression share it."""
        # CRC-32: Python's own hash of a string differs between processes.
        return "test" if zlib.crc32(self.expression.encode()) % HELD_OUT_ONE_IN == 0 else "train"

    @property
    def id(self) -> str:
        text = f"{self.question}\n{self.expression}"
        return "arithmetic-" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def to_task(self) -> Task:
        return Task(
            messages=(system(SYSTEM_PROMPT), user(self.question)),
            ground_truth=str(self.answer),
            source="arithmetic",
            id=self.id,
        )


class ArithmeticTasks(TaskSource):
    """An endless source of arithmetic word problems; `test` has the tenth of all expressions that `train` lacks."""

    def __init__(self, split: Split = "train") -> None:
        if split not in ("train", "test"):
            raise UnknownNameError(
                f"ArithmeticTasks needs the split 'train' or 'test', got {split!r}"
                f"{nearest(str(split), ('train', 'test'))}"
            )
        self.split = split

    def sample(self, rng: random.Random) -> Task:
        return self.problem(rng).to_task()

    def splits(self) -> Mapping[str, TaskSource]:
        return {"train": ArithmeticTasks("train"), "test": ArithmeticTasks("test")}

    def problem(self, rng: random.Random) -> ArithmeticProblem:
        """Draw a problem with its expression, by which a scripted policy solves it; the same state gives the same."""
        while True:
            problem = _draw(rng)
            if problem.split == self.split:
                return problem


class _Form(NamedTuple):
    """A kind of expression; its `factors` are the letters that are multiplied, whose numbers stay small."""

    expression: str
    value: Callable[[int, int, int], int]
    factors: str
    weight: int


_NAMES = ("Ada", "Ben", "Chen", "Dara", "Emil", "Fatima", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena", "Omar")
_ITEMS = ("apples", "books", "bricks", "cards", "coins", "cups", "eggs", "nails", "pens", "plates", "stamps")
_BOXES = ("bags", "boxes", "carts", "crates", "rows", "shelves", "trays", "trucks")
_PLACES = ("bakery", "factory", "farm", "library", "market", "school", "shop", "store")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")

_QUESTIONS = {
    _Form("a+b", lambda a, b, c: a + b, "", 2): """
        What is {a}+{b}?
        Add {a} and {b}.
        {name} has {a} {item} and finds {b} more. How many {item} now?
        A {place} sold {a} {item} and then {b} more. How many {item} were sold?
        A train runs {a} km and then {b} km. How many km in total?
        {name} saved {a} dollars and got {b} more on {day}. How many dollars now?
    """,
    _Form("a-b", lambda a, b, c: a - b, "", 2): """
        What is {a}-{b}?
        Take {b} away from {a}.
        A {place} had {a} {item} and sold {b}. How many {item} are left?
        {name} had {a} {item} and lost {b} on {day}. How many {item} now?
        A rope of {a} m loses a piece of {b} m. How long is it now?
        By how much is {a} larger than {b}?
    """,
    _Form("a*b", lambda a, b, c: a * b, "ab", 3): """
        What is {a}*{b}?
        Compute {a} times {b}.
        {a} {box} hold {b} {item} each. How many {item}?
        {name} reads {a} pages a day for {b} days. How many pages?
        A field is {a} m long and {b} m wide. What is its area?
        A {place} buys {a} {item} at {b} dollars each. What is the cost?
    """,
    _Form("a+b-c", lambda a, b, c: a + b - c, "", 1): """
        What is {a}+{b}-{c}?
        {name} has {a} {item}, finds {b} and loses {c}. How many {item} now?
        A {place} had {a} {item}, got {b} more and sold {c}. How many {item} are left?
        A bus with {a} people takes on {b} and lets off {c}. How many people are on it?
    """,
    _Form("a*b+c", lambda a, b, c: a * b + c, "ab", 2): """
        What is {a}*{b}+{c}?
        Multiply {a} by {b}, then add {c}.
        {a} {box} hold {b} {item} each, and {c} {item} lie on the floor. How many {item}?
        {name} earns {a} dollars a day for {b} days and a bonus of {c} dollars. How many dollars?
        A {place} got {a} {box} of {b} {item} and had {c} {item} before. How many {item} now?
    """,
    _Form("a*b-c", lambda a, b, c: a * b - c, "ab", 2): """
        What is {a}*{b}-{c}?
        Multiply {a} by {b}, then subtract {c}.
        {a} {box} hold {b} {item} each, and {c} {item} are broken. How many {item} are whole?
        {name} earns {a} dollars a day for {b} days and spends {c} dollars. How many dollars are left?
        A {place} got {a} {box} of {b} {item} and sold {c}. How many {item} are left?
    """,
    _Form("(a+b)*c", lambda a, b, c: (a + b) * c, "abc", 2): """
        What is ({a}+{b})*{c}?
        Add {a} and {b}, then multiply by {c}.
        Each of {c} {box} holds {a} red and {b} blue {item}. How many {item}?
        {name} walks {a} m and swims {b} m a day for {c} days. How many m?
        A {place} sells {a} {item} by day and {b} by night. How many in {c} days?
    """,
    _Form("(a-b)*c", lambda a, b, c: (a - b) * c, "abc", 2): """
        What is ({a}-{b})*{c}?
        Subtract {b} from {a}, then multiply by {c}.
        Each of {c} {box} holds {a} {item}, of which {b} are broken. How many {item} are whole?
        {name} earns {a} dollars and spends {b} dollars a day. How many dollars are saved in {c} days?
        A {place} makes {a} {item} a day and keeps {b}. How many are sold in {c} days?
    """,
}
"""The questions of each form, one a line: `{a}`, `{b}` and `{c}` are its numbers, other words do not matter."""

_FORMS = [(form, [line.strip() for line in text.strip().splitlines()]) for form, text in _QUESTIONS.items()]


def _draw(rng: random.Random) -> ArithmeticProblem:
    ((form, questions),) = rng.choices(_FORMS, weights=[form.weight for form, _ in _FORMS])
    question = rng.choice(questions)
    while True:
        a, b, c = (_number(rng, small=letter in form.factors) for letter in "abc")
        # Differences must not go below zero, also inside brackets, where the story would make no sense.
        if form.value(a, b, c) >= 0 and not (form.expression == "(a-b)*c" and a < b):
            break
    words = {"name": _NAMES, "item": _ITEMS, "box": _BOXES, "place": _PLACES, "day": _DAYS}
    text = question.format(a=a, b=b, c=c, **{name: rng.choice(choices) for name, choices in words.items()})
    numbers = {"a": str(a), "b": str(b), "c": str(c)}
    expression = "".join(numbers.get(character, character) for character in form.expression)
    return ArithmeticProblem(question=text, expression=expression, answer=form.value(a, b, c), form=form.expression)


def _number(rng: random.Random, *, small: bool) -> int:
    """A number of two or three digits: as many of either, but mostly of two if it is multiplied."""
    digits = 3 if rng.random() < (0.2 if small else 0.5) else 2
    return rng.randint(10 ** (digits - 1), 10**digits - 1)
