"""The suite of single runs, for every sandbox; and what the suites of sandboxes share."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from toolgym.testing.suite import Suite, need, needs
from toolgym.tools.errors import (
    ConfigError,
    SandboxClosedError,
    SandboxError,
    SandboxUnsupportedError,
    UnknownNameError,
)
from toolgym.tools.sandbox.base import ExecutionStatus, Sandbox, Session

import pytest  # isort: skip  after `suite`, which says what to install where it is absent
import pytest_asyncio  # isort: skip

TIMEOUT, OK, ERROR = ExecutionStatus.TIMEOUT, ExecutionStatus.OK, ExecutionStatus.ERROR

DEADLINES = (1.0, 15.0)
"""Seconds after which a program is stopped that should have begun by then: a busy machine may need the second."""

LONG = 60.0
"""Seconds within which all comes that should come soon. What must end before its time would take ten times as long."""

BAD_RUN_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"timeout": 0}, "timeout.*positive"),
    ({"timeout": -1}, "timeout.*positive"),
    ({"timeout": float("nan")}, "timeout"),
    ({"timeout": "1"}, "timeout"),
    ({"compile_timeout": -1}, "compile_timeout"),
    ({"memory_mb": 0}, "memory_mb"),
    ({"stdin": b"x"}, "stdin must be a text"),
    ({"language": None}, "language must be a text"),
    ({"language": "pyton"}, "python"),
    ({"files": {"../x": b""}}, "inside the sandbox's folder"),
    ({"files": {"x": "text"}}, "'x' must be bytes"),
    ({"files": {"/".join(["x" * 200] * 25): b""}}, "4096 bytes in all"),
    ({"fetch_files": "x"}, "fetch_files must be a list"),
    ({"fetch_files": [1]}, "fetch_files must be a list"),
    ({"files": {"a": b"", "a/b": b""}}, "'a/b' leads through another file, 'a'"),
    ({"files": {"a/": b""}}, "must not be a folder's"),
    ({"env": {"A=B": "x"}}, "without '='"),
    ({"env": {"A": "\0"}}, "environment variable"),
]
BAD_SESSION_OPTIONS = [
    (options, text) for options, text in BAD_RUN_OPTIONS if options.keys() <= {"files", "env", "memory_mb", "hint"}
]


class SandboxTests(Suite):
    """The attributes of all parts; see `SandboxSuite`."""

    sessions: bool = True
    forks: bool = True
    programs: bool = True
    terminals: bool = True
    session_limits: bool = True
    folders: bool = True
    variables: bool = True
    output_bytes: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

        @pytest_asyncio.fixture(loop_scope=cls.loop_scope)
        async def session(self: SandboxTests, sandbox: Sandbox) -> AsyncIterator[Session]:
            need(self.sessions, f"{type(self).__name__}.sessions is {self.sessions!r}")
            async with await sandbox.session() as opened:
                yield opened

        cls.session = session  # type: ignore[attr-defined]

    @pytest.fixture
    def make_sandbox(self) -> Callable[[], Sandbox]:
        pytest.skip(f"{type(self).__name__} has no fixture make_sandbox")


async def close_all(sessions: Sequence[Session]) -> None:
    await asyncio.gather(*(session.close() for session in sessions))


class RunSuite(SandboxTests):
    """The contract of `Sandbox.run`. Needs the fixture `sandbox`."""

    async def test_output_code_and_time(self, sandbox: Sandbox) -> None:
        result = await sandbox.run("import sys, time\nprint('out')\nprint('err', file=sys.stderr)\ntime.sleep(0.2)")
        assert (result.status, result.stdout, result.stderr, result.return_code) == (OK, "out\n", "err\n", 0)
        assert result.ok
        assert 0.2 <= result.duration < 10
        assert not result.stdout_truncated
        assert dict(result.files) == {}

    async def test_an_exception_is_an_error_with_its_traceback(self, sandbox: Sandbox) -> None:
        result = await sandbox.run("def f():\n    return 1 / 0\nf()")
        assert (result.status, result.return_code) == (ERROR, 1)
        assert result.stderr.startswith("Traceback (most recent call last):\n")
        assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
        assert "    return 1 / 0\n" in result.stderr
        assert result.stderr.count("File ") == 2, "the sandbox's own frames show"

    async def test_exit_codes(self, sandbox: Sandbox) -> None:
        assert (await sandbox.run("raise SystemExit(7)")).return_code == 7
        assert (await sandbox.run("raise SystemExit(0)")).status is OK
        assert (await sandbox.run("import os; os._exit(9)")).return_code == 9

    async def test_a_crash_is_told_from_an_error(self, sandbox: Sandbox) -> None:
        crashed = await sandbox.run("import ctypes; print(1, flush=True); ctypes.string_at(0)")
        assert (crashed.status, crashed.return_code) == (ExecutionStatus.KILLED, -signal.SIGSEGV)
        assert crashed.stdout == "1\n"

    async def test_the_deadline_keeps_what_was_printed(self, sandbox: Sandbox) -> None:
        for seconds in DEADLINES:
            began = time.monotonic()
            result = await sandbox.run("import time\nprint('before')\ntime.sleep(600)", timeout=seconds)
            took = time.monotonic() - began
            if result.stdout:
                break
        assert (result.status, result.return_code, result.stdout) == (TIMEOUT, None, "before\n")
        assert seconds <= took < LONG
        assert seconds <= result.duration < LONG

    async def test_every_call_is_a_clean_start(self, sandbox: Sandbox) -> None:
        code = "import os, sys\nprint(sorted(os.listdir('.')) == ['main.py'] or os.listdir('.'))\n"
        code += (
            "print(globals().get('x'), os.environ.get('X'))\nx = 1\nos.environ['X'] = '1'\nopen('left', 'w').close()"
        )
        first = await sandbox.run(code)
        again = await sandbox.run(code)
        assert first.ok
        assert first.stdout == again.stdout
        assert first.stdout.endswith("None None\n")

    @needs("output_bytes")
    async def test_long_output_loses_its_middle(self, sandbox: Sandbox) -> None:
        assert self.output_bytes is not None
        result = await sandbox.run(f"print('begin', 'y' * {4 * self.output_bytes}, 'end')")
        assert result.status is OK
        assert result.stdout_truncated
        assert not result.stderr_truncated
        assert result.stdout.startswith("begin y")
        assert result.stdout.endswith("y end\n")
        assert len(result.stdout) < self.output_bytes + 200

    @needs("output_bytes")
    async def test_a_flood_is_its_own_status(self, sandbox: Sandbox) -> None:
        assert self.output_bytes is not None
        result = await sandbox.run("while True: print('x' * 1000)", timeout=60)
        assert result.status is ExecutionStatus.OUTPUT_LIMIT
        assert result.stdout_truncated
        assert len(result.stdout) < self.output_bytes + 200

    async def test_standard_input(self, sandbox: Sandbox) -> None:
        assert (await sandbox.run("print(input()[::-1])", stdin="abc\n")).stdout == "cba\n"
        assert (await sandbox.run("import sys; print(repr(sys.stdin.read()))")).stdout == "''\n"
        assert (await sandbox.run("print(len(open(0).read()))", stdin="é" * 300_000)).stdout == "300000\n"
        assert (await sandbox.run("print(1)", stdin="x" * 3_000_000)).status is OK

    @needs("variables")
    async def test_environment_variables(self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_TOKEN", "hunter2")
        result = await sandbox.run("import os; print(os.environ['GIVEN'], sorted(os.environ))", env={"GIVEN": "é=1"})
        assert result.stdout.startswith("é=1 ")
        assert "SECRET_TOKEN" not in result.stdout

    async def test_files_go_in_and_come_back(self, sandbox: Sandbox) -> None:
        files = {"a.txt": b"one", "deep/er/b.bin": bytes(range(256))}
        code = "print(open('a.txt').read(), len(open('deep/er/b.bin', 'rb').read()))\nimport os\nos.mkdir('d')\n"
        code += "open('d/out.bin', 'wb').write(b'\\xff\\x00')\nraise SystemExit(3)"
        result = await sandbox.run(code, files=files, fetch_files=["d/out.bin", "deep/er/b.bin", "absent", "d"])
        assert result.stdout == "one 256\n"
        assert result.return_code == 3
        assert dict(result.files) == {"d/out.bin": b"\xff\x00", "deep/er/b.bin": bytes(range(256))}
        assert "'d' is not a plain file" in result.message
        assert "absent" not in result.message

    async def test_files_come_back_after_a_timeout(self, sandbox: Sandbox) -> None:
        code = "open('log', 'w').write('so far')\nimport time\ntime.sleep(600)"
        for seconds in DEADLINES:
            result = await sandbox.run(code, timeout=seconds, fetch_files=["log"])
            if result.files.get("log"):
                break
        assert result.status is TIMEOUT
        assert dict(result.files) == {"log": b"so far"}

    @pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "", ".", "nul\0", "x/.."])
    async def test_names_that_lead_outside_are_the_callers_mistake(self, sandbox: Sandbox, name: str) -> None:
        with pytest.raises(ConfigError):
            await sandbox.run("1", files={name: b""})
        result = await sandbox.run("print(1)", fetch_files=[name])
        assert (result.stdout, dict(result.files)) == ("1\n", {})
        assert "not fetched: " in result.message

    async def test_a_file_keeps_the_name_of_the_programs_source(self, sandbox: Sandbox) -> None:
        code = "import main, sys, inspect\nprint(open('main.py').read(), main.__name__, __file__ != main.__file__)\n"
        code += "def f(): pass\nprint(inspect.getsource(f))\nf(1)"
        result = await sandbox.run(code, files={"main.py": b"print('theirs')"}, fetch_files=["main.py"])
        assert result.stdout == "theirs\nprint('theirs') main True\ndef f(): pass\n\n"
        assert "f(1)" in result.stderr
        assert dict(result.files) == {"main.py": b"print('theirs')"}

    async def test_links_do_not_lead_outside(self, sandbox: Sandbox, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("hunter2")
        code = f"import os\nos.symlink({str(secret)!r}, 'link')\nos.symlink({str(tmp_path)!r}, 'folder')\n"
        code += "os.symlink('/etc/passwd', 'passwd')\nos.mkfifo('fifo')\nopen('good', 'w').write('good')"
        result = await sandbox.run(code, fetch_files=["link", "folder/secret", "passwd", "fifo", "good"])
        assert result.ok, result.stderr
        assert dict(result.files) == {"good": b"good"}
        assert all(f"'{name}'" in result.message for name in ("link", "folder/secret", "passwd", "fifo"))

    @pytest.mark.parametrize(("options", "text"), BAD_RUN_OPTIONS)
    async def test_a_bad_option_of_a_run(self, sandbox: Sandbox, options: Any, text: str) -> None:
        with pytest.raises(ConfigError, match=text):
            await sandbox.run("1", **options)

    async def test_an_unknown_option_names_the_nearest(self, sandbox: Sandbox) -> None:
        wrong: Any = {"time_out": 3}
        with pytest.raises(UnknownNameError, match=r"run\(\) has no option 'time_out', did you mean 'timeout'\?"):
            await sandbox.run("1", **wrong)
        wrong = {"file": {}}
        with pytest.raises(UnknownNameError, match=r"session\(\) has no option 'file', did you mean 'files'\?"):
            await sandbox.session(**wrong)

    async def test_none_stands_for_the_default(self, sandbox: Sandbox) -> None:
        result = await sandbox.run("print(1)", files=None, env=None, memory_mb=None, compile_timeout=None)
        assert result.stdout == "1\n"

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("print('\\udc80')", ERROR),
            ("import sys; sys.stdout.buffer.write(b'a\\xff\\x00b')", OK),
            ("x = '\ud800'", ERROR),
            ("a\x00b", ERROR),
            ("import os; os.close(1); os.close(2)", OK),
            ("def f(:", ERROR),
            ("", OK),
        ],
    )
    async def test_odd_programs_give_results(self, sandbox: Sandbox, code: str, status: ExecutionStatus) -> None:
        result = await sandbox.run(code)
        assert result.status is status
        (result.stdout + result.stderr).encode()

    async def test_sixty_four_at_once(self, sandbox: Sandbox) -> None:
        results = await asyncio.gather(
            *(sandbox.run(f"import time\ntime.sleep(0.05)\nprint({n})", timeout=300) for n in range(64))
        )
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(64)]

    async def test_one_that_hangs_does_not_hold_up_the_others(self, sandbox: Sandbox) -> None:
        for seconds in (3, 40):  # the second time for a busy machine, where the quick one is not
            hanging = asyncio.create_task(sandbox.run("while True: pass", timeout=seconds))
            await asyncio.sleep(0.2)
            quick = await sandbox.run("print(1)", timeout=LONG)
            beside = not hanging.done()
            status = (await hanging).status
            if beside:
                break
        assert quick.stdout == "1\n"
        assert beside
        assert status in (TIMEOUT, ExecutionStatus.CPU_LIMIT)

    async def test_a_cancelled_call_ends_at_once_and_the_sandbox_goes_on(self, sandbox: Sandbox) -> None:
        call = asyncio.create_task(sandbox.run("import time\ntime.sleep(600)", timeout=600))
        await asyncio.sleep(0.3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, LONG)
        assert (await sandbox.run("print(1)")).stdout == "1\n"

    async def test_a_closed_sandbox_runs_nothing(self, make_sandbox: Callable[[], Sandbox]) -> None:
        other = make_sandbox()
        await other.run("1")
        await other.close()
        with pytest.raises(SandboxClosedError):
            await other.run("1")

    async def test_closing_ends_a_run_and_closing_twice_is_fine(self, make_sandbox: Callable[[], Sandbox]) -> None:
        other = make_sandbox()
        assert (await other.run("print(1)")).stdout == "1\n"
        call = asyncio.create_task(other.run("import time\ntime.sleep(600)", timeout=600))
        await asyncio.sleep(0.3)
        await other.close()
        await other.close()
        try:
            result = await asyncio.wait_for(call, LONG)
        except SandboxError:
            return
        assert not result.ok

    async def test_it_says_whether_it_has_sessions(self, sandbox: Sandbox) -> None:
        if self.sessions:
            assert sandbox.sessions_known is not False
            assert await sandbox.has_sessions()
            return
        assert not sandbox.sessions_known
        assert not await sandbox.has_sessions()
        with pytest.raises(SandboxUnsupportedError):
            await sandbox.session(files={"a": b""})
