"""One run, from a clean start: what comes back, and what a caller can ask for."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time

import pytest
from abuse.scene import Scene
from sandbox_makers import CAP, ERROR, LEVELS, MAKERS, OK, TIMEOUT, gone, named, seen

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox.base import ExecutionStatus

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_output_code_and_time(sandbox):
    result = await sandbox.run("import sys, time\nprint('out')\nprint('err', file=sys.stderr)\ntime.sleep(0.2)")
    assert (result.status, result.stdout, result.stderr, result.return_code) == (OK, "out\n", "err\n", 0)
    assert result.ok
    assert 0.2 <= result.duration < 10
    assert not result.stdout_truncated
    assert dict(result.files) == {}


async def test_an_exception_is_an_error_with_its_traceback(sandbox):
    result = await sandbox.run("def f():\n    return 1 / 0\nf()")
    assert (result.status, result.return_code) == (ERROR, 1)
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "    return 1 / 0\n" in result.stderr
    assert result.stderr.count("File ") == 2


async def test_exit_codes(sandbox):
    assert (await sandbox.run("raise SystemExit(7)")).return_code == 7
    assert (await sandbox.run("raise SystemExit(0)")).status is OK
    assert (await sandbox.run("import os; os._exit(9)")).return_code == 9


async def test_a_crash_is_told_from_an_error(sandbox):
    crashed = await sandbox.run("import ctypes; print(1, flush=True); ctypes.string_at(0)")
    assert (crashed.status, crashed.return_code) == (ExecutionStatus.KILLED, -signal.SIGSEGV)
    assert crashed.stdout == "1\n"


async def test_the_deadline_keeps_what_was_printed(sandbox):
    began = time.monotonic()
    result = await sandbox.run("import time\nprint('before')\ntime.sleep(60)", timeout=1.0)
    assert (result.status, result.return_code, result.stdout) == (TIMEOUT, None, "before\n")
    assert 1.0 <= time.monotonic() - began < 5
    assert 1.0 <= result.duration < 5


async def test_every_call_is_a_clean_start(sandbox):
    code = "import os, sys\nprint(sorted(os.listdir('.')) == ['main.py'] or os.listdir('.'))\n"
    code += "print(globals().get('x'), os.environ.get('X'))\nx = 1\nos.environ['X'] = '1'\nopen('left', 'w').close()"
    first = await sandbox.run(code)
    again = await sandbox.run(code)
    assert first.ok
    assert first.stdout == again.stdout
    assert first.stdout.endswith("None None\n")


async def test_long_output_loses_its_middle(sandbox):
    result = await sandbox.run("print('begin', 'y' * 60000, 'end')")
    assert result.status is OK
    assert result.stdout_truncated
    assert not result.stderr_truncated
    assert result.stdout.startswith("begin y")
    assert result.stdout.endswith("y end\n")
    assert len(result.stdout) < CAP + 200


async def test_a_flood_is_its_own_status(sandbox):
    result = await sandbox.run("while True: print('x' * 1000)", timeout=60)
    assert result.status is ExecutionStatus.OUTPUT_LIMIT
    assert result.stdout_truncated
    assert len(result.stdout) < CAP + 200


async def test_standard_input(sandbox):
    assert (await sandbox.run("print(input()[::-1])", stdin="abc\n")).stdout == "cba\n"
    assert (await sandbox.run("import sys; print(repr(sys.stdin.read()))")).stdout == "''\n"
    assert (await sandbox.run("print(len(open(0).read()))", stdin="é" * 300_000)).stdout == "300000\n"
    assert (await sandbox.run("print(1)", stdin="x" * 3_000_000)).status is OK


async def test_environment_variables(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    result = await sandbox.run("import os; print(os.environ['GIVEN'], sorted(os.environ))", env={"GIVEN": "é=1"})
    assert result.stdout.startswith("é=1 ")
    assert "SECRET_TOKEN" not in result.stdout


async def test_files_go_in_and_come_back(sandbox):
    files = {"a.txt": b"one", "deep/er/b.bin": bytes(range(256))}
    code = "print(open('a.txt').read(), len(open('deep/er/b.bin', 'rb').read()))\nimport os\nos.mkdir('d')\n"
    code += "open('d/out.bin', 'wb').write(b'\\xff\\x00')\nraise SystemExit(3)"
    result = await sandbox.run(code, files=files, fetch_files=["d/out.bin", "deep/er/b.bin", "absent", "d"])
    assert result.stdout == "one 256\n"
    assert result.return_code == 3
    assert dict(result.files) == {"d/out.bin": b"\xff\x00", "deep/er/b.bin": bytes(range(256))}


async def test_files_come_back_after_a_timeout(sandbox):
    code = "open('log', 'w').write('so far')\nimport time\ntime.sleep(60)"
    result = await sandbox.run(code, timeout=1, fetch_files=["log"])
    assert result.status is TIMEOUT
    assert dict(result.files) == {"log": b"so far"}


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "", ".", "nul\0", "x/.."])
async def test_names_that_lead_outside_are_the_callers_mistake(sandbox, name):
    with pytest.raises(ConfigError):
        await sandbox.run("1", files={name: b""})
    with pytest.raises(ConfigError):
        await sandbox.run("1", fetch_files=[name])


async def test_links_do_not_lead_outside(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    code = f"import os\nos.symlink({str(secret)!r}, 'link')\nos.symlink({str(tmp_path)!r}, 'folder')\n"
    code += "os.symlink('/etc/passwd', 'passwd')\nos.mkfifo('fifo')\nopen('good', 'w').write('good')"
    result = await sandbox.run(code, fetch_files=["link", "folder/secret", "passwd", "fifo", "good"])
    assert result.ok, result.stderr
    assert dict(result.files) == {"good": b"good"}


async def test_mistakes_of_the_caller(sandbox):
    with pytest.raises(ConfigError, match="python"):
        await sandbox.run("1", language="pyton")
    for timeout in (0, -1):
        with pytest.raises(ConfigError, match="positive"):
            await sandbox.run("1", timeout=timeout)
    with pytest.raises(ConfigError):
        await sandbox.run("1", memory_mb=0)


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
async def test_odd_programs_give_results(sandbox, code, status):
    result = await sandbox.run(code)
    assert result.status is status
    (result.stdout + result.stderr).encode()


async def test_bash(sandbox):
    assert (await sandbox.run("echo $((6*7)); exit 3", language="bash")).stdout == "42\n"
    assert (await sandbox.run("exit 3", language="bash")).return_code == 3
    assert (await sandbox.run("while :; do :; done", language="bash", timeout=0.5)).status is TIMEOUT


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
async def test_a_compiled_language(forking):
    good = await forking.run('#include <stdio.h>\nint main() { puts("hello"); return 4; }', language="c")
    assert (good.status, good.stdout, good.return_code) == (ERROR, "hello\n", 4)
    assert good.compile is not None
    assert good.compile.ok
    bad = await forking.run("int main() { return x; }", language="c")
    assert bad.status is ExecutionStatus.COMPILE_ERROR
    assert "x" in bad.stderr


async def test_sixty_four_at_once(sandbox):
    results = await asyncio.gather(
        *(sandbox.run(f"import time\ntime.sleep(0.05)\nprint({n})", timeout=20) for n in range(64))
    )
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(64)]


async def test_one_that_hangs_does_not_hold_up_the_others(sandbox):
    hanging = asyncio.create_task(sandbox.run("while True: pass", timeout=3))
    await asyncio.sleep(0.2)
    quick = await sandbox.run("print(1)", timeout=3)
    assert quick.stdout == "1\n"
    assert not hanging.done()
    assert (await hanging).status in (TIMEOUT, ExecutionStatus.CPU_LIMIT)


async def test_cancelling_a_call_kills_what_it_ran(sandbox):
    mark = Scene().mark
    call = asyncio.create_task(sandbox.run(named(mark) + "import time\ntime.sleep(60)", timeout=60))
    assert await seen(mark)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await gone(mark)
    assert (await sandbox.run("print(1)")).stdout == "1\n"


async def test_cancelling_a_call_that_waits_for_its_turn():
    for name in LEVELS[:1]:
        async with MAKERS[name](max_running=1) as narrow:
            first = asyncio.create_task(narrow.run("import time\ntime.sleep(1)\nprint(1)"))
            await asyncio.sleep(0.3)
            second = asyncio.create_task(narrow.run("print(2)"))
            await asyncio.sleep(0.1)
            second.cancel()
            assert (await first).stdout == "1\n"
            assert (await asyncio.wait_for(narrow.run("print(3)"), 5)).stdout == "3\n"


async def test_waiting_for_a_turn_is_not_on_the_programs_clock():
    for name in LEVELS[:1]:
        async with MAKERS[name](max_running=1) as narrow:
            code = "import time\ntime.sleep(0.7)\nprint(1)"
            results = await asyncio.gather(*(narrow.run(code, timeout=1.5) for _ in range(4)))
            assert [result.status for result in results] == [OK] * 4


@pytest.mark.parametrize("maker", MAKERS)
async def test_closing_ends_what_runs(maker):
    made = MAKERS[maker]()
    mark = Scene().mark
    call = asyncio.create_task(made.run(named(mark) + "import time\ntime.sleep(60)", timeout=60))
    assert await seen(mark)
    await made.close()
    await made.close()
    assert await gone(mark)
    try:
        result = await asyncio.wait_for(call, 10)
    except SandboxError:
        return
    assert not result.ok
