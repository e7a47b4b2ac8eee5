"""`SQLEnv`: a question on a database, answered with a query, and scored by what the query gives."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from toolgym.envs.base import Action
from toolgym.envs.families.sql.compare import same_result, spider_query
from toolgym.envs.families.sql.database import Database, Databases, QueryError, QueryResult, embedded
from toolgym.envs.families.sql.ordered_rows import ordered_rows
from toolgym.envs.rewards.base import Outcome, Score
from toolgym.envs.tasks.loading import load_tasks
from toolgym.envs.tasks.prepare.readers import QUESTION_WORDS
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import StopReason
from toolgym.tools.base import ToolResult
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.concurrency.execution_pool import tool_pool
from toolgym.tools.confined import OverrunError, ProcessPool
from toolgym.tools.errors import ConfigError, UnknownNameError, check_seconds, nearest, require_whole_number
from toolgym.tools.judge.rows.columns import check_names, names
from toolgym.tools.library.final_answer import without_thinking
from toolgym.tools.message import assistant, system, tool_call, user
from toolgym.tools.schema import ToolSchema
from toolgym.tools.stateful import StatefulTool, ToolSession

MAX_VALUE_CHARS = 200


class SqlTool(StatefulTool):
    """A tool that runs SQL on the database of the episode, which the task names: `create_kwargs: {"db_id": ...}`."""

    stays_on_loop = True
    task_kwargs: Mapping[str, Collection[str]] = {
        "create_kwargs": ("db_id",),
        "execute_kwargs": (),
        "calc_reward_kwargs": (),
    }
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


SYSTEM_PROMPT = (
    "Answer the question with one SQLite query. Try queries with the tool `sql` first. "
    "End with the query, and nothing behind it, in a block that begins with ```sql and ends with ```."
)

MOST_ROWS = 100_000
GRACE = 10.0

SMALL_RESULT, SMALL_COLUMNS = 2000, 4
"""Values and columns of a result that is compared in this process."""

COMPARE_SECONDS = 20.0
"""CPU seconds to compare two results."""

_pool = ProcessPool(Path(__file__).with_name("compare.py"), name="the process that compares results of queries")

Match: TypeAlias = Literal["rows", "bird", "spider"]
_BLOCK = re.compile(r"```sql\s(.*?)```", re.DOTALL | re.IGNORECASE)


class SQLEnv(ToolEnv):
    """An env whose policy answers a question on a database with a query. `docs/envs/sql.md` has its rules.

    Args:
        tasks: tasks whose ground truth is the known query, and whose `tools_kwargs["sql"]["create_kwargs"]["db_id"]`
            names the database. None: those of `questions`.
        questions: rows as Spider and BIRD have them (`db_id`, `question`, `query` or `SQL`, and BIRD's `evidence`), or
            a file of such rows. None: the 36 questions of toolgym.
        db_root: the folder of the databases; see `Databases`. None: the three of toolgym.
        read_only: whether the tool may only read. Otherwise each episode changes a copy in memory, which scoring does
            not see.
        query_timeout: wall seconds for a query of the policy.
        max_rows: rows of a result that the policy reads.
        score_timeout: wall seconds for the known query and for the answer, each. A slower answer is wrong.
        match: how results are compared: by `rows`, or as the evaluations of `bird` and `spider` do.
        env_kwargs: the other arguments of `ToolEnv`.

    Raises UnknownNameError if there is no such folder, file or database, and names the nearest one; and ConfigError if
    another argument is of the wrong kind, or a question lacks something.
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | None = None,
        *,
        questions: str | Path | Iterable[Mapping[str, Any]] | None = None,
        db_root: str | Path | None = None,
        read_only: bool = True,
        query_timeout: float = 5.0,
        max_rows: int = 50,
        score_timeout: float = 30.0,
        match: Match = "rows",
        **env_kwargs: Any,
    ) -> None:
        if tasks is not None and questions is not None:
            raise ConfigError("give tasks or questions, not both")
        check_seconds(query_timeout=query_timeout, score_timeout=score_timeout)
        require_whole_number("max_rows", max_rows, at_least=1)
        if match not in (known := get_args(Match)):
            raise UnknownNameError(f"there is no match {match!r}{nearest(str(match), known)}; give {', '.join(known)}")
        databases = Databases(db_root)
        if tasks is None:
            if questions is None and db_root is not None:
                raise ConfigError("db_root is given without questions= or tasks= on its databases")
            tasks = sql_tasks(embedded()[1] if questions is None else questions, databases)
        tool = SqlTool(databases, read_only=read_only, timeout=query_timeout, max_rows=max_rows)
        env_kwargs.setdefault("scorer", functools.partial(_score, databases, score_timeout, match))
        super().__init__([tool], tasks, owns_tools=[tool], **env_kwargs)

    def prepare(self, task: Task) -> Task:
        _database_of(task)
        return task

    def gold_actions(self) -> list[Action] | None:
        if self.task is None:
            return None
        query = str(self.task.ground_truth)
        return [assistant("", [tool_call("sql", {"query": query})]), f"```sql\n{query}\n```"]


_COLUMNS = names(
    "db_id, query, SQL, evidence, difficulty, question_id, hardness, query_toks, query_toks_no_value, "
    "question_toks, sql"
)
"""Columns of Spider and BIRD that are read, and those that are labels or repeat the question and its query."""


def sql_tasks(questions: str | Path | Iterable[Mapping[str, Any]], databases: Databases) -> TaskList:
    """Return rows of questions, or a file of them, as tasks, each with the schema of its database; see `SQLEnv`."""

    @functools.cache
    def schema(db_id: str) -> str:
        database = databases.open(db_id)
        try:
            return database.schema()
        finally:
            database.close()

    plain = load_tasks(questions, columns={"prompt": "question"})
    return TaskList([_task(task, place, schema) for place, task in enumerate(plain.tasks)])


