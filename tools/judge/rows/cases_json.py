"""Lists of tests as data sets write them: `{"inputs", "outputs"}`, and lists of `{"input", "output", ...}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge.cases import (
    AssertTest,
    CheckerTest,
    FunctionTest,
    InteractiveTest,
    StdioTest,
    Test,
)
from toolgym.tools.judge.rows.columns import (
    UnusableRowError,
    check_names,
    is_empty,
    megabytes,
    names,
    read_json,
    seconds,
)


@dataclass(frozen=True)
class RowLimits:
    """Limits of the tests of a row, as `cpu_seconds` and `memory_mb` of the tests."""

    cpu_seconds: float | None = None
    memory_mb: int | None = None

    def on(self, tests: Sequence[Test]) -> tuple[Test, ...]:
        """Return the tests with these limits."""
        if self.cpu_seconds is None and self.memory_mb is None:
            return tuple(tests)
        return tuple(replace(test, cpu_seconds=self.cpu_seconds, memory_mb=self.memory_mb) for test in tests)

    @classmethod
    def of(cls, row: Mapping[str, Any], default: RowLimits | None = None) -> RowLimits:
        """Read the columns `time_limit` and `memory_limit`: seconds and MiB, or texts with a unit.

        A limit that the row does not have is that of `default`.
        """
        cpu_seconds = seconds("time_limit", row.get("time_limit"))
        memory_mb = megabytes("memory_limit", row.get("memory_limit"))
        if default is not None:
            cpu_seconds = default.cpu_seconds if cpu_seconds is None else cpu_seconds
            memory_mb = default.memory_mb if memory_mb is None else memory_mb
        return cls(cpu_seconds, memory_mb)


# ---------------------------------------------------------------------- {"inputs", "outputs"}

_SPEC = names("inputs, outputs, fn_name, assert_case, type, testtype, time_limit, memory_limit, metadata")
_STDIN = ("stdin", "stdin_stdout", "standard_input", "stdio")
_CALL = ("functional", "function_call", "call_based", "function")


def read_lists(spec: Mapping[str, Any], limits: RowLimits | None = None) -> tuple[Test, ...]:
    """Read the `input_output` of APPS and TACO, which is also the ground truth of verl's code rows.

    Numbers are compared as `numpy.allclose` does, which is what the judges of these data sets use. `assert_case` is
    verl's: assertions, each of which is a test. Raises UnusableRowError if there are no tests.

    Args:
        spec: the object.
        limits: limits of the tests that do not have their own.
    """
    check_names(spec, _SPEC, "the tests")
    name, assertions = spec.get("fn_name") or None, spec.get("assert_case")
    limits = RowLimits.of(spec, limits)
    if not is_empty(assertions):
        return limits.on(_assertions(spec, assertions))
    inputs, outputs = spec["inputs"], spec.get("outputs")
    if is_empty(inputs) and is_empty(outputs):
        raise UnusableRowError("has no tests ('inputs' is empty)")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ConfigError("'inputs' and 'outputs' must be lists of the same length")
    name = _name(_kind(spec), name)
    if name is None:
        return limits.on(
            [StdioTest(_lines(stdin), _lines(out), close=True) for stdin, out in zip(inputs, outputs, strict=True)]
        )
    return limits.on(function_tests(name, inputs, outputs))


def _assertions(spec: Mapping[str, Any], assertions: Any) -> list[Test]:
    """Read verl's `assert_case`. What a program prints for `inputs` is not compared, as in verl."""
    if not isinstance(assertions, list) or not all(isinstance(code, str) for code in assertions):
        raise ConfigError(f"'assert_case' must be a list of assertions, got {shorten(repr(assertions))}")
    for key in ("inputs", "outputs"):
        if any(not is_empty(value) for value in spec.get(key) or ()):
            raise ConfigError(f"tests with 'assert_case' cannot have {key!r} too, got {shorten(repr(spec[key]))}")
    return [AssertTest(code) for code in assertions]


def _kind(case: Mapping[str, Any]) -> str | None:
    """Return `stdin` or `function` for the kind of a test; None if it does not say."""
    kinds = {str(case[key]) for key in ("type", "testtype") if not is_empty(case.get(key))}
    known = {"stdin" if kind in _STDIN else "function" if kind in _CALL else kind for kind in kinds}
    if len(known) > 1 or not known <= {"stdin", "function"}:
        raise ConfigError(
            f"the kind of a test must be one of {', '.join((*_STDIN, *_CALL))}, got {' and '.join(sorted(kinds))}: "
            f"{shorten(repr(case), 80)}"
        )
    return known.pop() if known else None


def _name(kind: str | None, name: Any) -> str | None:
    """Return the function that a test calls; None if the program reads and prints."""
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise ConfigError(f"'fn_name' must be the name of a function, got {shorten(repr(name))}")
    if kind == "stdin":
        return None
    if kind == "function" and name is None:
        raise ConfigError(
            "a test that calls a function needs a function's name in 'fn_name', or 'func_name' in its metadata"
        )
    return name


