"""The open sessions: found by name, closed when idle."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterator

from toolgym.envs.served.environments.catalog import ServedEnv
from toolgym.envs.served.environments.session import EnvSession, NoSessionError, Timeouts
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError
from toolgym.tools.serving.admission import BusyError, Gate
from toolgym.tools.serving.sweeper import Sweeper


class Sessions:
    """All open sessions.

    Args:
        limit: how many at once.
        idle_timeout: seconds without a call after which one is closed.
        timeouts: deadlines of their envs' calls.
        gate: what resets and steps hold a slot of.
    """

    def __init__(self, limit: int, idle_timeout: float, timeouts: Timeouts, gate: Gate) -> None:
        self.limit = limit
        self._idle_timeout, self._timeouts, self._gate = idle_timeout, timeouts, gate
        self._sessions: dict[str, EnvSession] = {}
        self._closing: set[EnvSession] = set()
        self._sweeper = Sweeper(self._sweep, idle_timeout)

    def __len__(self) -> int:
        """Sessions that are open, or still closing."""
        return len(self._sessions) + len(self._closing)

    def start(self) -> None:
        """Start to close idle sessions."""
        self._sweeper.start()

    async def close(self) -> None:
        """Close all sessions."""
        await self._sweeper.stop()
        await asyncio.gather(*(self.discard(name) for name in list(self._sessions)))

    def open(self, served: ServedEnv, name: str | None = None) -> EnvSession:
        """Open a session, whose env is made at its first reset.

        Args:
            served: its env.
            name: its name; None: a new one that cannot be guessed.

        Raises:
            BusyError: there are as many as there may be.
            ConfigError: the name is taken.
        """
        if name is not None and name in self._sessions:
            raise ConfigError("this session has an env already; delete it first")
        if len(self) >= self.limit:
            raise BusyError(f"{len(self)} of at most {self.limit} sessions are open: no more are taken", 5)
        session = EnvSession(name or self.new_name(), served, self._timeouts, self._gate)
        self._sessions[session.name] = session
        return session

    @staticmethod
    def new_name() -> str:
        """Return a name that cannot be guessed."""
        return secrets.token_hex(16)

    def find(self, name: str) -> EnvSession:
        """Return the session of that name, and count that as use. Raises NoSessionError."""
        session = self._sessions.get(name)
        if session is None:
            raise NoSessionError(name)
        session.used = time.monotonic()
        return session

    async def remove(self, name: str) -> None:
        """Close a session, also while a call runs in it. Raises NoSessionError."""
        session = self._sessions.pop(name, None)
        if session is None:
            raise NoSessionError(name)
        await shielded(self._close(session))

    async def discard(self, name: str) -> None:
        """Close a session, unless another caller does."""
        with contextlib.suppress(NoSessionError):
            await self.remove(name)

    @contextlib.contextmanager
    def attached(self, session: EnvSession) -> Iterator[None]:
        """Keep a session from being idle while the block lasts."""
        session.attached += 1
        try:
            yield
        finally:
            session.attached -= 1
            session.used = time.monotonic()

    async def _close(self, session: EnvSession) -> None:
        self._closing.add(session)  # it counts until it has given back what it holds
        try:
            await session.close()
        finally:
            self._closing.discard(session)

    async def _sweep(self) -> None:
        too_old = time.monotonic() - self._idle_timeout
        idle = [name for name, one in self._sessions.items() if not one.busy and one.used < too_old]
        await asyncio.gather(*(self.discard(name) for name in idle))
