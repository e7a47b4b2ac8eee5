"""`ProcessSandbox`: what a user can see of it, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox import ExecutionStatus, ProcessSandbox
from toolgym.tools.sandbox.base import ExecResult
from toolgym.tools.sandbox.local.host.resources import available_processors


@pytest.fixture
async def sandbox():
    async with ProcessSandbox(max_output_bytes=4096) as made:
        yield made
        assert made.process_ids == frozenset()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_until_dead(pid: int, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


async def until_the_deadline(sandbox, code):
    """What came of a program that prints, and then runs beyond its deadline. A busy machine takes a while to begin."""
    for seconds in (1.5, 6.0, 25.0):
        result = await sandbox.run(code, timeout=seconds)
        if result.stdout:
            break
    return result


async def test_output_and_code(sandbox):
    result = await sandbox.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert result.status is ExecutionStatus.OK
    assert result.ok
    assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 0)
    assert 0 < result.duration < 30


async def test_an_exception_is_an_error_with_its_traceback(sandbox):
    result = await sandbox.run("def f():\n    return 1 / 0\nf()")
    assert result.status is ExecutionStatus.ERROR
    assert result.return_code == 1
    assert result.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    assert 'File "main.py", line 2' in result.stderr


async def test_exit_codes_and_signals_are_told_apart(sandbox):
    assert (await sandbox.run("raise SystemExit(7)")).return_code == 7
    killed = await sandbox.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (killed.status, killed.return_code) == (ExecutionStatus.KILLED, -9)


async def test_the_deadline_kills_and_keeps_partial_output(sandbox):
    started = time.monotonic()
    result = await until_the_deadline(sandbox, "print('before', flush=True)\nimport time\ntime.sleep(200)")
    assert time.monotonic() - started < 100
    assert result.status is ExecutionStatus.TIMEOUT
    assert result.stdout == "before\n"
    assert result.return_code is None


@pytest.mark.parametrize("ignore", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"])
async def test_the_whole_group_dies_with_it(sandbox, ignore):
    code = ignore + (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(200)'])\n"
        "print(child.pid, flush=True)\n"
    )
    at_deadline = await until_the_deadline(sandbox, code + "time.sleep(200)")
    assert at_deadline.status is ExecutionStatus.TIMEOUT
    assert wait_until_dead(int(at_deadline.stdout))
    at_end = await sandbox.run(code)
    assert at_end.status is ExecutionStatus.OK
    assert wait_until_dead(int(at_end.stdout))


async def test_cancelling_the_call_kills_what_it_ran(sandbox, tmp_path):
    mark = tmp_path / "pid"
    code = f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    call = asyncio.create_task(sandbox.run(code))
    while not (mark.exists() and mark.read_text()):
        await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert wait_until_dead(int(mark.read_text()))


async def test_output_is_capped_in_the_middle(sandbox):
    result = await sandbox.run("print('a' * 10000 + 'z')")
    assert result.status is ExecutionStatus.OK
    assert result.stdout_truncated
    assert not result.stderr_truncated
    assert result.stdout.startswith("a" * 2048 + "\n... [5906 bytes cut] ...\n")
    assert result.stdout.endswith("az\n")


async def test_a_flood_is_stopped(sandbox):
    result = await sandbox.run("while True: print('x' * 1000)", timeout=60)
    assert result.status is ExecutionStatus.OUTPUT_LIMIT
    assert result.duration < 55
    assert len(result.stdout) < 5000


async def test_standard_input(sandbox):
    assert (await sandbox.run("print(input()[::-1])", stdin="abc\n")).stdout == "cba\n"
    assert (await sandbox.run("print(repr(open(0).read()))")).stdout == "''\n"
    unread = await sandbox.run("print(1)", stdin="x" * 1_000_000)
    assert unread.status is ExecutionStatus.OK


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print('\\udc80')", ExecutionStatus.ERROR),
        ("import sys; sys.stdout.buffer.write(b'a\\xff\\x00b')", ExecutionStatus.OK),
        ("x = '\ud800'", ExecutionStatus.ERROR),
        ("a\x00b", ExecutionStatus.ERROR),
        ("import os; os.close(1); os.close(2)", ExecutionStatus.OK),
        ("import os; os._exit(3)", ExecutionStatus.ERROR),
        ("", ExecutionStatus.OK),
    ],
)
async def test_odd_programs_give_results(sandbox, code, status):
    result = await sandbox.run(code)
    assert result.status is status
    result.stdout.encode()
    result.stderr.encode()


async def test_the_hosts_environment_and_folder_are_not_there(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    result = await sandbox.run("import os; print(sorted(os.environ)); print(os.listdir('.'))")
    assert "SECRET_TOKEN" not in result.stdout
    assert result.stdout.endswith("['main.py']\n")


async def test_nothing_stays_on_disk(sandbox):
    result = await sandbox.run("import os; open('left', 'w').write('x'); print(os.getcwd(), flush=True)")
    assert not Path(result.stdout.strip()).exists()
    assert "toolgym-" in result.stdout


async def test_many_at_once(sandbox):
    results = await asyncio.gather(*(sandbox.run(f"print({n})") for n in range(40)))
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(40)]


async def test_killed_from_outside_in_mid_run(sandbox):
    call = asyncio.create_task(sandbox.run("import time; time.sleep(60)"))
    while not sandbox.process_ids:
        await asyncio.sleep(0.01)
    [pid] = sandbox.process_ids
    os.kill(pid, 9)
    assert (await call).status is ExecutionStatus.KILLED


async def test_no_more_run_at_once_than_it_may_and_waiting_is_no_running():
    async with ProcessSandbox(max_running=2) as sandbox:
        nap = "import time; print(time.time()); time.sleep(0.3); print(time.time())"
        results = await asyncio.gather(*(sandbox.run(nap, timeout=60) for _ in range(5)))
        spans = sorted(tuple(map(float, one.stdout.split())) for one in results)
        assert all(spans[at][0] >= min(end for _, end in spans[at - 2 : at]) for at in range(2, 5))


async def test_process_sandboxes_share_a_number_that_follows_the_machine():
    first, second = ProcessSandbox(), ProcessSandbox()
    assert first._limiter is second._limiter
    assert first._limiter.limit % available_processors() == 0
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        ProcessSandbox(max_running=0)


async def test_close_kills_what_still_runs():
    sandbox = ProcessSandbox()
    call = asyncio.create_task(sandbox.run("import time; time.sleep(60)"))
    while not sandbox.process_ids:
        await asyncio.sleep(0.01)
    await sandbox.close()
    assert (await call).status is ExecutionStatus.KILLED


async def test_a_disk_that_cannot_be_written_is_the_sandboxs_failure(sandbox, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    result = await sandbox.run("print(1)")
    assert result.status is ExecutionStatus.SANDBOX_ERROR
    assert "cannot make a folder" in result.message


async def test_bash(sandbox):
    assert (await sandbox.run("echo $((6*7))", language="bash")).stdout == "42\n"


async def test_what_the_user_asks_wrongly_is_an_error(sandbox):
    with pytest.raises(ConfigError, match="did you mean 'python'"):
        await sandbox.run("1", language="pyton")
    with pytest.raises(ConfigError, match="positive"):
        await sandbox.run("1", timeout=0)


async def test_cancelled_over_and_over_it_still_leaves_nothing(tmp_path, monkeypatch):
    """At every point of a run, and again while it cleans up: no folder, no process, nothing left on the list."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sandbox = ProcessSandbox()
    for steps in range(40):
        call = asyncio.create_task(sandbox.run("import time; time.sleep(60)"))
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        pids = sandbox.process_ids
        while not call.done():
            call.cancel()
            await asyncio.sleep(0.001)
        assert call.cancelled()
        assert sandbox.process_ids == frozenset()
        assert list(tmp_path.iterdir()) == []
        assert all(wait_until_dead(pid) for pid in pids)


