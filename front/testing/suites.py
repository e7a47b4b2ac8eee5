"""The suites of tools, of envs and of sandboxes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from toolgym.envs.base import Action, BaseEnv
from toolgym.testing.env_checks import EnvSubject
from toolgym.testing.env_report import CHECKS, FORK_CHECKS
from toolgym.testing.sandbox_programs import ProgramSuite
from toolgym.testing.sandbox_runs import RunSuite
from toolgym.testing.sandbox_sessions import ForkSuite, SessionSuite
from toolgym.testing.suite import Suite, need
from toolgym.testing.tool_checks import TOOL_CHECKS, ToolSubject, check_fork, check_no_fork
from toolgym.tools.base import BaseTool
from toolgym.tools.function import ToolFunction, as_tool

import pytest  # isort: skip  after `suite`, which says what to install where it is absent


class ToolSuite(Suite):
    """The four calls of a tool's life, and `fork`: a test for each check of `check_tool`.

    Needs the fixture `tool`, a `BaseTool` or a function with `@tool`, which it closes.

        class TestNotes(ToolSuite):
            arguments = {"note": "12 * 34 = 408"}

            @pytest.fixture
            def tool(self):
                return NotesTool()

    Its attributes are those of `ToolSubject`, and `forks`: whether the tool can be forked; if not, it must say so.
    """

    arguments: Mapping[str, Any] = {}
    create_kwargs: Mapping[str, Any] = {}
    execute_kwargs: Mapping[str, Any] = {}
    repeatable: bool = True
    forks: bool = False

    @pytest.fixture
    def subject(self, tool: BaseTool | ToolFunction[..., Any]) -> ToolSubject:
        return ToolSubject(as_tool(tool), self.arguments, self.create_kwargs, self.execute_kwargs, self.repeatable)

    async def test_fork(self, subject: ToolSubject) -> None:
        await (check_fork if self.forks else check_no_fork)(subject)


def _tool_test(check: Callable[[ToolSubject], Awaitable[str | None]]) -> Callable[..., Awaitable[None]]:
    async def test(self: ToolSuite, subject: ToolSubject) -> None:
        reason = await check(subject)
        need(reason is None, reason or "")

    return test


for _name, _tool_check in TOOL_CHECKS.items():
    setattr(ToolSuite, f"test_{_name}", _tool_test(_tool_check))


class EnvSuite(Suite):
    """`reset`, `step`, `close`, `fork` and the meaning of rewards: a test for each check of `check_env`, leaks apart.

    Needs the fixture `env`, a freshly made `BaseEnv`; each test closes its own.

        class TestLetters(EnvSuite):
            actions = ["3"]

            @pytest.fixture
            def env(self):
                return LettersEnv()

    Its attributes are those of `EnvSubject`, and `forks`: whether the env can be forked; if not, it must say so.
    """

    actions: Sequence[Action] = ("I do not know.",)
    repeatable: bool = True
    forks: bool = False
    max_steps: int = 64
    full_reward: float = 1.0
    silent_reward: float = 0.0
    hidden: Sequence[str] = ()


def _env_test(name: str) -> Callable[..., Awaitable[None]]:
    async def test(self: EnvSuite, env: BaseEnv) -> None:
        check = FORK_CHECKS[self.forks] if name == "fork" else CHECKS[name]
        rewards = self.full_reward, self.silent_reward
        async with env:
            reason = await check(EnvSubject(env, self.actions, self.repeatable, self.max_steps, *rewards, self.hidden))
        need(reason is None, reason or "")

    return test


for _name in CHECKS:
    if _name != "leaks":  # it needs several envs
        setattr(EnvSuite, f"test_{_name.replace(' ', '_')}", _env_test(_name))


class SandboxSuite(RunSuite, SessionSuite, ProgramSuite, ForkSuite):
    """One run from a clean start, sessions, their programs and files, and forks of sessions.

    Needs the fixture `sandbox`, an open `Sandbox` that runs Python; the fixture `make_sandbox`, a function that makes
    another one, is for the tests that close it, and may be left out.

    Attributes:
        sessions: whether it has sessions.
        forks: whether sessions can be forked and have checkpoints.
        programs: whether a session can start other programs (`Session.exec`), a shell and its usual tools among them.
        terminals: whether these can have a terminal (`Session.start(pty=)`).
        session_limits: whether a session can have limits of its own for files, and a network of its own.
        folders: whether a session can have further folders with absolute names.
        variables: whether runs and sessions take environment variables.
        output_bytes: its cap on each of stdout and stderr in bytes (`Limits.output_bytes`); at most 1 MiB for a quick
            test. None: not tested.

    A fixture may set them on `self`, where its parameters differ in what they can do.

        class TestMySandbox(SandboxSuite):
            forks = False            # what it cannot do
            output_bytes = 64 * 1024

            @pytest_asyncio.fixture
            async def sandbox(self):
                async with MySandbox() as sandbox:
                    yield sandbox

            @pytest.fixture
            def make_sandbox(self):  # for the tests that close one
                return MySandbox

    `RunSuite`, `SessionSuite`, `ProgramSuite` and `ForkSuite` are its parts. How strongly a sandbox confines what it
    runs is not tested here: that differs, and each sandbox says it of itself.
    """
