"""`BashTool`: the model runs commands in a shell that keeps its folder and its variables.

Each call is a bash process of its own, which begins with the state that the call before left: see `shell_state`. A
command that hangs is interrupted, twice, then what it started is killed, then its shell. The next call continues from
the state in which it left the shell, or, if the shell itself had to be killed, from the state before it. A fork of the
episode has the state too. Programs in the background continue until the session ends, but `jobs` and `wait` do not know
those of earlier calls.

```yaml
tools:
  - class_name: toolgym.tools.BashTool
    config: {timeout: 60}
  - class_name: toolgym.tools.EditorTool   # the same sandbox options: it works on the same files
```
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

import pydantic

from toolgym.tools.base import ToolResult
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import SandboxUnsupportedError
from toolgym.tools.library.description import describe_limits, join_sentences
from toolgym.tools.library.outcome import ENDINGS, find_hints, fit_output, name_signal, render_outcome
from toolgym.tools.library.sandbox_tool import SandboxToolSession, WorkspaceTool
from toolgym.tools.library.shell_state import SCRIPT, ShellReport, ShellState, read_report, shell_input
from toolgym.tools.library.terminal import render_terminal
from toolgym.tools.sandbox.base import ExecResult, ExecutionStatus
from toolgym.tools.schema import ToolSchema
from toolgym.tools.sessions.episode_session import EpisodeSession
from toolgym.tools.sessions.workspace import WorkspaceOptions
from toolgym.tools.stateful import ToolSession

SLACK = 30.0
"""Seconds beyond a command's deadline until the sandbox must have ended it."""

LOST = "[The session was lost before; files and variables of earlier calls are gone]\n"

_NOT_FOUND = 127
"""Exit code of the sandbox for a program that is not there."""

_SHELL = ("bash", "--noprofile", "--norc", "-c", SCRIPT, "bash")

_MAX_JOBS, _JOB_CHARS = 5, 100
"""Jobs in the background that the model is told of after a command, and characters of the command of each."""

_AS_BEFORE = "Folder and variables are as before it"

_AS_LEFT = "Folder and variables are as it left them"


class BashConfig(WorkspaceOptions):
    """Options of `BashTool`, beside those of `WorkspaceOptions`."""

    timeout: float = pydantic.Field(default=120.0, gt=0)
    """Wall seconds for one command."""
    max_output_chars: int = pydantic.Field(default=16_000, ge=64)
    """Characters of output that the model sees of one command; the middle of a longer one is cut."""


