"""`SQL-v0`: queries on real databases of SQLite, in memory and as files."""

from __future__ import annotations

import asyncio
import json
import resource
import sqlite3
import time
from pathlib import Path

import pytest

import toolgym
from toolgym.envs.families.sql import env as sql_env
from toolgym.envs.families.sql.compare import bird_same, is_ordered, same_rows, spider_query, spider_same
from toolgym.envs.families.sql.database import embedded
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.testing import check_env
from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.tools.message import assistant, tool_call, user

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c"


def call(query: str):
    return assistant("", [tool_call("sql", {"query": query})])


async def asked(env, query: str) -> str:
    """What the policy reads of a query."""
    return (await env.step(call(query))).obs[0]["content"]


async def answered(env, text: str, task: Task | None = None) -> float:
    await env.reset(seed=0, options={"task": task} if task else None)
    return (await env.step(text)).reward


def task_of(env, words: str) -> Task:
    return next(task for task in env.tasks.tasks if words in task.messages[-1]["content"])


@pytest.fixture
def db_root(tmp_path) -> Path:
    """A folder as Spider and BIRD have it, with one database, whose file ends with text that is no UTF-8."""
    root = tmp_path / "database"
    (root / "zoo").mkdir(parents=True)
    connection = sqlite3.connect(root / "zoo" / "zoo.sqlite")
    connection.executescript(
        "CREATE TABLE animals (name TEXT, legs INTEGER, weight REAL);"
        "INSERT INTO animals VALUES ('ant', 6, 0.001), ('bee', 6, 0.002), ('cat', 4, 4.5);"
        "INSERT INTO animals VALUES (CAST(x'ff' AS TEXT), 0, NULL);"
    )
    connection.commit()
    connection.close()
    return root


SPIDER = {"db_id": "zoo", "question": "How many have 6 legs?", "query": "SELECT count(*) FROM animals WHERE legs = 6"}
BIRD = {
    "db_id": "zoo",
    "question": "Name the heavy.",
    "evidence": "heavy means more than 1",
    "SQL": "SELECT name FROM animals WHERE weight > 1",
}


async def test_every_question_that_toolgym_brings_has_an_answer_that_scores_1():
    async with toolgym.make("SQL-v0") as env:
        assert (len(env.tasks.tasks), len(embedded()[0])) == (36, 3)
        for task in env.tasks.tasks:
            await env.reset(options={"task": task})
            tried, answer = env.gold_actions()
            rows = (await env.step(tried)).obs[0]["content"]
            assert not rows.startswith(("Error", "(done"))
            assert not rows.endswith("\n(0 rows)")
            assert (await env.step(answer)).reward == 1.0


async def test_another_query_with_the_same_rows_is_right_and_one_with_others_is_not():
    async with toolgym.make("SQL-v0") as env:
        task = task_of(env, "How many members live in Lindau?")
        for answer, reward in [
            ("```sql\nSELECT sum(town = 'Lindau') AS n FROM members\n```", 1.0),
            ("```SQL\nselect 3.0;\n```", 1.0),
            ("I tried ```sql\nSELECT 1\n```, but it is\n```sql\nSELECT 3\n```.", 1.0),
            ("```sql\nSELECT 3\n``` no: ```sql\nSELECT 4\n```", 0.0),
            ("<think>```sql\nSELECT 3\n```</think>I do not know.", 0.0),
            ("```sql\nSELECT 3, 3\n```", 0.0),
            ("```sql\nSELECT 3 UNION ALL SELECT 3\n```", 0.0),
            ("```sql\nSELECT '3'\n```", 0.0),
            ("3", 0.0),
        ]:
            assert await answered(env, answer, task) == reward, answer


async def test_the_order_counts_where_the_known_query_orders():
    async with toolgym.make("SQL-v0") as env:
        ordered, free = task_of(env, "all travel books"), task_of(env, "never lent")
        assert (
            await answered(env, "```sql\nSELECT title FROM books WHERE genre = 'travel' ORDER BY year\n```", ordered)
            == 1.0
        )
        assert (
            await answered(
                env, "```sql\nSELECT title FROM books WHERE genre = 'travel' ORDER BY year DESC\n```", ordered
            )
            == 0.0
        )
        assert "ORDER BY" not in free.ground_truth


