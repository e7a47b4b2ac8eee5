"""`Judge`: a program and tests in, a verdict for each test out.

A program is loaded once, or compiled once, and a process is forked for each test: see `in_sandbox`. No test sees what
another one left in memory, in files or in processes, and each has the full limits. Limits are seconds that the program
computes or sleeps, so a verdict does not depend on how busy the machine is.

A program cannot forge its verdict:

- The tests are never files in the sandbox. A program may read the standard input of a `StdioTest`. Its expected output
  stays outside, as do the expected values of a `FunctionTest`.
- The program of an `AssertTest` runs in another process than the tests. It can neither find them in frames or through
  `gc`, nor replace their functions, nor pass an object that equals everything, nor forge an answer: see `in_sandbox`
  and `link`.
- A random word, which only the tests' process knows, marks each outcome. A program that exits with 0, prints "passed",
  or kills its tests gets no point.
- The checker of a `CheckerTest` and the interactor of an `InteractiveTest` run in another sandbox than the program.

A gap remains: the process that becomes the program's has received the run's request, so compressed bytes of the
assertions of all tests of the run may lie in its raw memory. Against programs that search it, use tests whose expected
values stay outside. In a `ProcessSandbox`, which isolates nothing, a program of root can read the memory of the tests'
process as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.errors import ConfigError, check_seconds, require_whole_number, shorten
from toolgym.tools.judge.cases import (
    AssertTest,
    CheckerTest,
    FunctionTest,
    InteractiveTest,
    StdioTest,
    Test,
    Verdict,
    VerdictStatus,
)
from toolgym.tools.judge.inside.link import Link, NotJudgeableError
from toolgym.tools.judge.running import verdicts
from toolgym.tools.judge.running.checkers import checked
from toolgym.tools.judge.running.commands import command_of, runs_in_place
from toolgym.tools.judge.running.interactive import judge_interactive
from toolgym.tools.judge.running.runs import (
    JobOutcome,
    JudgeJob,
    LoadableProgram,
    NoForkError,
    ProcessLimit,
    run_alone,
    run_jobs,
)
from toolgym.tools.sandbox.base import Sandbox

COMPILE_TIMEOUT = 60.0
"""CPU seconds for a compiler, by default."""

_OUTPUT = 1 << 20
"""Bytes that a program may print in addition to twice the expected output."""

PRELUDE = """
import bisect, collections, copy, datetime, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import pow
"""
"""Names for function tests without an import, as in LiveCodeBench. `math` has another `pow`."""


class Judge:
    """Judges programs.

        judge = Judge(sandbox)
        verdicts = await judge.judge("print(int(input()) * 2)", [StdioTest("4", "8")])
        all(verdict.passed for verdict in verdicts)

    Args:
        sandbox: runs the programs. The caller closes it.
        language: the programs' language. Function and assert tests are only for Python.
        timeout: seconds that a program may compute on one test, with all processes that it starts. It may sleep as long
            again, at least 2 s. A wall limit of ten times as long and 10 s ends it in any case.
        compile_timeout: CPU seconds for a compiler. Default: 60.
        memory_mb: memory of one test in MiB. Default: the sandbox's limit.
        stop_at_failure: whether tests after one that fails are left out, with the verdict `NOT_RUN`.
        total_timeout: seconds that a program may compute or sleep on all tests together. The tests after that get the
            verdict `TIMEOUT`. Default: no limit.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        language: str = "python",
        timeout: float = 10.0,
        compile_timeout: float | None = None,
        memory_mb: int | None = None,
        stop_at_failure: bool = True,
        total_timeout: float | None = None,
    ) -> None:
        check_seconds(timeout=timeout, compile_timeout=compile_timeout, total_timeout=total_timeout)
        if memory_mb is not None:
            require_whole_number("memory_mb", memory_mb, at_least=1)
        self.sandbox, self.language = sandbox, language
        self.timeout, self.memory_mb = timeout, memory_mb
        self.compile_timeout = COMPILE_TIMEOUT if compile_timeout is None else compile_timeout
        self.stop_at_failure, self.total_timeout = stop_at_failure, total_timeout

    async def judge(self, program: str, tests: Sequence[Test]) -> list[Verdict]:
        """Return a verdict for each test, in their order.

        Raises ConfigError for unusable tests, an unknown language or one that is not installed,
        SandboxUnsupportedError if a test needs what the sandbox does not have (a second process for functions and
        assertions, sessions for interactors), and SandboxError if the sandbox fails.
        """
        self._check(tests)
        return await _Judging(self, program, tests).verdicts()

    def _check(self, tests: Sequence[Test]) -> None:
        if not tests:
            raise ConfigError("a program needs at least one test to be judged")
        for test in tests:
            if not isinstance(test, Test):
                raise ConfigError(
                    "a test is a StdioTest, FunctionTest, AssertTest, CheckerTest or InteractiveTest, got "
                    f"{shorten(repr(test))}"
                )
            if self.language != "python" and isinstance(test, FunctionTest | AssertTest):
                raise ConfigError(f"a {type(test).__name__} is for Python programs, not for {self.language!r}")


