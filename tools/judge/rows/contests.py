"""Rows of programming contests: APPS, TACO, CodeContests and open-r1/codeforces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge.cases import CheckerTest, InteractiveTest, Problem, StdioTest, Test
from toolgym.tools.judge.comparing import TOLERANCE
from toolgym.tools.judge.languages import program_request
from toolgym.tools.judge.rows.cases_json import RowLimits, read_lists
from toolgym.tools.judge.rows.columns import (
    RowFormat,
    UnusableRowError,
    is_empty,
    megabytes,
    names,
    other_columns,
    read_json,
    row_id,
    seconds,
)


class _Files(TypedDict):
    """Files that a program reads and writes instead of standard input and output; empty if it does not."""

    input_file: str
    output_file: str


VISIBLE = 2
"""Tests of a longer row that its writer may see, if the data set does not say which tests are public."""


def visible_tests(tests: tuple[Test, ...]) -> tuple[Test, ...]:
    """Return the tests that a writer may see, in a data set that does not say which tests are public."""
    return tests[:VISIBLE] if len(tests) > VISIBLE else ()


# ---------------------------------------------------------------------- APPS, TACO


def _apps(row: Mapping[str, Any], language: str) -> Problem:
    if is_empty(row["input_output"]):
        raise UnusableRowError("has no tests ('input_output' is empty)")
    spec = read_json("input_output", row["input_output"])
    if not isinstance(spec, Mapping) or "inputs" not in spec:
        raise ConfigError(f"'input_output' must hold 'inputs' and 'outputs', got {shorten(repr(spec), 80)}")
    tests = read_lists(spec, RowLimits.of(row))
    starter, name = row.get("starter_code") or "", spec.get("fn_name")
    ask = f"Write a Python function `{name}`." if name else program_request(language)
    code = f"Begin with this:\n\n```python\n{starter.rstrip()}\n```" if starter.strip() else ""
    return Problem(
        prompt="\n\n".join(part for part in (row["question"].strip(), ask, code) if part),
        hidden=tests,
        visible=visible_tests(tests),
        id=row_id(row, "problem_id", "id"),
        solution=first_solution(row.get("solutions")),
        source="taco" if any(name in row for name in _ONLY_TACO) else "apps",
        labels=other_columns(row, APPS.uses),
    )


def first_solution(solutions: Any) -> str:
    """Return the first of a list of programs, or of a JSON text of such a list; empty if there is none."""
    if is_empty(solutions):
        return ""
    programs = read_json("solutions", solutions) if str(solutions).lstrip()[:1] in ("[", '"') else solutions
    first = next(iter(programs), "") if isinstance(programs, list) else programs
    return first if isinstance(first, str) else ""


_ONLY_TACO = ("skill_types", "raw_tags", "Expected Time Complexity")

# ---------------------------------------------------------------------- CodeContests

_LANGUAGES = {"python": (3, "PYTHON3"), "cpp": (2, "CPP"), "java": (4, "JAVA")}
"""The data set's numbers and names of languages."""


def _code_contests(row: Mapping[str, Any], language: str) -> Problem:
    limits = RowLimits(
        seconds("time_limit", row.get("time_limit")),
        megabytes("memory_limit_bytes", row.get("memory_limit_bytes"), unit="bytes"),
    )
    files: _Files = {"input_file": row.get("input_file") or "", "output_file": row.get("output_file") or ""}
    public, private, generated = (
        limits.on([_word_test(stdin, out, files) for stdin, out in pairs(name, row.get(name))])
        for name in ("public_tests", "private_tests", "generated_tests")
    )
    hidden = (*public, *private, *generated)
    if not hidden:
        raise UnusableRowError("has no tests ('public_tests', 'private_tests' and 'generated_tests' are empty)")
    return Problem(
        prompt=f"{row['description'].strip()}\n\n{program_request(language, **files)}",
        hidden=hidden,
        visible=public,
        id=row_id(row, "name"),
        solution=_solution(row.get("solutions"), language),
        source="codecontests",
        labels=other_columns(row, CODE_CONTESTS.uses | {"incorrect_solutions"}),
    )


