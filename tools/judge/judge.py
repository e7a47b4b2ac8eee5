"""`Judge`: a program and tests in, a verdict for each test out.

Each test is a separate run in a sandbox, so none sees another's leftovers, and each has the full limits.

A program cannot forge its verdict:

- The tests never stand in the sandbox as files. A program may read the standard input of a `StdioTest`; its expected
  output stays outside, as do the expected values of a `FunctionTest`.
- The program of an `AssertTest` runs in another process than the tests. It can neither find them in frames or through
  `gc`, nor replace their functions, nor pass an object that equals everything, nor forge an answer: see `in_sandbox`
  and `link`.
- A random word, which only the tests' process knows, says that all assertions were passed. A program that exits with 0,
  prints "passed", or kills its tests gets no point.

A gap remains: the process that becomes the program's has received the run's request, so compressed bytes of the
assertions may lie in its raw memory. Against programs that search it, use tests whose expected values stay outside. In
a `ProcessSandbox`, which isolates nothing, a program of root can read the memory of the tests' process as well.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import marshal
import secrets
import zlib
from collections.abc import Sequence
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

from toolgym.tools.errors import (
    ConfigError,
    SandboxError,
    SandboxUnsupportedError,
    ToolgymError,
    check_seconds,
    require_whole_number,
    shorten,
)
from toolgym.tools.judge import in_sandbox, link
from toolgym.tools.judge.cases import AssertTest, FunctionTest, StdioTest, Test, Verdict, VerdictStatus
from toolgym.tools.judge.comparing import same_output, same_value
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox

AT_ONCE = 8
"""Tests of one program that run in the sandbox at once."""

_DETAIL = 2000
"""Characters of a verdict's detail."""

_OUTPUT = 1 << 20
"""Bytes that a program may print beside twice the expected output; a sandbox may let it print more."""

_STATUS = {
    ExecutionStatus.COMPILE_ERROR: VerdictStatus.COMPILE_ERROR,
    ExecutionStatus.TIMEOUT: VerdictStatus.TIMEOUT,
    ExecutionStatus.CPU_LIMIT: VerdictStatus.TIMEOUT,
    ExecutionStatus.MEMORY_LIMIT: VerdictStatus.LIMIT,
    ExecutionStatus.OUTPUT_LIMIT: VerdictStatus.LIMIT,
    ExecutionStatus.FILE_LIMIT: VerdictStatus.LIMIT,
    ExecutionStatus.DISK_LIMIT: VerdictStatus.LIMIT,
}


