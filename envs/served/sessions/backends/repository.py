"""`RepositoryBackend`: each session is a copy of a task's repository in a sandbox session of its own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolgym.envs.families.swe.task import RepositoryTask, load_repository_tasks
from toolgym.envs.families.swe.workspace import FOLDER, RepositoryWorkspace
from toolgym.envs.served.sessions.backends.actions import HOW_TO_ACT, NO_ACTION, RepositoryAction, read_actions
from toolgym.envs.served.sessions.backends.base import ActionReply, Instance, SessionBackend, number_of
from toolgym.tools.base import ToolResult
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import ConfigError, SandboxError, UnknownNameError, check_seconds, nearest
from toolgym.tools.library.bash import BashTool
from toolgym.tools.library.editor import EditorTool
from toolgym.tools.library.outcome import render_result
from toolgym.tools.sandbox import LocalSandbox, RemoteSandbox
from toolgym.tools.sandbox.base import ExecutionStatus, Sandbox
from toolgym.tools.stateful import ToolSession

MAX_ACTIONS = 16

OUTPUT_CHARS = 16_384
"""Characters of one action's output that the policy reads; a longer one loses its middle."""

SESSION_LOST = "[The sandbox session ended, or broke, in this turn. The repository is as it was before the turn.]"

OUT_OF_TIME = "[This action was not carried out: the turn has used up its {:g} s]"


class RepositoryBackend(SessionBackend):
    """A backend of repositories to repair, with the reward of `SWEDev-v0`. `docs/sessions.md` has its rules.

    `instance_hash` is a task's id, or its `number_of`.

    Args:
        tasks: a file of JSON Lines with tasks, or rows; see `load_repository_tasks`. None: the embedded ones.
        sandbox_url: addresses of `toolgym serve sandbox`; None: a local sandbox.
        sandbox_token: bearer token for these.
        sandbox_options: further arguments of the sandbox, such as `level` of a local one.
        session_options: options of the sandbox sessions, such as `memory_mb`.
        command_timeout: seconds for one command.
        turn_timeout: seconds for all commands of a turn. The server's `action_timeout` must be longer.
        test_timeout: seconds for the tests. The server's `reward_timeout` must be longer.
        strict: whether only the repair of all counts: 1 if all tests pass, else 0.
    """

    def __init__(
        self,
        tasks: str | Path | Iterable[Mapping[str, Any]] | None = None,
        *,
        sandbox_url: str | Sequence[str] | None = None,
        sandbox_token: str | None = None,
        sandbox_options: Mapping[str, Any] | None = None,
        session_options: Mapping[str, Any] | None = None,
        command_timeout: float = 60.0,
        turn_timeout: float = 180.0,
        test_timeout: float = 150.0,
        strict: bool = False,
    ) -> None:
        check_seconds(command_timeout=command_timeout, turn_timeout=turn_timeout, test_timeout=test_timeout)
        if sandbox_token is not None and sandbox_url is None:
            raise ConfigError("sandbox_token goes with sandbox_url")
        self.command_timeout, self.turn_timeout, self.test_timeout = command_timeout, turn_timeout, test_timeout
        self.strict = strict
        self._session_options = dict(session_options or {})
        self._tasks = {task.instance_id: task for task in load_repository_tasks(tasks)}
        self._by_number = {number_of(id): task for id, task in self._tasks.items()}
        self._remote, self._token, self._options = sandbox_url, sandbox_token, dict(sandbox_options or {})
        self._sandbox: Sandbox | None = None
        self.tools: dict[str, BashTool | EditorTool] = {}

    async def start(self) -> None:
        if self._remote is not None:
            self._sandbox = RemoteSandbox(self._remote, token=self._token, **self._options)
        else:
            self._sandbox = local = LocalSandbox(**self._options)
            await local.start()
        self.tools = {
            "bash": BashTool({"folder": FOLDER, "max_output_chars": OUTPUT_CHARS}, sandbox=self._sandbox),
            "editor": EditorTool({"folder": FOLDER}, sandbox=self._sandbox),
        }

    async def open(self, instance_hash: str, state: bytes | None = None) -> Instance:
        task = self._tasks.get(instance_hash) or self._by_number.get(instance_hash)
        if task is None:
            raise UnknownNameError(f"there is no task {instance_hash!r}{nearest(instance_hash, self._tasks)}")
        return _Repository(self, task, await self.workspace(task, state))

    async def workspace(self, task: RepositoryTask, snapshot: bytes | None) -> RepositoryWorkspace:
        if self._sandbox is None:
            raise SandboxError("the backend was not started, or is closed")
        return await RepositoryWorkspace.open(
            task, self._sandbox, snapshot=snapshot, session_options=self._session_options
        )

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()


