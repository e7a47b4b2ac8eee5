"""`ProcessPool`: hostile work ends with its process, and never with the caller's."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from toolgym.tools.confined import OverrunError, ProcessPool, StartError, WorkError
from toolgym.tools.sandbox.local.kernel import landlock

WORK = Path(__file__).with_name("work.py")


@pytest.fixture
def pool():
    pool = ProcessPool(WORK, name="the process of a test", size=1)
    yield pool
    pool.end_idle()


async def pid_of(pool):
    return (await pool.call("about", cpu_seconds=60))["pid"]


async def test_a_process_serves_many_calls_and_knows_nothing_of_the_parent(pool, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    first = await pool.call("about", cpu_seconds=60)
    assert first["loaded"] == [first["pid"]] != [os.getpid()]
    assert await pid_of(pool) == first["pid"]
    assert "SOME_API_KEY" not in first["environment"]
    assert [name for name in first["modules"] if name.startswith(("toolgym.", "pytest", "tests"))] == []


@pytest.mark.parametrize("value", ["\ud800 \0 é" * 1000, "x" * (3 << 20), [1, {"a": None}], ""])
async def test_values_travel_unchanged(pool, value):
    assert await pool.call("echo", value, cpu_seconds=60) == value


@pytest.mark.parametrize(
    ("function", "args", "limits", "reason"),
    [
        ("compute", (), {"cpu_seconds": 0.2}, "time"),
        ("sleep", (), {"cpu_seconds": 60, "wall_seconds": 0.2}, "time"),
        ("fill", (), {"cpu_seconds": 60}, "memory"),
        ("crash", (3,), {"cpu_seconds": 60}, "died"),
        ("flood", (), {"cpu_seconds": 60}, "died"),
    ],
)
async def test_an_overrun_ends_its_process_and_no_other_call(pool, function, args, limits, reason):
    before = await pid_of(pool)
    with pytest.raises(OverrunError) as overrun:
        await pool.call(function, *args, **limits)
    assert overrun.value.reason == reason
    assert not psutil.pid_exists(before)
    assert await pool.call("echo", "next", cpu_seconds=60) == "next"


async def test_the_loop_runs_while_a_call_computes(pool):
    call = asyncio.create_task(pool.call("compute", cpu_seconds=0.3))
    turns = 0
    while not call.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 5
    assert isinstance(call.exception(), OverrunError)


async def test_an_exception_of_the_function_keeps_the_process(pool):
    before = await pid_of(pool)
    with pytest.raises(WorkError, match="LookupError: no such \ud800"):
        await pool.call("fail", "no such \ud800", cpu_seconds=60)
    with pytest.raises(WorkError, match="AttributeError"):
        await pool.call("no_function", cpu_seconds=60)
    assert await pid_of(pool) == before


async def test_a_process_that_died_while_idle_is_replaced(pool):
    before = await pid_of(pool)
    os.kill(before, signal.SIGKILL)
    assert await pid_of(pool) != before


async def test_a_cancelled_call_leaves_no_process(pool):
    before = await pid_of(pool)
    call = asyncio.create_task(pool.call("sleep", cpu_seconds=60))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not psutil.pid_exists(before)


@pytest.mark.parametrize("work", ["broken_work.py", "no_such_file.py"])
async def test_a_process_that_cannot_start_says_why(work):
    pool = ProcessPool(WORK.with_name(work), name="the process of a test")
    with pytest.raises(StartError, match=r"the process of a test cannot be started: (ImportError|FileNotFoundError)"):
        await pool.call("echo", 1, cpu_seconds=60)


def test_a_pool_serves_several_event_loops(pool):
    assert asyncio.run(pid_of(pool)) == asyncio.run(pid_of(pool))


async def test_a_fork_starts_processes_of_its_own(pool):
    before = await pid_of(pool)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        pool.end_idle()  # has none
        gc.collect()
        os.write(write, f"{len(pool._idle)}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"0"
    os.close(read)
    os.close(write)
    assert await pid_of(pool) == before


async def test_a_process_ends_with_its_parent(pool):
    process = psutil.Process(await pid_of(pool))
    idle = pool._idle.pop()
    idle._link.close()
    deadline = time.monotonic() + 60
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    idle.end()


CONFINED = sys.platform == "linux" and landlock.abi() >= 1

ATTEMPTS = {
    "read a secret": "open({secret!r}).read()",
    "write a file": "open({secret!r} + '.new', 'w')",
    "delete a file": "import os; os.unlink({secret!r})",
    "change a file's mode": "import os; os.chmod({secret!r}, 0); assert not os.access({secret!r}, os.R_OK)",
    "list the home folder": "import os; os.listdir({folder!r})",
    "open a socket": "import socket; socket.socket()",
    "open a unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "start a program": "import subprocess; subprocess.run(['/bin/true'], check=True)",
    "fork": "import os; os.fork()",
    "signal the parent": "import os; os.kill({parent}, 0)",
    "read the parent's environment": "open('/proc/{parent}/environ').read()",
    "raise the memory limit": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "trace the parent": "import ctypes; assert ctypes.CDLL(None, use_errno=True).ptrace(16, {parent}, 0, 0) == 0",
    "leave by a new namespace": "import os; assert not __import__('ctypes').CDLL(None).unshare(0x10000000)",
}


@pytest.mark.skipif(not CONFINED, reason="needs Landlock")
async def test_code_that_gets_into_a_process_stays_there(pool, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("key")
    names = {"secret": str(secret), "folder": str(tmp_path), "parent": os.getpid()}
    outcomes = {
        about: await pool.call("attempt", code.format(**names), cpu_seconds=60) for about, code in ATTEMPTS.items()
    }
    assert [about for about, outcome in outcomes.items() if outcome == "done"] == []
    assert secret.read_text() == "key"
    assert [*tmp_path.iterdir()] == [secret]
    assert await pool.call("attempt", "import wave, sqlite3, encodings.idna", cpu_seconds=60) == "done"
