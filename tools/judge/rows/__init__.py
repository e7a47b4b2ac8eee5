"""Programming tasks from the rows of data sets, as their authors publish them.

| format | recognised by |
| --- | --- |
| HumanEval, HumanEval+ | `entry_point` with the name of a function |
| newfacade/LeetCodeDataset | `entry_point` with `Solution().name` |
| MBPP, its sanitised half, MBPP+ | `test_list` |
| LiveCodeBench | `private_test_cases` |
| open-r1/codeforces | `official_tests` |
| deepmind/code_contests | `private_tests` and `generated_tests` |
| SYNTHETIC-1, PrimeIntellect's verifiable coding problems | `verification_info` |
| DeepCoder | `tests` and `problem` |
| APPS, TACO | `input_output` |

A row is read whole or refused: see `columns`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from toolgym.tools.errors import ConfigError, UnknownNameError, nearest, shorten
from toolgym.tools.judge.cases import AssertTest, FunctionTest, Problem, StdioTest, Test
from toolgym.tools.judge.rows.cases_json import own_tests, read_cases, read_lists
from toolgym.tools.judge.rows.columns import RowFormat, check_columns, plain, plain_row, read_json
from toolgym.tools.judge.rows.contests import APPS, CODE_CONTESTS, CODEFORCES
from toolgym.tools.judge.rows.functions import HUMANEVAL, MBPP
from toolgym.tools.judge.rows.leetcode import LEETCODE
from toolgym.tools.judge.rows.livecodebench import LIVECODEBENCH
from toolgym.tools.judge.rows.verified import DEEPCODER, SYNTHETIC

FORMATS: dict[str, RowFormat] = {
    "leetcode": LEETCODE,
    "humaneval": HUMANEVAL,
    "mbpp": MBPP,
    "livecodebench": LIVECODEBENCH,
    "codeforces": CODEFORCES,
    "codecontests": CODE_CONTESTS,
    "synthetic-1": SYNTHETIC,
    "deepcoder": DEEPCODER,
    "apps": APPS,
}
"""Formats by name. The first one that fits a row reads it."""


def problem_of(
    row: object, *, format: str | None = None, language: str | None = None, ignore: Collection[str] = ()
) -> Problem:
    """Read a row of any format of the table above.

    Args:
        row: the row, as JSON has it or as pandas and pyarrow read Parquet.
        format: name of its format in `FORMATS`. Default: the columns tell the format.
        language: language of the programs, as the sandbox names it. Default: the language that the row says, else
            Python.
        ignore: columns that may be overlooked, although their names or contents are those of tests or limits.

    Raises:
        UnusableRowError: the row is not a task, for example because it has no tests.
        ConfigError: the row has no known format, a column cannot be read, or a column that may hold a test or a limit
            is not read. Also, the row's tests are for programs in another language.
        UnknownNameError: there is no format of that name.
    """
    if not isinstance(row, Mapping):
        raise ConfigError(f"a row of a code data set must be an object, got {shorten(repr(row))}")
    row = plain_row(row)
    columns = shorten(", ".join(row) or "no columns")
    row_format = _format(row, format, columns)
    check_columns(row, row_format, ignore)
    row = {name: value for name, value in row.items() if name not in ignore}
    try:
        problem = row_format.read(row, language or "python")
    except KeyError as error:
        raise ConfigError(f"a row of {row_format.name} needs {error.args[0]!r} too; it has {columns}") from error
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"a row of {row_format.name} has a column of another kind: {error}") from error
    return _in_language(problem, row_format, language)


def _in_language(problem: Problem, row_format: RowFormat, language: str | None) -> Problem:
    """Return a problem for programs in a language. Raises ConfigError if its tests are for another language."""
    language = language or problem.language
    if row_format.any_language and language != problem.language:
        raise ConfigError(f"a row of {row_format.name} asks for a program in {problem.language!r}, not in {language!r}")
    if language == "python":
        return problem
    for test in problem.hidden:
        if isinstance(test, FunctionTest | AssertTest):
            raise ConfigError(
                f"the tests of a row of {row_format.name} call functions of Python programs, so they cannot judge "
                f"programs in {language!r}"
            )
    keeps_solution = row_format.any_language or row_format is CODE_CONTESTS
    return replace(problem, language=language, solution=problem.solution if keeps_solution else "")


def _format(row: Mapping[str, Any], name: str | None, columns: str) -> RowFormat:
    if name is None:
        row_format = next((row_format for row_format in FORMATS.values() if row_format.fits(row)), None)
        if row_format is None:
            marks = ", ".join(f"{' and '.join(map(repr, known.marks))} ({known.name})" for known in FORMATS.values())
            raise ConfigError(f"a row of a code data set needs the columns of one of these: {marks}; it has {columns}")
        return row_format
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise UnknownNameError(f"there is no format {name!r}{nearest(name, FORMATS) or ';'} known: {known}")
    row_format = FORMATS[name]
    if not all(mark in row for mark in row_format.marks):
        needs = " and ".join(map(repr, row_format.marks))
        raise ConfigError(f"a row of {row_format.name} needs {needs}; it has {columns}")
    return row_format


def read_tests(spec: Any, tolerance: float | None = None) -> tuple[Test, ...]:
    """Read the tests of a task's ground truth: JSON text or the object itself.

    It is a list of tests as `write_test` or `dataclasses.asdict` gives them; or a row of the formats above; or
    `{"inputs", "outputs"}` with an optional `fn_name` (the `input_output` of APPS and TACO, and the ground truth of
    verl's code rows); or a list of `{"input", "output"}` with `testtype` or `type` (LiveCodeBench, SYNTHETIC-1).

    Args:
        spec: the ground truth.
        tolerance: largest difference of two numbers. See `StdioTest`. Default: the rule of the format's own judge.

    Raises ConfigError for anything else.
    """
    tests = _read_tests(plain(read_json("a task's tests", spec)))
    if tolerance is None:
        return tests
    return tuple(
        replace(test, tolerance=tolerance, close=False) if isinstance(test, StdioTest | FunctionTest) else test
        for test in tests
    )


def _read_tests(spec: Any) -> tuple[Test, ...]:
    if isinstance(spec, Mapping) and ("inputs" in spec or "assert_case" in spec):
        return read_lists(spec)
    if isinstance(spec, list) and spec and all(isinstance(item, Mapping) for item in spec):
        is_case = any(spec[0].get(key) is not None for key in ("testtype", "input"))
        is_livecodebench = is_case and "testtype" in spec[0] and "type" not in spec[0]
        return read_cases(spec, close=not is_livecodebench) if is_case else own_tests(spec)
    if isinstance(spec, Mapping):
        return problem_of(spec).hidden
    raise ConfigError(f"a task's tests must be an object or a list, got {shorten(repr(spec))}")
