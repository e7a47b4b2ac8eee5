"""`Workspace`: a sandbox that opens one session for each episode, which the tools of the episode share.

What one tool writes, the others find: files of an editor, programs of a shell, variables of a code interpreter. See
docs/agent_tools.md.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, SandboxUnsupportedError, SessionLostError
from toolgym.tools.sandbox.base import CellResult, ExecResult, ExecutionResult, Sandbox, Session
from toolgym.tools.sandbox.facts import SandboxFacts
from toolgym.tools.sandbox.files import FileAction, FileInfo, FileRow
from toolgym.tools.sandbox.open import SandboxOptions, SandboxTarget, open_sandbox
from toolgym.tools.sandbox.options import RunRequest, SessionRequest
from toolgym.tools.sandbox.processes import Command, Process
from toolgym.tools.sessions.session_setup import FolderSetup
from toolgym.tools.sessions.tool_scope import current_scope

_by_options: weakref.WeakValueDictionary[str, Workspace] = weakref.WeakValueDictionary()


class WorkspaceOptions(SandboxTarget):
    """Options for the session of a tool. Tools of one process with the same sandbox share their episodes' sessions."""

    folder: str = "."
    """The folder of the session that the tool begins in, and relative paths are relative to; it is made."""

    @property
    def sandbox(self) -> SandboxOptions:
        return SandboxOptions(**self.model_dump(include=set(SandboxTarget.model_fields)))


class _Shared:
    """The session of one episode. The last one of its `users` (handles that are open or being opened) closes it.

    `options` are those that the session is opened with, `folder_setups` what its tools have prepared in it: both hold
    for a session that replaces a lost one. A shared session that comes from a fork begins with those of its `origin`.
    """

    def __init__(self, origin: _Shared | None = None) -> None:
        self.session: Session | None = None
        self.users = 0
        self.opening = asyncio.Lock()
        self.options: dict[str, Any] = {} if origin is None else dict(origin.options)
        self.folder_setups: list[FolderSetup] = [] if origin is None else [*origin.folder_setups]

    @property
    def is_open(self) -> bool:
        return self.session is not None and self.session.alive

    def add_options(self, options: Mapping[str, Any]) -> None:
        """Add the options of a tool. Raises `ConfigError` if the session has others, or is open without them."""
        for name, value in options.items():
            if name in self.options and name != "hint" and self.options[name] != value:
                raise ConfigError(
                    f"the tools of an episode share one session, which cannot have two values of {name!r}: "
                    f"{self.options[name]!r} and {value!r}"
                )
            if name not in self.options and name != "hint" and self.is_open:
                raise ConfigError(
                    f"the tools of an episode share one session, which was opened without {name!r}={value!r}: give the "
                    "option to the first of the tools that has create_kwargs"
                )
        self.options |= options


class Workspace(Sandbox):
    """A sandbox whose `session` gives every caller of one episode the same session.

    The first tool that needs a session opens it, with its options; the last one to close its handle closes the session.
    A session that has ended is replaced when the next tool asks. Forks go the same way: the tools of an env's twin
    share one fork. Outside of an episode (see `toolgym.tools.sessions.tool_scope`), every session is its caller's own.
    A sandbox that is given must have sessions and stays the caller's to close; without one, it is this machine.
    """

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._owns = sandbox is None
        self.sandbox = sandbox if sandbox is not None else open_sandbox(SandboxOptions(), "workspace")
        require_sessions(self.sandbox)
        self._shared: dict[str, _Shared] = {}
        self._owners = 1
        self._key: str | None = None

    @classmethod
    def of(cls, options: WorkspaceOptions, what: str) -> Workspace:
        """Return the workspace of this process for a tool's options; `close` undoes one call."""
        chosen = options.sandbox
        token = chosen.sandbox_token.get_secret_value() if chosen.sandbox_token else ""
        key = repr((chosen.model_dump(), token))
        workspace = _by_options.get(key)
        if workspace is None:
            workspace = cls(open_sandbox(chosen, what))
            workspace._owns, workspace._key = True, key
            _by_options[key] = workspace
        else:
            workspace._owners += 1
        return workspace

    @property
    def facts(self) -> SandboxFacts:
        return self.sandbox.facts

    @property
    def sessions_known(self) -> bool | None:
        return self.sandbox.sessions_known

    async def has_sessions(self) -> bool:
        return await self.sandbox.has_sessions()

    async def execute(self, request: RunRequest) -> ExecutionResult:
        return await self.sandbox.execute(request)

    async def open_session(self, request: SessionRequest) -> Session:
        return await self._join_here(_options_of(request), None)

    async def open_prepared(self, folder_setup: FolderSetup) -> Session:
        """Open or join the session of the episode, and prepare it unless that was done. Raises as `FolderSetup.apply`
        does, and `ConfigError` if the session is open with other options."""
        return await self._join_here(folder_setup.setup.options, folder_setup)

    async def _join_here(self, options: Mapping[str, Any], folder_setup: FolderSetup | None) -> Session:
        scope = current_scope()
        if scope is None:
            return await _open(self.sandbox, options, folder_setup)
        return await self._join(scope, options=options, folder_setup=folder_setup)

    async def close(self) -> None:
        self._owners -= 1
        if self._owners:
            return
        if self._key is not None:
            _by_options.pop(self._key, None)
        shared, self._shared = self._shared, {}
        for session in shared.values():
            if session.session is not None:
                await shielded(session.session.close())
        if self._owns:
            await self.sandbox.close()

    async def _join(
        self,
        scope: str,
        *,
        options: Mapping[str, Any] | None = None,
        folder_setup: FolderSetup | None = None,
        fork: Callable[[], Awaitable[Session]] | None = None,
        origin: _Shared | None = None,
    ) -> WorkspaceSession:
        shared = self._shared.setdefault(scope, _Shared(origin))
        shared.users += 1
        try:
            async with shared.opening:
                before = shared.session
                shared.add_options(options or {})
                is_new = folder_setup is not None and folder_setup not in shared.folder_setups
                if folder_setup is not None and is_new:
                    shared.folder_setups.append(folder_setup)
                if before is None or not before.alive:
                    shared.session = await (fork() if fork is not None else self._open(shared))
                    if before is not None:
                        await shielded(before.close())
                elif folder_setup is not None and is_new:
                    await folder_setup.apply(before)
                assert shared.session is not None
                return WorkspaceSession(self, scope, shared, shared.session)
        except BaseException:  # cancelled or not, this handle is given back
            await self._leave(scope, shared)
            raise

    async def _open(self, shared: _Shared) -> Session:
        return await _open(self.sandbox, shared.options, *shared.folder_setups)

    async def _leave(self, scope: str, shared: _Shared) -> None:
        shared.users -= 1
        if not shared.users:
            if self._shared.get(scope) is shared:
                del self._shared[scope]
            if shared.session is not None:
                await shielded(shared.session.close())


