"""Programming tasks from the rows of data sets, as their authors publish them.

| format | recognised by | published as |
| --- | --- | --- |
| HumanEval, HumanEval+ | `prompt`, `test`, `entry_point` | `HumanEval.jsonl.gz` |
| MBPP, and its sanitised half | `test_list` | `mbpp.jsonl`, `sanitized-mbpp.json` |
| LiveCodeBench | `private_test_cases` | `test*.jsonl` of code_generation_lite |
| APPS, TACO | `input_output` | `train.jsonl`, Parquet |
"""

from __future__ import annotations

import ast
import base64
import itertools
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge.cases import AssertTest, CheckerTest, FunctionTest, InteractiveTest, Problem, StdioTest, Test

STDIN_HINT = "Write a Python program that reads standard input and prints the answer to standard output."

VISIBLE = 2
"""Tests of a longer APPS or TACO row that its writer may see."""


def problem_of(row: object) -> Problem:
    """Read a row of any format of the table above. Raises ConfigError for any other."""
    if not isinstance(row, Mapping):
        raise ConfigError(f"a row of a code data set must be an object, got {shorten(repr(row))}")
    columns = shorten(", ".join(map(str, row)) or "no columns")
    for column, read in _FORMATS.items():
        if row.get(column) is not None:
            try:
                return read(row)
            except KeyError as error:
                raise ConfigError(f"a row with {column!r} needs {error.args[0]!r} too; it has {columns}") from error
            except (TypeError, AttributeError) as error:
                raise ConfigError(f"a row with {column!r} has a column of another kind: {error}") from error
    raise ConfigError(
        "a row of a code data set needs 'entry_point' (HumanEval), 'test_list' (MBPP), 'private_test_cases' "
        f"(LiveCodeBench) or 'input_output' (APPS, TACO); it has {columns}"
    )


def read_tests(spec: Any, tolerance: float | None = None) -> tuple[Test, ...]:
    """Read the tests of a task's ground truth: JSON text or the object itself.

    It is a list of tests as `dataclasses.asdict` gives them; or a row of the formats above; or `{"inputs", "outputs"}`
    with an optional `fn_name` (the `input_output` of APPS and TACO, and the ground truth of verl's code rows); or a
    list of `{"input", "output", "testtype"}` (LiveCodeBench). The tolerance is that of the format's own judge, unless
    one is given.

    Raises ConfigError for anything else.
    """
    tests = _read_tests(_json("a task's tests", spec))
    if tolerance is None:
        return tests
    return tuple(
        replace(test, tolerance=tolerance, close=False) if isinstance(test, StdioTest | FunctionTest) else test
        for test in tests
    )


def _read_tests(spec: Any) -> tuple[Test, ...]:
    if isinstance(spec, Mapping) and "inputs" in spec:
        return _input_output(spec)
    if isinstance(spec, list) and spec and all(isinstance(item, Mapping) for item in spec):
        return _own(spec) if "testtype" not in spec[0] and "input" not in spec[0] else _cases(spec, None)
    if isinstance(spec, Mapping):
        return problem_of(spec).hidden
    raise ConfigError(f"a task's tests must be an object or a list, got {shorten(repr(spec))}")


_MAY_BE_NONE = frozenset({"expected", "tolerance", "cpu_seconds", "memory_mb"})


def _own(tests: Sequence[Mapping[str, Any]]) -> tuple[Test, ...]:
    kinds: dict[str, type[Test]] = {
        "checker": CheckerTest,
        "interactor": InteractiveTest,
        "stdin": StdioTest,
        "function": FunctionTest,
        "code": AssertTest,
    }
    visible: list[Test] = []
    for test in tests:
        kind = next((kind for key, kind in kinds.items() if test.get(key) is not None), None)
        try:
            if kind is None:
                raise TypeError("it needs 'stdin', 'function', 'code', 'checker' or 'interactor'")
            # Arrow fills keys that a test of this kind does not have with None when it unites rows.
            fields = {key: value for key, value in test.items() if value is not None or key in _MAY_BE_NONE}
            visible.append(kind(**fields))
        except TypeError as error:
            raise ConfigError(f"a test cannot be used: {error}; got {shorten(repr(test))}") from error
    return tuple(visible)


