"""The reference of a row: its tests beside the repository that no policy has touched, with the known solution if any.

It tells a policy that fails apart from a row, or a sandbox, whose tests cannot be passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from toolgym.envs.families.swe.patch import PatchError, apply_patch
from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.envs.families.swe.test_names import ABSENT, EXPECTED_FAILURE, NOT_RUN, PASSED, SKIPPED
from toolgym.envs.families.swe.tree import Changes
from toolgym.envs.families.swe.verdict import TestReport
from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox.base import Sandbox

TRIES = 2
"""Runs of the tests that must show the same fault before a row is refused."""

NAMED_TESTS = 3
TAIL_CHARS = 1500


class BrokenRowError(ConfigError):
    """The tests of a row cannot be passed where they run: the row or its environment is at fault, not the policy."""


@dataclass(frozen=True)
class Reference:
    """The tests of a row beside the repository that no policy has touched.

    Attributes:
        outcomes: the end of each test, by id.
        fault: why no policy can pass the tests; empty: nothing speaks against it.
    """

    outcomes: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""


_known: WeakKeyDictionary[Sandbox, dict[str, Reference]] = WeakKeyDictionary()
_locks: WeakKeyDictionary[Sandbox, dict[tuple[str, asyncio.AbstractEventLoop], asyncio.Lock]] = WeakKeyDictionary()


def broken_row(task: RepositoryTask, fault: str) -> BrokenRowError:
    return BrokenRowError(f"the row {task.instance_id!r} is broken: {fault}")


def reference_changes(task: RepositoryTask) -> Changes:
    """Return the changes of the known solution; none if the row has no `gold_patch`."""
    try:
        return apply_patch(task.tree.get, task.gold_patch) if task.gold_patch else {}
    except PatchError as error:
        raise broken_row(task, f"its gold_patch does not apply: {error}") from error


async def checked_reference(
    task: RepositoryTask, sandbox: Sandbox, key: str, run: Callable[[], Awaitable[TestReport]]
) -> Reference:
    """Return the reference of a row, from `run`, which runs its tests; once for each sandbox and `key`.

    Raises BrokenRowError, which names the row and the tests, if `run` shows in `TRIES` runs that the tests cannot be
    passed, and SandboxError if they could not be run.
    """
    known = _known.setdefault(sandbox, {})
    if key not in known:
        locks = _locks.setdefault(sandbox, {})
        lock = locks.setdefault((key, asyncio.get_running_loop()), asyncio.Lock())
        async with lock:
            if key not in known:  # the other episodes of the group have waited
                known[key] = await _reference(task, run)
        locks.pop((key, asyncio.get_running_loop()), None)
    reference = known[key]
    if reference.fault:
        raise broken_row(task, reference.fault)
    return reference


async def _reference(task: RepositoryTask, run: Callable[[], Awaitable[TestReport]]) -> Reference:
    reference = Reference()
    for _ in range(TRIES):
        report = await run()
        if report.infra_error is not None:
            raise SandboxError(report.infra_error)
        reference = Reference(report.outcomes, row_fault(task, report))
        if not reference.fault:
            break
    return reference


def row_fault(task: RepositoryTask, report: TestReport) -> str:
    """Return why no policy can pass the tests of a row, from a report on its known solution; empty: it can.

    Without a known solution, the report is on the repository before: tests of `pass_to_pass` must pass there, and no
    file that can be read may lack a test of `fail_to_pass`.
    """
    output = report.output[-TAIL_CHARS:].strip()
    tail = f"; the output of the tests ends with: {output}" if output else ""
    if not report.measured:
        return f"no test began, not even those that the env adds{tail}"
    kept = {PASSED, EXPECTED_FAILURE}
    bad = {test: kept | {SKIPPED} for test in task.pass_to_pass}
    if task.gold_patch:
        bad |= dict.fromkeys(task.fail_to_pass, kept)
    ends = {test: report.outcomes.get(test) for test in (*task.fail_to_pass, *task.pass_to_pass)}
    faults = [_end_of(test, how) for test, how in ends.items() if how in (ABSENT, NOT_RUN)]
    faults += [
        _end_of(test, how)
        for test, how in ends.items()
        if test in bad and how not in bad[test] and how not in (ABSENT, NOT_RUN)
    ]
    if not faults:
        return ""
    where = "with its gold_patch" if task.gold_patch else "in the repository before any change"
    more = f" and {len(faults) - NAMED_TESTS} more" if len(faults) > NAMED_TESTS else ""
    return f"{where}, {', '.join(faults[:NAMED_TESTS])}{more}{tail}"


def _end_of(test: str, how: str | None) -> str:
    ends = {
        None: "has no result in the time of the tests",
        ABSENT: "is not in its file",
        NOT_RUN: "cannot be started (exit code 126 or 127)",
    }
    return f"the test {test!r} {ends.get(how, f'ended as {how!r}')}"