async def test_a_start_that_is_cancelled_kills_the_whole_group(sandbox, tmp_path, monkeypatch):
    """The process may have started others before the event loop hears that it runs."""
    loop = asyncio.get_running_loop()
    mark = tmp_path / "pid"
    real, begun = loop.subprocess_exec, asyncio.Event()

    async def slow(*args, **kwargs):
        made = await real(*args, **kwargs)
        while not (mark.exists() and mark.read_text().strip()):
            await asyncio.sleep(0.01)
        begun.set()
        await asyncio.sleep(0.1)
        return made

    monkeypatch.setattr(loop, "subprocess_exec", slow)
    call = asyncio.create_task(sandbox.run(f"sleep 60 & echo $! > {mark}; wait", language="bash"))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert wait_until_dead(int(mark.read_text()))


@pytest.mark.parametrize(
    "code",
    [
        "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')",
        "import os\nos.makedirs('a/b'); os.chmod('a', 0)",
    ],
)
async def test_folders_that_are_hard_to_remove_are_removed(sandbox, tmp_path, monkeypatch, code):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert (await sandbox.run(code)).status is ExecutionStatus.OK
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("code", "shell_code"), [(0, 0), (3, 3), (-15, 143), (None, 137)])
def test_a_return_code_as_a_shell_has_it(code, shell_code):
    assert ExecResult(ExecutionStatus.ERROR, return_code=code).shell_code == shell_code


