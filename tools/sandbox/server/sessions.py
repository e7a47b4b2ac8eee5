"""One open session of the sandbox server."""

from __future__ import annotations

import asyncio
import time
from typing import TypeAlias

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import Session
from toolgym.tools.sandbox.processes import Process
from toolgym.tools.sandbox.protocol.messages import SessionInfo
from toolgym.tools.serving.session_table import SessionTable, TableSession, new_name

MAX_WAITING = 32
"""Calls that may wait for one session."""

MAX_BESIDE = 128
"""Calls about programs that may be under way in one session."""

CLOSE_DEADLINE = 10.0
"""Seconds to wait for a session to close."""


class ServedSession(TableSession):
    """An open session and what is known about it. Its checkpoints take places too.

    Args:
        worker: number of the worker; the session's name begins with it, so that every worker knows where it lives.
        session: runs the cells.
        patience: most seconds that a call waits for those before it.
        cells: cells that it has run already.

    Attributes:
        session: as given.
        cells: cells that it has run.
        processes: its programs in the background, by id.
    """

    def __init__(self, worker: int, session: Session, patience: float, cells: int = 0) -> None:
        super().__init__(f"w{worker}-{new_name()}", patience=patience, max_waiting=MAX_WAITING)
        self.session, self.cells = session, cells
        self.processes: dict[str, Process] = {}

    @property
    def size(self) -> int:
        """One place for the session, and one for each checkpoint."""
        return 1 + len(self.session.checkpoints)

    @property
    def over(self) -> bool:
        """Whether it has died, and has no checkpoint."""
        return not self.session.alive and not self.session.checkpoints

    async def close(self) -> None:
        """Close the session. Raises SandboxError if it does not close in time."""
        try:
            async with asyncio.timeout(CLOSE_DEADLINE):
                await self.session.close()
        except TimeoutError:
            raise SandboxError(f"it did not close within {CLOSE_DEADLINE:g} s") from None

    def info(self, idle_timeout: float) -> SessionInfo:
        """Return its description."""
        now = time.monotonic()
        return SessionInfo(
            id=self.name,
            alive=self.session.alive,
            cells=self.cells,
            age=now - self.opened,
            idle=0.0 if self.busy else now - self.used,
            idle_timeout=idle_timeout,
        )


SandboxSessions: TypeAlias = SessionTable[ServedSession]


def owner_of(name: str) -> int | None:
    """Return the number of the worker that a session's name begins with; None: it names none."""
    number = name[1:].partition("-")[0]
    return int(number) if name.startswith("w") and number.isascii() and number.isdigit() and len(number) < 4 else None