@pytest.mark.parametrize("broken", ["SELEC 1", "SELECT nothing FROM books", "SELECT 1; SELECT 3", "DROP TABLE books"])
async def test_an_answer_that_does_not_run_scores_0_and_says_so(broken):
    async with toolgym.make("SQL-v0") as env:
        await env.reset(seed=0)
        result = await env.step(f"```sql\n{broken}\n```")
        assert (result.reward, result.info["metrics"]["score/ran"]) == (0.0, 0.0)


async def test_where_no_row_is_right_the_answer_still_needs_the_columns(db_root):
    none = {**SPIDER, "query": "SELECT name, legs FROM animals WHERE legs > 9"}
    async with toolgym.make("SQL-v0", questions=[none], db_root=db_root) as env:
        assert await answered(env, "```sql\nSELECT name, weight FROM animals WHERE weight > 9\n```") == 1.0
        assert await answered(env, "```sql\nSELECT name FROM animals WHERE weight > 9\n```") == 0.0
        assert await answered(env, "```sql\n-- nothing\n```") == 0.0


async def test_what_the_model_does_wrong_it_reads():
    async with toolgym.make("SQL-v0", max_turns=20) as env:
        await env.reset(options={"task": task_of(env, "How many members")})
        assert await asked(env, "SELECT nme FROM members") == "Error: no such column: nme"
        assert (await asked(env, "SELECT 1; SELECT 2")).startswith("Error: You can only execute one statement")
        assert (
            await asked(env, "SELECT name, NULL FROM members WHERE id = 1") == "name | NULL\nAda Brandt | NULL\n(1 row)"
        )
        assert "members" in await asked(env, "SELECT name FROM sqlite_master")
        assert "town" in await asked(env, "PRAGMA table_info(members)")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM members",
        "INSERT INTO members VALUES (9, 'x', 'y', 1)",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "DROP TABLE loans",
        "PRAGMA query_only = OFF",
        "PRAGMA writable_schema = ON",
        "BEGIN",
        "ATTACH '{file}' AS other",
        "VACUUM INTO '{file}'",
        "SELECT load_extension('{file}')",
        "SELECT writefile('{file}', 'x')",
    ],
)
async def test_a_query_only_reads(statement, tmp_path):
    file = tmp_path / "other.db"
    async with toolgym.make("SQL-v0") as env:
        await env.reset(options={"task": task_of(env, "How many members")})
        said = await asked(env, statement.replace("{file}", str(file)))
        assert said.startswith("Error: ")
        assert "8" in await asked(env, "SELECT count(*) FROM members")
    assert not file.exists()


@pytest.mark.parametrize("statement", ["ATTACH '{file}' AS other", "VACUUM INTO '{file}'", "PRAGMA journal_mode = WAL"])
async def test_a_copy_that_may_be_changed_reaches_no_file_either(statement, tmp_path):
    file = tmp_path / "other.db"
    async with toolgym.make("SQL-v0", read_only=False) as env:
        await env.reset(seed=0)
        assert (await asked(env, statement.replace("{file}", str(file)))).startswith("Error: ")
    assert not file.exists()


async def test_changes_stay_in_the_episode_and_its_forks_have_copies():
    async with toolgym.make("SQL-v0", read_only=False, max_turns=20) as env, toolgym.make("SQL-v0") as other:
        task = task_of(env, "How many members live in Lindau?")
        await env.reset(options={"task": task})
        await other.reset(options={"task": task})
        assert await asked(env, "DELETE FROM members WHERE id <= 4") == "(done; no rows)"
        async with await env.fork() as twin:
            await asked(twin, "DELETE FROM members")
            assert "\n0\n" in await asked(twin, "SELECT count(*) FROM members")
            assert "\n4\n" in await asked(env, "SELECT count(*) FROM members")
        assert "\n8\n" in await asked(other, "SELECT count(*) FROM members")
        async with await other.fork() as twin:
            assert "\n8\n" in await asked(twin, "SELECT count(*) FROM members")
        # scoring sees the database as it was
        assert (await env.step("```sql\nSELECT count(*) FROM members WHERE town = 'Lindau'\n```")).reward == 1.0