DAEMONS = {
    "setsid": "setsid sleep 300 & sleep 0.2",
    "setsid-with-its-pipes-closed": "(setsid nohup sleep 300 >/dev/null 2>&1 </dev/null &)",
    "double-fork": """python3 - <<'END'
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        os.closerange(0, 64)
        time.sleep(300)
    os._exit(0)
os.wait()
END""",
    "environment-cleared": "(cd / && setsid env -i sleep 300 >/dev/null 2>&1 &)",
    "hopping": """python3 - <<'END'
import os
if os.fork() == 0:
    while os.fork() == 0 or os._exit(0):  # each process ends as soon as the next one runs
        os.setsid() if os.getpid() != os.getsid(0) else None
END
sleep 0.1""",
    "its-supervisor-stopped": "(setsid sleep 300 &) ; kill -STOP $PPID",
    "its-supervisor-killed": "(setsid sleep 300 &) ; kill -KILL $PPID; sleep 300",
}


def processes_with(mark):
    """Return the ids of processes whose environment has a mark. Children inherit it."""
    processes = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_text(errors="replace"):
                processes.add(int(path.parent.name))
        except OSError:
            continue
    return processes


def sleepers():
    lines = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True).stdout.splitlines()
    return {line.split()[0] for line in lines if line.split()[1:3] == ["sleep", "300"]}


@pytest.mark.skipif(sys.platform != "linux", reason="the supervisor is for Linux")
@pytest.mark.parametrize("how", sorted(DAEMONS))
async def test_daemons_of_a_program_are_killed_with_it(monkeypatch, how):
    monkeypatch.setattr("toolgym.tools.sandbox.process.KILL_GRACE", 1.0)  # of a supervisor that is stopped
    before, mark = sleepers(), f"daemon-of-{os.getpid()}-{how}"
    async with ProcessSandbox() as sandbox:
        timeout = 1 if how == "its-supervisor-stopped" else 30
        result = await sandbox.run(DAEMONS[how], language="bash", timeout=timeout, env={"MARK": mark})
    expected = {"its-supervisor-stopped": ExecutionStatus.TIMEOUT, "its-supervisor-killed": ExecutionStatus.KILLED}
    assert result.status is expected.get(how, ExecutionStatus.OK), result
    assert (sleepers() - before, processes_with(mark)) == (set(), set())


@pytest.mark.skipif(sys.platform != "linux", reason="the supervisor is for Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.matrix)])
def test_programs_end_when_the_process_that_started_them_is_killed(tmp_path, number):
    mark = f"orphan-of-{tmp_path}"
    script = f"(setsid sleep 300 &) ; touch {tmp_path}/begun; sleep 300"
    program = f"""
import asyncio
from toolgym.tools.sandbox import ProcessSandbox
asyncio.run(ProcessSandbox().run({script!r}, language="bash", timeout=300, env={{"MARK": {mark!r}}}))
"""
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        assert processes_with(mark)
        process.send_signal(number)
    deadline = time.monotonic() + 30
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_with(mark) == set()


@pytest.mark.parametrize(("code", "expected"), [("exit 3", 3), ("kill -TERM $$", -15), ("kill -SEGV $$", -11)])
async def test_a_programs_exit_status_passes_the_supervisor(code, expected):
    async with ProcessSandbox() as sandbox:
        assert (await sandbox.run(code, language="bash")).return_code == expected


async def test_a_program_that_hangs_or_crashes_shows_its_line():
    sandbox = ProcessSandbox()
    hung = await sandbox.run("def wait():\n    sum(iter(int, 1))  # here\nwait()  # start", timeout=0.5)
    assert hung.status is ExecutionStatus.TIMEOUT
    assert hung.stderr.startswith('  File "main.py", line 3, in <module>\n    wait()  # start\n')
    assert "# here" in hung.stderr
    assert "Fatal" not in hung.stderr
    crashed = await sandbox.run("import ctypes\nctypes.string_at(0)  # here", timeout=20)
    assert (crashed.status, crashed.return_code) == (ExecutionStatus.KILLED, -signal.SIGSEGV)
    assert "# here" in crashed.stderr
    assert crashed.stderr.endswith("Fatal Python error: Segmentation fault\n")