class _Judging:
    """The tests of one program, while they are run."""

    def __init__(self, judge: Judge, program: str, tests: Sequence[Test]) -> None:
        self._judge, self._program, self._tests = judge, program, tests
        self._verdicts: list[Verdict] = [Verdict(VerdictStatus.NOT_RUN)] * len(tests)

    async def verdicts(self) -> list[Verdict]:
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, test in enumerate(self._tests):
            groups[_group(test)].append(number)
        for (kind, setup), numbers in groups.items():
            if kind == "interactive":
                await self._interact(numbers)
            elif not self._failed_before(numbers[0]):
                await self._run(kind, setup, numbers)
        if self._judge.stop_at_failure:
            first = next((at for at, verdict in enumerate(self._verdicts) if not verdict.passed), len(self._tests))
            self._verdicts[first + 1 :] = [Verdict(VerdictStatus.NOT_RUN)] * (len(self._tests) - first - 1)
        return self._verdicts

    def _failed_before(self, number: int) -> bool:
        ended = [verdict for verdict in self._verdicts[:number] if verdict.status is not VerdictStatus.NOT_RUN]
        return self._judge.stop_at_failure and not all(verdict.passed for verdict in ended)

    def _limit(self, test: Test) -> ProcessLimit:
        judge = self._judge
        seconds = test.cpu_seconds or judge.timeout
        return ProcessLimit(min(seconds, judge.total_timeout or seconds), test.memory_mb or judge.memory_mb)

    async def _interact(self, numbers: Sequence[int]) -> None:
        judge = self._judge
        for number in numbers:
            test = self._tests[number]
            assert isinstance(test, InteractiveTest)
            if not self._failed_before(number):
                self._verdicts[number] = await judge_interactive(
                    judge.sandbox, judge.language, self._program, test, self._limit(test), judge.compile_timeout
                )

    async def _run(self, kind: str, setup: str, numbers: Sequence[int]) -> None:
        judge = self._judge
        tests = [self._tests[number] for number in numbers]
        jobs = [_job(test, self._limit(test)) for test in tests]
        command = command_of(judge.sandbox, judge.language, self._program, jobs[0].limit.memory_mb)
        program = self._loaded(kind, setup, jobs, command, _hint(tests))

        async def accept(outcomes: Mapping[int, JobOutcome]) -> int | None:
            for at, verdict in (await self._judged(tests, outcomes)).items():
                self._verdicts[numbers[at]] = verdict
            failed = [at for at in outcomes if not self._verdicts[numbers[at]].passed]
            return min(failed) if failed and judge.stop_at_failure else None

        options: dict[str, Any] = {"stop": judge.stop_at_failure, "total": judge.total_timeout}
        if kind == "script" and not runs_in_place(judge.sandbox, command):
            await run_alone(judge.sandbox, judge.language, program, jobs, accept, **options)
            return
        try:
            await run_jobs(judge.sandbox, program, jobs, accept, **options)
        except NoForkError:
            if kind != "script":
                raise
            await run_alone(judge.sandbox, judge.language, program, jobs, accept, **options)

    def _loaded(
        self, kind: str, setup: str, jobs: Sequence[JudgeJob], command: Mapping[str, Any] | None, hint: str
    ) -> LoadableProgram:
        if command is None:
            load = ProcessLimit(max(job.limit.seconds for job in jobs))
            return LoadableProgram(kind, self._program, load, setup, hint=hint)
        compiling = ProcessLimit(self._judge.compile_timeout)
        memory = int(command["memory_mb"]) if command["compile"] else 0
        return LoadableProgram("command", command["code"], compiling, command=command, memory_mb=memory)

    async def _judged(self, tests: Sequence[Test], outcomes: Mapping[int, JobOutcome]) -> dict[int, Verdict]:
        sandbox = self._judge.sandbox
        judged: dict[int, Verdict] = {}
        to_check: dict[int, tuple[CheckerTest, JobOutcome]] = {}
        for at, outcome in outcomes.items():
            test = tests[at]
            if (failure := verdicts.failure_of(outcome)) is not None:
                judged[at] = failure
            elif isinstance(test, AssertTest):
                judged[at] = Verdict(VerdictStatus.PASSED, run=verdicts.run_of(outcome))
            elif isinstance(test, CheckerTest):
                to_check[at] = test, outcome
            else:
                assert isinstance(test, StdioTest | FunctionTest)
                judged[at] = await verdicts.compared(sandbox, test, outcome)
        if to_check:
            judged |= await checked(sandbox, to_check)
        return judged


