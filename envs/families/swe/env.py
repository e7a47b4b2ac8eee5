"""`SWEDevEnv`: repair a repository with a shell and an editor; hidden tests decide."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from toolgym.envs.base import Action, BaseEnv
from toolgym.envs.entry_points import load
from toolgym.envs.failure import BROKEN_BY_POLICY
from toolgym.envs.families.swe.task import RepositoryTask, load_repository_tasks
from toolgym.envs.families.swe.verdict import TestReport
from toolgym.envs.families.swe.workspace import FOLDER, TEST_TIMEOUT, RepositoryWorkspace, verdict_patience
from toolgym.envs.rewards.base import Outcome, Score, outcome_scorer
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import EpisodeFailedError, ResetOptions, ResetResult, StopReason
from toolgym.tools.base import BaseTool
from toolgym.tools.closeable import closed_on_error
from toolgym.tools.concurrency.deadline import DeadlineError, shielded
from toolgym.tools.errors import ConfigError, EpisodeError, SandboxError, check_seconds, error_text
from toolgym.tools.function import ToolFunction, as_tool
from toolgym.tools.library.bash import BashTool
from toolgym.tools.library.editor import EditorTool
from toolgym.tools.message import assistant, tool_call
from toolgym.tools.sandbox.base import Sandbox
from toolgym.tools.sandbox.local.images.by_name import image_file
from toolgym.tools.sessions.tool_scope import tool_scope
from toolgym.tools.sessions.workspace import Workspace

MAX_TURNS = 30


class SWEDevEnv(ToolEnv):
    """An env whose policy repairs a repository with `bash` and `editor`. `docs/envs/swe_dev.md` has its rules.

    The components of the score are `f2p` and `p2p` (shares), `resolved` and `tampered`; see `TestReport`.

    Args:
        tasks: repository tasks, a file of them (see `load_repository_tasks`), or tasks whose rows hold them (see
            `RepositoryTask.from_task`). None: the embedded ones.
        sandbox: the sandbox of the repository and its tests; it stays the caller's to close. None: see `tool_config`.
        tool_config: options of both tools that say where they run, see
            `toolgym.tools.sessions.workspace.WorkspaceOptions`.
        bash_config: further options of `bash`, see `toolgym.tools.BashConfig`.
        editor_config: further options of `editor`, see `toolgym.tools.EditorConfig`.
        tools: further tools. They stay the caller's to close.
        strict: whether only the repair of all counts: 1 if all tests pass, else 0.
        test_timeout: wall seconds for the hidden tests. Those that run on have failed.
        session_options: further options of the sessions, such as `disk_mb` and `inodes` for large repositories; see
            `toolgym.tools.sandbox.SessionOptions`.
        images: a folder with the images that tasks name, see `docs/task_images.md`.
        testbed: absolute folder, such as /testbed, that holds the repository in the images of rows without files.
        activate: a command of bash that sets the variables of all programs there, see `docs/envs/swe_dev.md`.
        env_kwargs: the other arguments of `ToolEnv`, such as `max_turns`.

    Raises ConfigError if an option or a task cannot be used, SandboxUnsupportedError if the sandbox has no sessions.
    """

    def __init__(
        self,
        tasks: str | Path | TaskSource | Sequence[Task] | Sequence[RepositoryTask] | None = None,
        *,
        sandbox: Sandbox | None = None,
        tool_config: Mapping[str, Any] | None = None,
        bash_config: Mapping[str, Any] | None = None,
        editor_config: Mapping[str, Any] | None = None,
        tools: Sequence[BaseTool | ToolFunction[..., Any]] = (),
        strict: bool = False,
        test_timeout: float = TEST_TIMEOUT,
        session_options: Mapping[str, Any] | None = None,
        images: str | Path | None = None,
        testbed: str = "",
        activate: str = "",
        **env_kwargs: Any,
    ) -> None:
        if sandbox is not None and tool_config is not None:
            raise ConfigError("give sandbox, or tool_config, which says where to make one; not both")
        check_seconds(test_timeout=test_timeout)
        shared = Workspace(sandbox) if sandbox is not None else None
        where = {**(tool_config or {}), "folder": testbed or FOLDER}
        bash = BashTool({**where, **(bash_config or {})}, sandbox=shared)
        editor = EditorTool({**where, **(editor_config or {})}, sandbox=shared)
        self._workspace = bash.sandbox
        self._strict, self._test_timeout = strict, test_timeout
        self._session_options, self._images = dict(session_options or {}), images
        self._where = {"testbed": testbed, "activate": activate}
        self._repository: RepositoryWorkspace | None = None
        self._own_scorer = "scorer" not in env_kwargs
        env_kwargs.setdefault("scorer", self._judge)
        env_kwargs.setdefault("max_turns", MAX_TURNS)
        env_kwargs.setdefault("score_timeout", verdict_patience(test_timeout))
        owned: list[BaseTool] = [bash, editor]
        super().__init__(
            [*owned, *map(as_tool, tools)], _source(tasks, testbed or FOLDER), owns_tools=owned, **env_kwargs
        )

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        messages, info = await super().reset(seed=seed, options=options)
        assert self._instances is not None
        assert self.task is not None
        try:
            task = RepositoryTask.from_task(self.task)
            options = {**self._session_options, **self._image_option(task)}
            with tool_scope(self._instances.scope):
                place, options = self._workspace, {"session_options": options, **self._where}
                self._repository = await RepositoryWorkspace.open(task, place, **options)
        except BaseException as error:  # cancelled or not, the tools are freed
            self._over = True
            await self._release()
            if isinstance(error, SandboxError | DeadlineError):
                text = f"the repository cannot be opened: {error_text(error)}"
                raise EpisodeFailedError(StopReason.SANDBOX_FAILED, text) from error
            raise
        return messages, info

    def _image_option(self, task: RepositoryTask) -> dict[str, str]:
        if not task.image or "image" in self._session_options:
            return {}
        if self._images is None:
            raise ConfigError(
                f"the task {task.instance_id!r} names the image {task.image!r}: say images=FOLDER, where that lies; or "
                "take the name out of the row, and its tests run with what this machine has"
            )
        return {"image": image_file(self._images, task.image)}

    async def fork(self) -> Self:
        if self._repository is None:
            raise EpisodeError("fork needs an episode under way; call `await env.reset()` first")
        twin = await super().fork()
        twin._repository = None
        async with closed_on_error(twin.close):
            assert twin._instances is not None
            with tool_scope(twin._instances.scope):
                twin._repository = await self._repository.fork()
        if self._own_scorer:
            twin._scorer = outcome_scorer(twin._judge)
        return twin

    def _repository_task(self) -> RepositoryTask | None:
        if self._repository is not None:
            return self._repository.task
        return None if self.task is None else RepositoryTask.from_task(self.task)

    def gold_actions(self) -> list[Action] | None:
        task = self._repository_task()
        return None if task is None else gold_turns(task)

    def hidden_texts(self) -> list[str]:
        """Return the lines of the hidden tests that no file of the repository shows."""
        task = self._repository_task()
        if task is None:
            return []
        shown, hidden = _text(task.files), _text(task.test_files)
        return [line for line in hidden.splitlines() if line.strip() not in shown]

    async def run_tests(self) -> TestReport:
        """Run the hidden tests on the repository as it is now. No policy may read their output."""
        if self._repository is None:
            raise EpisodeError("run_tests needs an episode under way; call `await env.reset()` first")
        return await self._repository.run_tests(self._test_timeout)

    async def _judge(self, outcome: Outcome) -> Score:
        report = await self.run_tests()
        if report.infra_error is not None:
            raise EpisodeFailedError(StopReason.SANDBOX_FAILED, f"the tests could not be run: {report.infra_error}")
        f2p = report.f2p_count / report.f2p_total
        p2p = report.p2p_count / report.p2p_total if report.p2p_total else 1.0
        components = {"f2p": f2p, "p2p": p2p, "resolved": float(report.resolved), "tampered": float(report.tampered)}
        if report.broken_by_policy:
            components[BROKEN_BY_POLICY] = 1.0
        return Score(report.worth(strict=self._strict), components)

    async def _release(self) -> None:
        repository, self._repository = self._repository, None
        try:
            await super()._release()
        finally:
            if repository is not None:
                await shielded(repository.close())


def gold_turns(task: RepositoryTask) -> list[Action] | None:
    """Return the files of the gold patch, written by the tools, and a last turn without calls; None: no patch."""
    if not task.gold_patch:
        return None
    turns: list[Action] = []
    for number, (name, data) in enumerate(task.gold_files().items()):
        if data is None:
            call = tool_call("bash", {"command": f"rm -- {shlex.quote(name)}"}, id=f"call_{number}")
        else:  # a patch of text alone
            write = {"command": "create", "path": name, "file_text": data.decode("utf-8", "replace")}
            call = tool_call("editor", write, id=f"call_{number}")
        turns.append(assistant("", [call]))
    return [*turns, assistant("The report is dealt with.")]


def swe_dev_env(base_url: Any = None, **kwargs: Any) -> BaseEnv:
    """Return the env of `SWEDev-v0`: `SWEDevEnv`, or `RemoteSessionEnv` on the session servers at `base_url`.

    The tools are the same; with `tools=()` the policy acts by its text, and the embedded tasks say how.
    """
    if base_url is None:
        return SWEDevEnv(**kwargs)
    remote = load("toolgym.envs.served.sessions.env:remote_swe_dev_env", "SWEDev-v0 with base_url")
    env: BaseEnv = remote(base_url, **kwargs)
    return env


def _text(files: Mapping[str, str | bytes]) -> str:
    return "\n".join(data if isinstance(data, str) else data.decode("utf-8", "replace") for data in files.values())


def _source(tasks: Any, folder: str) -> TaskSource | Sequence[Task]:
    if tasks is None or isinstance(tasks, str | Path):
        tasks = load_repository_tasks(tasks)
    if isinstance(tasks, TaskSource):
        return tasks
    if not isinstance(tasks, Sequence):
        raise ConfigError(f"tasks must be a file, a TaskSource or a list of tasks, got {type(tasks).__name__}")
    return [task.to_task(folder) if isinstance(task, RepositoryTask) else task for task in tasks]
