"""`Database`: a connection to SQLite that runs one query at a time, within limits.

SQLite's authorizer decides about each table, function and pragma of a statement before it runs: without it `ATTACH`,
`VACUUM INTO` and `load_extension` reach other files. SQLite looks at the clock between its instructions, not within a
function, and some compute for long on one value: `printf('%.*c', 900000000, 'x')`. So a statement that calls a function
not known to be quick runs in a process of its own, which is killed.
"""

from __future__ import annotations

import functools
import math
import os
import pickle
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from toolgym.envs.library.embedded import embedded_rows
from toolgym.tools.errors import ConfigError, ToolgymError, UnknownNameError, missing_file, nearest

Row = tuple[Any, ...]

MAX_VALUE_BYTES = 1_000_000
"""Bytes of one text or blob, also of those that a query makes."""

MAX_RESULT_BYTES = 64_000_000

MORE_PAGES = 16_384
"""Pages, mostly of 4 kB, by which a copy may grow, and which temporary tables may have."""

_STEPS = 10_000
"""Instructions of SQLite's machine between two looks at the clock."""

_START = 10.0
"""Wall seconds beyond its deadline that a process for one statement gets to start, and to be sent the database."""

_PROGRAM = "from toolgym.envs.families.sql.database import answer; answer()"
_QUICK = frozenset(
    "abs avg ceil ceiling changes char coalesce count cume_dist date datetime dense_rank exp first_value floor "  # noqa: SIM905
    "group_concat hex ifnull iif julianday lag last_value lead length like ln log log10 log2 lower max min mod "
    "nth_value ntile nullif percent_rank pow power quote random rank round row_number sign sqrt strftime substr "
    "substring sum time total typeof unicode upper zeroblob".split()
)
_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_NEVER = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "foreign_key_list", "index_list", "index_info", "index_xinfo"}
)
_BROKEN = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""Codes of errors that are about the file of the database, and not about a statement."""

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
}


class QueryError(ToolgymError, ValueError):
    """The query is wrong, refused or too slow; the policy reads the text."""

    def __init__(self, text: str, timeout: bool = False) -> None:
        super().__init__(text, timeout)  # both, for pickle
        self.timeout = timeout

    def __str__(self) -> str:
        return str(self.args[0])


class DatabaseFailedError(ToolgymError, OSError):
    """The database itself cannot be read: it is damaged, gone or locked. No query is to blame."""


class QueryResult(NamedTuple):
    """The names of a query's columns, as many rows as were asked for, and whether there are further ones."""

    columns: list[str]
    rows: list[Row]
    more: bool