async def test_endless_queries_are_stopped_and_others_go_on_meanwhile():
    async with toolgym.make("SQL-v0", query_timeout=0.3, score_timeout=0.3) as env, toolgym.make("SQL-v0") as other:
        await env.reset(seed=0)
        await other.reset(seed=0)
        stopped, beside = await asyncio.gather(asked(env, ENDLESS), asked(other, "SELECT 1"))
        assert (stopped, beside) == ("Error: the query was stopped after 0.3 seconds", "1\n1\n(1 row)")
        assert await asked(env, "SELECT 1") == "1\n1\n(1 row)"
        assert (await env.step(f"```sql\n{ENDLESS}\n```")).reward == 0.0


async def test_results_are_bounded():
    async with toolgym.make("SQL-v0", max_rows=3) as env:
        await env.reset(options={"task": task_of(env, "How many members")})
        assert await asked(env, "SELECT id FROM members") == "id\n1\n2\n3\n(the first 3 rows)"
        assert len(await asked(env, "SELECT printf('%.*c', 5000, 'x')")) < 300
        assert await asked(env, "SELECT zeroblob(1000000000)") == "Error: string or blob too big"
        assert "<blob of 5 bytes>" in await asked(env, "SELECT zeroblob(5)")
        wide = f"SELECT {', '.join(['zeroblob(1000000)'] * 65)} FROM members"
        assert await asked(env, wide) == "Error: the result is larger than 64 MB"
        assert await asked(env, f"SELECT {', '.join('1' * 501)}") == "Error: too many columns in result set"


async def test_an_answer_that_no_deadline_stops_earns_nothing(monkeypatch):
    monkeypatch.setattr("toolgym.envs.families.sql.env.GRACE", 0.0)
    text = "replace(hex(zeroblob(499000)), '0', 'a')"
    slow = f"SELECT instr({text}, replace(hex(zeroblob(40000)), '0', 'a') || 'b')"
    async with toolgym.make("SQL-v0", score_timeout=0.1) as env:
        await env.reset(seed=0)
        result = await env.step(f"```sql\n{slow}\n```")
    assert (result.reward, result.info["metrics"]["score/ran"]) == (0.0, 0.0)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    "slow",
    [
        "SELECT length(printf('%.*c', 900000000, 'x'))",
        "SELECT instr(hex(zeroblob(499000)), hex(zeroblob(249000)) || '1')",
        "SELECT trim(replace(hex(zeroblob(499000)), '0', 'x'), replace(hex(zeroblob(20000)), '0', 'ab') || 'x')",
        "SELECT replace(hex(zeroblob(499000)), hex(zeroblob(249000)) || '1', '')",
    ],
)
async def test_a_function_that_looks_at_no_clock_is_stopped(slow, read_only):
    async with toolgym.make("SQL-v0", query_timeout=0.2, read_only=read_only) as env:
        await env.reset(seed=0)
        began = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        assert await asked(env, slow) == "Error: the query was stopped after 0.2 seconds"
        spent = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        assert sum(spent) - sum(began) < 4  # seconds of the processor: 7 and more without an end
        assert await asked(env, "SELECT 1") == "1\n1\n(1 row)"


