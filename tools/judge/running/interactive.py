"""Interactive tests: a program and an interactor, each in a session of its own, joined by pipes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from toolgym.tools.errors import ConfigError, SandboxError, SandboxUnsupportedError
from toolgym.tools.judge.cases import InteractiveTest, Verdict, VerdictStatus
from toolgym.tools.judge.running.commands import command_of
from toolgym.tools.judge.running.runs import ProcessLimit
from toolgym.tools.judge.running.verdicts import DETAIL
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox, Session
from toolgym.tools.sandbox.processes import Process, ProcessRequest
from toolgym.tools.sessions.session_check import broken_by_programs

INTERACTOR = ProcessLimit(60.0)
"""Limits of an interactor on one test."""

COMPILER = ProcessLimit(120.0)
"""Limits of the compiler of an interactor: testlib is large."""

_MAX_STDERR = 1 << 16
_STEP = 5.0
"""Seconds that one request waits for output."""

_FAIL = 3
"""Exit code of testlib for a fault of the problem itself."""

_KILLED_BY_CPU_LIMIT = (-24, -9)


async def judge_interactive(
    sandbox: Sandbox, language: str, program: str, test: InteractiveTest, limit: ProcessLimit, compile_timeout: float
) -> Verdict:
    """Let a program talk to the interactor of a test, and return the interactor's verdict.

    Neither can reach the other's files or processes. If they exchange nothing for twice the program's limit and 10 s,
    both are ended, and the program is to blame if it still runs.

    Raises:
        ConfigError: a language is unknown or not installed.
        SandboxUnsupportedError: the sandbox has no sessions, or they cannot start programs.
        SandboxError: the sandbox failed.
    """
    async with (
        await sandbox.session(memory_mb=limit.memory_mb) as its_session,
        await sandbox.session() as other_session,
    ):
        exchange = _Exchange(sandbox, its_session, other_session, test)
        try:
            return await exchange.verdict(language, program, limit, compile_timeout)
        except SandboxUnsupportedError:
            raise
        except SandboxError as error:
            verdict = await exchange.verdict_of_failure(error)
            if verdict is None:
                raise
            return verdict


class _Exchange:
    """A program and an interactor in their sessions."""

    def __init__(self, sandbox: Sandbox, its_session: Session, other_session: Session, test: InteractiveTest) -> None:
        self._sandbox, self._test = sandbox, test
        self._its_session, self._other_session = its_session, other_session
        self._talk: _Talk | None = None

    async def verdict(self, language: str, program: str, limit: ProcessLimit, compile_timeout: float) -> Verdict:
        sandbox, test = self._sandbox, self._test
        argv, failure = await _prepare(sandbox, self._its_session, language, program, {}, ProcessLimit(compile_timeout))
        if failure is not None:
            return Verdict(VerdictStatus.COMPILE_ERROR, failure.stderr[-DETAIL:], failure)
        files = {"input.txt": test.stdin, "correct_output.txt": test.expected, **test.interactor_files}
        interactor, broken = await _prepare(
            sandbox, self._other_session, test.interactor_language, test.interactor, files, COMPILER
        )
        if broken is not None:
            return Verdict(
                VerdictStatus.NOT_JUDGEABLE, f"the interactor cannot be compiled: {broken.stderr[-DETAIL:]}", broken
            )
        names = ("input.txt", "output.txt", "correct_output.txt")
        other = await self._other_session.start(_limited([*interactor, *names], INTERACTOR))
        async with other, await self._its_session.start(_limited(argv, limit)) as process:
            self._talk = _Talk(process, other, quiet=2 * limit.seconds + 10)
            await self._talk.run(max(limit.wall, INTERACTOR.wall))
            return self._talk.verdict(limit)

    async def verdict_of_failure(self, error: SandboxError) -> Verdict | None:
        """Return the verdict on a program whose session, or the interactor's, cannot be used; None: the sandbox failed.

        A program may kill its session, or use up its memory, or make the interactor do so by what it prints.
        """
        if await broken_by_programs(self._its_session, self._sandbox):
            return Verdict(VerdictStatus.ERROR, f"it ended or broke its session: {error}")
        if await broken_by_programs(self._other_session, self._sandbox):
            if self._talk is not None and self._talk.said:
                return Verdict(VerdictStatus.WRONG, f"what it printed ended the interactor's session: {error}")
            return Verdict(VerdictStatus.NOT_JUDGEABLE, f"the interactor ended its session: {error}")
        return None


async def _prepare(
    sandbox: Sandbox, session: Session, language: str, code: str, files: Mapping[str, str], limit: ProcessLimit
) -> tuple[list[str], ExecutionResult | None]:
    """Write a program into a session, and compile it. Returns how to start it, and the compiler's failure."""
    command = command_of(sandbox, language, code, None)
    source = "main.py" if command is None else str(command["source"])
    for name, text in {**files, source: code if command is None else str(command["code"])}.items():
        await session.write_file(name, text.encode("utf-8", "surrogatepass"))
    if command is None:
        return ["python", "-X", "int_max_str_digits=0", source], None
    variables = [f"{name}={value}" for name, value in command["env"].items()]
    prefix = ["env", *variables] if variables else []
    if command["compile"]:
        run = await session.exec(_limited([*prefix, *command["compile"]], limit), timeout=limit.wall)
        if run.return_code == 127:
            raise ConfigError(f"language {language!r} is not installed where the sandbox runs programs: {run.stderr}")
        if not run.ok:
            return [], run
    return [*prefix, *command["argv"]], None


