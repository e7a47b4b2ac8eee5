"""Tests that judge a program, and the verdicts on them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.base import ExecutionResult


@dataclass(frozen=True)
class StdioTest:
    """The program reads standard input and prints; the comparison is made outside of its sandbox.

    Attributes:
        expected: the right output, or several right ones.
        tolerance: most difference of two numbers, relative to the expected one if that is above 1, as AtCoder's judge
            has it, but not of two whole numbers. Default: they must be equal, as in LiveCodeBench.
        ignore_case: whether letters may differ in case, as SandboxFusion has it.
    """

    stdin: str
    expected: str | Sequence[str]
    tolerance: float | None = None
    ignore_case: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)


@dataclass(frozen=True)
class FunctionTest:
    """A function of the program is called; its value is compared outside of its sandbox.

    Attributes:
        function: its name. A method of that name of a class `Solution` is called instead, as LiveCodeBench and LeetCode
            have it.
        args: arguments, as JSON holds them.
        expected: the right value, as JSON holds it; tuples count as lists.
        or_expected: further right values.
        tolerance: as for `StdioTest`.
    """

    function: str
    args: Sequence[Any]
    expected: Any
    or_expected: Sequence[Any] = ()
    tolerance: float | None = None

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)


@dataclass(frozen=True)
class AssertTest:
    """Python source that calls the program's functions and asserts their values, from another process of the sandbox.

    Attributes:
        code: the assertions.
        setup: source that stands before the program. Its imports are there for `code` too.
        helpers: source that stands only before `code`: functions that the program must not replace.
        entry_points: names of the program that `code` uses. Default: all its names but Python's builtins.
    """

    code: str
    setup: str = ""
    helpers: str = ""
    entry_points: Sequence[str] = ()


Test: TypeAlias = StdioTest | FunctionTest | AssertTest


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
    """

    prompt: str
    hidden: tuple[Test, ...]
    visible: tuple[Test, ...] = ()
    id: str = ""
    solution: str = ""
    source: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict, repr=False)


def check_tolerance(tolerance: float | None) -> None:
    if tolerance is not None and not (isinstance(tolerance, int | float) and 0 <= tolerance < 1):
        raise ConfigError(f"tolerance must be a number from 0 to below 1, or None, got {tolerance!r}")
