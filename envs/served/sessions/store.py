"""The sessions of a server in SQLite: what was acknowledged survives the server's death."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from toolgym.tools.concurrency.blocking import DaemonThread
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import ConfigError, ToolgymError

T = TypeVar("T")

Statement = tuple[str, tuple[Any, ...]]

DEADLINE = 60.0
"""Seconds for one access, the wait for those before it included."""

LOCK_PATIENCE = 10.0
"""Seconds to wait for a server before this one, which may still be ending."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    sid TEXT PRIMARY KEY, client TEXT NOT NULL, instance_hash TEXT NOT NULL, start_id TEXT, greeting TEXT NOT NULL,
    state BLOB, reward TEXT, finished INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS starts ON sessions (client, start_id) WHERE start_id IS NOT NULL;
CREATE TABLE IF NOT EXISTS answers (
    sid TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE, request_id TEXT NOT NULL, content TEXT NOT NULL,
    done INTEGER NOT NULL, PRIMARY KEY (sid, request_id)
) STRICT, WITHOUT ROWID;
"""


class StoreError(ToolgymError):
    """The database cannot be used. Nothing of the failed access was written."""


class Stored(NamedTuple):
    """A session as it is stored. `reward` is the answer of `/compute_reward`; None: not known yet."""

    sid: str
    client: str
    instance_hash: str
    greeting: str
    reward: dict[str, Any] | None = None
    finished: bool = False


class Store:
    """A database that one thread reads and writes, so that the event loop never waits for a disk.

    Each write is on the disk when its coroutine returns (`synchronous=FULL`). A coroutine that is cancelled may or may
    not have written. Making one raises ConfigError if the file cannot be opened, or another server uses it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = _lock(path)
        try:
            self._database = self._opened()
        except (sqlite3.Error, OSError) as error:
            os.close(self._lock)
            raise ConfigError(f"database: cannot use {str(path)!r}: {error}") from None
        self._thread = DaemonThread("toolgym-sessions-db")

    def _opened(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            os.chmod(self._path, 0o600)
            for statement in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
                database.execute(f"PRAGMA {statement}")
            database.executescript(SCHEMA)
        except BaseException:  # the connection is this call's to close
            database.close()
            raise
        return database

    async def sessions(self) -> list[Stored]:
        columns = "sid, client, instance_hash, greeting, reward, finished"

        def read(database: sqlite3.Connection) -> list[Stored]:
            rows = database.execute(f"SELECT {columns} FROM sessions").fetchall()
            return [
                Stored._make([*text, json.loads(reward) if reward else None, bool(finished)])
                for *text, reward, finished in rows
            ]

        return await self._do(read)

    async def add(self, session: Stored, start_id: str | None, state: bytes) -> None:
        columns = "sid, client, instance_hash, greeting, start_id, state"
        insert = f"INSERT INTO sessions ({columns}) VALUES (?, ?, ?, ?, ?, ?)"
        await self._write((insert, (*session[:4], start_id, state)))

    async def started(self, client: str, start_id: str) -> str | None:
        row = await self._one("SELECT sid FROM sessions WHERE client = ? AND start_id = ?", (client, start_id))
        return row[0] if row else None

    async def state(self, sid: str) -> bytes | None:
        """Return the state after the last acknowledged call; None: it is freed."""
        row = await self._one("SELECT state FROM sessions WHERE sid = ?", (sid,))
        return row[0] if row else None

    async def answer(self, sid: str, request_id: str) -> tuple[str, bool] | None:
        row = await self._one("SELECT content, done FROM answers WHERE sid = ? AND request_id = ?", (sid, request_id))
        return (row[0], bool(row[1])) if row else None

    async def acted(self, sid: str, state: bytes, request_id: str | None, content: str, *, done: bool) -> None:
        """Store the state after an action and its answer, both or neither. A reward from before is void."""

        statements: list[Statement] = [("UPDATE sessions SET state = ?, reward = NULL WHERE sid = ?", (state, sid))]
        if request_id is not None:
            statements.append(("INSERT INTO answers VALUES (?, ?, ?, ?)", (sid, request_id, content, done)))
        await self._write(*statements)

    async def rewarded(self, sid: str, reward: dict[str, Any]) -> None:
        """Store a reward. A finished session's state and answers are freed: nothing needs them any more."""

        update = "UPDATE sessions SET reward = ?, state = iif(finished, NULL, state) WHERE sid = ?"
        free = "DELETE FROM answers WHERE sid = ? AND (SELECT finished FROM sessions WHERE sid = ?)"
        await self._write((update, (json.dumps(reward), sid)), (free, (sid, sid)))

    async def finished(self, sid: str) -> None:
        await self._write(("UPDATE sessions SET finished = 1 WHERE sid = ?", (sid,)))

    async def delete(self, sid: str) -> None:
        await self._write(("DELETE FROM sessions WHERE sid = ?", (sid,)))

    async def close(self) -> None:
        if self._lock < 0:
            return
        lock, self._lock = self._lock, -1
        with contextlib.suppress(StoreError):
            await self._do(sqlite3.Connection.close)
        self._thread.shutdown(wait=False)
        os.close(lock)

    async def _write(self, *statements: Statement) -> None:
        def write(database: sqlite3.Connection) -> None:
            database.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in statements:
                    database.execute(statement, values)
            except BaseException:  # nothing is half written
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")

        await self._do(write)

    async def _one(self, statement: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return await self._do(lambda database: database.execute(statement, values).fetchone())

    async def _do(self, access: Callable[[sqlite3.Connection], T]) -> T:
        async def wait() -> T:
            return await asyncio.wrap_future(self._thread.submit(access, self._database))

        try:
            return await with_deadline(wait(), DEADLINE)
        except (sqlite3.Error, ValueError, TimeoutError) as error:  # ValueError: a stored reward is no JSON
            raise StoreError(f"the database {str(self._path)!r} failed: {error}") from error


def _lock(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"database: cannot use {str(path)!r}: {error}") from None
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                raise ConfigError(f"database: {str(path)!r} is in use by another server") from None
            time.sleep(0.05)