async def test_a_statement_in_a_process_of_its_own_changes_the_copy(db_root):
    async with toolgym.make("SQL-v0", read_only=False, max_turns=30) as env:
        await env.reset(seed=0)
        await asked(env, "CREATE TABLE t(x)")
        assert await asked(env, "INSERT INTO t SELECT printf('%03d', 7)") == "(done; no rows)"
        assert await asked(env, "SELECT replace(x, '0', '-') AS y FROM t") == "y\n--7\n(1 row)"
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100) SELECT"
        large = f"INSERT INTO t {numbers} zeroblob(900000 + instr('a', 'b')) FROM n"
        assert await asked(env, large) == "Error: database or disk is full"
        assert await asked(env, "SELECT count(*) AS n FROM t") == "n\n1\n(1 row)"
        some = large.replace("LIMIT 100", "LIMIT 40")  # 36 of 64 MB
        assert await asked(env, some) == "(done; no rows)"
        assert await asked(env, some) == "Error: database or disk is full"
        await asked(env, "BEGIN")
        await asked(env, "DELETE FROM t")
        assert "end the transaction first" in await asked(env, "SELECT replace(x, '0', '-') FROM t")
        await asked(env, "ROLLBACK")
        assert await asked(env, "SELECT count(*) AS n FROM t") == "n\n41\n(1 row)"
        assert (await asked(env, "ATTACH printf('x') AS y")).startswith("Error: ")
        assert (await asked(env, "SELECT load_extension('x')")).startswith("Error: not authorized")
    async with toolgym.make("SQL-v0", questions=[SPIDER], db_root=db_root) as env:
        await env.reset(seed=0)
        assert await asked(env, "SELECT printf('%d', count(*)) AS n FROM animals") == "n\n4\n(1 row)"
        assert "read-only" in await asked(env, "DELETE FROM animals WHERE instr(name, 'x')")


@pytest.mark.parametrize("temp", ["", "TEMP "])
async def test_a_copy_does_not_grow_without_bounds(temp):
    async with toolgym.make("SQL-v0", read_only=False) as env:
        await env.reset(seed=0)
        await asked(env, f"CREATE {temp}TABLE large(x)")
        numbers = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t LIMIT 100) SELECT"
        assert await asked(env, f"INSERT INTO large {numbers} zeroblob(900000) FROM t") == (
            "Error: database or disk is full"
        )


# ---------------------------------------------------------------------- databases of the user


async def test_spiders_and_birds_rows_on_a_folder_of_files(db_root, tmp_path):
    (tmp_path / "dev.json").write_text(json.dumps([SPIDER]))
    for questions, words in [(tmp_path / "dev.json", "How many"), ([BIRD], "Hint: heavy means more than 1")]:
        async with toolgym.make("SQL-v0", questions=questions, db_root=db_root) as env:
            obs, _ = await env.reset(seed=0)
            assert "CREATE TABLE animals" in obs[-1]["content"]
            assert words in obs[-1]["content"]
            tried, answer = env.gold_actions()
            await env.step(tried)
            assert "\ufffd" in await asked(env, "SELECT name FROM animals WHERE legs = 0")
            assert (await asked(env, "DELETE FROM animals")).startswith("Error: ")
            assert (await env.step(answer)).reward == 1.0
    async with toolgym.make("SQL-v0", questions=[SPIDER], db_root=db_root, read_only=False) as env:
        await env.reset(seed=0)
        assert await asked(env, "DELETE FROM animals") == "(done; no rows)"
        assert (await env.step("```sql\nSELECT 2\n```")).reward == 1.0
    connection = sqlite3.connect(db_root / "zoo" / "zoo.sqlite")
    assert connection.execute("SELECT count(*) FROM animals").fetchone() == (4,)
    connection.close()


async def test_tasks_may_be_rows_that_were_saved(db_root):
    async with toolgym.make("SQL-v0", questions=[SPIDER], db_root=db_root) as env:
        row = json.loads(json.dumps(env.tasks.task(0).to_row()))
    async with toolgym.make("SQL-v0", tasks=[Task.from_row(row)], db_root=db_root) as env:
        assert await answered(env, "```sql\nSELECT 2\n```") == 1.0


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"questions": [{**SPIDER, "query": None}]}, ConfigError, "question 1 needs `db_id` and `query`"),
        ({"questions": [{**SPIDER, "db_id": "zo"}]}, UnknownNameError, "did you mean 'zoo'"),
        ({"questions": [{**SPIDER, "db_id": "../zoo"}]}, ConfigError, "without a path"),
        ({"questions": [SPIDER], "db_root": "/nowhere/at/all"}, UnknownNameError, "no folder of databases"),
        ({"questions": None}, ConfigError, "without questions= or tasks="),
        ({"tasks": []}, ConfigError, "not both"),
        ({"max_rows": 0}, ConfigError, "max_rows"),
    ],
)
def test_what_the_user_does_wrong_is_an_error(change, error, text, db_root):
    with pytest.raises(error, match=text):
        toolgym.make("SQL-v0", **{"questions": [SPIDER], "db_root": db_root, **change})