class Database:
    """A connection, made by `open_file` or `from_bytes`. Its methods block, and may be called from any thread."""

    def __init__(self, connection: sqlite3.Connection, *, read_only: bool, path: Path | None = None) -> None:
        self.read_only = read_only
        self._path = path
        self._alone = False  # whether this process runs one statement and may be killed
        self._refused = False
        self._connection = connection
        self._lock = threading.Lock()
        connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
        connection.isolation_level = None  # what the policy writes about transactions is what happens
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            self._most = {
                name: connection.execute(f"PRAGMA {name}.page_count").fetchone()[0] + MORE_PAGES
                for name in ("main", "temp")
            }
            self._bound_pages()
        connection.set_authorizer(self._authorize)

    @classmethod
    def open_file(cls, path: Path, *, read_only: bool) -> Self:
        """Open a file to read it, or a copy in memory that may be changed.

        Raises:
            ConfigError: the file is not a database of SQLite, or holds no tables, as an empty file does.
        """
        source = None
        try:
            source = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, check_same_thread=False)
            if not source.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise ConfigError(f"the database {str(path)!r} holds no tables")
            if read_only:
                database, source = cls(source, read_only=True, path=path), None
                return database
            copied = sqlite3.connect(":memory:", check_same_thread=False)
            source.backup(copied)
            return cls(copied, read_only=False)
        except sqlite3.Error as error:
            raise ConfigError(f"cannot read {str(path)!r} as a database of SQLite: {error}") from error
        finally:
            if source is not None:
                source.close()

    @classmethod
    def from_bytes(cls, data: bytes, *, read_only: bool) -> Self:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.deserialize(data)
        return cls(connection, read_only=read_only)

    def dump(self) -> bytes:
        with self._lock:
            self._connection.set_authorizer(None)
            try:
                return self._connection.serialize()
            finally:
                self._connection.set_authorizer(self._authorize)

    def schema(self) -> str:
        result = self.query("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND type IN ('table', 'view')")
        return "\n".join(f"{sql.strip()};" for (sql,) in result.rows)

    def query(self, sql: str, *, max_rows: int = 100_000, timeout: float = 10.0) -> QueryResult:
        """Run one statement, for at most `timeout` wall seconds.

        Raises:
            QueryError: the statement is wrong, refused or too slow, or its result is too large.
            DatabaseFailedError: the database cannot be read.
        """
        with self._lock:
            self._refused = False
            try:
                return self._run(sql, max_rows, timeout)
            except QueryError:
                if not self._refused:
                    raise
            try:
                return self._run_alone(sql, max_rows, timeout)
            except sqlite3.Error as error:
                raise QueryError(str(error)) from error
            finally:
                self._connection.set_authorizer(self._authorize)

    def _run(self, sql: str, max_rows: int, timeout: float) -> QueryResult:
        deadline = time.monotonic() + timeout
        self._connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql)
            rows = _fetched(cursor, max_rows + 1)
            columns = [column[0] for column in cursor.description or ()]
        except sqlite3.OperationalError as error:
            if str(error) == "interrupted":
                raise _too_slow(timeout) from error
            self._check_readable(error)
            raise QueryError(str(error)) from error
        except MemoryError as error:
            raise QueryError("the query needs too much memory") from error
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            self._check_readable(error)
            text = str(error)
            if text.startswith(("not authorized", "access to")):
                text += f": {'the database is read-only' if self.read_only else 'this statement is not allowed'}"
            raise QueryError(text) from error
        finally:
            cursor.close()
        return QueryResult(columns, rows[:max_rows], len(rows) > max_rows)

    def _run_alone(self, sql: str, max_rows: int, timeout: float) -> QueryResult:
        """Run a statement in a process of its own. It sees no temporary tables."""
        if self._connection.in_transaction:
            raise QueryError("this statement calls a function that may be slow: end the transaction first")
        self._connection.set_authorizer(None)
        database = self._path or self._connection.serialize()
        request = pickle.dumps((database, None if self.read_only else self._most, sql, max_rows, timeout))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", _PROGRAM]
        try:
            ended = subprocess.run(
                command, input=request, capture_output=True, timeout=timeout + _START, env=environment, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise _too_slow(timeout) from error
        if ended.returncode == -signal.SIGALRM:
            raise _too_slow(timeout)
        if ended.returncode < 0:
            raise QueryError("the query ended its process")
        if ended.returncode:
            why = ended.stderr.decode("utf-8", "replace").strip()[-500:]
            raise DatabaseFailedError(f"the process for a statement failed: {why}")
        result, data = pickle.loads(ended.stdout)  # it ran SQLite and no code of the policy
        if isinstance(result, ToolgymError):
            raise result
        if not self.read_only and data != database:
            self._connection.deserialize(data)
            self._bound_pages()
        return QueryResult(*result)

    def _check_readable(self, error: Exception) -> None:
        """Raise `DatabaseFailedError` if an error of SQLite is the database's fault."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN:
            where = repr(str(self._path)) if self._path is not None else "in memory"
            raise DatabaseFailedError(f"the database {where} cannot be read: {error}") from error

    def _bound_pages(self) -> None:
        for name, pages in self._most.items():
            self._connection.execute(f"PRAGMA {name}.max_page_count = {pages}")

    def close(self) -> None:
        self._connection.interrupt()
        if self._lock.acquire(timeout=1.0):  # a function of SQLite that ignores it keeps the connection to its end
            try:
                self._connection.close()
            finally:
                self._lock.release()

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_PRAGMA:
            allowed = (first or "").lower() in _PRAGMAS
        elif action == sqlite3.SQLITE_FUNCTION:
            name = (second or "").lower()
            allowed = name in _QUICK or (self._alone and name not in ("load_extension", "fts3_tokenizer"))
            self._refused |= not allowed
        else:
            allowed = action in _READS if self.read_only else action not in _NEVER
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def answer() -> None:
    """Run one statement: the program of a process that may be killed. The request is on standard input."""
    source, most, sql, max_rows, timeout = pickle.loads(sys.stdin.buffer.read())
    signal.alarm(math.ceil(timeout) + 1)  # it ends the process, whatever SQLite does
    make = Database.open_file if isinstance(source, Path) else Database.from_bytes
    try:
        database = make(source, read_only=most is None)
    except ConfigError as error:
        failure = DatabaseFailedError(str(error))
        sys.stdout.buffer.write(pickle.dumps((failure, b"")))
        return
    if most is not None:
        database._connection.set_authorizer(None)
        database._most = most
        database._bound_pages()
        database._connection.set_authorizer(database._authorize)
    database._alone = True
    try:
        reply: tuple[Any, bytes] = (
            tuple(database._run(sql, max_rows, timeout)),
            b"" if most is None else database.dump(),
        )
    except (QueryError, DatabaseFailedError) as error:
        reply = (error, b"")
    sys.stdout.buffer.write(pickle.dumps(reply))


def _too_slow(timeout: float) -> QueryError:
    return QueryError(f"the query was stopped after {timeout:g} seconds", timeout=True)


def _fetched(cursor: sqlite3.Cursor, most: int) -> list[Row]:
    rows: list[Row] = []
    size = 0
    for row in cursor:
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if size > MAX_RESULT_BYTES:
            raise QueryError(f"the result is larger than {MAX_RESULT_BYTES // 1_000_000} MB")
        if len(rows) == most:
            break
    return rows


_NAME = re.compile(r"\w[\w .-]*")


class Databases:
    """The databases of a folder (`NAME/NAME.sqlite`, as Spider and BIRD have it, or `NAME.sqlite`), or of toolgym."""

    def __init__(self, root: str | Path | None = None) -> None:
        self._root = Path(root) if root is not None else None
        if self._root is not None and not self._root.is_dir():
            raise missing_file("folder of databases", self._root)

    def open(self, db_id: str, *, read_only: bool = True) -> Database:
        """Open a database: an own copy in memory, or the file if it is only read."""
        if self._root is None:
            known = embedded()[0]
            if db_id not in known:
                raise UnknownNameError(
                    f"there is no database {db_id!r}{nearest(str(db_id), known) or '.'} toolgym brings "
                    f"{', '.join(known)}; give db_root= for others"
                )
            return Database.from_bytes(_made(db_id), read_only=read_only)
        return Database.open_file(self._path(self._root, db_id), read_only=read_only)

    @staticmethod
    def _path(root: Path, db_id: str) -> Path:
        if not isinstance(db_id, str) or not _NAME.fullmatch(db_id):
            raise ConfigError(f"a db_id is the name of a database, without a path, got {db_id!r}")
        paths = [root / db_id / f"{db_id}.sqlite", root / f"{db_id}.sqlite"]
        for path in paths:
            if path.is_file():
                return path
        raise missing_file("database", root / db_id)


@functools.cache
def embedded() -> tuple[Mapping[str, str], tuple[Mapping[str, Any], ...]]:
    rows = embedded_rows("sql", Path(__file__).with_name("data"))
    return (
        {row["db_id"]: row["script"] for row in rows if "script" in row},
        tuple(row for row in rows if "question" in row),
    )


@functools.cache
def _made(db_id: str) -> bytes:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(embedded()[0][db_id])
        return connection.serialize()
    finally:
        connection.close()
