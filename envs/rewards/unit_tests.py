"""`UnitTests`: a scorer that runs the program of the last turn on hidden tests."""

from __future__ import annotations

from typing import Literal

from toolgym.envs.rewards.base import Outcome, Score
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.errors import ConfigError, check_seconds
from toolgym.tools.judge import Judge, VerdictStatus, extract_program, read_tests
from toolgym.tools.judge.cases import check_tolerance
from toolgym.tools.library.final_answer import without_thinking
from toolgym.tools.sandbox import Sandbox, SharedSandbox

QUEUE_TIMEOUT = 600.0
"""Seconds that all tests of a program may wait for the sandbox."""


class UnitTests(AsyncCloseable):
    """Scores the last fenced code block of the final turn by the tests of the task's ground truth.

    The components of a score are `tests_passed` (the fraction), `tests` (how many), `has_program` and, if the program
    took too long in all, `too_slow`. A sandbox that fails ends the episode with `SANDBOX_FAILED`, and a test that
    cannot be judged, whatever the program is, with `SCORE_FAILED`.

    Args:
        sandbox: where tests run; it stays the caller's to close. None: a `SharedSandbox` of its own.
        reward: `all`: 1 if all tests pass, else 0; `fraction`: the fraction of them that pass.
        timeout: wall seconds for one test.
        total_timeout: wall seconds for all tests of one program, not counting its wait for the sandbox. It should be
            below the env's deadline for scoring.
        memory_mb: memory of one test in MiB. Default: the sandbox's own limit.
        tolerance: how much numbers may differ; see `toolgym.tools.judge.StdioTest`. None: as the tests' data set has
            it.
    """

    def __init__(
        self,
        sandbox: Sandbox | None = None,
        *,
        reward: Literal["all", "fraction"] = "all",
        timeout: float = 10.0,
        total_timeout: float = 100.0,
        memory_mb: int | None = None,
        tolerance: float | None = None,
    ) -> None:
        if reward not in ("all", "fraction"):
            raise ConfigError(f"reward must be 'all' or 'fraction', got {reward!r}")
        check_seconds(timeout=timeout, total_timeout=total_timeout)
        check_tolerance(tolerance)
        self.reward, self.timeout, self.total_timeout, self.memory_mb = reward, timeout, total_timeout, memory_mb
        self.tolerance = tolerance
        self._given = sandbox
        self._made: SharedSandbox | None = None

    async def __call__(self, outcome: Outcome) -> Score:
        tests = read_tests(outcome.task.ground_truth, self.tolerance)
        components = {"tests_passed": 0.0, "tests": float(len(tests)), "has_program": 0.0}
        program = final_program(outcome.final_text) if outcome.stop_reason is StopReason.ANSWERED else None
        if program is None:
            return Score(0.0, components)
        judge = Judge(
            self._sandbox(), timeout=self.timeout, memory_mb=self.memory_mb, stop_at_failure=self.reward == "all"
        )
        try:
            verdicts = await with_deadline(judge.judge(program, tests), self.total_timeout, queue=QUEUE_TIMEOUT)
        except DeadlineError as error:
            if error.queued:
                raise
            return Score(0.0, components | {"has_program": 1.0, "too_slow": 1.0})
        for number, verdict in enumerate(verdicts, start=1):
            if verdict.status is VerdictStatus.NOT_JUDGEABLE:
                raise EpisodeFailedError(StopReason.SCORE_FAILED, f"test {number} cannot be judged: {verdict.detail}")
        passed = sum(verdict.passed for verdict in verdicts) / len(verdicts)
        components |= {"tests_passed": passed, "has_program": 1.0}
        return Score(passed if self.reward == "fraction" else float(passed == 1.0), components)

    async def close(self) -> None:
        sandbox, self._made = self._made, None
        if sandbox is not None:
            await sandbox.close()

    def _sandbox(self) -> Sandbox:
        if self._given is not None:
            return self._given
        if self._made is None:
            self._made = SharedSandbox()
        return self._made


def final_program(text: str) -> str | None:
    """The last closed fenced block of a text, outside of its thinking; None if there is none."""
    program = extract_program(without_thinking(text))
    return program.code if program.kind == "fenced" else None