async def test_a_task_without_a_database_or_with_a_broken_known_query_is_an_error(db_root):
    async with toolgym.make("SQL-v0", tasks=[Task(messages=(user("6 * 7?"),), ground_truth="42")]) as env:
        with pytest.raises(ConfigError, match="needs its database"):
            await env.reset(seed=0)
    (db_root / "bad.sqlite").write_text("no database at all, but long enough to be looked at" * 20)
    with pytest.raises(ConfigError, match="as a database of SQLite"):
        toolgym.make("SQL-v0", questions=[{**SPIDER, "db_id": "bad"}], db_root=db_root)
    async with toolgym.make("SQL-v0", questions=[{**SPIDER, "query": "SELECT x"}], db_root=db_root) as env:
        await env.reset(seed=0)
        with pytest.raises(EpisodeFailedError, match="the known query of task 'zoo-0' does not run") as caught:
            await env.step("```sql\nSELECT 2\n```")
    assert caught.value.stop_reason is StopReason.SCORE_FAILED


async def test_it_keeps_the_contract():
    await check_env(toolgym.make("SQL-v0"), [call("SELECT 1"), "```sql\nSELECT 1\n```"])


# ---------------------------------------------------------------------- comparing


@pytest.mark.parametrize(
    ("sql", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM t order\n by a LIMIT 3", True),
        ("SELECT a FROM t", False),
        ("SELECT * FROM (SELECT a FROM t ORDER BY a LIMIT 3)", False),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", False),
        ("SELECT 'x ORDER BY y' FROM t", False),
        ('SELECT ")", "order by" FROM t', False),
        ("SELECT a FROM t -- ORDER BY a", False),
        ("SELECT '(' FROM t ORDER BY a", True),
        ("SELECT reorder, bypass FROM t", False),
    ],
)
def test_whether_a_query_orders(sql, ordered):
    assert is_ordered(sql) is ordered


@pytest.mark.parametrize(
    ("expected", "given", "ordered", "same"),
    [
        ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], False, True),
        ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], True, False),
        ([(1,), (1,)], [(1,)], False, False),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False, False),
        ([(1,)], [(1.0000000001,)], False, True),
        ([(1000000.0,)], [(1000002.0,)], False, False),
        ([(0.0,)], [(-1e-12,)], True, True),
        ([(None,)], [(None,)], False, True),
        ([(None,)], [(0,)], False, False),
        ([("1",)], [(1,)], False, False),
        ([(b"a",)], [("a",)], False, False),
        ([("a", None), (2, b"x"), (None, 1.5)], [(None, 1.5), ("a", None), (2, b"x")], False, True),
        ([(0.30000000000000004, "b"), (0.3, "a")], [(0.3, "b"), (0.30000000000000004, "a")], False, True),
        ([], [], True, True),
    ],
)
def test_whether_two_results_are_the_same(expected, given, ordered, same):
    assert same_rows(expected, given, ordered=ordered) is same


