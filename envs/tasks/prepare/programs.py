"""Tasks of writing programs, from the rows of code data sets. `code_tasks` and `prepare` both read rows here."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from toolgym.envs.tasks.loading import records
from toolgym.envs.tasks.prepare.readers import DataRecord, Prepared, UnusableRecordError
from toolgym.tools.errors import ConfigError
from toolgym.tools.judge.cases import Problem, Test
from toolgym.tools.judge.rows import problem_of
from toolgym.tools.judge.rows.cases_json import write_test
from toolgym.tools.judge.rows.columns import UnusableRowError, is_empty, plain, read_json
from toolgym.tools.judge.run_tests import example

GENERATED_TESTS = "generated_tests"
"""Folder of open-r1/codeforces with the tests that are not in its rows."""

_EXAMPLE_CHARS = 2000
"""Characters of a prompt's example, for its input and for its output."""

_LABEL_CHARS = 1000
"""Characters of a column, as JSON, up to which it is kept in `extra_info`."""

_MBPP_SPLITS = {"prompt": range(1, 11), "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975)}
"""Ids of MBPP's splits, as its paper divides them (https://arxiv.org/abs/2108.07732, section 2.1)."""

_RESERVED = ("index", "id", "split", "solution", "language", "tools_kwargs", "interaction_kwargs", "need_tools_kwargs")


def read_problem(
    row: object,
    *,
    folder: Path | None = None,
    format: str | None = None,
    language: str | None = None,
    ignore: Collection[str] = (),
) -> Problem:
    """Read a row of a code data set.

    Args:
        row: the row.
        folder: folder of the row's file, next to or above which the folder `generated_tests` of open-r1/codeforces is
            looked for.
        format: as for `toolgym.tools.judge.problem_of`.
        language: as for `toolgym.tools.judge.problem_of`.
        ignore: as for `toolgym.tools.judge.problem_of`.

    Raises:
        UnusableRecordError: the row is not a task, and its data set is known to have such rows.
        ConfigError: the row cannot be read.
    """
    try:
        return problem_of(_joined(row, folder), format=format, language=language, ignore=ignore)
    except UnusableRowError as error:
        raise UnusableRecordError(str(error)) from error


def _joined(row: object, folder: Path | None) -> object:
    """Put the generated tests of open-r1/codeforces into a row that only has their number."""
    if folder is None or not isinstance(row, Mapping) or "official_tests" not in row:
        return row
    count = row.get(GENERATED_TESTS)
    if not isinstance(count, int | float) or not count > 0 or row.get("official_tests_complete"):
        return row
    tests_folder = next((place / GENERATED_TESTS for place in (folder, *list(folder.parents)[:2])
                         if (place / GENERATED_TESTS).is_dir()), None)  # fmt: skip
    if tests_folder is None:
        return row
    problem, contest = str(row.get("id")), str(row.get("contest_id") or "").zfill(4)
    tests = _generated_tests(tests_folder / f"test_cases_{contest}.parquet").get(problem)
    if not tests:
        raise ConfigError(f"{tests_folder} has no tests of the problem {problem!r}, although its row counts {count:g}")
    return {**row, GENERATED_TESTS: tests}


@lru_cache(maxsize=4)
def _generated_tests(path: Path) -> dict[str, list[dict[str, str]]]:
    """Read a contest's generated tests by problem. Rows of a data set are sorted by contest, so few files are kept."""
    tests: dict[str, list[dict[str, str]]] = {}
    for where, _, row in records(path):
        if not isinstance(row, Mapping) or not {"problem_id", "input", "output"} <= row.keys():
            raise ConfigError(f"{where}: a generated test must have 'problem_id', 'input' and 'output'")
        tests.setdefault(str(row["problem_id"]), []).append({"input": row["input"], "output": row["output"]})
    return tests


def program_question(problem: Problem) -> str:
    """Return what the policy is asked: the problem and its example tests."""
    examples = "\n\n".join(example(test, _EXAMPLE_CHARS) for test in problem.visible)
    shown = f"Example tests:\n\n{examples}" if examples and not _shows(problem.prompt, problem.visible) else ""
    return "\n\n".join(filter(None, (problem.prompt, shown)))


def _shows(prompt: str, tests: Sequence[Test]) -> bool:
    """Whether a prompt shows these tests already, as MBPP's does."""
    return all(code and code in prompt for code in (getattr(test, "code", "") for test in tests))


def program_extra(problem: Problem) -> dict[str, Any]:
    """Return what a task keeps of a row beside its tests: the known solution, the language, and short labels."""
    labels = {
        name: value
        for name, value in problem.labels.items()
        if name not in _RESERVED and not is_empty(value) and len(json.dumps(value, default=str)) <= _LABEL_CHARS
    }
    return {**labels, "solution": problem.solution, "language": problem.language}


def tests_kwargs(tests: Sequence[Test], language: str) -> dict[str, dict[str, Any]]:
    """Return the `tools_kwargs` with which the tool `run_tests` gets the tests that the policy may run."""
    return {"run_tests": {"create_kwargs": {"tests": [write_test(test) for test in tests], "language": language}}}


def program(format: str) -> Callable[[DataRecord], Prepared]:
    """Return the reader of `prepare` for rows of a format."""

    def read(record: DataRecord) -> Prepared:
        problem = read_problem(record.fields, folder=record.folder, format=format, ignore=record.ignore)
        kwargs = tests_kwargs(problem.visible, problem.language)
        # Tables have one type for each column, and tests differ in their fields.
        kwargs["run_tests"]["create_kwargs"]["tests"] = json.dumps(kwargs["run_tests"]["create_kwargs"]["tests"])
        return Prepared(
            program_question(problem),
            json.dumps([write_test(test) for test in problem.hidden]),
            id=problem.id or None,
            extra_info=program_extra(problem),
            tools_kwargs=kwargs,
        )

    return read


def mbpp(record: DataRecord) -> Prepared:
    """Read a row of MBPP, whose `task_id` says its split."""
    number = record.fields.get("task_id")
    if isinstance(number, bool) or not isinstance(number, int):
        raise ConfigError(f"field 'task_id' must be a whole number, got {number!r}")
    prepared = _read_mbpp(record)
    split = next((name for name, ids in _MBPP_SPLITS.items() if number in ids), None)
    return replace(prepared, id=f"MBPP/{number}", split=split)


def contest(record: DataRecord) -> Prepared:
    """Read a row of APPS or TACO. Its ground truth is what verl's reward functions read, with the row's limits."""
    prepared = _read_apps(record)
    spec = dict(read_json("input_output", plain(record.fields["input_output"])))
    for name in ("time_limit", "memory_limit"):
        if not is_empty(record.fields.get(name)):
            spec.setdefault(name, record.fields[name])
    return replace(prepared, ground_truth=json.dumps(spec))


_read_mbpp, _read_apps = program("mbpp"), program("apps")
