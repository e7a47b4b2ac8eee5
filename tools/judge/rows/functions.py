"""Rows whose tests are assertions about functions: HumanEval and MBPP, also in EvalPlus' editions."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge.cases import AssertTest, Problem, Test
from toolgym.tools.judge.rows.columns import RowFormat, is_empty, names, other_columns, row_id

# ---------------------------------------------------------------------- HumanEval


def prompt_helpers(prompt: str, entry_point: str) -> str:
    """Return the imports and helper functions of a HumanEval prompt, without the function to write."""
    body = _statements(prompt.rstrip() + "\n    pass\n")
    kept = [node for node in body if getattr(node, "name", None) != entry_point]
    return "\n".join(ast.unparse(node) for node in kept if not isinstance(node, ast.Expr))


def _humaneval(row: Mapping[str, Any], language: str) -> Problem:
    prompt, name = text_of(row, "prompt"), text_of(row, "entry_point")
    if not name.isidentifier():
        raise ConfigError(f"'entry_point' must be the name of a function, got {shorten(repr(name))}")
    if not re.search(r"^def check\(", text_of(row, "test"), re.M):
        raise ConfigError(f"'test' must define check(candidate), got {shorten(repr(row['test']))}")
    for column in ("base_input", "plus_input"):
        if not is_empty(row.get(column)):
            raise ConfigError(
                f"the column {column!r} holds inputs without the values that are right for them, so they cannot be "
                "judged; use the edition of HumanEval+ that has all tests in 'test' (evalplus/humanevalplus)"
            )
    helpers = prompt_helpers(prompt, name)
    test = AssertTest(f"{row['test']}\n\ncheck({name})\n", setup=helpers, helpers=helpers, entry_points=(name,))
    return Problem(
        prompt=f"Complete this Python function, and write it out whole.\n\n```python\n{prompt.rstrip()}\n```",
        hidden=(test,),
        visible=_doctests(prompt, name, helpers),
        id=row_id(row, "task_id"),
        solution=prompt + row["canonical_solution"] if row.get("canonical_solution") else "",
        source="humaneval",
        labels=other_columns(row, HUMANEVAL.uses),
    )


def _doctests(prompt: str, name: str, helpers: str) -> tuple[Test, ...]:
    """Read the examples of a docstring, `>>> f(1)` and a line with the value, as tests."""
    lines = [line.strip() for line in prompt.split("\n")]
    tests: list[Test] = []
    for line, value in itertools.pairwise(lines):
        call = line.removeprefix(">>> ")
        if line.startswith(f">>> {name}(") and _is_literal(value) and _statements(f"({call})"):
            tests.append(AssertTest(f"assert {call} == {value}", setup=helpers, helpers=helpers, entry_points=(name,)))
    return tuple(tests)


def _statements(source: str) -> list[ast.stmt]:
    """Parse a source; one with a mistake has no statements."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        return []


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def text_of(row: Mapping[str, Any], column: str) -> str:
    """Return a column that holds a text. Raises ConfigError if it holds something else."""
    value = row[column]
    if not isinstance(value, str):
        raise ConfigError(f"the column {column!r} must be a text, got {shorten(repr(value), 80)}")
    return value


# ---------------------------------------------------------------------- MBPP


def mbpp_tests(row: Mapping[str, Any], assertions: Sequence[str]) -> tuple[Test, ...]:
    """Make tests of some assertions of an MBPP row."""
    setup = "\n".join([row.get("test_setup_code") or "", *(row.get("test_imports") or ())])
    entry_points = tuple(sorted({*_defined(row.get("code") or ""), *_defined(setup)}))
    return tuple(AssertTest(assertion, setup=setup, entry_points=entry_points) for assertion in assertions)


def _mbpp(row: Mapping[str, Any], language: str) -> Problem:
    assertions = _assertions(row, "test_list")
    if not assertions:
        raise ConfigError(f"'test_list' must be a list of assertions, got {shorten(repr(row['test_list']))}")
    text = next((row[name] for name in ("text", "prompt", "content") if row.get(name)), None)
    if text is None:
        raise KeyError("text")
    more = [
        *_assertions(row, "challenge_test_list"),
        *([text_of(row, "test")] if not is_empty(row.get("test")) else []),
    ]
    visible = mbpp_tests(row, assertions[:1])
    return Problem(
        prompt=f"{text.strip()}\n\nYour code should pass this test:\n\n```python\n{assertions[0]}\n```",
        hidden=(*visible, *mbpp_tests(row, [*assertions[1:], *more])),
        visible=visible,
        id=row_id(row, "task_id", "id"),
        solution=row.get("code") or "",
        source="mbpp",
        labels=other_columns(row, MBPP.uses),
    )


def _assertions(row: Mapping[str, Any], column: str) -> list[str]:
    value = row.get(column) or []
    if not isinstance(value, list) or not all(isinstance(assertion, str) for assertion in value):
        raise ConfigError(f"{column!r} must be a list of assertions, got {shorten(repr(value))}")
    return value


def _defined(source: str) -> set[str]:
    """Return the names of functions, classes and variables at the top of a source."""
    body = _statements(source)
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    return defined | {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}


HUMANEVAL = RowFormat(
    "HumanEval",
    marks=("entry_point",),
    uses=names("task_id, prompt, entry_point, test, canonical_solution, base_input, plus_input"),
    labels=names("contract, docstring, declaration, example_test, difficulty, atol"),
    read=_humaneval,
)
MBPP = RowFormat(
    "MBPP",
    marks=("test_list",),
    uses=names(
        "task_id, id, text, prompt, content, code, test_list, test_setup_code, test_imports, challenge_test_list, test"
    ),
    labels=names("source_file"),
    read=_mbpp,
)
