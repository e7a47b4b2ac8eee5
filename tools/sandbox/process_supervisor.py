"""A program that runs another program, and at the end kills everything that it started, daemons included.

`ProcessSandbox` runs this file as a script: `process_supervisor.py CONTROL STATUS COMMAND...`. It uses only the
standard library, and as little of it as possible, because it is started for each execution.

The supervisor is a subreaper: a process whose parent has ended becomes its child, also after `setsid` or a double
fork. It writes the program's process id to the descriptor STATUS, and when nothing is left of the program its exit
status, negative for a signal. It kills everything when the program's own process ends, when CONTROL is written to or
closed, and when its parent ends.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` makes enums first, which takes as long as all else
import ctypes
import errno
import os
import select
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

SHOW_STACK = b"s"
"""Message that asks for the stack of a Python program before it is killed. Every other one only kills."""

SHOWING = 0.1
"""Seconds that the program has for that."""

PATIENCE = 4.0
"""Seconds that killing may take. What is left then belongs to another user, or cannot be killed."""


def children_of(pid: int) -> list[int]:
    """Return the direct children of a process."""
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                children += map(int, file.read().split())
    except OSError as error:
        if error.errno == errno.ENOENT and os.path.exists(f"/proc/{pid}/task"):
            return _children_by_scan(pid)  # a kernel without this file
    return children


def _children_by_scan(pid: int) -> list[int]:
    children = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b") ")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            if parent == pid:
                children.append(int(name))
    return children


def descendants_of(pid: int) -> list[int]:
    """Return all processes below a process, the nearest first."""
    pids = children_of(pid)
    for each in pids:
        pids += children_of(each)
    return pids


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def kill_descendants(pid: int) -> bool:
    """Kill all processes below a process once; stopped first, so that they start no others meanwhile. Returns whether
    there were any."""
    pids = descendants_of(pid)
    send(pids, signal.SIGSTOP)
    pids = descendants_of(pid)
    send(pids, signal.SIGKILL)
    return bool(pids)


class Supervisor:
    def __init__(self, control: int, status: int) -> None:
        self._control, self._status = control, status
        self._child = 0
        self._code: int | None = None
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)

    def run(self, command: list[str]) -> None:
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._parent = os.getppid()
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        self._start(command)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # the program's ends of its pipes are the only ones
            os.dup2(null, descriptor)
        self._tell(self._child)
        poll = select.poll()
        poll.register(self._control, select.POLLIN | select.POLLHUP)
        poll.register(self._wake, select.POLLIN)
        while self._code is None and os.getppid() == self._parent:
            ready = [descriptor for descriptor, _ in poll.poll(1000)]
            if self._control in ready:
                if os.read(self._control, 1) == SHOW_STACK:
                    self._abort()
                break
            if self._wake in ready:
                os.read(self._wake, 4096)
            self._reap()
        self._kill_all()
        self._tell(-signal.SIGKILL if self._code is None else self._code)

    def _abort(self) -> None:
        """Send the program SIGABRT, on which Python writes its stack, and give it a moment."""
        send([self._child], signal.SIGABRT)
        deadline = time.monotonic() + SHOWING
        while self._code is None and time.monotonic() < deadline:
            time.sleep(0.001)
            self._reap()

    def _start(self, command: list[str]) -> None:
        self._child = os.fork()
        if self._child:
            return
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._control, self._status, self._wake, self._woken):
                os.close(descriptor)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and programs would inherit that
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _tell(self, number: int) -> None:
        try:
            os.write(self._status, b"%d\n" % number)
        except BrokenPipeError:  # the parent has ended, and with it the reader
            return

    def _reap(self) -> bool:
        """Take the exit statuses that are there. Returns whether children are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child:
                self._code = os.waitstatus_to_exitcode(status)

    def _kill_all(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            kill_descendants(os.getpid())
            if not self._reap():
                return
            time.sleep(0.001)


if __name__ == "__main__":
    Supervisor(int(sys.argv[1]), int(sys.argv[2])).run(sys.argv[3:])
