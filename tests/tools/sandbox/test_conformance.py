"""What every sandbox must do, whoever made it: the same tests for each implementation and isolation level.

To test an implementation of your own, add it to `MAKERS`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from abuse.scene import Scene, marked

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox import ProcessSandbox
from toolgym.tools.sandbox.base import ExecutionStatus, Limits, Sandbox, Session
from toolgym.tools.sandbox.local import LocalSandbox, probe

pytestmark = pytest.mark.asyncio(loop_scope="module")

CAP = 16 * 1024
LIMITS = Limits(
    memory_mb=200, processes=24, file_mb=8, disk_mb=24, inodes=500, open_files=64, output_bytes=CAP, cpu_seconds=4
)


def usable(level: str) -> bool:
    """Whether the level can be had with this interpreter; `uid` needs one that other users can enter."""
    try:
        LocalSandbox(level=level)
    except SandboxError as error:
        warnings.warn(f"not tested here: {error}", stacklevel=1)
        return False
    return True


LEVELS: list[str] = [level for level in probe()["levels"] if usable(level)]  # type: ignore[attr-defined]
MAKERS: dict[str, Callable[..., Sandbox]] = {"process": lambda **_: ProcessSandbox(max_output_bytes=CAP)}
for _level in LEVELS:
    MAKERS[_level] = lambda level=_level, **rest: LocalSandbox(
        **{"level": level, "limits": LIMITS, "preload": ("numpy",), **rest}  # type: ignore[arg-type]
    )
ISOLATED = [name for name in MAKERS if name != "process"]
FORKING = [name for name in ISOLATED if name != "landlock"]
"""Where programs may start processes."""

TIMEOUT, OK, ERROR = ExecutionStatus.TIMEOUT, ExecutionStatus.OK, ExecutionStatus.ERROR


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=MAKERS)
async def sandbox(request):
    async with MAKERS[request.param]() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=ISOLATED)
async def isolated(request):
    async with MAKERS[request.param]() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=FORKING)
async def forking(request):
    async with MAKERS[request.param]() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def branching():
    """A sandbox whose sessions can be forked: that takes namespaces."""
    if "namespaces" not in MAKERS:
        pytest.skip("needs the level 'namespaces'")
    async with MAKERS["namespaces"]() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def session(isolated):
    async with await isolated.session() as made:
        yield made


async def gone(mark: str, seconds: float = 5.0) -> bool:
    """Whether no process of that name is left."""
    deadline = time.monotonic() + seconds
    while marked(mark) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return not marked(mark)


async def seen(mark: str, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not marked(mark) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return bool(marked(mark))


def named(mark: str) -> str:
    """A line of code that gives the process a name."""
    return f"import ctypes; ctypes.CDLL(None).prctl(15, {mark.encode()!r}, 0, 0, 0)\n"


# ---------------------------------------------------------------------- one run


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
    for name in ISOLATED[:1]:
        async with MAKERS[name](max_running=1) as narrow:
            first = asyncio.create_task(narrow.run("import time\ntime.sleep(1)\nprint(1)"))
            await asyncio.sleep(0.3)
            second = asyncio.create_task(narrow.run("print(2)"))
            await asyncio.sleep(0.1)
            second.cancel()
            assert (await first).stdout == "1\n"
            assert (await asyncio.wait_for(narrow.run("print(3)"), 5)).stdout == "3\n"


async def test_waiting_for_a_turn_is_not_on_the_programs_clock():
    for name in ISOLATED[:1]:
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


# ---------------------------------------------------------------------- limits


async def test_memory_is_its_own_status(isolated):
    result = await isolated.run("print('begun')\nkept = [b'x' * (20 << 20) for _ in range(50)]", timeout=20)
    assert result.status is ExecutionStatus.MEMORY_LIMIT
    assert result.stdout == "begun\n"


async def test_memory_of_one_call(isolated):
    code = "kept = b'x' * (120 << 20)\nprint(len(kept))"
    assert (await isolated.run(code, timeout=20)).ok
    assert (await isolated.run(code, memory_mb=64, timeout=20)).status is ExecutionStatus.MEMORY_LIMIT


async def test_a_program_may_live_with_too_little_memory(isolated):
    code = "try:\n    x = bytearray(4 << 30)\nexcept MemoryError:\n    print('less then')"
    result = await isolated.run(code, timeout=20)
    assert (result.status, result.stdout) == (OK, "less then\n")


async def test_memory_of_children_counts_too(forking):
    code = (
        "import os, time\nfor n in range(6):\n    if os.fork() == 0:\n        kept = b'x' * (90 << 20)\n"
        "        time.sleep(30)\n        os._exit(0)\ntime.sleep(30)"
    )
    began = time.monotonic()
    result = await forking.run(code, timeout=20)
    assert result.status is ExecutionStatus.MEMORY_LIMIT, result
    assert time.monotonic() - began < 10


async def test_processor_time_is_its_own_status(isolated):
    result = await isolated.run("print('begun')\nwhile True: pass", timeout=60)
    assert result.status is ExecutionStatus.CPU_LIMIT
    assert result.stdout == "begun\n"
    assert result.duration < 30


async def test_the_size_of_a_file_is_its_own_status(isolated):
    code = "print('begun')\nwith open('big', 'wb') as file:\n    for n in range(20): file.write(b'x' * (1 << 20))"
    result = await isolated.run(code)
    assert result.status is ExecutionStatus.FILE_LIMIT
    assert result.stdout == "begun\n"


async def test_the_disk_is_limited():
    if "namespaces" not in MAKERS:
        pytest.skip("needs the level 'namespaces'")
    async with MAKERS["namespaces"]() as made:
        code = "for n in range(20): open(str(n), 'wb').write(b'x' * (4 << 20))"
        result = await made.run(code)
        assert result.status is ExecutionStatus.DISK_LIMIT
        assert "No space left on device" in result.stderr
        result = await made.run("for n in range(2000): open(str(n), 'wb').close()")
        assert result.status is ExecutionStatus.DISK_LIMIT
        assert "No space left on device" in result.stderr


async def test_processes_and_descriptors_are_limited(forking):
    result = await forking.run("import os, time\nfor n in range(200):\n    if not os.fork(): time.sleep(9)")
    assert result.status is ERROR
    assert "BlockingIOError" in result.stderr
    result = await forking.run("kept = [open('/dev/null') for n in range(300)]")
    assert "Too many open files" in result.stderr


async def test_the_isolation_is_told(isolated):
    await isolated.run("1")
    assert isolated.isolation.level in LEVELS
    assert isolated.isolation.seccomp
    assert isolated.isolation.network == "off"


async def test_a_minimum_can_be_demanded():
    with pytest.raises(ConfigError, match="namespaces"):
        LocalSandbox(require="namspaces")
    async with LocalSandbox(require="landlock", preload=()) as made:
        assert (await made.run("print(1)")).ok
        assert made.isolation.level == LEVELS[0]


@pytest.mark.parametrize("maker", ISOLATED)
async def test_a_template_that_dies_loses_no_call(maker):
    async with MAKERS[maker]() as made:
        await made.run("1")
        calls = [asyncio.create_task(made.run(f"import time\ntime.sleep(0.3)\nprint({n})")) for n in range(8)]
        await asyncio.sleep(0.1)
        for pid in made.template_ids:
            os.kill(pid, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*calls), 60)
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(8)]


# ---------------------------------------------------------------------- sessions


async def test_a_process_sandbox_has_no_sessions():
    async with ProcessSandbox() as made:
        with pytest.raises(SandboxError, match="sessions"):
            await made.session()


async def test_state_goes_from_cell_to_cell(session):
    assert (await session.run_cell("import math\nx = 20\ndef f(n): return n + x")).status is OK
    result = await session.run_cell("y = f(22)\nprint('said')\ny, math.floor(2.5)")
    assert (result.status, result.stdout, result.result) == (OK, "said\n", "(42, 2)")
    assert result.alive
    assert result.error is None


@pytest.mark.parametrize(
    ("code", "echo"),
    [
        ("1 + 1", "2"),
        ("1 + 1;", None),
        ("x = 3", None),
        ("None", None),
        ("'a'", "'a'"),
        ("", None),
        ("# only this", None),
    ],
)
async def test_the_last_expression_is_echoed_as_in_jupyter(session, code, echo):
    assert (await session.run_cell(code)).result == echo


async def test_top_level_await(session):
    result = await session.run_cell("import asyncio\nawait asyncio.sleep(0.01, 42)")
    assert result.result == "42"


async def test_an_error_in_a_cell_keeps_the_state(session):
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


async def test_a_syntax_error_in_a_cell(session):
    result = await session.run_cell("def f(:")
    assert result.status is ERROR
    assert result.error is not None
    assert result.error.name == "SyntaxError"
    assert result.alive


async def test_leaving_the_interpreter_does_not_end_the_session(session):
    assert (await session.run_cell("raise SystemExit(3)")).status is ERROR
    assert (await session.run_cell("1")).result == "1"


async def test_rich_display(session):
    result = await session.run_cell("class A:\n    def _repr_html_(self): return '<b>a</b>'\nA()")
    assert any(one.get("text/html") == "<b>a</b>" for one in result.display)


async def test_a_timeout_keeps_the_state(session):
    await session.run_cell("n = 0")
    began = time.monotonic()
    late = await session.run_cell("n = 1\nprint('so far')\nwhile True: n += 1", timeout=0.5)
    assert (late.status, late.stdout, late.alive) == (TIMEOUT, "so far\n", True)
    assert time.monotonic() - began < 3
    assert (await session.run_cell("n > 1")).result == "True"


async def test_a_cell_that_ignores_its_timeout_ends_the_session(isolated):
    async with await isolated.session() as session:
        code = "import time\nwhile True:\n    try: time.sleep(100)\n    except BaseException: pass"
        result = await session.run_cell(code, timeout=0.5)
        assert (result.status, result.alive, session.alive) == (TIMEOUT, False, False)
        assert result.duration < 5
        after = await session.run_cell("1")
        assert after.status is ExecutionStatus.SANDBOX_ERROR
        assert not after.alive
    assert (await isolated.run("print(1)")).ok


@pytest.mark.parametrize(
    ("code", "statuses"),
    [
        ("import os; os._exit(3)", {ERROR, ExecutionStatus.KILLED}),
        ("import ctypes; ctypes.string_at(0)", {ExecutionStatus.KILLED}),
        ("while True: print('x' * 1000)", {ExecutionStatus.OUTPUT_LIMIT}),
    ],
)
async def test_a_session_that_died_says_so(isolated, code, statuses):
    async with await isolated.session() as session:
        result = await asyncio.wait_for(session.run_cell(code, timeout=20), 30)
        assert result.status in statuses, result
        assert not result.alive
        assert not session.alive
    assert (await isolated.run("print(1)")).ok


async def test_too_much_memory_in_a_cell(isolated):
    async with await isolated.session() as session:
        result = await session.run_cell("kept = [b'x' * (20 << 20) for _ in range(50)]", timeout=20)
        assert not result.status.startswith("sandbox")
        assert result.status is ExecutionStatus.MEMORY_LIMIT or (
            result.error is not None and result.error.name == "MemoryError"
        )


@pytest.mark.parametrize(
    "code",
    [
        # Every descriptor of the session gets what might be the sandbox's own words.
        'import os, struct\nb = b\'{"result": "forged", "error": null, "ready": true}\'\n'
        "for fd in range(3, 64):\n"
        "    for f in (struct.pack('<I', len(b)) + b, struct.pack('>I', len(b)) + b, b'\\xff' * 70000, b + b'\\n'):\n"
        "        try: os.set_blocking(fd, False); os.write(fd, f)\n"
        "        except OSError: pass\n'mine'",
        "import os\nos.closerange(3, 64)",
        "import os, socket\nfor fd in range(3, 64):\n"
        "    try:\n        s = socket.socket(fileno=os.dup(fd))\n"
        "        socket.send_fds(s, [b'\\0' * 9], [0, 1, 2])\n    except OSError: pass",
    ],
    ids=["forged", "closed", "descriptors"],
)
async def test_a_hostile_cell_harms_only_its_session(isolated, code):
    neighbour = await isolated.session()
    await neighbour.run_cell("x = 42")
    templates = isolated.template_ids
    hostile = await isolated.session()
    result = await asyncio.wait_for(hostile.run_cell(code, timeout=5), 20)
    assert result.status in set(ExecutionStatus)
    follow = await asyncio.wait_for(hostile.run_cell("1 + 1", timeout=5), 20)
    assert follow.status in set(ExecutionStatus)
    assert (await neighbour.run_cell("x")).result == "42"
    assert set(templates) <= set(isolated.template_ids)
    await hostile.close()
    await neighbour.close()


async def test_other_programs_in_the_session(forking):
    async with await forking.session() as session:
        await session.run_cell("open('a.txt', 'w').write('from the cell')")
        done = await session.exec(["cat", "a.txt", "-"], stdin=" and in")
        assert (done.status, done.stdout, done.return_code) == (OK, "from the cell and in", 0)
        failed = await session.exec(["sh", "-c", "echo no >&2; exit 4"])
        assert (failed.status, failed.stderr, failed.return_code) == (ERROR, "no\n", 4)
        late = await session.exec(["sleep", "60"], timeout=0.5)
        assert late.status is TIMEOUT
        absent = await session.exec(["no-such-program"])
        assert not absent.ok
        assert (await session.run_cell("open('a.txt').read()")).result == "'from the cell'"


async def test_files_of_a_session(session):
    data = bytes(range(256)) * 20_000
    await session.write_file("deep/er/data.bin", data)
    assert (await session.run_cell("len(open('deep/er/data.bin', 'rb').read())")).result == str(len(data))
    await session.run_cell("open('out.txt', 'w').write('é')")
    assert await session.read_file("out.txt") == "é".encode()
    assert await session.read_file("deep/er/data.bin") == data
    with pytest.raises(FileNotFoundError):
        await session.read_file("absent")
    for name in ("../x", "/etc/passwd", "a/../../b"):
        with pytest.raises(ConfigError):
            await session.read_file(name)
        with pytest.raises(ConfigError):
            await session.write_file(name, b"")


async def test_sessions_do_not_see_each_other(isolated):
    first, second = await isolated.session(), await isolated.session()
    assert first.id != second.id
    await first.run_cell("x = 1\nopen('mine.txt', 'w').write('x')\nopen('/tmp/mine.txt', 'w').write('x')")
    result = await second.run_cell("import os\n'x' in globals(), os.path.exists('mine.txt')")
    assert result.result == "(False, False)"
    for session in (first, second):
        await session.close()


async def test_a_second_call_waits_for_the_first(session):
    results = await asyncio.gather(*(session.run_cell(f"import time\ntime.sleep(0.05)\nprint({n})") for n in range(5)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(5)]


async def test_output_of_a_cell_is_capped(session):
    result = await session.run_cell("print('begin', 'y' * 60000, 'end')")
    assert result.stdout_truncated
    assert result.stdout.startswith("begin")
    assert result.stdout.endswith("end\n")
    assert (await session.run_cell("print(1)")).stdout == "1\n"


async def test_cancelling_a_cell(isolated):
    mark = Scene().mark
    session = await isolated.session()
    call = asyncio.create_task(session.run_cell(named(mark) + "import time\ntime.sleep(60)", timeout=60))
    assert await seen(mark)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    # Either the cell was interrupted and the session lives, or both are gone; nothing goes on unseen.
    after = await asyncio.wait_for(session.run_cell("1 + 1", timeout=5), 20)
    assert after.result == "2" or not after.alive
    await session.close()
    assert await gone(mark)


async def test_a_closed_session(isolated):
    mark = Scene().mark
    session = await isolated.session()
    await session.run_cell(named(mark))
    assert marked(mark)
    await session.close()
    await session.close()
    assert not session.alive
    assert await gone(mark)
    assert (await session.run_cell("1")).status is ExecutionStatus.SANDBOX_ERROR


async def test_children_of_a_session_die_with_it(forking):
    mark = Scene().mark
    session = await forking.session()
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
    code += "    if os.fork() == 0:\n        time.sleep(60)\n    os._exit(0)"
    await session.run_cell(named(mark) + code)
    assert marked(mark)
    await session.close()
    assert await gone(mark)


# ---------------------------------------------------------------------- forks


async def forked(session: Session) -> Session:
    return await asyncio.wait_for(session.fork(), 20)


async def test_a_fork_takes_the_state_along(branching):
    async with await branching.session() as session:
        await session.run_cell("import math, os\nx = [1, 2]\ndef f(): return len(x)\nopen('a.txt', 'w').write('one')")
        await session.run_cell(
            "os.mkdir('d')\nos.chdir('d')\nopen('b.txt', 'w').write('two')\nh = open('b.txt')\nh.read(1)"
        )
        async with await forked(session) as other:
            assert other.id != session.id
            result = await other.run_cell(
                "f(), math.floor(1.5), open('b.txt').read(), open('../a.txt').read(), h.read()"
            )
            assert result.result == "(2, 1, 'two', 'one', 'wo')"
            assert (await other.run_cell("os.path.basename(os.getcwd())")).result == "'d'"


async def test_a_fork_and_its_origin_go_on_independently(branching):
    async with await branching.session() as session:
        await session.run_cell("x = [1]\nopen('a.txt', 'w').write('before')\nimport random")
        other = await forked(session)
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
        drawn = [(await one.run_cell("random.random()")).result for one in (session, other)]
        assert drawn[0] != drawn[1], "a fork must not repeat its origin's randomness"
        await session.run_cell("import os; os._exit(0)")
        assert (await other.run_cell("x")).result == "[1, 3]"
        await other.close()


async def test_a_tree_of_forks(branching):
    async with await branching.session() as root:
        await root.run_cell("path = []")
        level = [root]
        for depth in range(3):
            grown = []
            for parent in level:
                for side in "ab":
                    child = await forked(parent)
                    await child.run_cell(f"path.append({side + str(depth)!r})")
                    grown.append(child)
            level = grown
        found = [(await leaf.run_cell("'-'.join(path)")).result for leaf in level]
        assert len(set(found)) == 8
        assert "'b0-a1-b2'" in found
        assert (await root.run_cell("path")).result == "[]"
        for leaf in level:
            await leaf.close()


@pytest.mark.parametrize("maker", [name for name in ISOLATED if name != "namespaces"])
async def test_where_sessions_cannot_be_forked_they_say_so_and_go_on(maker):
    async with MAKERS[maker]() as made, await made.session() as session:
        await session.run_cell("x = 42")
        with pytest.raises(SandboxError, match="fork"):
            await session.fork()
        assert (await session.run_cell("x")).result == "42"


async def test_a_fork_of_something_large_is_quick(branching):
    async with await branching.session(memory_mb=400) as session:
        await session.run_cell("data = bytearray(b'x' * (100 << 20))")
        began = time.monotonic()
        async with await forked(session) as other:
            assert time.monotonic() - began < 1
            assert (await other.run_cell("len(data) >> 20")).result == "100"


async def test_a_dead_session_cannot_be_forked(isolated):
    session = await isolated.session()
    await session.close()
    with pytest.raises(SandboxError):
        await session.fork()


async def test_many_sessions_at_once(isolated):
    sessions = await asyncio.gather(*(isolated.session() for _ in range(20)))
    await asyncio.gather(*(one.run_cell(f"n = {k}") for k, one in enumerate(sessions)))
    results = await asyncio.gather(*(one.run_cell("n") for one in sessions))
    assert [result.result for result in results] == [str(k) for k in range(20)]
    await asyncio.gather(*(one.close() for one in sessions))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_an_idle_session_is_small():
    """Proportional memory: what is shared with the template counts once."""
    if "namespaces" not in MAKERS or os.geteuid() != 0:
        pytest.skip("needs root, to read the memory of others")
    from psutil import Process

    def has_own_memory(process):
        """The first process of a namespace has none: it runs in that of the template, its parent."""
        number = {"x86_64": 312, "aarch64": 272}[platform.machine()]  # kcmp, KCMP_VM
        return ctypes.CDLL(None).syscall(number, process.pid, process.ppid(), 1, 0, 0) != 0

    async with MAKERS["namespaces"]() as made, await made.session() as first:
        await first.run_cell("1")
        templates = [Process(pid) for pid in made.template_ids]

        def proportional() -> float:
            family = {child for one in templates for child in [one, *one.children(recursive=True)]}
            return sum(process.memory_full_info().pss for process in family if has_own_memory(process)) / 2**20

        before = proportional()
        sessions = [await made.session() for _ in range(20)]
        for one in sessions:
            await one.run_cell("x = 1")
        each = (proportional() - before) / 20
        for one in sessions:
            await one.close()
    assert each < 6, f"{each:.1f} MB for each idle session"
