"""`EpisodeSession`: the sandbox session of a tool in one episode, opened when a call needs it."""

from __future__ import annotations

import asyncio
from typing import Self

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import SessionLostError
from toolgym.tools.sandbox.base import Sandbox, Session
from toolgym.tools.sandbox.options import SessionRequest
from toolgym.tools.sessions.clean_copy import copy_files
from toolgym.tools.sessions.session_check import broken_by_programs
from toolgym.tools.sessions.session_setup import FolderSetup, SessionSetup
from toolgym.tools.sessions.workspace import open_prepared, own_sandbox, session_options


class EpisodeSession:
    """A tool's session in one episode: opened when it is first needed, and again if it has ended.

    Args:
        sandbox: opens the session.
        folder: the folder that the tool works in, which is made. None: the session's own.
        setup: what the task prepares in each session that is opened.
    """

    def __init__(self, sandbox: Sandbox, folder: str | None = None, setup: SessionSetup | None = None) -> None:
        self._sandbox, self.folder = sandbox, folder
        self._folder_setup = FolderSetup(folder, setup or SessionSetup())
        self._session: Session | None = None
        self._changing = asyncio.Lock()  # the calls of one turn come at the same time, and share one session
        self._closed = False
        self._earlier_lost_to_sandbox = False

    @property
    def setup(self) -> SessionSetup:
        return self._folder_setup.setup

    async def get(self) -> tuple[Session, bool]:
        """Return the session, and whether another one was lost before."""
        async with self._changing:
            before = self._session
            if before is not None and before.alive:
                return before, False
            if before is not None:
                self._earlier_lost_to_sandbox |= before.lost_to_sandbox
                await before.close()
            if not self.is_closed():
                opened = await open_prepared(self._sandbox, self._folder_setup)
                if not self.is_closed():
                    self._session = opened
                    return opened, before is not None
                await shielded(opened.close())
            raise SessionLostError("the episode was released before this call could run")

    async def opened(self) -> Session:
        return self._session if self._session is not None else (await self.get())[0]

    @property
    def lost_to_sandbox(self) -> bool:
        """Whether the sandbox lost the session, or an earlier session of the episode with its files."""
        return self._earlier_lost_to_sandbox or (self._session is not None and self._session.lost_to_sandbox)

    async def broken_by_programs(self) -> bool:
        """Return whether programs of the episode made the session unusable; see `session_check.broken_by_programs`."""
        if self._session is None or self.lost_to_sandbox:
            return False
        return await broken_by_programs(self._session, self._sandbox)

    def is_closed(self) -> bool:
        """Asked again each time: it may have been closed during an await."""
        return self._closed

    async def clean_copy(self) -> Session:
        """Return a new session with the files of this one, in which no program of this one runs.

        The files are those of the session's folder and of the `folders` of its setup; its image and its other options
        are the same. It is the caller's to close. Raises `SessionLostError` if this session has ended.
        """
        source = await self.opened()
        if not source.alive:
            raise SessionLostError("the session has ended, and its files are gone")
        options = session_options(self._sandbox, self._folder_setup)
        target = await own_sandbox(self._sandbox).open_session(SessionRequest.of(options))
        try:
            for folder in (".", *(options.get("folders") or ())):
                await copy_files(source, target, folder)
        except BaseException:
            await shielded(target.close())
            raise
        return target

    async def fork(self) -> Self:
        twin = type(self)(self._sandbox, self.folder, self._folder_setup.setup)
        twin._earlier_lost_to_sandbox = self._earlier_lost_to_sandbox
        async with self._changing:
            session = self._session
            # A session that ended goes to the copy too, whose model then reads of the loss. Closing it twice is fine.
            twin._session = await session.fork() if session is not None and session.alive else session
        return twin

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()


class GivenSession(EpisodeSession):
    """A session that stays the caller's, to close and to open again."""

    def __init__(self, session: Session, sandbox: Sandbox) -> None:
        super().__init__(sandbox)
        self._session: Session = session

    async def get(self) -> tuple[Session, bool]:
        return self._session, False

    async def close(self) -> None:
        pass