def _task(plain: Task, place: int, schema: Any) -> Task:
    columns = plain.extra_info
    check_names(columns, _COLUMNS, f"question {place + 1}", QUESTION_WORDS, way_out="Remove the column")
    query = columns.get("query") or columns.get("SQL")
    db_id = columns.get("db_id")
    if columns.get("SQL") not in (None, "", query):
        raise ConfigError(f"question {place + 1} has both `query` and `SQL`, and they are different")
    if not isinstance(query, str) or not isinstance(db_id, str):
        raise ConfigError(
            f"question {place + 1} needs `db_id` and `query` (or `SQL`), got the columns {', '.join(columns)}"
        )
    question = plain.messages[0]["content"]
    hint = f"\nHint: {columns['evidence']}" if columns.get("evidence") else ""
    prompt = f"The database:\n{schema(db_id)}\n\nQuestion: {question}{hint}"
    kwargs = {"sql": {"create_kwargs": {"db_id": db_id}}}
    extra = {"index": f"{db_id}-{place}", "need_tools_kwargs": True, "tools_kwargs": kwargs}
    messages = [dict(system(SYSTEM_PROMPT)), dict(user(prompt))]
    return Task.from_row(verl_row(f"sql/{db_id}", messages, query, extra))


def _database_of(task: Task) -> str:
    db_id = (task.tools_kwargs.get("sql", {}).get("create_kwargs") or {}).get("db_id")
    if not isinstance(db_id, str) or not isinstance(task.ground_truth, str):
        raise ConfigError(
            f"task {task.id!r} needs its database, tools_kwargs['sql']['create_kwargs']['db_id'], and the known query "
            f"as its ground truth; got {db_id!r} and {task.ground_truth!r}. `questions=` makes tasks of Spider's and "
            "BIRD's rows"
        )
    return db_id


async def _score(databases: Databases, timeout: float, match: str, outcome: Outcome) -> Score:
    blocks = _BLOCK.findall(without_thinking(outcome.final_text))
    if not blocks or outcome.stop_reason is not StopReason.ANSWERED:
        return Score(0.0, {"ran": 0.0})
    try:
        run = functools.partial(_run_both, databases, timeout, match)
        results = await with_deadline(in_thread(run, outcome.task, blocks[-1].strip()), 2 * timeout + GRACE)
    except DeadlineError as error:
        if error.queued:
            raise
        return Score(0.0, {"ran": 0.0})  # a function of SQLite that looks at no clock
    if results is None:
        return Score(0.0, {"ran": 0.0})
    try:
        is_right = await _same(match, str(outcome.task.ground_truth), *results)
        if not is_right and match == "rows" and _may_be_tied(*results):
            compare = functools.partial(_same_but_for_ties, databases, timeout, outcome.task, *results)
            is_right = await with_deadline(in_thread(compare), 3 * timeout + GRACE)
        return Score(float(is_right), {"ran": 1.0})
    except OverrunError as error:
        return Score(0.0, {"ran": 1.0, error.component: 1.0})


def _run_both(
    databases: Databases, timeout: float, match: str, task: Task, query: str
) -> tuple[QueryResult, QueryResult] | None:
    """Run the known query and the policy's query; return None if the latter does not run."""
    known = str(task.ground_truth)
    database = databases.open(_database_of(task))
    as_run = spider_query if match == "spider" else str
    try:
        try:
            expected = database.query(as_run(known), max_rows=MOST_ROWS, timeout=timeout)
        except QueryError as error:
            raise ConfigError(f"the known query of task {task.id!r} does not run: {error}") from error
        if not expected.columns:
            raise ConfigError(f"the known query of task {task.id!r} returns no columns: {known!r}")
        if expected.more:
            raise ConfigError(f"a known query gives more than the {MOST_ROWS} rows that are compared")
        most = MOST_ROWS if match == "bird" else len(expected.rows)
        try:
            return expected, database.query(as_run(query), max_rows=most, timeout=timeout)
        except QueryError:
            return None
    finally:
        database.close()


async def _same(match: str, known: str, expected: QueryResult, answer: QueryResult) -> bool:
    """Compare two results: small ones here, and others in a process, because Spider's rule tries orders of columns."""
    if answer.more or (match == "rows" and len(answer.columns) != len(expected.columns)):
        return False
    arguments = match, known, expected.rows, answer.rows
    columns = len(answer.columns)
    if len(answer.rows) * columns <= SMALL_RESULT and (match != "spider" or columns <= SMALL_COLUMNS):
        return same_result(*arguments)
    return bool(await _pool.call("same_result", *arguments, cpu_seconds=COMPARE_SECONDS))


def _may_be_tied(expected: QueryResult, answer: QueryResult) -> bool:
    """Whether the answer has as many rows and columns as the known query, which may leave their order open."""
    shapes = [(len(result.columns), len(result.rows), result.more) for result in (expected, answer)]
    return shapes[0] == shapes[1]


def _same_but_for_ties(
    databases: Databases, timeout: float, task: Task, expected: QueryResult, answer: QueryResult
) -> bool:
    """Whether the answer has an order of rows that the known query's ORDER BY leaves open. Blocks."""
    database = databases.open(_database_of(task))
    try:
        known = str(task.ground_truth)
        order = ordered_rows(database, known, expected, max_rows=MOST_ROWS, timeout=timeout)
    finally:
        database.close()
    return order is not None and order.accepts(answer.rows)