ONE_TWO = [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    ("expected", "given", "bird", "spider"),
    [
        (ONE_TWO, [(2, "b"), (1, "a")], True, True),
        (ONE_TWO, [("a", 1), ("b", 2)], False, True),
        (ONE_TWO, [("b", 1), ("a", 2)], False, False),
        ([(1,), (1,)], [(1,)], True, False),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], True, False),
        ([(1,)], [(1.0,)], True, True),
        ([(1,)], [(1.0000000001,)], False, False),
        ([(1,)], [("1",)], False, False),
        ([(1,)], [(1, 1)], False, False),
        ([(1, 1, 2)], [(2, 1, 1)], False, True),
        ([(1, 1, 2)], [(2, 2, 1)], False, False),
        ([(None, b"x")], [(None, b"x")], True, True),
        ([], [], True, True),
        ([], [(1,)], False, False),
        ([(1, 2, 3), (2, 3, 1)], [(3, 1, 2), (1, 2, 3)], False, True),
        ([(1,) * 12 + (2,)], [(1,) * 11 + (2, 2)], False, False),
    ],
)
def test_results_compare_as_bird_and_spider_do(expected, given, bird, spider):
    assert bird_same(expected, given) is bird
    assert spider_same(expected, given, "SELECT a FROM t") is spider


def test_spider_minds_the_order_where_the_known_query_has_one_anywhere():
    for known, same in [("SELECT a FROM t ORDER BY a", False), ("SELECT a FROM (SELECT a FROM t order by a)", False)]:
        assert spider_same(ONE_TWO, ONE_TWO[::-1], known) is same
        assert spider_same(ONE_TWO, [("a", 1), ("b", 2)], known)
    assert spider_query("SELECT count(DISTINCT a), 'distinct' FROM t WHERE a > = 1") == (
        "SELECT count( a), 'distinct' FROM t WHERE a >= 1"
    )


@pytest.mark.parametrize(
    ("sql", "run"),
    [
        ("SELECT a IS DISTINCT FROM b FROM t", None),
        (
            "SELECT DISTINCT a is not /* no */ distinct\nfrom b FROM t",
            "SELECT  a is not /* no */ distinct\nfrom b FROM t",
        ),
        ("SELECT count(DISTINCT a) FROM t WHERE NOT (a IS DISTINCT FROM 'DISTINCT')", None),
        ('SELECT "distinct", [DISTINCT], `distinct` FROM t -- distinct', None),
        ("SELECT 'a > = b' FROM t WHERE a ! /* x */ = b", "SELECT 'a > = b' FROM t WHERE a != b"),
        ("SELECT distinction FROM t WHERE a > = 1 AND b< =2", "SELECT distinction FROM t WHERE a >= 1 AND b<=2"),
    ],
)
def test_spider_leaves_out_the_keyword_distinct_alone(sql, run):
    expected = run if run is not None else sql.replace("count(DISTINCT a)", "count( a)")
    assert spider_query(sql) == expected


def test_tokens_are_read_in_linear_time():
    for part in ("'", '"', "[", "/*", "--", "(", "''", "distinct "):
        assert spider_query(part * 20_000).strip() == ("" if part == "distinct " else part * 20_000)


TIED = (
    "CREATE TABLE animals (name TEXT, legs INTEGER, weight REAL);"
    "INSERT INTO animals VALUES ('ant', 6, 1.5), ('bee', 6, 1.5), ('cat', 4, 2.5), ('dog', 4, 3.5), ('eel', 0, 2.5);"
)