# ---------------------------------------------------------------------- HumanEval


def prompt_helpers(prompt: str, entry_point: str) -> str:
    """Return the imports and helper functions of a HumanEval prompt, without the function to write."""
    body = _statements(prompt.rstrip() + "\n    pass\n")
    kept = [node for node in body if getattr(node, "name", None) != entry_point]
    return "\n".join(ast.unparse(node) for node in kept if not isinstance(node, ast.Expr))


def _humaneval(row: Mapping[str, Any]) -> Problem:
    prompt, name = row["prompt"], row["entry_point"]
    helpers = prompt_helpers(prompt, name)
    test = AssertTest(f"{row['test']}\n\ncheck({name})\n", setup=helpers, helpers=helpers, entry_points=(name,))
    return Problem(
        prompt=f"Complete this Python function, and write it out whole.\n\n```python\n{prompt.rstrip()}\n```",
        hidden=(test,),
        visible=_doctests(prompt, name, helpers),
        id=str(row.get("task_id", "")),
        solution=prompt + row["canonical_solution"] if row.get("canonical_solution") else "",
        source="humaneval",
        labels=_rest(row, "prompt", "test", "canonical_solution"),
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


# ---------------------------------------------------------------------- MBPP


def mbpp_tests(row: Mapping[str, Any], assertions: Sequence[str]) -> tuple[Test, ...]:
    """Make tests of some assertions of an MBPP row."""
    setup = "\n".join([row.get("test_setup_code") or "", *(row.get("test_imports") or ())])
    names = tuple(sorted({*_defined(row.get("code") or ""), *_defined(setup)}))
    return tuple(AssertTest(assertion, setup=setup, entry_points=names) for assertion in assertions)


def _mbpp(row: Mapping[str, Any]) -> Problem:
    assertions = row["test_list"]
    if isinstance(assertions, str) or not assertions:
        raise ConfigError(f"'test_list' must be a list of assertions, got {shorten(repr(assertions))}")
    text = next((row[name] for name in ("text", "prompt", "content") if row.get(name)), None)
    if text is None:
        raise KeyError("text")
    tests = mbpp_tests(row, assertions)
    return Problem(
        prompt=f"{text.strip()}\n\nYour code should pass this test:\n\n```python\n{assertions[0]}\n```",
        hidden=tests,
        visible=tests[:1],
        id=str(row.get("task_id", row.get("id", ""))),
        solution=row.get("code") or "",
        source="mbpp",
        labels=_rest(row, "text", "prompt", "content", "code", "test_list", "challenge_test_list"),
    )


def _defined(source: str) -> set[str]:
    """Return the names of functions, classes and variables at the top of a source."""
    body = _statements(source)
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    return names | {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}


# ---------------------------------------------------------------------- LiveCodeBench

MAX_PACKED_BYTES = 512 * 1024 * 1024
"""Most bytes of a packed text; the largest of LiveCodeBench have some 100 MB."""

_TEXT = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_HARMLESS = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})


def _livecodebench(row: Mapping[str, Any]) -> Problem:
    metadata = _json("metadata", row.get("metadata") or "{}")
    name, starter = metadata.get("func_name"), row.get("starter_code") or ""
    public = _cases(_json("public_test_cases", row["public_test_cases"]), name)
    private = _cases(_private(row["private_test_cases"]), name)
    ask = f"Complete this Python code.\n\n```python\n{starter.rstrip()}\n```" if starter else STDIN_HINT
    return Problem(
        prompt=f"{row['question_content'].strip()}\n\n{ask}",
        hidden=(*public, *private),
        visible=public,
        id=str(row.get("question_id", "")),
        source="livecodebench",
        labels=_rest(row, "question_content", "public_test_cases", "private_test_cases"),
    )


def _private(packed: Any) -> Any:
    """Read LiveCodeBench's private tests: JSON in its first releases, packed since."""
    if not isinstance(packed, str):
        return packed
    try:
        return json.loads(packed)
    except ValueError:
        return _json("private_test_cases", packed_text(packed))


