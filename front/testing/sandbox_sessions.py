"""The suites of sessions, and of their forks and checkpoints, for every sandbox that has some."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from toolgym.testing.sandbox_runs import BAD_SESSION_OPTIONS, ERROR, LONG, OK, TIMEOUT, SandboxTests, close_all
from toolgym.testing.suite import need, needs
from toolgym.tools.errors import (
    ConfigError,
    SandboxClosedError,
    SandboxError,
    SandboxUnsupportedError,
    SessionLostError,
    UnknownNameError,
)
from toolgym.tools.sandbox.base import ExecutionStatus, Sandbox, Session

import pytest  # isort: skip  after `suite`, which says what to install where it is absent


CELL_DEADLINES = (0.5, 3.0)
"""As `DEADLINES`, for a session, whose interpreter runs already. (Sandboxes may limit the time of a processor.)"""


class SessionSuite(SandboxTests, abilities=("sessions",)):
    """The contract of `Sandbox.session`. Needs the fixture `sandbox`."""

    async def test_state_goes_from_cell_to_cell(self, session: Session) -> None:
        assert (await session.run_cell("import math\nx = 20\ndef f(n): return n + x")).status is OK
        result = await session.run_cell("y = f(22)\nprint('said')\ny, math.floor(2.5)")
        assert (result.status, result.stdout, result.result) == (OK, "said\n", "(42, 2)")
        assert result.alive
        assert result.error is None

    async def test_the_last_expression_is_echoed(self, session: Session) -> None:
        cells = {
            "1 + 1": "2",
            "1 + 1;": None,
            "'a;'  # why;": "'a;'",
            "f'{1};'; 'é' ;  # why\n\n# more\n": None,
            "('''\n;''',\n 2) \\\n ;": None,
            "'\u2028;'": r"'\u2028;'",
            "x = 3": None,
            "None": None,
            "'a'": "'a'",
            "": None,
            "# only this": None,
        }
        assert {code: (await session.run_cell(code)).result for code in cells} == cells

    async def test_top_level_await(self, session: Session) -> None:
        result = await session.run_cell("import asyncio\nawait asyncio.sleep(0.01, 42)")
        assert result.result == "42"

    async def test_an_error_in_a_cell_keeps_the_state(self, session: Session) -> None:
        await session.run_cell("kept = 7\ndef f():\n    return 1 / 0")
        result = await session.run_cell("print('before')\nf()")
        assert (result.status, result.stdout, result.alive) == (ERROR, "before\n", True)
        assert result.error is not None
        assert (result.error.name, result.error.value) == ("ZeroDivisionError", "division by zero")
        text = "\n".join(result.error.traceback)
        assert "return 1 / 0" in text
        assert "repl.py" not in text
        assert "toolgym" not in text
        assert (await session.run_cell("kept")).result == "7"

    async def test_a_syntax_error_in_a_cell(self, session: Session) -> None:
        result = await session.run_cell("def f(:")
        assert result.status is ERROR
        assert result.error is not None
        assert result.error.name == "SyntaxError"
        assert result.alive

    async def test_leaving_the_interpreter_does_not_end_the_session(self, session: Session) -> None:
        assert (await session.run_cell("raise SystemExit(3)")).status is ERROR
        assert (await session.run_cell("1")).result == "1"

    async def test_a_timeout_keeps_the_state(self, session: Session) -> None:
        await session.run_cell("n = 0")
        for seconds in CELL_DEADLINES:
            began = time.monotonic()
            late = await session.run_cell("n = 1\nprint('so far')\nwhile True: n += 1", timeout=seconds)
            took = time.monotonic() - began
            if late.stdout:
                break
        assert (late.status, late.stdout, late.alive) == (TIMEOUT, "so far\n", True)
        assert took < LONG
        assert (await session.run_cell("n > 1")).result == "True"

    async def test_a_cell_that_ignores_its_timeout_ends_the_session(self, sandbox: Sandbox) -> None:
        code = "import time\nwhile True:\n    try: time.sleep(600)\n    except BaseException: pass"
        for seconds in CELL_DEADLINES:
            async with await sandbox.session(recover=False) as session:
                result = await session.run_cell(code, timeout=seconds)
                alive, after = session.alive, await session.run_cell("1")
            if not result.alive:
                break
        assert (result.status, result.alive, alive) == (TIMEOUT, False, False)
        assert result.duration < LONG
        assert after.status is ExecutionStatus.SANDBOX_ERROR
        assert not after.alive
        assert (await sandbox.run("print(1)")).ok

    @pytest.mark.parametrize(
        ("code", "statuses"),
        [
            ("import os; os._exit(3)", {ERROR, ExecutionStatus.KILLED}),
            ("import ctypes; ctypes.string_at(0)", {ExecutionStatus.KILLED}),
            ("while True: print('x' * 1000)", {ExecutionStatus.OUTPUT_LIMIT}),
        ],
    )
    async def test_a_session_that_died_says_so(
        self, sandbox: Sandbox, code: str, statuses: set[ExecutionStatus]
    ) -> None:
        if ExecutionStatus.OUTPUT_LIMIT in statuses:
            need(self.output_bytes, f"{type(self).__name__}.output_bytes is {self.output_bytes!r}")
        async with await sandbox.session(recover=False) as session:
            result = await asyncio.wait_for(session.run_cell(code, timeout=LONG), 2 * LONG)
            assert result.status in statuses, result
            assert not result.alive
            assert not session.alive
        assert (await sandbox.run("print(1)")).ok

    @needs("programs")
    async def test_other_programs_in_the_session(self, session: Session) -> None:
        await session.run_cell("open('a.txt', 'w').write('from the cell')")
        done = await session.exec(["cat", "a.txt", "-"], stdin=" and in")
        assert (done.status, done.stdout, done.return_code) == (OK, "from the cell and in", 0)
        failed = await session.exec(["sh", "-c", "echo no >&2; exit 4"])
        assert (failed.status, failed.stderr, failed.return_code) == (ERROR, "no\n", 4)
        late = await session.exec(["sleep", "600"], timeout=0.5)
        assert late.status is TIMEOUT
        for seconds in CELL_DEADLINES:
            child = await session.exec(["sh", "-c", "sleep 600 & echo $! > child; wait"], timeout=seconds)
            assert child.status is TIMEOUT
            if await session.exists("child") and await session.read_file("child"):
                break
        async with asyncio.timeout(LONG):
            while True:  # what is killed may take a moment to be gone
                gone = await session.exec(["sh", "-c", "kill -0 $(cat child) && cat /proc/$(cat child)/stat"])
                if "No such process" in gone.stderr or ") Z " in gone.stdout:
                    break
        absent = await session.exec(["no-such-program"])
        assert not absent.ok
        assert (await session.run_cell("open('a.txt').read()")).result == "'from the cell'"

    async def test_files_of_a_session(self, session: Session) -> None:
        data = bytes(range(256)) * 20_000
        await session.write_file("deep/er/data.bin", data)
        assert (await session.run_cell("len(open('deep/er/data.bin', 'rb').read())")).result == str(len(data))
        await session.run_cell("open('out.txt', 'w').write('é')")
        assert await session.read_file("out.txt") == "é".encode()
        assert await session.read_file("deep/er/data.bin") == data
        with pytest.raises(FileNotFoundError):
            await session.read_file("absent")
        for name in ("../x", "a/../../b", "", "a\0b", "/" + "x" * 300):
            with pytest.raises(ConfigError):
                await session.read_file(name)
            with pytest.raises(ConfigError):
                await session.write_file(name, b"")

    async def test_sessions_take_files(self, sandbox: Sandbox) -> None:
        wrong: Any
        for wrong, text in BAD_SESSION_OPTIONS:
            with pytest.raises(ConfigError, match=text):
                await sandbox.session(**wrong)
        async with await sandbox.session(files={"a/b": b"hello"}, hint="1") as session:
            assert (await session.run_cell("open('a/b').read()")).result == "'hello'"

    @needs("variables")
    async def test_sessions_take_variables(self, sandbox: Sandbox) -> None:
        async with await sandbox.session(env={"WORD": "x"}) as session:
            assert (await session.run_cell("import os\nos.environ['WORD']")).result == "'x'"

    async def test_sessions_do_not_see_each_other(self, sandbox: Sandbox) -> None:
        first, second = await sandbox.session(), await sandbox.session()
        assert first.id != second.id
        await first.run_cell("x = 1\nopen('mine.txt', 'w').write('x')\nopen('/tmp/mine.txt', 'w').write('x')")
        result = await second.run_cell("import os\n'x' in globals(), os.path.exists('mine.txt')")
        assert result.result == "(False, False)"
        for session in (first, second):
            await session.close()

    async def test_a_second_call_waits_for_the_first(self, session: Session) -> None:
        results = await asyncio.gather(
            *(session.run_cell(f"import time\ntime.sleep(0.05)\nprint({n})") for n in range(5))
        )
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(5)]

    @needs("output_bytes")
    async def test_output_of_a_cell_is_capped(self, session: Session) -> None:
        assert self.output_bytes is not None
        result = await session.run_cell(f"print('begin', 'y' * {4 * self.output_bytes}, 'end')")
        assert result.stdout_truncated
        assert result.stdout.startswith("begin")
        assert result.stdout.endswith("end\n")
        assert (await session.run_cell("print(1)")).stdout == "1\n"

    async def test_a_cancelled_cell_ends_at_once(self, session: Session) -> None:
        call = asyncio.create_task(session.run_cell("import time\ntime.sleep(600)", timeout=600))
        await asyncio.sleep(0.3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, LONG)
        # Either the cell was interrupted and the session lives, or both are gone; nothing goes on unseen.
        after = await asyncio.wait_for(session.run_cell("1 + 1", timeout=30), LONG)
        assert after.result == "2" or not after.alive

    async def test_a_closed_session_says_so(self, session: Session) -> None:
        await session.run_cell("x = 1")
        await session.close()
        await session.close()
        assert not session.alive
        assert (await session.run_cell("1")).status is ExecutionStatus.SANDBOX_ERROR
        with pytest.raises(SandboxError):
            await session.fork()
        with pytest.raises(SessionLostError):
            await session.write_file("a", b"")
        with pytest.raises(SessionLostError):
            await session.read_file("a")

    async def test_many_sessions_at_once(self, sandbox: Sandbox) -> None:
        sessions = await asyncio.gather(*(sandbox.session() for _ in range(20)))
        await asyncio.gather(*(session.run_cell(f"n = {k}") for k, session in enumerate(sessions)))
        results = await asyncio.gather(*(session.run_cell("n") for session in sessions))
        assert [result.result for result in results] == [str(k) for k in range(20)]
        await close_all(sessions)

    async def test_a_closed_sandbox_opens_no_session(self, make_sandbox: Callable[[], Sandbox]) -> None:
        other = make_sandbox()
        await other.run("1")
        await other.close()
        with pytest.raises(SandboxClosedError):
            await other.session()

    async def test_where_sessions_cannot_be_forked_they_say_so_and_go_on(self, session: Session) -> None:
        if self.forks:
            pytest.skip(f"{type(self).__name__}.forks is True")
        await session.run_cell("x = 42")
        with pytest.raises(SandboxUnsupportedError, match="fork"):
            await session.fork()
        with pytest.raises(SandboxUnsupportedError):
            await session.fork(n=2)
        with pytest.raises(SandboxUnsupportedError):
            await session.checkpoint("a")
        assert session.checkpoints == ()
        assert (await session.run_cell("x")).result == "42"


LOOK = "x, open('f').read()"


class ForkSuite(SandboxTests, abilities=("sessions", "forks")):
    """The contract of `Session.fork` and `Session.checkpoint`. Needs the fixture `sandbox`."""

    async def test_a_fork_takes_the_state_along(self, session: Session) -> None:
        await session.run_cell("import math, os\nx = [1, 2]\ndef f(): return len(x)\nopen('a.txt', 'w').write('one')")
        await session.run_cell(
            "os.mkdir('d')\nos.chdir('d')\nopen('b.txt', 'w').write('two')\nh = open('b.txt')\nh.read(1)"
        )
        async with await asyncio.wait_for(session.fork(), LONG) as other:
            assert other.id != session.id
            result = await other.run_cell(
                "f(), math.floor(1.5), open('b.txt').read(), open('../a.txt').read(), h.read()"
            )
            assert result.result == "(2, 1, 'two', 'one', 'wo')"
            assert (await other.run_cell("os.path.basename(os.getcwd())")).result == "'d'"

    async def test_a_fork_and_its_origin_go_on_independently(self, session: Session) -> None:
        await session.run_cell("x = [1]\nopen('a.txt', 'w').write('before')")
        other = await asyncio.wait_for(session.fork(), LONG)
        await session.run_cell("x.append(2)\nopen('a.txt', 'w').write('origin')")
        await other.run_cell("x.append(3)\nopen('a.txt', 'w').write('fork')\nopen('new.txt', 'w').close()")
        mine, theirs = (
            await session.run_cell("x, open('a.txt').read()"),
            await other.run_cell("x, open('a.txt').read()"),
        )
        assert mine.result == "([1, 2], 'origin')"
        assert theirs.result == "([1, 3], 'fork')"
        assert (await session.run_cell("import os\nos.path.exists('new.txt')")).result == "False"
        assert await session.read_file("a.txt") == b"origin"
        assert await other.read_file("a.txt") == b"fork"
        await session.close()
        assert (await other.run_cell("x")).result == "[1, 3]"
        await other.close()

    async def test_a_tree_of_forks(self, session: Session) -> None:
        await session.run_cell("path = []")
        level = [session]
        for depth in range(3):
            grown = []
            for parent in level:
                for side in "ab":
                    child = await asyncio.wait_for(parent.fork(), LONG)
                    await child.run_cell(f"path.append({side + str(depth)!r})")
                    grown.append(child)
            level = grown
        paths = [(await leaf.run_cell("'-'.join(path)")).result for leaf in level]
        assert len(set(paths)) == 8
        assert "'b0-a1-b2'" in paths
        assert (await session.run_cell("path")).result == "[]"
        for leaf in level:
            await leaf.close()

    async def test_a_fork_of_a_checkpoint_has_the_state_of_then(self, session: Session) -> None:
        await session.run_cell("import math\nx = [1]\nopen('f', 'w').write('old')")
        await session.checkpoint("before")
        await session.run_cell("x.append(2)\nopen('f', 'w').write('new')")
        async with await session.fork("before") as then, await session.fork() as now:
            assert (await then.run_cell(LOOK)).result == "([1], 'old')"
            assert (await now.run_cell(LOOK)).result == "([1, 2], 'new')"
            assert (await then.run_cell("math.floor(2.5)")).result == "2"
            assert then.checkpoints == now.checkpoints == ()
        assert (await session.run_cell(LOOK)).result == "([1, 2], 'new')"

    async def test_forks_of_a_checkpoint_are_independent_of_it_and_of_each_other(self, session: Session) -> None:
        await session.run_cell("x = [1]\nopen('f', 'w').write('old')")
        await session.checkpoint("before")
        for name in "ab":
            async with await session.fork("before") as fork:
                await fork.run_cell(f"x.append({name!r})\nopen('f', 'a').write({name!r})")
                assert (await fork.run_cell(LOOK)).result == f"([1, {name!r}], 'old{name}')"
        assert (await session.run_cell(LOOK)).result == "([1], 'old')"

    async def test_several_forks_of_the_present_state(self, session: Session) -> None:
        await session.run_cell("x = 7")
        forks = await session.fork(n=3)
        assert [(await fork.run_cell("x")).result for fork in forks] == ["7"] * 3
        (only,) = await session.fork(n=1)
        assert (await only.run_cell("x")).result == "7"
        await close_all([*forks, only])
        wrong: Any
        for wrong in (0, -1, 1.5, True, "2"):
            with pytest.raises(ConfigError, match="n must be a whole number, at least 1"):
                await session.fork(n=wrong)

    async def test_checkpoints_are_listed_replaced_and_dropped(self, session: Session) -> None:
        assert _names(session) == ()
        for x, name in enumerate(["first", "ä / ?", "first"]):
            await session.run_cell(f"x = {x}")
            await session.checkpoint(name)
        assert _names(session) == ("ä / ?", "first")
        for name, shown in (("ä / ?", "1"), ("first", "2")):
            async with await session.fork(name) as fork:
                assert (await fork.run_cell("x")).result == shown
        await session.drop_checkpoint("ä / ?")
        assert _names(session) == ("first",)
        for call in (session.fork, session.drop_checkpoint):
            with pytest.raises(UnknownNameError, match=r"no checkpoint 'frist', did you mean 'first'\?"):
                await call("frist")
        wrong: Any
        for wrong in ("", ".", "..", "a\nb", "\ud800", "x" * 201, 7):
            with pytest.raises(ConfigError, match="a checkpoint's name must be"):
                await session.checkpoint(wrong)
        assert (await session.run_cell("x")).result == "2"

    async def test_a_checkpoint_waits_for_the_cell_that_runs(self, session: Session) -> None:
        cell = asyncio.create_task(session.run_cell("import time\nx = 1\ntime.sleep(0.5)\nx = 2"))
        await asyncio.sleep(0.1)
        await session.checkpoint("after")
        assert (await cell).status == "ok"
        async with await session.fork("after") as fork:
            assert (await fork.run_cell("x")).result == "2"

    async def test_a_checkpoint_outlives_a_cell_that_kills_the_session(self, sandbox: Sandbox) -> None:
        session = await sandbox.session(recover=False)
        await session.run_cell("x = 5")
        await session.checkpoint("safe")
        assert not (await session.run_cell("import os\nos._exit(1)")).alive
        with pytest.raises(SessionLostError):
            await session.fork()
        assert _names(session) == ("safe",)
        async with await session.fork("safe") as fork:
            assert (await fork.run_cell("x")).result == "5"
        await session.drop_checkpoint("safe")
        assert _names(session) == ()

    async def test_a_closed_session_has_no_checkpoints(self, session: Session) -> None:
        await session.checkpoint("a")
        await session.close()
        assert session.checkpoints == ()
        with pytest.raises(UnknownNameError):
            await session.fork("a")
        with pytest.raises(SessionLostError):
            await session.checkpoint("b")
        with pytest.raises(SessionLostError):
            await session.fork(n=2)


def _names(session: Session) -> tuple[str, ...]:
    """Return the checkpoints. (A type checker takes the attribute for what it was before.)"""
    return session.checkpoints