def function_tests(name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[FunctionTest]:
    """Make tests of a function's arguments and values, as APPS and PRIME write them.

    Arguments that are a text hold JSON, one argument in each line, and so does their value. Otherwise arguments are a
    list. APPS wraps the values of some rows in a list of one, and its judge takes either.
    """
    wrapped = bool(outputs) and all(isinstance(out, list) and len(out) == 1 for out in outputs)
    tests = []
    for args, out in zip(inputs, outputs, strict=True):
        if isinstance(args, str):
            lines = [read_json("an argument", line) for line in args.split("\n") if line.strip()]
            tests.append(_call(name, lines, read_json("the value of a function", out)))
        elif isinstance(args, list):
            tests.append(_call(name, args, out, tuple(out) if wrapped else ()))
        else:
            raise ConfigError(f"the arguments of {name!r} must be a list or a text, got {shorten(repr(args))}")
    return tests


def _call(name: str, args: Sequence[Any], value: Any, others: Sequence[Any] = ()) -> FunctionTest:
    has_keys = any(isinstance(arg, Mapping) for arg in args)
    return FunctionTest(name, tuple(args), value, tuple(others), close=True, integer_keys=has_keys)


def _lines(value: Any) -> str:
    """Read a text of APPS, which may be a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


# ---------------------------------------------------------------------- lists of {"input", "output"}

_CASE = names("input, output, fn_name, type, testtype, metadata, time_limit, memory_limit")
_CASE_LABELS = names("id, name, explanation, is_public, public, index, difficulty")


def read_cases(
    cases: Any, name: str | None = None, *, close: bool = False, limits: RowLimits | None = None
) -> tuple[Test, ...]:
    """Read a list of `{"input", "output"}` with `testtype` or `type`, as LiveCodeBench and SYNTHETIC-1 have it.

    Args:
        cases: the list.
        name: the function that tests call, if they do not say so themselves.
        close: whether numbers are compared as `numpy.allclose` does.
        limits: limits of the tests that do not have their own.
    """
    if not isinstance(cases, list) or not all(isinstance(case, Mapping) for case in cases):
        raise ConfigError(f"tests must be a list of objects, got {shorten(repr(cases))}")
    calls: list[tuple[str | None, Mapping[str, Any]]] = []
    for case in cases:
        check_names(case, _CASE | _CASE_LABELS, "a test")
        if "input" not in case or "output" not in case:
            raise ConfigError(f"a test needs 'input' and 'output', got {shorten(repr(case))}")
        metadata = read_json("metadata", case.get("metadata") or {})
        function = case.get("fn_name") or (metadata.get("func_name") if isinstance(metadata, Mapping) else None)
        kind = _kind(case)
        calls.append((_name(kind, function or (name if kind else None)), case))
    values = [case["output"] for function, case in calls if function]
    wrapped = bool(values) and all(isinstance(out, list) and len(out) == 1 for out in values)
    return tuple(RowLimits.of(case, limits).on([_case(function, case, wrapped, close)])[0] for function, case in calls)


def _case(function: str | None, case: Mapping[str, Any], wrapped: bool, close: bool) -> Test:
    if function is None:
        return StdioTest(_lines(case["input"]), _lines(case["output"]), close=close)
    test = function_tests(function, [case["input"]], [case["output"]])[0]
    return replace(test, close=close, or_expected=test.or_expected if wrapped else ())


# ---------------------------------------------------------------------- our own

_OWN: dict[str, type[Test]] = {
    "checker": CheckerTest,
    "interactor": InteractiveTest,
    "stdin": StdioTest,
    "function": FunctionTest,
    "code": AssertTest,
}
"""Types of tests by the field that only they have. The first field that a test has decides."""

_TUPLES = frozenset({"args", "or_expected", "entry_points"})
_MAY_BE_NONE = frozenset({"expected", "tolerance", "cpu_seconds", "memory_mb"})


def own_tests(tests: Sequence[Mapping[str, Any]]) -> tuple[Test, ...]:
    """Read tests that `write_test` or `dataclasses.asdict` has written."""
    read: list[Test] = []
    for test in tests:
        kind = next((kind for key, kind in _OWN.items() if test.get(key) is not None), None)
        try:
            if kind is None:
                raise TypeError("it needs 'stdin', 'function', 'code', 'checker' or 'interactor'")
            # Arrow fills keys that a test of this kind does not have with None when it unites rows.
            values = {key: value for key, value in test.items() if value is not None or key in _MAY_BE_NONE}
            known = {field.name for field in fields(kind)}
            values = {key: value for key, value in values.items() if value is not None or key in known}
            for key in _TUPLES & values.keys():
                values[key] = tuple(values[key])
            read.append(kind(**values))
        except TypeError as error:
            raise ConfigError(f"a test cannot be used: {error}; got {shorten(repr(test))}") from error
    return tuple(read)


def write_test(test: Test) -> dict[str, Any]:
    """Return the fields of a test that differ from their defaults, as JSON has them."""
    record: dict[str, Any] = {}
    for field in fields(test):
        value = getattr(test, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if value != default or type(value) is not type(default):
            record[field.name] = list(value) if isinstance(value, tuple) else value
    return record
