"""`UnitTests`: a scorer that runs the program of the last turn on hidden tests."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from toolgym.envs.failure import CONTROL_TIMEOUT, policy_fault
from toolgym.envs.rewards.base import Outcome, Score
from toolgym.envs.types import EpisodeFailedError, PolicyFaultError, StopReason
from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.errors import ConfigError, SandboxError, check_seconds
from toolgym.tools.judge import Judge, VerdictStatus, extract_program, read_tests
from toolgym.tools.judge.cases import check_tolerance
from toolgym.tools.judge.extraction import names_to_define
from toolgym.tools.library.final_answer import without_thinking
from toolgym.tools.sandbox import Sandbox, SharedSandbox

QUEUE_TIMEOUT = 600.0
"""Seconds that all tests of a program may wait for the sandbox."""

WALL_FACTOR, WALL_GRACE = 10.0, 60.0
"""Scoring may take this many times the limit of all tests in wall seconds, and some more."""

_STATUSES = {
    "compile_error": VerdictStatus.COMPILE_ERROR,
    "error": VerdictStatus.ERROR,
    "timed_out": VerdictStatus.TIMEOUT,
    "over_limit": VerdictStatus.LIMIT,
}
"""Verdicts that have components of their own."""

_SHARES = ("has_program", "no_program", *_STATUSES, "too_slow")


class UnitTests(AsyncCloseable):
    """Scores the last fenced code block of the final turn by the tests of the task's ground truth.

    The components of a score are `tests_passed` (the fraction), `tests` (their number), and 0 or 1 each, so that their
    means over a run are shares of trajectories: `has_program` and `no_program`; `compile_error`; `error` if the program
    raised or ended early; `timed_out` and `over_limit` if a test met a limit of time or of anything else; `too_slow` if
    all tests together took too long. A sandbox that fails ends the episode with `SANDBOX_FAILED`, and a test that
    cannot be judged, whatever the program is, with `SCORE_FAILED`. If the tests do not end within `wall_timeout`,
    although the sandbox runs other programs, the score is 0 and has the component `broken_by_policy`.

    Args:
        sandbox: runs the tests. The caller closes it. Default: a `SharedSandbox` of its own.
        reward: `all` for 1 if all tests pass, else 0; `fraction` for the fraction of tests that pass.
        timeout: seconds that the program may compute on one test. See `toolgym.tools.judge.Judge`.
        total_timeout: seconds that it may compute or sleep on all tests together. An env's `score_timeout` should be at
            least `score_timeout`, which is longer because the machine may be busy.
        memory_mb: memory of one test in MiB. Default: the sandbox's limit.
        tolerance: largest difference of two numbers, see `toolgym.tools.judge.StdioTest`. Default: the rule of the
            tests' data set.
        language: language of the programs, as the sandbox names it. Default: `extra_info.language` of the task, else
            Python.
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
        language: str | None = None,
    ) -> None:
        if reward not in ("all", "fraction"):
            raise ConfigError(f"reward must be 'all' or 'fraction', got {reward!r}")
        check_seconds(timeout=timeout, total_timeout=total_timeout)
        check_tolerance(tolerance)
        self.reward, self.timeout, self.total_timeout, self.memory_mb = reward, timeout, total_timeout, memory_mb
        self.tolerance, self.language = tolerance, language
        self._given = sandbox
        self._made: SharedSandbox | None = None

    @property
    def wall_timeout(self) -> float:
        """Wall seconds that scoring may take on a busy machine, not counting its wait for the sandbox."""
        return WALL_FACTOR * self.total_timeout + WALL_GRACE

    @property
    def score_timeout(self) -> float:
        """Wall seconds after which a score is there: `wall_timeout`, and the time to find out why it passed."""
        return self.wall_timeout + 2 * CONTROL_TIMEOUT

    async def __call__(self, outcome: Outcome) -> Score:
        tests = read_tests(outcome.task.ground_truth, self.tolerance)
        components = {"tests_passed": 0.0, "tests": float(len(tests)), **dict.fromkeys(_SHARES, 0.0)}
        language = self.language or outcome.task.extra_info.get("language") or "python"
        program = None
        if outcome.stop_reason is StopReason.ANSWERED:
            program = final_program(outcome.final_text, language, names_to_define(tests))
        if program is None:
            return Score(0.0, components | {"no_program": 1.0})
        judge = Judge(
            self._sandbox(),
            language=language,
            timeout=self.timeout,
            memory_mb=self.memory_mb,
            stop_at_failure=self.reward == "all",
            total_timeout=self.total_timeout,
        )
        try:
            verdicts = await with_deadline(judge.judge(program, tests), self.wall_timeout, queue=QUEUE_TIMEOUT)
        except DeadlineError as error:
            raise (None if error.queued else await self._fault(error)) or error from None
        for number, verdict in enumerate(verdicts, start=1):
            if verdict.status is VerdictStatus.NOT_JUDGEABLE:
                raise EpisodeFailedError(StopReason.SCORE_FAILED, f"test {number} cannot be judged: {verdict.detail}")
        passed = sum(verdict.passed for verdict in verdicts) / len(verdicts)
        components |= {"tests_passed": passed, "has_program": 1.0}
        statuses = {verdict.status for verdict in verdicts}
        components |= {name: 1.0 for name, status in _STATUSES.items() if status in statuses}
        if sum(verdict.run.cpu_seconds or 0.0 for verdict in verdicts if verdict.run) > self.total_timeout:
            components["too_slow"] = 1.0
        return Score(passed if self.reward == "fraction" else float(passed == 1.0), components)

    async def _fault(self, error: DeadlineError) -> PolicyFaultError | None:
        """Return the error for a program that stopped the processes that watch it, if the sandbox runs others."""

        async def control() -> None:
            run = await self._sandbox().run("pass", timeout=CONTROL_TIMEOUT)
            if not run.ok:
                raise SandboxError(f"a program that does nothing ended with {run.status.value}: {run.message}")

        return await policy_fault(error, control, "the tests of the program did not end")

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


def final_program(text: str, language: str = "python", defines: Collection[str] = ()) -> str | None:
    """Return the program in a text: its last closed fenced block outside its thinking. None if it has no such block.

    Args:
        text: the text of a turn.
        language: language of the program. Blocks with its tag are preferred to other blocks.
        defines: names of functions and classes. Blocks that define one of them are preferred to other blocks.
    """
    program = extract_program(without_thinking(text), language, defines=defines, bare=False)
    return program.code if program.kind == "fenced" else None