class _Repository(Instance):
    def __init__(self, backend: RepositoryBackend, task: RepositoryTask, workspace: RepositoryWorkspace) -> None:
        self._backend, self._task, self._workspace = backend, task, workspace
        self._snapshot: bytes | None = None
        self._tools: dict[str, ToolSession] = {}  # with the shell's folder and variables
        self.greeting = f"{task.to_task(FOLDER).messages[0]['content']}\n\n{HOW_TO_ACT}"

    async def process_action(self, content: str) -> ActionReply:
        actions = await read_actions(content)
        if not actions:
            return ActionReply(NO_ACTION, True)
        if self._snapshot is None:
            self._snapshot = await self._workspace.snapshot()
        ends = time.monotonic() + self._backend.turn_timeout
        answers = []
        try:
            for action in actions[:MAX_ACTIONS]:
                answers.append(await self._carry_out(action, ends - time.monotonic()))
            self._snapshot = await self._workspace.snapshot()
        except (SandboxError, DeadlineError) as error:
            if not await self._workspace.broken_by_programs(error):
                raise
            await self._workspace.close()
            self._workspace = await self._backend.workspace(self._task, self._snapshot)
            self._tools.clear()
            answers.append(SESSION_LOST)
        if len(actions) > MAX_ACTIONS:
            answers.append(f"[Only the first {MAX_ACTIONS} actions of a turn are carried out]")
        return ActionReply("\n\n".join(answers))

    async def state(self) -> bytes:
        if self._snapshot is None:
            self._snapshot = await self._workspace.snapshot()
        return self._snapshot

    async def compute_reward(self) -> Mapping[str, Any]:
        report = await self._workspace.run_tests(self._backend.test_timeout)
        if report.infra_error is not None:
            raise SandboxError(f"the tests did not run: {report.infra_error}")
        counts = ("resolved", "f2p_count", "f2p_total", "p2p_count", "p2p_total")
        return {"reward": report.worth(strict=self._backend.strict)} | {name: getattr(report, name) for name in counts}

    async def close(self) -> None:
        await self._workspace.close()

    async def _carry_out(self, action: RepositoryAction, left: float) -> str:
        if action.kind == "wrong":
            return action.text
        if left <= 0:
            return OUT_OF_TIME.format(self._backend.turn_timeout)
        if action.kind == "patch":
            return await self._workspace.apply_patch(action.text)
        timeout = min(left, self._backend.command_timeout)
        if action.kind in self._backend.tools:
            tool = self._tools.get(action.kind) or self._backend.tools[action.kind].on(self._workspace.session)
            self._tools[action.kind] = tool
            seconds = timeout if action.kind == "bash" else self._backend.command_timeout  # files take no time
            result = ToolResult.of(await tool.execute(action.arguments, timeout=seconds))
            if result.metrics.get("infra_failure"):
                raise SandboxError(result.metrics["error"])
            return result.text
        command = action.text if action.kind == "shell" else ["python3", "-c", action.text]
        run = await self._workspace.exec(command, timeout)
        if run.status is ExecutionStatus.SANDBOX_ERROR:
            raise SandboxError(run.message)
        return render_result(run, timeout, OUTPUT_CHARS) or "[no output]"
