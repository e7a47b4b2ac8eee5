"""`SqlTool`: one query at a time on the episode's database."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from toolgym.envs.families.sql.database import Database, QueryError, QueryResult
from toolgym.envs.families.sql.databases import Databases
from toolgym.tools.base import ToolResult
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.execution_pool import tool_pool
from toolgym.tools.errors import ConfigError
from toolgym.tools.schema import ToolSchema
from toolgym.tools.stateful import StatefulTool, ToolSession

MAX_VALUE_CHARS = 200
"""Characters of one value that the policy reads."""


class SqlTool(StatefulTool):
    """A tool that runs SQL on the database of the episode, which the task names: `create_kwargs: {"db_id": ...}`.

    Args:
        databases: where they are.
        read_only: whether queries may only read. Otherwise each episode changes a copy of its own.
        timeout: wall seconds for a query.
        max_rows: rows that the policy reads.
    """

    stays_on_loop = True
    default_schema = ToolSchema(
        "sql",
        "Run one SQLite statement on the database and return its rows.",
        {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "The statement."}},
            "required": ["query"],
        },
    )

    def __init__(self, databases: Databases, *, read_only: bool, timeout: float, max_rows: int) -> None:
        super().__init__()
        self.databases, self.read_only, self.timeout, self.max_rows = databases, read_only, timeout, max_rows

    async def open(self, **create_kwargs: Any) -> ToolSession:
        db_id = create_kwargs.get("db_id")
        if not isinstance(db_id, str):
            raise ConfigError(
                "a task for SQL names its database in tools_kwargs['sql']['create_kwargs']['db_id'], got "
                f"{db_id!r}; SQLEnv(questions=) makes tasks of Spider's and BIRD's rows"
            )
        return _Session(self, await in_thread(self.databases.open, db_id, read_only=self.read_only), db_id)


class _Session(ToolSession):
    """The database of one episode."""

    def __init__(self, owner: SqlTool, database: Database, db_id: str) -> None:
        self._owner, self._database, self._db_id = owner, database, db_id
        self._turn = asyncio.Lock()

    async def execute(self, parameters: Mapping[str, Any], **execute_kwargs: Any) -> ToolResult:
        owner = self._owner
        ask = functools.partial(
            self._database.query, parameters["query"], max_rows=owner.max_rows, timeout=owner.timeout
        )
        async with self._turn:
            try:
                result = await tool_pool().run(ask, name=owner.name)
            except QueryError as error:
                return ToolResult(f"Error: {error}", 0.0, {"status": "timeout" if error.timeout else "error"})
        return ToolResult(table(result), 0.0, {"rows": len(result.rows)})

    async def fork(self) -> ToolSession:
        async with self._turn:
            copied = await in_thread(self._copy)
        return _Session(self._owner, copied, self._db_id)

    async def close(self) -> None:
        await in_thread(self._database.close)

    def _copy(self) -> Database:
        if self._database.read_only:
            return self._owner.databases.open(self._db_id)
        return Database.from_bytes(self._database.dump(), read_only=False)


def table(result: QueryResult) -> str:
    """A result as the policy reads it: names of columns, a line for each row, how many there are."""
    if not result.columns:
        return "(done; no rows)"
    lines = [" | ".join(result.columns)]
    lines += [" | ".join(_cell(value) for value in row) for row in result.rows]
    count = len(result.rows)
    lines.append(f"({'the first ' if result.more else ''}{count} row{'' if count == 1 else 's'})")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"<blob of {len(value)} bytes>" if isinstance(value, bytes) else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."