@pytest.mark.parametrize(
    ("known", "right", "wrong"),
    [
        (
            "SELECT name FROM animals ORDER BY legs",
            ["SELECT name FROM animals ORDER BY legs, name DESC", "SELECT name FROM animals ORDER BY legs, name"],
            ["SELECT name FROM animals ORDER BY name", "SELECT name FROM animals ORDER BY legs DESC"],
        ),
        (
            "SELECT name FROM animals ORDER BY legs DESC LIMIT 1",
            ["SELECT 'bee'", "SELECT name FROM animals WHERE name = 'ant'"],
            ["SELECT 'cat'", "SELECT 'fly'", "SELECT name FROM animals ORDER BY legs DESC LIMIT 2"],
        ),
        (
            "SELECT name FROM animals ORDER BY legs DESC LIMIT 2 OFFSET 1;",
            ["VALUES ('bee'), ('cat')", "VALUES ('ant'), ('dog')"],
            ["VALUES ('cat'), ('bee')", "VALUES ('bee'), ('eel')", "VALUES ('ant'), ('bee')"],
        ),
        ("SELECT name FROM animals ORDER BY legs DESC LIMIT 1, 3", ["VALUES ('ant'), ('dog'), ('cat')"], []),
        (
            "SELECT legs, count(*) AS n FROM animals GROUP BY legs ORDER BY n DESC -- most first",
            ["VALUES (6, 2), (4, 2), (0, 1)", "VALUES (4, 2), (6, 2), (0, 1)"],
            ["VALUES (0, 1), (6, 2), (4, 2)"],
        ),
        (
            "SELECT DISTINCT legs, weight FROM animals ORDER BY weight",
            ["VALUES (6, 1.5), (0, 2.5), (4, 2.5), (4, 3.5)"],
            ["VALUES (0, 2.5), (6, 1.5), (4, 2.5), (4, 3.5)"],
        ),
        (
            "SELECT name FROM animals UNION SELECT 'Ant' ORDER BY name COLLATE NOCASE",
            ["VALUES ('Ant'), ('ant'), ('bee'), ('cat'), ('dog'), ('eel')"],
            ["VALUES ('bee'), ('ant'), ('Ant'), ('cat'), ('dog'), ('eel')"],
        ),
        (
            "WITH a AS (SELECT * FROM animals ORDER BY name LIMIT 4) SELECT name FROM a ORDER BY (SELECT 1 ORDER BY 1)",
            ["VALUES ('dog'), ('cat'), ('bee'), ('ant')"],
            ["VALUES ('dog'), ('cat'), ('bee'), ('eel')"],
        ),
    ],
)
async def test_rows_with_equal_keys_may_come_in_any_order(known, right, wrong, db_root):
    path = db_root / "zoo" / "zoo.sqlite"
    path.unlink()
    connection = sqlite3.connect(path)
    connection.executescript(TIED)
    connection.close()
    async with toolgym.make("SQL-v0", questions=[{**SPIDER, "query": known}], db_root=db_root) as env:
        for answer in [known, *right]:
            assert await answered(env, f"```sql\n{answer}\n```") == 1.0, answer
        for answer in wrong:
            assert await answered(env, f"```sql\n{answer}\n```") == 0.0, answer


async def test_integers_must_be_equal(db_root):
    question = {**SPIDER, "query": "SELECT 2000000, 5e-10"}
    async with toolgym.make("SQL-v0", questions=[question], db_root=db_root) as env:
        for answer, reward in (
            ("2000000, 5e-10", 1),
            ("2000000.5, 5e-10", 1),
            ("2000001, 5e-10", 0),
            ("2000000, 0.0", 0),
        ):
            assert await answered(env, f"```sql\nSELECT {answer}\n```") == reward, answer


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n" * 30])
async def test_a_file_that_is_not_a_database_is_a_broken_row(content, db_root):
    env = toolgym.make("SQL-v0", questions=[SPIDER], db_root=db_root)
    (db_root / "zoo" / "zoo.sqlite").write_bytes(content)
    with pytest.raises(ConfigError, match=r"zoo\.sqlite' (as a database|holds no tables)"):
        await env.reset(seed=0)


@pytest.mark.parametrize("answer", ["SELECT name FROM animals", "SELECT printf('%s', name) FROM animals"])
async def test_a_damaged_database_is_never_the_policys_fault(answer, db_root):
    path = db_root / "zoo" / "zoo.sqlite"
    question = {**SPIDER, "query": "SELECT 1"}  # reads no table
    async with toolgym.make("SQL-v0", questions=[question], db_root=db_root) as env:
        data = path.read_bytes()
        path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
        await env.reset(seed=0)
        result = await env.step(call(answer))
        [record] = result.info["tool_calls"]
        assert record.infra_failure
        assert "cannot be read" in record.metrics["error"]
        with pytest.raises(EpisodeFailedError, match="cannot be read") as caught:
            await env.step(f"```sql\n{answer}\n```")
    assert caught.value.stop_reason is StopReason.SCORE_FAILED