def _limited(argv: Sequence[str], limit: ProcessLimit) -> list[str]:
    """Return a command with a limit of CPU time, and without one of its stack."""
    script = f'ulimit -s unlimited 2>/dev/null; ulimit -t {math.ceil(limit.seconds)}; exec "$@"'
    return ["sh", "-c", script, "sh", *argv]


class _Talk:
    """The exchange between a program and an interactor."""

    def __init__(self, program: Process, interactor: Process, quiet: float) -> None:
        self._program, self._interactor, self._quiet = program, interactor, quiet
        self._codes: dict[Process, int] = {}
        self._errors: dict[Process, bytes] = {program: b"", interactor: b""}
        self.said = False
        self._last = asyncio.get_running_loop().time()

    async def run(self, wall: float) -> None:
        """Hand on what each prints until both ended."""
        try:
            async with asyncio.timeout(wall), asyncio.TaskGroup() as group:
                group.create_task(self._hand_on(self._program, self._interactor))
                group.create_task(self._hand_on(self._interactor, self._program))
        except* TimeoutError:  # what has no code then still ran
            pass
        except* SandboxError as errors:
            raise errors.exceptions[0] from None

    async def _hand_on(self, source: Process, target: Process) -> None:
        loop = asyncio.get_running_loop()
        while True:
            state = await source.ask(ProcessRequest(read=True, until="output", wait=_STEP))
            self._errors[source] = (self._errors[source] + state.output.stderr)[-_MAX_STDERR:]
            if state.output.stdout:
                self._last = loop.time()
                self.said = self.said or source is self._program
                await target.ask(ProcessRequest(data=state.output.stdout))
            elif not state.running:
                break
            elif loop.time() - self._last > self._quiet:
                raise TimeoutError
        self._last = loop.time()
        self._codes[source] = -9 if state.code is None else state.code
        await target.ask(ProcessRequest(close_stdin=True))

    def verdict(self, limit: ProcessLimit) -> Verdict:
        code, verdict = self._codes.get(self._program), self._codes.get(self._interactor)
        words = self._errors[self._interactor].decode("utf-8", "replace").strip()[-DETAIL:]
        status = ExecutionStatus.TIMEOUT if code is None else ExecutionStatus.OK if code == 0 else ExecutionStatus.ERROR
        stderr = self._errors[self._program].decode("utf-8", "replace")
        run = ExecutionResult(status, stderr=stderr, return_code=code)
        if verdict == 0 and code == 0:
            return Verdict(VerdictStatus.PASSED, run=run)
        if code in _KILLED_BY_CPU_LIMIT or code is None:
            return Verdict(VerdictStatus.TIMEOUT, f"it computed or waited for more than {limit.seconds:g} s", run)
        if verdict == _FAIL and not self.said:  # it failed before the program could have any part in that
            return Verdict(VerdictStatus.NOT_JUDGEABLE, f"the interactor failed: {words}", run)
        if verdict is None:
            return Verdict(VerdictStatus.WRONG, "the interactor waited for the program, which had ended", run)
        if code != 0 and verdict == 0:
            return Verdict(VerdictStatus.ERROR, stderr.strip()[-DETAIL:] or f"it ended with code {code}", run)
        return Verdict(VerdictStatus.WRONG, words or f"the interactor ended with code {verdict}", run)