def _word_test(stdin: str, expected: str, files: _Files) -> StdioTest:
    """Make a test that is judged as CodeContests' own judge does: by words, without case, numbers within 1e-5."""
    return StdioTest(stdin, expected, TOLERANCE, True, any_lines=True, **files)


def pairs(name: str, tests: Any) -> list[tuple[str, str]]:
    """Read inputs and outputs: `{"input": [...], "output": [...]}`, or a list of `{"input", "output"}`."""
    tests = read_json(name, tests)
    if is_empty(tests):
        return []
    if isinstance(tests, Mapping) and set(tests) == {"input", "output"}:
        inputs, outputs = tests["input"] or [], tests["output"] or []
        if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
            tests = [{"input": stdin, "output": out} for stdin, out in zip(inputs, outputs, strict=True)]
    if not isinstance(tests, list) or not all(
        isinstance(test, Mapping)
        and set(test) == {"input", "output"}
        and all(isinstance(text, str) for text in test.values())
        for test in tests
    ):
        raise ConfigError(f"{name!r} must hold texts as 'input' and 'output', got {shorten(repr(tests), 80)}")
    return [(test["input"], test["output"]) for test in tests]


def _solution(solutions: Any, language: str) -> str:
    if is_empty(solutions) or language not in _LANGUAGES:
        return ""
    if isinstance(solutions, Mapping):
        rows = zip(solutions.get("language") or (), solutions.get("solution") or (), strict=True)
    else:
        rows = ((row["language"], row["solution"]) for row in solutions)  # type: ignore[assignment]
    return next((code for name, code in rows if name in _LANGUAGES[language]), "")


# ---------------------------------------------------------------------- open-r1/codeforces

_YES_NO = re.compile(r"(?:\s*(?:yes|no|[-+.\d]+)(?=\s|$))+\s*", re.IGNORECASE)


def _codeforces(row: Mapping[str, Any], language: str) -> Problem:
    is_interactive = not is_empty(row.get("interaction_format"))
    if is_interactive and is_empty(row.get("interactor")):
        raise UnusableRowError("is interactive, and has no 'interactor', which the data set does not have either")
    if not is_interactive and not is_empty(row.get("interactor")):
        raise ConfigError(
            "a row with an 'interactor' needs an 'interaction_format', which says how programs talk to it"
        )
    files = _files(row.get("input_mode"))
    limits = RowLimits.of(row)
    checker = row.get("generated_checker") or ""
    examples = pairs("examples", row.get("examples"))
    if is_interactive:
        tests, visible = limits.on(_interactive_tests(row)), limits.on(())
        ask = f"{program_request(language)} Flush the output whenever the program waits for an answer."
        prompt = _codeforces_prompt(row, ask, examples)
    else:
        tests = limits.on(_codeforces_tests(_codeforces_pairs(row), checker, files))
        visible = limits.on(_codeforces_tests(examples, checker, files))
        prompt = _codeforces_prompt(row, program_request(language, **files))
    if not tests:
        raise UnusableRowError("has no tests ('official_tests' is empty)")
    if row.get("executable") is False and not is_interactive:
        raise UnusableRowError("cannot be judged by running programs ('executable' is false)")
    return Problem(
        prompt=prompt,
        hidden=tests,
        visible=visible,
        id=row_id(row, "id"),
        source="codeforces",
        labels=other_columns(row, CODEFORCES.uses | {"editorial"}),
    )


def _files(mode: Any) -> _Files:
    if is_empty(mode) or mode == "stdio":
        return {"input_file": "", "output_file": ""}
    if mode == "file":
        return {"input_file": "input.txt", "output_file": "output.txt"}
    raise ConfigError(f"'input_mode' must be 'stdio' or 'file', got {shorten(repr(mode))}")