async def test_a_known_query_without_columns_is_a_broken_row(db_root):
    async with toolgym.make("SQL-v0", questions=[{**SPIDER, "query": "-- nothing"}], db_root=db_root) as env:
        await env.reset(seed=0)
        with pytest.raises(EpisodeFailedError, match="returns no columns"):
            await env.step("```sql\n-- nothing\n```")


@pytest.mark.parametrize(
    ("answer", "rewards"),
    [
        ("SELECT name, legs FROM animals", (1, 1, 1)),
        ("SELECT legs, name FROM animals", (0, 0, 1)),
        ("SELECT name, legs FROM animals UNION ALL SELECT name, legs FROM animals", (0, 1, 0)),
        ("SELECT DISTINCT name, legs FROM animals", (1, 1, 1)),
        ("SELECT name FROM animals", (0, 0, 0)),
    ],
)
async def test_a_match_is_chosen_by_name(answer, rewards, db_root):
    question = {**SPIDER, "query": "SELECT name, legs FROM animals"}
    for match, reward in zip(("rows", "bird", "spider"), rewards, strict=True):
        async with toolgym.make("SQL-v0", questions=[question], db_root=db_root, match=match) as env:
            await env.reset(seed=0)
            assert (await env.step(f"```sql\n{answer}\n```")).reward == reward, match
    with pytest.raises(UnknownNameError, match="there is no match 'birds', did you mean 'bird'"):
        toolgym.make("SQL-v0", match="birds")


def rows_of(columns: int, values) -> str:
    """A query whose result is one row for each list of values."""
    names = ", ".join(f"column{number} AS c{number}" for number in range(1, columns + 1))
    return f"SELECT {names} FROM (VALUES {', '.join(map(str, map(tuple, values)))})"


async def test_results_that_take_too_long_to_compare_score_0(db_root, monkeypatch):
    """Spider's rule tries the orders of the columns, and each order of these fits up to the last column."""
    monkeypatch.setattr(sql_env, "COMPARE_SECONDS", 0.3)
    identity = [[int(row == column) for column in range(12)] for row in range(12)]
    wrong = [[*row[:-1], 1 - row[-1]] for row in identity]
    question = {**SPIDER, "query": rows_of(12, identity)}
    async with toolgym.make("SQL-v0", questions=[question], db_root=db_root, match="spider") as env:
        for query, score in ((question["query"], 1.0), (rows_of(12, wrong), 0.0)):
            await env.reset(seed=0)
            result = await env.step(f"```sql\n{query}\n```")
            assert (result.reward, result.info["metrics"]["score/ran"]) == (score, 1.0)
        assert result.info["metrics"]["score/too_slow"] == 1.0


def test_what_is_not_closed_in_a_query_reaches_to_its_end():
    for text in ("[", "'", '"', "`", "/* "):
        assert spider_query(f"SELECT a FROM t WHERE a = {text}distinct") == f"SELECT a FROM t WHERE a = {text}distinct"
        assert not is_ordered(f"SELECT a FROM t {text} ORDER BY a")


@pytest.mark.parametrize(
    ("column", "value"), [("context", "CREATE TABLE a (b)"), ("expected_rows", [[1]]), ("timeout", 3)]
)
def test_a_column_that_is_not_read_is_refused_if_it_may_matter(db_root, column, value):
    with pytest.raises(ConfigError, match=f"the column '{column}' of question 1 is not read"):
        toolgym.make("SQL-v0", questions=[{**SPIDER, column: value}], db_root=db_root)
    toolgym.make("SQL-v0", questions=[{**SPIDER, column: None, "query_toks": ["SELECT"]}], db_root=db_root)


def test_a_row_with_two_queries_is_refused(db_root):
    with pytest.raises(ConfigError, match="has both `query` and `SQL`"):
        toolgym.make("SQL-v0", questions=[{**SPIDER, "SQL": "SELECT 1"}], db_root=db_root)