class WorkspaceSession(Session):
    def __init__(self, workspace: Workspace, scope: str, shared: _Shared, inner: Session) -> None:
        self._workspace, self._scope, self._shared, self._inner = workspace, scope, shared, inner
        self.id, self._open = inner.id, True

    @property
    def alive(self) -> bool:
        return self._open and self._inner.alive

    @property
    def lost_to_sandbox(self) -> bool:
        return self._inner.lost_to_sandbox

    @property
    def checkpoints(self) -> tuple[str, ...]:
        return self._inner.checkpoints

    async def run_cell(self, code: str, *, timeout: float = 30.0) -> CellResult:
        return await self._session.run_cell(code, timeout=timeout)

    async def _exec(self, command: Command, stdin: bytes, timeout: float) -> ExecResult:
        return await self._session._exec(command, stdin, timeout)

    async def _start(self, command: Command) -> Process:
        return await self._session._start(command)

    async def write_file(self, name: str, data: bytes) -> None:
        await self._session.write_file(name, data)

    async def read_file(self, name: str) -> bytes:
        return await self._session.read_file(name)

    async def _act(self, action: FileAction, name: str, rest: Mapping[str, Any]) -> Sequence[FileInfo]:
        return await self._session._act(action, name, rest)

    async def _pack(self, name: str, names: Sequence[str]) -> Sequence[bytes | None]:
        return await self._session._pack(name, names)

    async def _unpack(self, name: str, rows: Sequence[FileRow], data: bytes) -> None:
        await self._session._unpack(name, rows, data)

    async def _fork(self, name: str | None, n: int) -> list[Session]:
        scope = current_scope()
        if n > 1 or scope is None or scope == self._scope:
            return await self._session.fork(name, n=n)
        fork = partial(self._session.fork, name)
        return [await self._workspace._join(scope, fork=fork, origin=self._shared)]

    async def _checkpoint(self, name: str) -> None:
        await self._session.checkpoint(name)

    async def _drop_checkpoint(self, name: str) -> None:
        await self._session.drop_checkpoint(name)

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self._workspace._leave(self._scope, self._shared)

    @property
    def _session(self) -> Session:
        if not self._open:
            raise SessionLostError("this handle of the session is closed")
        return self._inner


def own_sandbox(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox whose sessions are their caller's own: that of a workspace."""
    return sandbox.sandbox if isinstance(sandbox, Workspace) else sandbox


def session_options(sandbox: Sandbox, folder_setup: FolderSetup) -> dict[str, Any]:
    """Return the options that the session of a tool was opened with, those of other tools of the episode included."""
    shared = sandbox._shared.get(current_scope() or "") if isinstance(sandbox, Workspace) else None
    return folder_setup.setup.options if shared is None else dict(shared.options)


async def open_prepared(sandbox: Sandbox, folder_setup: FolderSetup) -> Session:
    """Open a session of a sandbox and prepare it; if that fails, nothing is left behind. Raises as
    `FolderSetup.apply`."""
    if isinstance(sandbox, Workspace):
        return await sandbox.open_prepared(folder_setup)
    return await _open(sandbox, folder_setup.setup.options, folder_setup)


async def _open(sandbox: Sandbox, options: Mapping[str, Any], *folder_setups: FolderSetup | None) -> Session:
    # A model cannot be asked for what a cell's end has cost it, so it costs nothing unless the task says otherwise.
    session = await sandbox.open_session(SessionRequest.of({"recover": True, **options}))
    try:
        for folder_setup in folder_setups:
            if folder_setup is not None:
                await folder_setup.apply(session)
    except BaseException:
        await shielded(session.close())
        raise
    return session


def _options_of(request: SessionRequest) -> dict[str, Any]:
    """Return the options of a request that differ from the default."""
    default = SessionRequest()
    values = {option.name: getattr(request, option.name) for option in fields(request)}
    return {name: value for name, value in values.items() if value != getattr(default, name)}


def require_sessions(sandbox: Sandbox) -> Sandbox:
    if sandbox.sessions_known is False:
        raise SandboxUnsupportedError(
            f"{type(sandbox).__name__} has no sessions, which tools that work in a folder need; use a LocalSandbox "
            "(`toolgym doctor` says what this machine offers) or a server that has them (`toolgym serve sandbox`)"
        )
    return sandbox
