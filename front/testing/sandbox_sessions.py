"""What a session must do, in every sandbox that has some."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from toolgym.testing.sandbox_base import BAD_SESSION_OPTIONS, ERROR, LONG, OK, TIMEOUT, SandboxTests
from toolgym.testing.suite import needs
from toolgym.tools.errors import (
    ConfigError,
    SandboxClosedError,
    SandboxError,
    SandboxUnsupportedError,
    SessionLostError,
)
from toolgym.tools.sandbox.base import ExecutionStatus, Sandbox

import pytest  # isort: skip  after `suite`, which says what to install where it is absent


CELL_DEADLINES = (0.5, 3.0)
"""As `DEADLINES`, for a session, whose interpreter runs already. (Sandboxes may limit the time of a processor.)"""


class SessionSuite(SandboxTests):
    """What `Sandbox.session` must do. Needs the fixture `sandbox`."""

    @needs("sessions")
    async def test_state_goes_from_cell_to_cell(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            assert (await session.run_cell("import math\nx = 20\ndef f(n): return n + x")).status is OK
            result = await session.run_cell("y = f(22)\nprint('said')\ny, math.floor(2.5)")
            assert (result.status, result.stdout, result.result) == (OK, "said\n", "(42, 2)")
            assert result.alive
            assert result.error is None

    @needs("sessions")
    async def test_the_last_expression_is_echoed(self, sandbox: Sandbox) -> None:
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
        async with await sandbox.session() as session:
            assert {code: (await session.run_cell(code)).result for code in cells} == cells

    @needs("sessions")
    async def test_top_level_await(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            result = await session.run_cell("import asyncio\nawait asyncio.sleep(0.01, 42)")
            assert result.result == "42"

    @needs("sessions")
    async def test_an_error_in_a_cell_keeps_the_state(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
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

    @needs("sessions")
    async def test_a_syntax_error_in_a_cell(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            result = await session.run_cell("def f(:")
            assert result.status is ERROR
            assert result.error is not None
            assert result.error.name == "SyntaxError"
            assert result.alive

    @needs("sessions")
    async def test_leaving_the_interpreter_does_not_end_the_session(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            assert (await session.run_cell("raise SystemExit(3)")).status is ERROR
            assert (await session.run_cell("1")).result == "1"

    @needs("sessions")
    async def test_a_timeout_keeps_the_state(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
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

    @needs("sessions")
    async def test_a_cell_that_ignores_its_timeout_ends_the_session(self, sandbox: Sandbox) -> None:
        code = "import time\nwhile True:\n    try: time.sleep(600)\n    except BaseException: pass"
        for seconds in CELL_DEADLINES:
            async with await sandbox.session() as session:
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
        ],
    )
    @needs("sessions")
    async def test_a_session_that_died_says_so(
        self, sandbox: Sandbox, code: str, statuses: set[ExecutionStatus]
    ) -> None:
        await self._dies(sandbox, code, statuses)

    @needs("sessions", "output_bytes")
    async def test_a_flood_in_a_cell_ends_the_session(self, sandbox: Sandbox) -> None:
        await self._dies(sandbox, "while True: print('x' * 1000)", {ExecutionStatus.OUTPUT_LIMIT})

    async def _dies(self, sandbox: Sandbox, code: str, statuses: set[ExecutionStatus]) -> None:
        async with await sandbox.session() as session:
            result = await asyncio.wait_for(session.run_cell(code, timeout=LONG), 2 * LONG)
            assert result.status in statuses, result
            assert not result.alive
            assert not session.alive
        assert (await sandbox.run("print(1)")).ok

    @needs("sessions", "programs")
    async def test_other_programs_in_the_session(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
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

    @needs("sessions")
    async def test_files_of_a_session(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
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

    @needs("sessions")
    async def test_sessions_take_files(self, sandbox: Sandbox) -> None:
        wrong: Any
        for wrong, said in BAD_SESSION_OPTIONS:
            with pytest.raises(ConfigError, match=said):
                await sandbox.session(**wrong)
        async with await sandbox.session(files={"a/b": b"hello"}, hint="1") as session:
            assert (await session.run_cell("open('a/b').read()")).result == "'hello'"

    @needs("sessions", "variables")
    async def test_sessions_take_variables(self, sandbox: Sandbox) -> None:
        async with await sandbox.session(env={"WORD": "x"}) as session:
            assert (await session.run_cell("import os\nos.environ['WORD']")).result == "'x'"

    @needs("sessions")
    async def test_sessions_do_not_see_each_other(self, sandbox: Sandbox) -> None:
        first, second = await sandbox.session(), await sandbox.session()
        assert first.id != second.id
        await first.run_cell("x = 1\nopen('mine.txt', 'w').write('x')\nopen('/tmp/mine.txt', 'w').write('x')")
        result = await second.run_cell("import os\n'x' in globals(), os.path.exists('mine.txt')")
        assert result.result == "(False, False)"
        for session in (first, second):
            await session.close()

    @needs("sessions")
    async def test_a_second_call_waits_for_the_first(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            results = await asyncio.gather(
                *(session.run_cell(f"import time\ntime.sleep(0.05)\nprint({n})") for n in range(5))
            )
            assert [result.stdout for result in results] == [f"{n}\n" for n in range(5)]

    @needs("sessions", "output_bytes")
    async def test_output_of_a_cell_is_capped(self, sandbox: Sandbox) -> None:
        assert self.output_bytes is not None
        async with await sandbox.session() as session:
            result = await session.run_cell(f"print('begin', 'y' * {4 * self.output_bytes}, 'end')")
            assert result.stdout_truncated
            assert result.stdout.startswith("begin")
            assert result.stdout.endswith("end\n")
            assert (await session.run_cell("print(1)")).stdout == "1\n"

    @needs("sessions")
    async def test_a_cancelled_cell_ends_at_once(self, sandbox: Sandbox) -> None:
        async with await sandbox.session() as session:
            call = asyncio.create_task(session.run_cell("import time\ntime.sleep(600)", timeout=600))
            await asyncio.sleep(0.3)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(call, LONG)
            # Either the cell was interrupted and the session lives, or both are gone; nothing goes on unseen.
            after = await asyncio.wait_for(session.run_cell("1 + 1", timeout=30), LONG)
            assert after.result == "2" or not after.alive

    @needs("sessions")
    async def test_a_closed_session_says_so(self, sandbox: Sandbox) -> None:
        session = await sandbox.session()
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

    @needs("sessions")
    async def test_many_sessions_at_once(self, sandbox: Sandbox) -> None:
        sessions = await asyncio.gather(*(sandbox.session() for _ in range(20)))
        await asyncio.gather(*(one.run_cell(f"n = {k}") for k, one in enumerate(sessions)))
        results = await asyncio.gather(*(one.run_cell("n") for one in sessions))
        assert [result.result for result in results] == [str(k) for k in range(20)]
        await asyncio.gather(*(one.close() for one in sessions))

    @needs("sessions")
    async def test_a_closed_sandbox_opens_no_session(self, make_sandbox: Callable[[], Sandbox]) -> None:
        made = make_sandbox()
        await made.run("1")
        await made.close()
        with pytest.raises(SandboxClosedError):
            await made.session()

    @needs("sessions")
    async def test_where_sessions_cannot_be_forked_they_say_so_and_go_on(self, sandbox: Sandbox) -> None:
        if self.forks:
            pytest.skip(f"{type(self).__name__}.forks is True")
        async with await sandbox.session() as session:
            await session.run_cell("x = 42")
            with pytest.raises(SandboxUnsupportedError, match="fork"):
                await session.fork()
            with pytest.raises(SandboxUnsupportedError):
                await session.fork(n=2)
            with pytest.raises(SandboxUnsupportedError):
                await session.checkpoint("a")
            assert session.checkpoints == ()
            assert (await session.run_cell("x")).result == "42"