class _Shell(SandboxToolSession):
    def __init__(self, tool: BashTool, session: EpisodeSession, state: ShellState) -> None:
        super().__init__(session)
        self._tool, self._state = tool, state
        self._running = asyncio.Lock()  # the calls of one turn come at the same time, and share one state

    async def execute(self, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        command, options = parameters.get("command", ""), self._tool.options
        timeout = float(execute_kwargs.get("timeout", options.timeout))
        async with self._running:
            session, lost = await self._session.get()
            if lost or parameters.get("restart"):
                self._state = self._tool.first_state
            if parameters.get("restart") and not command.strip():
                return ToolResult(f"{LOST if lost else ''}The shell was restarted.")
            if not command.strip():
                return ToolResult("[Give the argument 'command', or 'restart': true]", 0.0, {"status": "error"})
            if "\0" in command:  # the shell would run what stands before it
                return ToolResult("[A command cannot hold a NUL character]", 0.0, {"status": "error"})
            before = self._state
            stdin = shell_input(before, command)
            run = await with_deadline(session.exec(_SHELL, stdin=stdin, timeout=timeout), timeout + SLACK)
            printed = run.stderr_bytes or run.stderr.encode("utf-8", "replace")
            report = read_report(printed, before, cut=run.stderr_truncated)
            if run.return_code == _NOT_FOUND and not report.started:
                raise SandboxUnsupportedError(
                    f"the tool {self._tool.name!r} needs bash in the sandbox: {run.stderr.strip()}"
                )
            self._state = report.state or before
        ended = not session.alive and run.status is not ExecutionStatus.SANDBOX_ERROR
        hints = find_hints(run.stdout, command, self._tool.sandbox.facts, met=run.status)
        remarks = [*hints, *_remarks(run, report, before)]
        text = render_command(run, timeout, options.max_output_chars, remarks, keeps_state=report.state is not None)
        if ended:
            text += "\n[The session ended with it; files and variables are gone]"
        metrics: dict[str, Any] = {
            "status": run.status.value,
            "return_code": run.return_code,
            "run_seconds": run.duration,
        }
        if ended:
            metrics["session_ended"] = True
        if run.status is ExecutionStatus.SANDBOX_ERROR:
            metrics |= {"infra_failure": True, "error": run.message}
        return ToolResult(f"{LOST if lost else ''}{text}", 0.0, metrics)

    async def fork(self) -> ToolSession:
        async with self._running:
            return _Shell(self._tool, await self._session.fork(), self._state)


def _remarks(run: ExecResult, report: ShellReport, before: ShellState) -> list[str]:
    """Return what the model must know about the state of its shell."""
    remarks = [f"[In the background: process {pid} ({command.strip()[:_JOB_CHARS]})]" for pid, command in report.jobs]
    if len(remarks) > _MAX_JOBS:
        remarks = [*remarks[:_MAX_JOBS], f"[In the background: {len(remarks) - _MAX_JOBS} more jobs]"]
    if report.folder_gone:
        remarks.append(f"[The working folder {before.folder} does not exist any more: the command ran above it]")
    if report.lost:
        remarks.append(f"[A function called {', '.join(report.lost)} is not kept]")
    if report.state is None and run.status in (ExecutionStatus.OK, ExecutionStatus.ERROR):
        if run.stderr_truncated:
            remarks.append(f"[The shell's variables and functions are too large to be kept. {_AS_BEFORE}]")
        else:
            remarks.append(f"[The command ended the shell itself, as `exec` does. {_AS_BEFORE}]")
    return remarks


class BashTool(WorkspaceTool[BashConfig]):
    """Runs the `command` that the model sends in a bash, and answers with what it printed.

    Output and errors come as one text in the order in which they were printed, as a terminal shows it, with the exit
    code if it is not 0. The folder, variables, functions, aliases, traps, limits of `ulimit` and options (but not
    `set -e`) are kept from call to call; `restart` forgets them. A trap of `EXIT` runs when a command calls `exit`.
    A task's `execute_kwargs` may have `timeout` (seconds). The metrics of a call are `status`, `return_code`,
    `run_seconds`, `session_ended` (true if the programs of the session ended it, as by killing all of its processes)
    and, if the sandbox failed, `infra_failure` and `error`. A fork has the same files and variables. Options are those
    of `BashConfig`; see `WorkspaceTool`. A call raises `SandboxUnsupportedError` if the sandbox cannot start programs,
    or has no bash.
    """

    label = "bash"
    options_type = BashConfig
    default_schema = ToolSchema(
        name="bash",
        description="Run a command in bash and return what it prints.",
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command, of one or more lines."},
                "restart": {
                    "type": "boolean",
                    "description": "Begin with a fresh shell: its first folder, none of the variables.",
                },
            },
        },
    )

    def describe(self) -> str:
        return join_sentences(
            "Run a command in bash and return what it prints.",
            "Working folder, variables and functions are kept from call to call.",
            "A command that runs too long is stopped; start what must continue with `&`. Each call is a new shell: "
            "`$?`, `jobs`, `wait` and `%1` do not know earlier calls (use `kill` with the process id), and "
            "redirections of `exec` end with the call. There is no terminal and no standard input.",
            describe_limits(self.sandbox.facts, self.options.timeout),
        )

    @property
    def first_state(self) -> ShellState:
        """The state that the shell of a session begins with."""
        return ShellState(environment=frozenset(), folder=self.options.folder)

    def begin(self, session: EpisodeSession) -> ToolSession:
        return _Shell(self, session, self.first_state)


def render_command(
    run: ExecResult, timeout: float, max_chars: int, remarks: Sequence[str] = (), *, keeps_state: bool = False
) -> str:
    """Return the text that a model reads of a command: its output, how it ended, and remarks.

    Args:
        keeps_state: whether a command that was stopped could report the state in which it left the shell.
    """
    state = _AS_LEFT if keeps_state else _AS_BEFORE
    killed = "The shell was killed" + ("" if run.return_code is None else f" by {name_signal(run.return_code)}")
    return render_outcome(
        "command",
        run.status,
        fit_output(render_terminal(run.stdout).removesuffix("\n"), "", max_chars)[:1],
        timeout=timeout,
        nothing="[No output]",
        endings={
            ExecutionStatus.TIMEOUT: f"{ENDINGS[ExecutionStatus.TIMEOUT][:-1]}. {state}]",
            ExecutionStatus.OUTPUT_LIMIT: f"{ENDINGS[ExecutionStatus.OUTPUT_LIMIT][:-1]}. {state}]",
            ExecutionStatus.KILLED: f"[{killed}. {state}]",
            ExecutionStatus.ERROR: "[The shell died]" if run.return_code is None else f"[Exit code {_code(run)}]",
        },
        limit=run.limit,
        hints=remarks,
    )


def _code(run: ExecResult) -> str:
    """Return the exit code, with the signal that it stands for in a shell."""
    code = run.return_code or 0
    return f"{code}: killed by {name_signal(128 - code)}" if code - 128 in signal.valid_signals() else f"{code}"
