"""Tests that judge a program, and the verdicts on them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from toolgym.tools.errors import ConfigError, check_seconds, require_whole_number
from toolgym.tools.sandbox.base import ExecutionResult

CheckerProtocol: TypeAlias = Literal["printed", "testlib"]
"""How a checker is called, and how it reports its verdict. See `CheckerTest`."""


@dataclass(frozen=True)
class _Limited:
    """The limits that every test can set for itself.

    Attributes:
        cpu_seconds: CPU seconds of the program on this test. Default: the judge's `timeout`.
        memory_mb: memory of the program on this test in MiB. Default: the judge's `memory_mb`.
    """

    cpu_seconds: float | None = field(default=None, kw_only=True)
    memory_mb: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_seconds(cpu_seconds=self.cpu_seconds)
        if self.memory_mb is not None:
            require_whole_number("memory_mb", self.memory_mb, at_least=1)


@dataclass(frozen=True)
class StdioTest(_Limited):
    """The program reads standard input and prints. Its output is compared outside its sandbox.

    Attributes:
        expected: the right output, or a sequence of right outputs.
        tolerance: largest difference of two numbers. It is relative to the expected number if that is above 1, as in
            AtCoder's judge. Two whole numbers must be equal. Default: numbers must be equal, as in LiveCodeBench.
        ignore_case: whether letters may differ in case, as in SandboxFusion.
        close: compare numbers as `numpy.allclose` does, which is the rule of APPS, TACO and verl: two numbers may
            differ by 1e-8 plus 1e-5 of the expected number. Two whole numbers must be equal. Cannot be combined with
            `tolerance`.
        any_lines: whether line breaks count as blanks, so that words may stand in other lines than in the expected
            output, as in CodeContests and open-r1/codeforces.
        input_file: file that holds the input instead of standard input.
        output_file: file that the program writes instead of standard output.
        cpu_seconds: CPU seconds of the program on this test. Default: the judge's `timeout`.
        memory_mb: memory of the program on this test in MiB. Default: the judge's `memory_mb`.
    """

    stdin: str
    expected: str | Sequence[str]
    tolerance: float | None = None
    ignore_case: bool = False
    close: bool = field(default=False, kw_only=True)
    any_lines: bool = field(default=False, kw_only=True)
    input_file: str = field(default="", kw_only=True)
    output_file: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rule(self.tolerance, self.close)


@dataclass(frozen=True)
class FunctionTest(_Limited):
    """A function of the program is called. Its value is compared outside its sandbox.

    Attributes:
        function: name of the function. If the program has a class `Solution` with a method of that name, the method is
            called, as in LiveCodeBench and LeetCode.
        args: arguments, as JSON values.
        expected: the right value, as a JSON value. Tuples count as lists.
        or_expected: further right values.
        tolerance: as for `StdioTest`.
        close: as for `StdioTest`.
        integer_keys: whether an argument that is a dictionary gets whole numbers as keys, if all its keys are whole
            numbers. JSON has only texts as keys, and the judges of APPS, TACO and verl give numbers back.
        cpu_seconds: CPU seconds of the program on this test. Default: the judge's `timeout`.
        memory_mb: memory of the program on this test in MiB. Default: the judge's `memory_mb`.
    """

    function: str
    args: Sequence[Any]
    expected: Any
    or_expected: Sequence[Any] = ()
    tolerance: float | None = None
    close: bool = field(default=False, kw_only=True)
    integer_keys: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rule(self.tolerance, self.close)

    @property
    def call_args(self) -> list[Any]:
        """The arguments of the call, with whole numbers as keys of dictionaries if `integer_keys` says so."""
        return [_with_integer_keys(value) for value in self.args] if self.integer_keys else list(self.args)


def _with_integer_keys(value: Any) -> Any:
    """Return a dictionary whose keys are all whole numbers with these as its keys; any other value as it is."""
    if not isinstance(value, Mapping):
        return value
    try:
        keys = {key: int(key) for key in value}
    except ValueError:
        return value
    return {keys[key]: item for key, item in value.items()} if all(str(keys[key]) == key for key in keys) else value


@dataclass(frozen=True)
class AssertTest(_Limited):
    """Python source that calls the program's functions and asserts their values, from another process of the sandbox.

    Attributes:
        code: the assertions.
        setup: source that runs before the program. Its imports are available to `code` too.
        helpers: source that runs only before `code`: functions that the program must not replace.
        entry_points: names of the program that `code` uses. Default: all its names except Python's builtins.
        cpu_seconds: CPU seconds of the program and the assertions on this test. Default: the judge's `timeout`.
        memory_mb: memory of the program on this test in MiB. Default: the judge's `memory_mb`.
    """

    code: str
    setup: str = ""
    helpers: str = ""
    entry_points: Sequence[str] = ()


@dataclass(frozen=True)
class CheckerTest(_Limited):
    """The program reads and prints, and a checker program of the data set judges its output.

    The checker runs in a sandbox of its own after the program has ended. It gets three files as arguments:

    - `printed`, the protocol of open-r1/codeforces: `checker input.txt correct_output.txt solution_output.txt`. It
      prints a number: 0 rejects the output and any other number accepts it.
    - `testlib`, the protocol of Codeforces and CodeContests+: `checker input.txt solution_output.txt
      correct_output.txt`. Exit code 0 accepts the output.

    A checker that crashes rejects the output, unless it also fails on the reference output. The test is then
    `NOT_JUDGEABLE`, as it is if the checker cannot be compiled.

    Attributes:
        checker: source of the checker.
        expected: the reference output. It may be empty if the checker does not need it.
        checker_language: language of the checker, for example `python` or `cpp`.
        protocol: `printed` or `testlib`.
        checker_files: further files of the checker by name, for example `testlib.h`.
        input_file: as for `StdioTest`.
        output_file: as for `StdioTest`.
        cpu_seconds: CPU seconds of the program on this test. Default: the judge's `timeout`.
        memory_mb: memory of the program on this test in MiB. Default: the judge's `memory_mb`.
    """

    stdin: str
    checker: str
    expected: str = ""
    checker_language: str = "python"
    protocol: CheckerProtocol = "printed"
    checker_files: Mapping[str, str] = field(default_factory=dict)
    input_file: str = field(default="", kw_only=True)
    output_file: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in get_args(CheckerProtocol):
            raise ConfigError(f"protocol must be 'printed' or 'testlib', got {self.protocol!r}")


@dataclass(frozen=True)
class InteractiveTest(_Limited):
    """The program talks to an interactor: each reads what the other one prints.

    The interactor is called as `interactor input.txt output.txt correct_output.txt`, as testlib does it. It reads the
    hidden input from the first file, and its exit code is the verdict: 0 accepts the program. It runs with another user
    id or in another sandbox than the program, so the program can read only what the interactor prints.

    Attributes:
        stdin: the hidden input, which only the interactor reads.
        interactor: source of the interactor.
        expected: the reference output, for interactors that read it.
        interactor_language: language of the interactor, for example `python` or `cpp`.
        interactor_files: further files of the interactor by name, for example `testlib.h`.
        cpu_seconds: CPU seconds of the program on this test. Default: the judge's `timeout`.
        memory_mb: memory of the program on this test in MiB. Default: the judge's `memory_mb`.
    """

    stdin: str
    interactor: str
    expected: str = ""
    interactor_language: str = "python"
    interactor_files: Mapping[str, str] = field(default_factory=dict)


Test: TypeAlias = StdioTest | FunctionTest | AssertTest | CheckerTest | InteractiveTest


class VerdictStatus(enum.StrEnum):
    """The outcome of one test."""

    PASSED = "passed"
    WRONG = "wrong"
    """The program's answer is not the expected one."""
    ERROR = "error"
    """The program raised, ended early, or lacks the function."""
    COMPILE_ERROR = "compile_error"
    TIMEOUT = "timeout"
    LIMIT = "limit"
    """The program exceeded its memory, output, or files."""
    NOT_JUDGEABLE = "not_judgeable"
    """The test itself is at fault, and not the program: it does not begin, or needs things that the judge cannot do."""
    NOT_RUN = "not_run"
    """An earlier test failed."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one test.

    `detail` is for a reader: the error, or the value and the expected one; empty if the test passed. It tells the
    expected value, so do not show it for hidden tests.
    """

    status: VerdictStatus
    detail: str = ""
    run: ExecutionResult | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        return self.status is VerdictStatus.PASSED


@dataclass(frozen=True)
class Problem:
    """A programming task with its tests.

    Attributes:
        hidden: tests that decide.
        visible: tests that its writer may see and run.
        id: its name in its data set.
        solution: a program that passes, if known.
        source: the format that it was read from, for example `humaneval`.
        labels: further columns of its row.
        language: language that programs have to be written in, as the sandbox names it.
    """

    prompt: str
    hidden: tuple[Test, ...]
    visible: tuple[Test, ...] = ()
    id: str = ""
    solution: str = ""
    source: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict, repr=False)
    language: str = "python"


def check_tolerance(tolerance: float | None) -> None:
    """Raise ConfigError unless a tolerance is None or a number from 0 to below 1."""
    if tolerance is not None and not (isinstance(tolerance, int | float) and 0 <= tolerance < 1):
        raise ConfigError(f"tolerance must be a number from 0 to below 1, or None, got {tolerance!r}")


def check_rule(tolerance: float | None, close: bool) -> None:
    """Raise ConfigError unless at most one rule for numbers is set, and its tolerance can be used."""
    check_tolerance(tolerance)
    if close and tolerance is not None:
        raise ConfigError(f"a test compares numbers by 'tolerance' or by 'close', not by both; got {tolerance!r}")