def _codeforces_pairs(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return all tests of a problem. The generated tests are in separate files, which the caller joins to the row."""
    official = pairs("official_tests", row.get("official_tests"))
    generated = row.get("generated_tests")
    if not isinstance(generated, int | float) or isinstance(generated, bool):
        return [*official, *pairs("generated_tests", generated)]
    if row.get("official_tests_complete") is not True and generated > 0:
        raise ConfigError(
            f"the official tests of the problem {row.get('id')!r} are not complete, and 'generated_tests' says that "
            f"{generated:g} more are in the data set's folder generated_tests. Download that folder next to the "
            "folder of this file, or put the tests in the column as a list of {'input', 'output'}"
        )
    return official


def _codeforces_tests(tests: list[tuple[str, str]], checker: str, files: _Files) -> list[Test]:
    """Make tests with the row's checker, or tests by words in which `yes` and `no` may have any case."""
    return [
        CheckerTest(stdin, checker, expected, **files)
        if checker
        else StdioTest(stdin, expected, None, bool(_YES_NO.fullmatch(expected)), any_lines=True, **files)
        for stdin, expected in ((_unix(stdin), _unix(expected)) for stdin, expected in tests)
    ]


def _interactive_tests(row: Mapping[str, Any]) -> list[Test]:
    """Make tests with the row's interactor, which reads the input and the output of each official test."""
    language, files = row.get("interactor_language") or "python", row.get("interactor_files") or {}
    named = isinstance(files, Mapping) and all(isinstance(text, str) for text in (*files, *files.values()))
    if not named or not isinstance(language, str) or not isinstance(row["interactor"], str):
        raise ConfigError(
            "'interactor' and 'interactor_language' must be texts, and 'interactor_files' must map names to texts"
        )
    return [
        InteractiveTest(_unix(stdin), row["interactor"], _unix(expected), language, files)
        for stdin, expected in _codeforces_pairs(row)
    ]


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _codeforces_prompt(row: Mapping[str, Any], ask: str, dialogues: Sequence[tuple[str, str]] = ()) -> str:
    limits = [
        f"{what}: {row[key]:g} {unit}" for key, what, unit in _SHOWN_LIMITS if isinstance(row.get(key), int | float)
    ]
    parts = [f"# {row['title']}" if row.get("title") else "", "\n".join(limits), row["description"]]
    for key, heading in _SECTIONS:
        parts.append(f"## {heading}\n\n{row[key].strip()}" if row.get(key) else "")
    for read, printed in dialogues:
        parts.append(
            f"## Example\n\nThe program reads:\n\n{_unix(read).strip()}\n\nIt prints:\n\n{_unix(printed).strip()}"
        )
    return "\n\n".join(part.strip() for part in (*parts, ask) if part)


_SECTIONS = (
    ("input_format", "Input"),
    ("output_format", "Output"),
    ("interaction_format", "Interaction"),
    ("note", "Note"),
)

_SHOWN_LIMITS = (("time_limit", "Time limit", "s"), ("memory_limit", "Memory limit", "MB"))

APPS = RowFormat(
    "APPS and TACO",
    marks=("input_output",),
    uses=names("question, input_output, starter_code, solutions, problem_id, id, time_limit, memory_limit"),
    labels=names(
        "difficulty, url, raw_tags, name, source, tags, skill_types, date, picture_num, Expected Auxiliary "
        "Space, Expected Time Complexity"
    ),
    read=_apps,
)
CODE_CONTESTS = RowFormat(
    "CodeContests",
    marks=("private_tests", "generated_tests", "description"),
    uses=names(
        "name, description, public_tests, private_tests, generated_tests, solutions, time_limit, "
        "memory_limit_bytes, input_file, output_file"
    ),
    labels=names(
        "source, difficulty, incorrect_solutions, cf_contest_id, cf_index, cf_points, cf_rating, cf_tags, "
        "is_description_translated, untranslated_description"
    ),
    read=_code_contests,
)
CODEFORCES = RowFormat(
    "open-r1/codeforces",
    marks=("official_tests", "description"),
    uses=names(
        "id, title, description, input_format, output_format, interaction_format, note, examples, "
        "official_tests, official_tests_complete, input_mode, generated_checker, executable, generated_tests, "
        "time_limit, memory_limit, interactor, interactor_language, interactor_files"
    ),
    # `prompt` is the problem once more, in the edition for a language.
    labels=names(
        "aliases, contest_id, contest_name, contest_type, contest_start, contest_start_year, index, "
        "editorial, rating, tags, testset_size, prompt"
    ),
    read=_codeforces,
)
