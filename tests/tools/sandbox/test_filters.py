"""What a child's system-call filter refuses where the kernel's Landlock is too old to do so."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from toolgym.tools.sandbox.local.kernel import seccomp

pytestmark = pytest.mark.skipif(not seccomp.supported(), reason="needs Linux on x86-64 or arm64")

PROGRAM = """
import ctypes, errno, os, struct, sys
from toolgym.tools.sandbox.local.kernel import seccomp, syscalls

syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
seccomp.install(seccomp.child_filter(
    fork=False, network=False, sockets=False, frozen=(), own_only=True, truncate=sys.argv[2] == "seen"
))
path = sys.argv[1]

def attempt(name, action):
    open(path, "w").write("whole")
    try:
        action()
    except OSError as error:
        print(name, errno.errorcode[error.errno], open(path).read())
    else:
        print(name, "done", open(path).read())

def call(number, *arguments):
    syscalls.check(syscalls.syscall(number, *arguments), "call")

attempt("truncate", lambda: os.truncate(path, 2))
attempt("open to read", lambda: os.open(path, os.O_RDONLY | os.O_TRUNC))
attempt("open for neither", lambda: os.open(path, 3 | os.O_TRUNC))
attempt("open to write", lambda: os.open(path, os.O_WRONLY | os.O_TRUNC))
attempt("open for both", lambda: os.open(path, os.O_RDWR | os.O_TRUNC))
attempt("ftruncate", lambda: os.ftruncate(os.open(path, os.O_RDWR), 2))
how = struct.pack("QQQ", os.O_RDONLY | os.O_TRUNC, 0, 0)
attempt("openat2", lambda: call(437, -100, path.encode(), how, ctypes.c_size_t(24)))
"""


def tried(folder: Path, landlock: str) -> dict[str, str]:
    command = [sys.executable, "-c", PROGRAM, str(folder / "file"), landlock]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stderr == ""
    found = {}
    for line in done.stdout.splitlines():
        name, result, content = line.rsplit(" ", 2)
        found[name] = f"{result} {content}".strip()
    return found


def test_only_a_file_that_is_opened_for_writing_can_be_truncated(tmp_path: Path) -> None:
    assert tried(tmp_path, "blind") == {
        "truncate": "EPERM whole",
        "open to read": "EPERM whole",
        "open for neither": "EPERM whole",
        "open to write": "done",
        "open for both": "done",
        "ftruncate": "done wh",
        "openat2": "ENOSYS whole",
    }


def test_landlock_that_sees_it_is_left_to_decide(tmp_path: Path) -> None:
    assert tried(tmp_path, "seen") == {
        "truncate": "done wh",
        "open to read": "done",
        "open for neither": "done",
        "open to write": "done",
        "open for both": "done",
        "ftruncate": "done wh",
        "openat2": "done",
    }


SIGNALS = """
import errno, fcntl, os, signal, sys, threading
from toolgym.tools.sandbox.local.kernel import seccomp, syscall_batch, syscalls

syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
prepared = syscall_batch.SyscallBatch()
seccomp.write(prepared, seccomp.child_filter(
    fork=False, network=False, sockets=False, frozen=(), own_only=True, signals=False
))
prepared.run()

got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))

def attempt(name, action):
    got.clear()
    try:
        action()
    except OSError as error:
        print(name, errno.errorcode[error.errno])
    else:
        print(name, len(got))

def in_a_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()

def call(number, *arguments):
    syscalls.check(syscalls.syscall(number, *arguments), "call")

me, parent, usr1 = os.getpid(), os.getppid(), signal.SIGUSR1
attempt("kill", lambda: os.kill(me, usr1))
attempt("raise", lambda: signal.raise_signal(usr1))
attempt("raise_in_a_thread", lambda: in_a_thread(lambda: signal.raise_signal(usr1)))
attempt("pthread_kill", lambda: signal.pthread_kill(threading.main_thread().ident, usr1))
attempt("kill_parent", lambda: os.kill(parent, 0))
attempt("kill_everybody", lambda: os.kill(-1, 0))
attempt("kill_a_group", lambda: os.killpg(os.getpgid(parent), 0))
attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(parent), 0))
attempt("own", lambda: fcntl.fcntl(0, fcntl.F_SETOWN, parent))
for name in ("tgkill", "rt_tgsigqueueinfo", "tkill", "rt_sigqueueinfo"):
    attempt(name, lambda: call(syscalls.number(name), parent, parent, 0, 0))
sys.stdout.flush()
os.abort()
"""


def test_a_program_of_one_process_signals_itself_alone() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALS], capture_output=True, text=True, timeout=200, check=False)
    assert done.stderr == ""
    assert done.returncode == -signal.SIGABRT
    verdicts = dict(line.split() for line in done.stdout.splitlines())
    own = ("kill", "raise", "raise_in_a_thread", "pthread_kill")
    assert {name: verdicts.pop(name) for name in own} == dict.fromkeys(own, "1")
    assert len(verdicts) == 9
    assert set(verdicts.values()) == {"EPERM"}, verdicts