def _group(test: Test) -> tuple[str, str]:
    """Return the way in which a test's program is run, and the source that runs before it."""
    if isinstance(test, InteractiveTest):
        return "interactive", ""
    if isinstance(test, StdioTest | CheckerTest):
        return "script", ""
    return "functions", PRELUDE if isinstance(test, FunctionTest) else test.setup


def _job(test: Test, limit: ProcessLimit) -> JudgeJob:
    """Return the job of a test. Raises ConfigError for arguments that cannot be handed to a program."""
    if isinstance(test, StdioTest | CheckerTest):
        in_file = bool(test.input_file)
        task: dict[str, Any] = {
            "kind": "script",
            "stdin": "" if in_file else test.stdin,
            "files": {test.input_file: test.stdin} if in_file else {},
            "reads": test.output_file,
            "argv": [],
        }
        expected = 2 * len(repr(test.expected))
        return JudgeJob(task, limit, expected + _OUTPUT, expected)
    if isinstance(test, FunctionTest):
        try:
            args = [Link.data().encode(value) for value in test.call_args]
        except NotJudgeableError as error:
            raise ConfigError(f"an argument of {test.function!r} is not a JSON value: {error}") from error
        task = {"kind": "function", "function": test.function, "args": args}
        expected = 2 * len(verdicts.shown(test.expected))
        return JudgeJob(task, limit, expected + _OUTPUT, expected)
    assert isinstance(test, AssertTest)
    task = {
        "kind": "assert",
        "code": test.code,
        "setup": test.setup,
        "helpers": test.helpers,
        "entry_points": list(test.entry_points),
    }
    return JudgeJob(task, limit, _OUTPUT)


def _hint(tests: Sequence[Test]) -> str:
    """Return the sources that run beside a program, so that the sandbox knows which libraries they need."""
    sources = {f"{test.setup}\n{test.helpers}\n{test.code}" for test in tests if isinstance(test, AssertTest)}
    return " ".join(word for word in ("numpy", "pandas", "scipy", "sympy") if any(word in text for text in sources))
