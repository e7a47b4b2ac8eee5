"""`BashTool`: the model runs commands in a shell that keeps its folder and its variables.

Each call is a bash of its own, which begins with what the call before left: folder, variables, functions, aliases and
options (but not `set -e`). So a command that hangs is killed with all that it started, and the next call goes on from
the state before it; and a fork of the episode has the state too. Programs in the background go on until the session
ends; `jobs` and `wait` do not know those of earlier calls.

```yaml
tools:
  - class_name: toolgym.tools.BashTool
    config: {timeout: 60}
  - class_name: toolgym.tools.EditorTool   # the same sandbox options: it works on the same files
```
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pydantic

from toolgym.tools.base import ToolResult
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import SandboxFileNotFoundError, SandboxUnsupportedError
from toolgym.tools.library.outcome import ENDINGS, cut_middle, render_outcome
from toolgym.tools.library.sandbox_tool import SandboxToolSession, WorkspaceTool
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

_SHELL = (
    "exec 2>&1; "
    "IFS= read -r -d '' REPLY; "
    'set -- "$PWD/$1" "$2" "$REPLY"; '
    "unset REPLY; "
    'if [ -r "$1" ]; then . "$1" 2>/dev/null; else cd -- "$2" && shopt -s expand_aliases; fi; '
    'trap "{ printf \'cd -- %q\\n\' \\"\\$PWD\\"; declare -p; declare -f; declare -Fx; alias -p; umask -p; shopt -p; '
    "set +o; echo set +e; } 2>/dev/null >|${1@Q}.new && /bin/mv -f ${1@Q}.new ${1@Q} || "
    'echo \\"[Folder and variables could not be saved, as on a full disk: they are as before this command]\\"" EXIT; '
    'eval "$3"; '
    'set -- "$?"; '
    'exit "$1"'
)
"""Runs the command that it reads from standard input. Its arguments: the file of the state, and the folder to begin in.

The state is saved when the shell ends, also by `exit`, but not when it is killed; the file is replaced as a whole. It
stands in one line, so that bash counts the lines of the command from 1.
"""


class BashConfig(WorkspaceOptions):
    """Options of `BashTool`, beside those of `WorkspaceOptions`."""

    timeout: float = pydantic.Field(default=120.0, gt=0)
    """Wall seconds for one command."""
    max_output_chars: int = pydantic.Field(default=16_000, ge=64)
    """Characters of output that the model sees of one command; the middle of a longer one is cut."""


class _Shell(SandboxToolSession):
    def __init__(self, tool: BashTool, session: EpisodeSession) -> None:
        super().__init__(session)
        self._tool = tool
        self._running = asyncio.Lock()  # the calls of one turn come at the same time, and share one state

    async def execute(self, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        command, options = parameters.get("command", ""), self._tool.options
        timeout = float(execute_kwargs.get("timeout", options.timeout))
        async with self._running:
            session, lost = await self._session.get()
            if parameters.get("restart"):
                with contextlib.suppress(SandboxFileNotFoundError):
                    await session.remove(self._tool.state)
                if not command.strip():
                    return ToolResult(f"{LOST if lost else ''}The shell was restarted.")
            if not command.strip():
                return ToolResult("[Give the argument 'command', or 'restart': true]", 0.0, {"status": "error"})
            if "\0" in command:  # the shell would run what stands before it
                return ToolResult("[A command cannot hold a NUL character]", 0.0, {"status": "error"})
            shell = ["bash", "--noprofile", "--norc", "-c", _SHELL, "bash", self._tool.state, options.folder]
            run = await with_deadline(session.exec(shell, stdin=command, timeout=timeout), timeout + SLACK)
        if run.return_code == _NOT_FOUND and run.stderr:  # the shell itself sends all that it prints to stdout
            raise SandboxUnsupportedError(
                f"the tool {self._tool.name!r} needs bash in the sandbox: {run.stderr.strip()}"
            )
        ended = not session.alive and run.status is not ExecutionStatus.SANDBOX_ERROR
        text = render_command(run, timeout, options.max_output_chars)
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
            return _Shell(self._tool, await self._session.fork())


class BashTool(WorkspaceTool[BashConfig]):
    """Runs the `command` that the model sends in a bash, and answers with what it printed.

    Output and errors come as one text in the order in which they were printed, with the exit code if it is not 0. The
    folder, variables, functions and aliases are kept from call to call; `restart` forgets them. A task's
    `execute_kwargs` may have `timeout` (seconds). The metrics of a call are `status`, `return_code`, `run_seconds`,
    `session_ended` (true if the programs of the session ended it, as by killing all of its processes) and, if the
    sandbox failed, `infra_failure` and `error`. A fork has the same files and variables. Options are those of
    `BashConfig`; see `WorkspaceTool`. A call raises `SandboxUnsupportedError` if the sandbox cannot start programs, or
    has no bash.
    """

    label = "bash"
    options_type = BashConfig
    default_schema = ToolSchema(
        name="bash",
        description=(
            "Run a command in bash and return what it prints. Working folder, variables and functions are kept from "
            "call to call. A command that runs too long is stopped; start what must go on with `&`."
        ),
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

    @property
    def state(self) -> str:
        """The file of a session that keeps the shell's state between calls."""
        return f".{self.name}_state"

    def begin(self, session: EpisodeSession) -> ToolSession:
        return _Shell(self, session)


def render_command(run: ExecResult, timeout: float, max_chars: int) -> str:
    output = f"{run.stdout}{run.stderr}".removesuffix("\n")  # to stderr only says why there is no shell
    return render_outcome(
        "command",
        run.status,
        [cut_middle(output, max_chars)],
        timeout=timeout,
        nothing="[No output]",
        endings={
            ExecutionStatus.TIMEOUT: f"{ENDINGS[ExecutionStatus.TIMEOUT][:-1]}. Folder and variables are as before it]",
            ExecutionStatus.KILLED: "[The shell was killed]",
            ExecutionStatus.ERROR: "[The shell died]" if run.return_code is None else f"[Exit code {run.return_code}]",
        },
    )
