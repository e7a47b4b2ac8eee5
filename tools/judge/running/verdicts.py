"""Makes verdicts of the outcomes of runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolgym.tools.errors import SandboxError, shorten
from toolgym.tools.judge import comparing
from toolgym.tools.judge.cases import FunctionTest, StdioTest, Verdict, VerdictStatus
from toolgym.tools.judge.inside.values import plain
from toolgym.tools.judge.running.runs import JobOutcome
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox

MAX_COMPARED = 256 << 10
"""Characters of an output that are compared on the event loop. Longer ones are compared in the sandbox."""

DETAIL = 2000
"""Characters of a verdict's detail."""

_COMPARE_TIMEOUT = 600.0

_STATUS = {
    ExecutionStatus.COMPILE_ERROR: VerdictStatus.COMPILE_ERROR,
    ExecutionStatus.TIMEOUT: VerdictStatus.TIMEOUT,
    ExecutionStatus.CPU_LIMIT: VerdictStatus.TIMEOUT,
    ExecutionStatus.MEMORY_LIMIT: VerdictStatus.LIMIT,
    ExecutionStatus.OUTPUT_LIMIT: VerdictStatus.LIMIT,
    ExecutionStatus.FILE_LIMIT: VerdictStatus.LIMIT,
    ExecutionStatus.DISK_LIMIT: VerdictStatus.LIMIT,
}
_RUN_STATUS = {
    VerdictStatus.COMPILE_ERROR: ExecutionStatus.COMPILE_ERROR,
    VerdictStatus.TIMEOUT: ExecutionStatus.TIMEOUT,
    VerdictStatus.LIMIT: ExecutionStatus.MEMORY_LIMIT,
    VerdictStatus.ERROR: ExecutionStatus.ERROR,
    VerdictStatus.NOT_JUDGEABLE: ExecutionStatus.ERROR,
}
_FILE_LIMIT = -25
_MEMORY_SIGNS = ("MemoryError", "std::bad_alloc")


def run_of(outcome: JobOutcome) -> ExecutionResult:
    """Return the run of one job, as if it had had the sandbox for itself."""
    run = outcome.run or ExecutionResult(ExecutionStatus.OK)
    if outcome.status == "killed":
        return replace(run, stdout="")
    report = outcome.report
    if outcome.status == "output":
        code = int(report["code"])
        status = ExecutionStatus.OK if code == 0 else ExecutionStatus.ERROR if code > 0 else ExecutionStatus.KILLED
    else:
        code, status = 0, ExecutionStatus.OK
        if not outcome.ended and outcome.status != "wrong":
            code, status = 1, _RUN_STATUS[VerdictStatus(outcome.status)]
    single = ExecutionResult(
        status,
        stdout=str(report.get("stdout", "")),
        stderr=str(report.get("stderr", "" if outcome.status == "compile_error" else run.stderr)),
        duration=outcome.seconds,
        stdout_truncated=bool(report.get("truncated")),
        return_code=code if status in (ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.KILLED) else None,
        cpu_seconds=outcome.seconds,
    )
    if status is ExecutionStatus.COMPILE_ERROR:
        failed = replace(single, status=ExecutionStatus.ERROR, stderr=outcome.error, return_code=1)
        return replace(failed, status=status, compile=failed)
    return single


def failure_of(outcome: JobOutcome) -> Verdict | None:
    """Return the verdict on a job that did not come to its end; None if it did."""
    run = run_of(outcome)
    if outcome.status == "killed":
        return failed_run(run)
    if outcome.status == "output":
        if run.stdout_truncated:
            return Verdict(VerdictStatus.LIMIT, "the program printed more than the sandbox keeps of its output", run)
        return None if run.ok else failed_run(run)
    if outcome.ended:
        return None
    detail = outcome.error[-DETAIL:] if outcome.status == "compile_error" else outcome.error
    return Verdict(VerdictStatus(outcome.status), detail or run.stderr[-DETAIL:], run)


def failed_run(run: ExecutionResult) -> Verdict:
    """Return the verdict on a program that a limit or an error ended."""
    status = _STATUS.get(run.status, VerdictStatus.ERROR)
    if run.return_code == _FILE_LIMIT or (status is VerdictStatus.ERROR and _ran_out_of_memory(run)):
        status = VerdictStatus.LIMIT
    detail = (run.compile or run).stderr.strip() if status is VerdictStatus.COMPILE_ERROR else run.stderr.strip()
    if not detail and status is VerdictStatus.ERROR:
        detail = "the program ended before its tests" if run.ok else f"the program ended with code {run.return_code}"
    return Verdict(status, detail[-DETAIL:] or run.message or status.value, run)


def _ran_out_of_memory(run: ExecutionResult) -> bool:
    last = run.stderr.rstrip().rpartition("\n")[2]
    return run.return_code != 0 and any(sign in last for sign in _MEMORY_SIGNS)


async def compared(sandbox: Sandbox, test: StdioTest | FunctionTest, outcome: JobOutcome) -> Verdict:
    """Compare an output, or the value of a function, with the expected one."""
    run = run_of(outcome)
    rules: dict[str, Any] = {"tolerance": test.tolerance, "close": test.close}
    if isinstance(test, StdioTest):
        rules |= {"ignore_case": test.ignore_case, "any_lines": test.any_lines}
        wanted = [test.expected] if isinstance(test.expected, str) else list(test.expected)
        what, actual, size = "output", run.stdout, len(run.stdout)
        is_same = actual.strip() in [text.strip() for text in wanted]
    else:
        wanted = [plain(value) for value in (test.expected, *test.or_expected)]
        what, actual, size = "value", outcome.report["value"], outcome.size
        is_same = False
    if is_same or await _is_right(sandbox, what, actual, wanted, rules, size):
        return Verdict(VerdictStatus.PASSED, run=run)
    if what == "output":
        return Verdict(VerdictStatus.WRONG, difference(actual, wanted[0] if wanted else ""), run)
    value = "a large value" if size > MAX_COMPARED else shown(comparing.read_value(actual))
    return Verdict(VerdictStatus.WRONG, difference(value, shown(test.expected)), run)


def shown(value: Any) -> str:
    """Return the `repr` of a value, however large."""
    try:
        return repr(value)
    except ValueError:  # an integer of many digits
        return "a very large number"


async def _is_right(
    sandbox: Sandbox, what: str, actual: Any, wanted: Sequence[Any], rules: Mapping[str, Any], size: int
) -> bool:
    if size <= MAX_COMPARED:
        return comparing.is_right(what, actual, wanted, rules)
    run = await sandbox.run(
        f"{_comparing_source()}\nimport json, sys\nprint(is_right(*json.load(sys.stdin)))\n",
        stdin=json.dumps([what, actual, wanted, rules]),
        timeout=_COMPARE_TIMEOUT,
    )
    if run.stdout not in ("True\n", "False\n"):
        raise SandboxError(f"an output could not be compared: {run.status.value} {run.stderr[-500:]} {run.message}")
    return run.stdout == "True\n"


@functools.cache
def _comparing_source() -> str:
    return Path(comparing.__file__).read_text("utf-8")


def difference(got: str, expected: str) -> str:
    return f"got {shorten(got.strip(), DETAIL // 2)}, expected {shorten(expected.strip(), DETAIL // 2)}"