def packed_text(packed: str) -> str:
    """Return the text in `base64(zlib(pickle(text)))`, as LiveCodeBench packs its private tests.

    A pickle is a program, which may call any function of the machine that reads it. So the pickle is not loaded but
    taken apart. Raises ConfigError unless it holds one text and nothing else.
    """
    try:
        opener = zlib.decompressobj()
        data = opener.decompress(base64.b64decode(packed, validate=True), MAX_PACKED_BYTES)
        if opener.unconsumed_tail:
            raise ConfigError(f"packed tests unpack to more than {MAX_PACKED_BYTES} bytes")
        texts = []
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _TEXT:
                texts.append(str(argument))
            elif opcode.name not in _HARMLESS:
                raise ConfigError(f"packed tests must hold one text; their pickle has {opcode.name}, which is not read")
    except (zlib.error, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"packed tests must be base64 of zlib of a pickled text: {error}") from error
    if len(texts) != 1:
        raise ConfigError(f"packed tests must hold one text, got {len(texts)}")
    return texts[0]


def _cases(cases: Any, name: str | None) -> tuple[Test, ...]:
    if not isinstance(cases, list) or not all(isinstance(case, Mapping) for case in cases):
        raise ConfigError(f"LiveCodeBench's tests are a list of objects, got {shorten(repr(cases))}")
    return tuple(_case(case, name) for case in cases)


def _case(case: Mapping[str, Any], name: str | None) -> Test:
    kind = case.get("testtype", "stdin")
    if kind == "stdin":
        return StdioTest(case["input"], case["output"])
    name = case.get("fn_name") or name
    if kind != "functional" or not name:
        raise ConfigError(f"a test is 'stdin', or 'functional' with a function's name; got {kind!r} and {name!r}")
    args = [_json("a test's input", line) for line in case["input"].split("\n") if line.strip()]
    return FunctionTest(name, tuple(args), _json("a test's output", case["output"]))


# ---------------------------------------------------------------------- APPS, TACO


def _apps(row: Mapping[str, Any]) -> Problem:
    spec = _json("input_output", row["input_output"])
    tests, starter = read_tests(spec), row.get("starter_code") or ""
    name = spec.get("fn_name")
    ask = STDIN_HINT if not name else f"Write a Python function `{name}`."
    return Problem(
        prompt="\n\n".join(part for part in (row["question"].strip(), ask, starter.rstrip()) if part),
        hidden=tests,
        visible=tests[:VISIBLE] if len(tests) > VISIBLE else (),
        id=str(row.get("problem_id", row.get("id", ""))),
        solution=next(iter(_json("solutions", row.get("solutions") or "[]")), ""),
        source="apps",
        labels=_rest(row, "question", "input_output", "solutions"),
    )


def _input_output(spec: Mapping[str, Any]) -> tuple[Test, ...]:
    inputs, outputs, name = spec["inputs"], spec.get("outputs"), spec.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise ConfigError("'inputs' and 'outputs' must be lists of the same length, with at least one test")
    if not name:
        return tuple(
            StdioTest(_text(stdin), _text(out), close=True) for stdin, out in zip(inputs, outputs, strict=True)
        )
    # APPS wraps the values of some rows in a list of one, and its checker takes either.
    wrapped = all(isinstance(out, list) and len(out) == 1 for out in outputs)
    return tuple(
        FunctionTest(name, tuple(args), out, tuple(out) if wrapped else (), close=True)
        for args, out in zip(inputs, outputs, strict=True)
    )


def _text(value: Any) -> str:
    """Read a text of APPS, which may be a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


_FORMATS = {
    "entry_point": _humaneval,
    "test_list": _mbpp,
    "private_test_cases": _livecodebench,
    "input_output": _apps,
}
"""Readers of formats, by the column that tells the format."""


def _json(what: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} must be JSON, got {shorten(value, 80)!r}: {error}") from error


def _rest(row: Mapping[str, Any], *used: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in used}