class Judge:
    """Judges programs.

        judge = Judge(sandbox)
        verdicts = await judge.judge("print(int(input()) * 2)", [StdioTest("4", "8")])
        all(verdict.passed for verdict in verdicts)

    Args:
        sandbox: runs the programs; it stays the caller's to close.
        language: the programs' language. Function and assert tests are only for Python.
        timeout: wall seconds for one test.
        compile_timeout: wall seconds for a compiler. Default: `timeout`.
        memory_mb: memory of one test in MiB. Default: the sandbox's limit.
        stop_at_failure: whether tests behind one that fails are left out, with the verdict `NOT_RUN`.
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
    ) -> None:
        check_seconds(timeout=timeout, compile_timeout=compile_timeout)
        if memory_mb is not None:
            require_whole_number("memory_mb", memory_mb, at_least=1)
        self.sandbox, self.language = sandbox, language
        self.timeout, self.compile_timeout, self.memory_mb = timeout, compile_timeout, memory_mb
        self.stop_at_failure = stop_at_failure

    async def judge(self, program: str, tests: Sequence[Test]) -> list[Verdict]:
        """Return a verdict for each test, in their order.

        Raises ConfigError for unusable tests or an unknown language, SandboxUnsupportedError if a test needs a second
        process and the sandbox allows none (isolation level `landlock`), and SandboxError if the sandbox fails.
        """
        self._check(tests)
        verdicts = [Verdict(VerdictStatus.NOT_RUN)] * len(tests)
        numbers = iter(range(len(tests)))
        running: list[tuple[int, asyncio.Task[None]]] = []
        failed = False

        async def work() -> None:
            nonlocal failed
            for number in numbers:  # shared with the other workers
                if failed:
                    return
                task = asyncio.current_task()
                assert task is not None
                running.append((number, task))
                verdicts[number] = await self._verdict(program, tests[number])
                running.remove((number, task))
                if self.stop_at_failure and not verdicts[number].passed:
                    failed = True
                    for other, worker in running:
                        if other > number:  # those before it may fail first
                            worker.cancel()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(tests))):
                    group.create_task(work())
        except* ToolgymError as errors:
            raise errors.exceptions[0] from None
        if self.stop_at_failure:
            first = next((at for at, verdict in enumerate(verdicts) if not verdict.passed), len(verdicts))
            verdicts[first + 1 :] = [Verdict(VerdictStatus.NOT_RUN)] * (len(verdicts) - first - 1)
        return verdicts

    def _check(self, tests: Sequence[Test]) -> None:
        if not tests:
            raise ConfigError("a program needs at least one test to be judged")
        for test in tests:
            if not isinstance(test, StdioTest | FunctionTest | AssertTest):
                raise ConfigError(f"a test is a StdioTest, FunctionTest or AssertTest, got {shorten(repr(test))}")
            if self.language != "python" and not isinstance(test, StdioTest):
                raise ConfigError(f"a {type(test).__name__} is for Python programs, not for {self.language!r}")

    async def _verdict(self, program: str, test: Test) -> Verdict:
        if isinstance(test, StdioTest):
            run = await self._run(program, test.stdin, test.expected)
            return _stdio_verdict(run, test)
        word = secrets.token_hex(16)
        if isinstance(test, FunctionTest):
            setup = in_sandbox.PRELUDE
            task: dict[str, Any] = {"word": word, "function": test.function, "args": list(test.args)}
        else:
            setup = test.setup
            task = {"word": word, **vars(test), "entry_points": list(test.entry_points)}
        run = await self._run(
            f"{_driver()}\nmain({setup!r}, {program!r})\n",
            base64.b64encode(zlib.compress(json.dumps(task).encode(), 1)).decode(),
            test.expected if isinstance(test, FunctionTest) else "",
        )
        return _reported_verdict(run, word, test)

    async def _run(self, code: str, stdin: str, expected: Any) -> ExecutionResult:
        run = await self.sandbox.run(
            code,
            language=self.language,
            timeout=self.timeout,
            compile_timeout=self.compile_timeout,
            memory_mb=self.memory_mb,
            output_bytes=2 * len(repr(expected)) + _OUTPUT,
            stdin=stdin,
        )
        if run.status is ExecutionStatus.SANDBOX_ERROR:
            raise SandboxError(f"a test could not be run: {run.message}")
        return run


@functools.cache
def _driver() -> str:
    """Return the sources of `link` and `in_sandbox`; a Python of the same version need not compile them again."""
    sources = [Path(str(module.__file__)).read_text("utf-8") for module in (link, in_sandbox)]
    compiled = marshal.dumps([compile(source, "<judge>", "exec") for source in sources])
    packed, texts = (base64.b64encode(zlib.compress(data, 9)).decode() for data in (compiled, marshal.dumps(sources)))
    return (
        "import base64, marshal, sys, types, zlib, _frozen_importlib_external\n"
        f"is_same = _frozen_importlib_external.MAGIC_NUMBER == {MAGIC_NUMBER!r}\n"
        f"sources = marshal.loads(zlib.decompress(base64.b64decode({packed!r} if is_same else {texts!r})))\n"
        f"link = sys.modules[{link.__name__!r}] = types.ModuleType({link.__name__!r})\n"
        "exec(sources[0], vars(link))\n"
        "exec(sources[1])\n"
        f"del sys.modules[{link.__name__!r}]"
    )


def _stdio_verdict(run: ExecutionResult, test: StdioTest) -> Verdict:
    if not run.ok:
        return _failed_run(run)
    wanted = [test.expected] if isinstance(test.expected, str) else list(test.expected)
    if run.stdout_truncated:
        return Verdict(VerdictStatus.LIMIT, "the program printed more than the sandbox keeps of its output", run)
    if any(
        same_output(run.stdout, text, tolerance=test.tolerance, close=test.close, ignore_case=test.ignore_case)
        for text in wanted
    ):
        return Verdict(VerdictStatus.PASSED, run=run)
    return Verdict(VerdictStatus.WRONG, _difference(run.stdout, wanted[0] if wanted else ""), run)


def _reported_verdict(run: ExecutionResult, word: str, test: FunctionTest | AssertTest) -> Verdict:
    """Read the report of the tests' process. Without its word there is none."""
    try:
        line = next((line for line in reversed(run.stdout.split("\n")) if line.startswith(word)), None)
        if line is None:
            return _failed_run(run)
        report = json.loads(line.removeprefix(word))
        if isinstance(test, FunctionTest) and report["status"] == "value":
            value = _value(report["value"])
            right = (test.expected, *test.or_expected)
            if any(same_value(value, expected, tolerance=test.tolerance, close=test.close) for expected in right):
                return Verdict(VerdictStatus.PASSED, run=run)
            return Verdict(VerdictStatus.WRONG, _difference(repr(value), repr(test.expected)), run)
    except (ValueError, RecursionError):  # too much for a line, or nested too deeply
        return Verdict(VerdictStatus.LIMIT, "what the function returned is too large", run)
    if report["status"] == "no_fork":
        raise SandboxUnsupportedError(
            "functions and assertions are judged by two processes, and the sandbox lets a program have one "
            f"({report['error']}); use the isolation level namespaces or uid"
        )
    detail = str(report.get("error", "")).encode(errors="replace").decode()  # it may hold half a character
    return Verdict(VerdictStatus(report["status"]), detail, run)


def _value(encoded: Any) -> Any:
    """Read a value that `in_sandbox._plain` has written; values that JSON lacks equal nothing."""
    if isinstance(encoded, list):
        return [_value(item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if "dict" in encoded:
        return {_hashable(_value(key)): _value(item) for key, item in encoded["dict"]}
    return _Other(encoded["other"])


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


class _Other:
    """A value that no test expects."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _failed_run(run: ExecutionResult) -> Verdict:
    status = _STATUS.get(run.status, VerdictStatus.ERROR)
    detail = (run.compile or run).stderr.strip() if status is VerdictStatus.COMPILE_ERROR else run.stderr.strip()
    if not detail and status is VerdictStatus.ERROR:
        detail = "the program ended before its tests" if run.ok else f"the program ended with code {run.return_code}"
    return Verdict(status, detail[-_DETAIL:] or run.message or status.value, run)


def _difference(got: str, expected: str) -> str:
    return f"got {shorten(got.strip(), _DETAIL // 2)}, expected {shorten(expected.strip(), _DETAIL // 2)}"
