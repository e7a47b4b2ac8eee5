"""Rows whose tests are one text: SYNTHETIC-1, PrimeIntellect's verifiable coding problems, and DeepCoder."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge.cases import Problem, Test
from toolgym.tools.judge.extraction import extract_program, language_of
from toolgym.tools.judge.rows.cases_json import RowLimits, read_cases, read_lists
from toolgym.tools.judge.rows.columns import (
    RowFormat,
    UnusableRowError,
    check_names,
    is_empty,
    is_python,
    names,
    other_columns,
    read_json,
    row_id,
)
from toolgym.tools.judge.rows.contests import first_solution, visible_tests
from toolgym.tools.judge.rows.livecodebench import starter_request

# ---------------------------------------------------------------------- SYNTHETIC-1

_INFO = names("language, test_cases, tests, time_limit, memory_limit, fn_name")


def _synthetic(row: Mapping[str, Any], language: str) -> Problem:
    kind = row.get("task_type")
    if not is_empty(kind) and kind != "verifiable_code":
        raise UnusableRowError(f"is not a programming task ('task_type' is {kind!r})")
    info = _literal("verification_info", row["verification_info"])
    if not isinstance(info, Mapping):
        raise ConfigError(f"'verification_info' must hold an object, got {shorten(repr(info), 80)}")
    check_names(info, _INFO, "'verification_info'")
    if not is_empty(info.get("test_cases")) and not is_empty(info.get("tests")):
        raise ConfigError("'verification_info' must hold 'test_cases' or 'tests', and it holds both")
    cases = _literal("test_cases", info.get("test_cases") or info.get("tests"))
    if is_empty(cases):
        raise UnusableRowError("has no tests ('test_cases' is empty)")
    own_language = info.get("language") or "python"
    language = "python" if is_python(own_language) else language_of(own_language.lower())
    tests = _any_tests(cases, info.get("fn_name"), RowLimits.of(info))
    return Problem(
        prompt=row["prompt"].strip(),
        hidden=tests,
        visible=visible_tests(tests),
        id=row_id(row, "problem_id"),
        solution=_program(row.get("gold_standard_solution"), language),
        source="synthetic-1",
        labels=other_columns(row, SYNTHETIC.uses | {"llm_response"}),
        language=language,
    )


def _program(text: Any, language: str) -> str:
    if not isinstance(text, str):
        return ""
    return extract_program(text, language).code if "```" in text else text


def _literal(what: str, value: Any) -> Any:
    """Read a text that is JSON, or a literal of Python as `str` writes an object; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return read_json(what, value)
    except ConfigError:
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
        raise


def _any_tests(tests: Any, name: Any, limits: RowLimits) -> tuple[Test, ...]:
    """Read `{"inputs", "outputs"}` or a list of `{"input", "output"}`, which are judged as APPS and TACO are."""
    if isinstance(tests, Mapping):
        return read_lists(tests if is_empty(name) else {**tests, "fn_name": name}, limits)
    return read_cases(tests, name or None, close=True, limits=limits)


# ---------------------------------------------------------------------- DeepCoder


def _deepcoder(row: Mapping[str, Any], language: str) -> Problem:
    cases = _literal("tests", row["tests"])
    if is_empty(cases):
        raise UnusableRowError("has no tests ('tests' is empty)")
    metadata = _literal("metadata", row.get("metadata") or {})
    if not isinstance(metadata, Mapping):
        raise ConfigError(f"'metadata' must hold an object, got {shorten(repr(metadata), 80)}")
    starter = row.get("starter_code") or ""
    is_livecodebench = isinstance(cases, list) and any(
        "testtype" in case for case in cases if isinstance(case, Mapping)
    )
    name = metadata.get("func_name") or None
    limits = RowLimits.of(row)
    tests = read_cases(cases, name, limits=limits) if is_livecodebench else _any_tests(cases, name, limits)
    return Problem(
        prompt="\n\n".join(
            part for part in (_problem_text(row["problem"]), _request(starter, tests, language)) if part
        ),
        hidden=tests,
        visible=visible_tests(tests),
        id=row_id(row, "problem_id", "id", "uid"),
        solution=_program(first_solution(row.get("solutions")), "python"),
        source="deepcoder",
        labels=other_columns(row, DEEPCODER.uses),
    )


def _problem_text(problem: Any) -> str:
    if not isinstance(problem, str):
        raise ConfigError(f"'problem' must be a text, got {shorten(repr(problem), 80)}")
    return problem.strip()


def _request(starter: str, tests: tuple[Test, ...], language: str) -> str:
    functions = sorted({function for test in tests if (function := getattr(test, "function", ""))})
    if functions and not starter.strip():
        return f"Write the Python function `{'`, `'.join(functions)}`."
    return starter_request(starter, language)


SYNTHETIC = RowFormat(
    "SYNTHETIC-1",
    marks=("verification_info",),
    uses=names("problem_id, task_type, prompt, verification_info, gold_standard_solution"),
    labels=names(
        "source, in_source_id, hf_dataset_name, metadata, llm_response, response_id, score, "
        "verification_result_info, problem, messages"
    ),
    read=_synthetic,
    any_language=True,
)
DEEPCODER = RowFormat(
    "DeepCoder",
    marks=("tests", "problem"),
    uses=names("problem, tests, solutions, starter_code, metadata, problem_id, id, uid, time_limit, memory_limit"),
    labels=names("source, difficulty, data_source, split, index"),
    read=_deepcoder,
)
