"""Inputs like those of a task's tests, on which a mutant may differ from the known solution."""

from __future__ import annotations

import ast
import copy
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolgym.tools.judge.cases import AssertTest, CheckerTest, FunctionTest, StdioTest, Test

Call = tuple[str, list[Any]]
"""The name of a function, and arguments."""


def stdin_of(tests: Sequence[Test]) -> list[str]:
    """Return the inputs of tests whose program reads and prints."""
    return [test.stdin for test in tests if isinstance(test, StdioTest | CheckerTest)]


def calls_of(tests: Sequence[Test]) -> list[Call]:
    """Return the calls in tests of functions. Of assertions, those with literal arguments."""
    calls: list[Call] = []
    for test in tests:
        if isinstance(test, FunctionTest):
            calls.append((test.function, list(test.args)))
        elif isinstance(test, AssertTest):
            calls += _literal_calls(test)
    return calls


def _literal_calls(test: AssertTest) -> Iterator[Call]:
    try:
        tree = ast.parse(test.code)
    except SyntaxError:
        return
    names = {name: name for name in test.entry_points}
    if len(test.entry_points) == 1:
        names["candidate"] = test.entry_points[0]  # HumanEval's name for the function
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in names
            and not node.keywords
        ):
            try:
                yield names[node.func.id], [ast.literal_eval(argument) for argument in node.args]
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue


def numbers_in(program: str) -> list[int]:
    """Return the whole numbers in a Python program, each with its neighbours: its results often change there."""
    constants = [node.value for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant)]
    numbers = [value for value in constants if type(value) is int]
    return sorted({number + step for number in numbers for step in (-1, 0, 1)})


def similar_stdin(inputs: Sequence[str], count: int, seed: int = 0, hints: Sequence[int] = ()) -> list[str]:
    """Return inputs that are made of the lines of some inputs.

    Lines are left out, repeated, exchanged, or taken from another input, and numbers change within the bounds that they
    have in the same place of the same line. `hints` are numbers that are tried more often than others.
    """
    rng = random.Random(seed)
    bounds: dict[tuple[int, int], list[str]] = {}
    pool = [line for text in inputs for line in text.removesuffix("\n").split("\n")[1:]]
    for text in inputs:
        for at, line in enumerate(text.split("\n")):
            for place, number in enumerate(_NUMBER.findall(line)):
                bounds.setdefault((at, place), []).append(number)
    similar: list[str] = []
    for _ in range(count):
        text = rng.choice(inputs)
        lines = text.removesuffix("\n").split("\n")
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(lines))
            if rng.random() < 0.5 and _NUMBER.search(lines[at]):
                lines[at] = _other_number(lines[at], at, bounds, hints, rng)
            elif rng.random() < 0.5:
                lines = _other_lines(lines, at, pool, rng)
            else:
                lines[at] = _other_words(lines[at], rng)
        similar.append("\n".join(lines) + ("\n" if text.endswith("\n") else ""))
    return similar


_NUMBER = re.compile(r"(?<![\d.])-?\d{1,18}(?![\d.])")


def _within(numbers: Sequence[Any], hints: Sequence[int]) -> list[Any]:
    """Return the bounds of some numbers, and the hints between them."""
    if not numbers:
        return []
    low, high = min(numbers), max(numbers)
    return [low, high, *(hint for hint in hints if low < hint < high)]


def _other_number(
    line: str, at: int, bounds: Mapping[tuple[int, int], Sequence[str]], hints: Sequence[int], rng: random.Random
) -> str:
    matches = list(_NUMBER.finditer(line))
    place = rng.randrange(len(matches))
    match = matches[place]
    seen = bounds.get((at, place), [match.group()])
    number = str(_number(int(match.group()), _within(list(map(int, seen)), hints), rng))
    if any(len(other) > 1 and other[0] == "0" for other in seen):
        number = number.zfill(len(match.group()))
    return line[: match.start()] + number + line[match.end() :]


def _other_lines(lines: Sequence[str], at: int, pool: Sequence[str], rng: random.Random) -> list[str]:
    other = rng.randrange(len(lines))
    lines = list(lines)
    match rng.randrange(4):
        case 0 if len(lines) > 1:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case 2 if pool:
            lines.insert(at, rng.choice(pool))
        case _:
            lines[at], lines[other] = lines[other], lines[at]
    return lines


def _other_words(line: str, rng: random.Random) -> str:
    words = line.split(" ")
    at, other = rng.randrange(len(words)), rng.randrange(len(words))
    if len(words) > 1 and rng.random() < 0.5:
        words[at], words[other] = words[other], words[at]
    elif not any(letter.isdigit() for letter in words[at]):
        words[at] = _text(words[at], rng)
    return " ".join(words)


def similar_calls(calls: Sequence[Call], count: int, seed: int = 0, hints: Sequence[int] = ()) -> list[Call]:
    """Return calls whose arguments are like those of some calls: of the same types, within the bounds seen.

    `hints` are numbers that are tried more often than others.
    """
    rng = random.Random(seed)
    bounds = _within([number for _, args in calls for number in _numbers(args)], hints) or [0]
    similar: list[Call] = []
    for _ in range(count):
        name, args = rng.choice(calls)
        args = copy.deepcopy(args)
        for _ in range(rng.randint(1, 2)):
            if args:
                at = rng.randrange(len(args))
                args[at] = _similar(args[at], bounds, rng)
        similar.append((name, args))
    return similar


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _numbers(item)


def _similar(value: Any, numbers: Sequence[float], rng: random.Random) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return _number(value, [int(number) for number in numbers], rng)
        case float():
            return rng.choice([value, rng.uniform(min(numbers), max(numbers)), rng.choice(numbers)])
        case str():
            return _text(value, rng)
        case list() | tuple():
            return type(value)(_items(list(value), numbers, rng))
        case dict() if value:
            key = rng.choice(list(value))
            if rng.random() < 0.3:
                return {other: item for other, item in value.items() if other != key}
            return {**value, key: _similar(value[key], numbers, rng)}
    return value


def _items(items: list[Any], numbers: Sequence[float], rng: random.Random) -> list[Any]:
    if not items:
        return items
    at, other = rng.randrange(len(items)), rng.randrange(len(items))
    action = rng.randrange(5)
    if action == 0:
        del items[at]
    elif action == 1:
        items.insert(other, copy.deepcopy(items[at]))
    elif action == 2:
        items[at], items[other] = items[other], items[at]
    else:
        items[at] = _similar(items[at], numbers, rng)
    return items


def _number(value: int, numbers: Sequence[int], rng: random.Random) -> int:
    low, high = min(numbers), max(numbers)
    near = min(max(value + rng.choice([-1, 1]), low), high)
    return rng.choice([near, rng.choice(numbers), rng.randint(low, high)])


def _text(text: str, rng: random.Random) -> str:
    """Return a text with a letter less, more or changed. Blanks stay as single as they are."""
    if not text:
        return text
    at, other = rng.randrange(len(text)), rng.randrange(len(text))
    changed = rng.choice(
        [
            text[:at] + text[at + 1 :],
            text[:at] + text[other] + text[at:],
            text[:at] + text[other] + text[at + 1 :],
            text[min(at, other) :],
        ]
    )
    return text if _ODD_BLANKS.search(changed) and not _ODD_BLANKS.search(text) else changed


_ODD_BLANKS = re.compile(r"\s\s|^\s|\s$")
