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

MAX_WAITING = 32  # calls for one session
MAX_BESIDE = 128  # calls about programs of one session
CLOSE_DEADLINE = 10.0


class ServedSession(TableSession):
    """An open session, which has run `cells` cells, with its programs in the background by their ids.

    Its name begins with the number of its worker, so that every worker knows where it lives.
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
        return not self.session.alive and not self.session.checkpoints

    async def close(self) -> None:
        """Close the session. Raises SandboxError if it does not close in time."""
        try:
            async with asyncio.timeout(CLOSE_DEADLINE):
                await self.session.close()
        except TimeoutError:
            raise SandboxError(f"it did not close within {CLOSE_DEADLINE:g} s") from None

    def info(self, idle_timeout: float) -> SessionInfo:
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
    """Return the number of the worker in a session's name; None if it has none."""
    number = name[1:].partition("-")[0]
    return int(number) if name.startswith("w") and number.isascii() and number.isdigit() and len(number) < 4 else None
