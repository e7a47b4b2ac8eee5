"""Bases of the tools that work in a sandbox: their options, the sandbox that they open or are given, its closing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import pydantic

from toolgym.tools.config import read_options
from toolgym.tools.sandbox.base import Sandbox, Session
from toolgym.tools.sandbox.open import SandboxOptions, open_sandbox
from toolgym.tools.schema import ToolSchema
from toolgym.tools.sessions.episode_session import EpisodeSession, GivenSession
from toolgym.tools.sessions.session_setup import SETUP_KWARGS, SessionSetup
from toolgym.tools.sessions.workspace import Workspace, WorkspaceOptions, require_sessions
from toolgym.tools.stateful import StatefulTool, ToolSession

Options = TypeVar("Options", bound=pydantic.BaseModel)
FolderOptions = TypeVar("FolderOptions", bound=WorkspaceOptions)


class SandboxTool(StatefulTool, Generic[Options]):
    """A tool that works in a sandbox, which stays the caller's to close; without one, the tool opens one by its
    options.

    Subclasses set `options_type` and, beside `default_schema`, `label`: the tool's name in error messages.
    """

    stays_on_loop = True
    runs_programs = True
    options_type: type[Options]
    label: str
    needs_sessions = False

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        tool_schema: ToolSchema | Mapping[str, Any] | None = None,
        *,
        sandbox: Sandbox | None = None,
    ) -> None:
        super().__init__(config, tool_schema)
        self.options: Options = read_options(self.options_type, self.config, self.label)
        self._check_options()
        self._opened: Sandbox | None = None
        if sandbox is None:
            sandbox = self._opened = self._open_sandbox()
        self.sandbox = require_sessions(sandbox) if self.needs_sessions else sandbox
        self._describes_itself = tool_schema is None

    def describe(self) -> str:
        """Return the description that the model reads unless the tool was given a schema. It states what holds for the
        tool's options and sandbox: see `toolgym.tools.library.description` for its parts."""
        return self.tool_schema.description

    def _set_description(self) -> None:
        """Replace the description of the default schema. A subclass calls it when its attributes are complete."""
        if self._describes_itself:
            self.tool_schema = replace(self.tool_schema, description=self.describe())

    def _check_options(self) -> None:
        """Refuse options that do not go together, before a sandbox is opened."""

    def _open_sandbox(self) -> Sandbox:
        assert isinstance(self.options, SandboxOptions)
        return open_sandbox(self.options, self.label)

    async def close(self) -> None:
        await super().close()
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()


class WorkspaceTool(SandboxTool[FolderOptions]):
    """A tool that works in one folder of a session. With a `Workspace` as the sandbox, the tools of an episode share
    one session. Raises `SandboxUnsupportedError` if the sandbox has no sessions."""

    needs_sessions = True
    task_kwargs: Mapping[str, Collection[str]] = {
        "create_kwargs": SETUP_KWARGS,
        "execute_kwargs": ("timeout",),
        "calc_reward_kwargs": (),
    }

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        tool_schema: ToolSchema | Mapping[str, Any] | None = None,
        *,
        sandbox: Sandbox | None = None,
    ) -> None:
        super().__init__(config, tool_schema, sandbox=sandbox)
        self._set_description()

    def _open_sandbox(self) -> Sandbox:
        return Workspace.of(self.options, self.label)

    @abstractmethod
    def begin(self, session: EpisodeSession) -> ToolSession:
        pass

    async def open(self, **create_kwargs: Any) -> ToolSession:
        """Begin an episode. With a setup (`SessionSetup`), the session is opened and prepared now. Raises `ConfigError`
        if the setup cannot be used, or its command fails."""
        setup = SessionSetup.of(create_kwargs, f"the tool {self.name!r}")
        return self.begin(await begun_session(EpisodeSession(self.sandbox, self.options.folder, setup)))

    def on(self, session: Session) -> ToolSession:
        return self.begin(GivenSession(session, self.sandbox))


async def begun_session(session: EpisodeSession) -> EpisodeSession:
    """Return a session, opened if its task prepares it; if that fails, it is closed."""
    if session.setup:
        try:
            await session.get()
        except BaseException:
            await session.close()
            raise
    return session


class SandboxToolSession(ToolSession):
    def __init__(self, session: EpisodeSession) -> None:
        self._session = session

    async def sandbox_session(self) -> Session:
        """Return the sandbox session, for a scorer; opened if no call was made. It may have ended (`alive`)."""
        return await self._session.opened()

    @property
    def lost_to_sandbox(self) -> bool:
        return self._session.lost_to_sandbox

    async def broken_by_programs(self) -> bool:
        return await self._session.broken_by_programs()

    async def clean_copy(self) -> Session:
        """Return a new sandbox session with the episode's files, in which no program of the policy runs.

        A scorer runs tests in it: programs that the policy left in the background can rewrite files of the episode's
        own session while the scorer reads them. The files are those of the session's folder, and of the `folders` of
        the task's `create_kwargs`. It is the caller's to close.

        Raises:
            SessionLostError: the episode's session has ended.
            SandboxError: the sandbox failed, or there are more than 1 GiB of files.
        """
        return await self._session.clean_copy()

    async def close(self) -> None:
        await self._session.close()
