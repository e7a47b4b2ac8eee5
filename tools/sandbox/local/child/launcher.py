"""The launcher of a session: a fork of its interpreter that starts programs and says how they ended.

It shares nothing with the interpreter: programs run while a cell runs, and what a cell does does not reach them. The
broker makes the pipes of each program and sends this process its ends; only a program with a terminal writes to a pipe
through this process, which holds the terminal's other end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from toolgym.tools.sandbox.local.kernel import harden, syscalls
from toolgym.tools.sandbox.local.protocol import frames

SHELLS = ("/bin/bash", "/bin/sh")
"""Programs for a command that is one text: the first that exists runs it."""

_SUBREAPER = syscalls.PR_SET_CHILD_SUBREAPER
_READ_SIZE = 64 * 1024
_END_OF_INPUT = b"\x04"
_ENDS = 3


class _Program:
    """A program that runs, or whose output is not passed on wholly. Without a terminal, `master` is -1. When a program
    ends that was `interrupted`, all that it has started is killed."""

    def __init__(self, handle: subprocess.Popen[bytes], master: int, source: int, target: int) -> None:
        self.handle, self.master, self.source, self.target = handle, master, source, target
        self.code: int | None = None
        self.reported = self.interrupted = False
        self._to_terminal, self._to_broker = b"", b""

    def interests(self) -> list[tuple[int, int]]:
        interests = []
        if self.master >= 0:
            reads = select.POLLIN if not self._to_broker else 0
            writes = select.POLLOUT if self._to_terminal else 0
            if reads or writes:
                interests.append((self.master, reads | writes))
            if self._to_broker:
                interests.append((self.target, select.POLLOUT))
            if self.source >= 0 and not self._to_terminal:
                interests.append((self.source, select.POLLIN))
        return interests

    def relay(self) -> bool:
        """Pass on what can be passed on now. Returns whether the terminal's output is all passed on for now."""
        if self.master < 0:
            return True
        if self.source >= 0 and not self._to_terminal:
            data = _read(self.source)
            if data == b"":
                os.close(self.source)
                self.source = -1
            self._to_terminal = _END_OF_INPUT if data == b"" else data or b""
        if self._to_terminal:
            self._to_terminal = self._to_terminal[_write(self.master, self._to_terminal) :]
        while True:
            if self._to_broker:
                self._to_broker = self._to_broker[_write(self.target, self._to_broker) :]
                if self._to_broker:
                    return False
            data = _read(self.master)
            if data is None:
                return True
            if not data:  # no program has the terminal any more
                self.close()
                return True
            self._to_broker = data

    def close(self) -> None:
        for fd in (self.master, self.source, self.target):
            if fd >= 0:
                os.close(fd)
        self.master = self.source = self.target = -1


class Launcher:
    """Carries out the broker's requests; programs start in the folder `home`, with these variables."""

    def __init__(self, control: socket.socket, home: str, environment: Mapping[str, str]) -> None:
        self._control, self._home, self._environment = control, home, dict(environment)
        self._inbox = bytearray()
        self._ends: list[int] = []
        self._programs: dict[int, _Program] = {}
        self._wake, self._woken = os.pipe()
        for fd in (self._wake, self._woken):
            os.set_blocking(fd, False)

    def serve(self) -> NoReturn:
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        try:
            while self._turn():
                pass
        except OSError:  # the broker's end broke
            pass
        finally:
            for program in self._programs.values():
                _signal_session(program.handle.pid, signal.SIGKILL)
            os._exit(0)

    def _turn(self) -> bool:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        for program in self._programs.values():
            for fd, events in program.interests():
                poll.register(fd, events)
        ready = {fd for fd, _ in poll.poll()}
        if self._wake in ready:
            while _read(self._wake):
                pass
        if self._control.fileno() in ready and not self._receive():
            return False
        self._reap()
        for number, program in [*self._programs.items()]:
            done = program.relay()
            if program.code is not None and done and not program.reported:
                program.reported = True
                self._say({"exited": number, "code": program.code})
            if program.reported and program.master < 0:
                del self._programs[number]
        return True

    def _receive(self) -> bool:
        data, ancillary, _, _ = self._control.recvmsg(_READ_SIZE, socket.CMSG_SPACE(_ENDS * 4))
        for level, kind, packed in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._ends += struct.unpack(f"{len(packed) // 4}i", packed)
        if not data:
            return False
        self._inbox += data
        for request in frames.requests(self._inbox):
            self._carry_out(request)
        return True

    def _start(self, request: Mapping[str, Any]) -> None:
        ends, self._ends = self._ends[:_ENDS], self._ends[_ENDS:]
        number = request["number"]
        try:
            program = self._run(request, *ends)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            code = getattr(error, "errno", None) or errno.EIO
            of_folder = request["cwd"] is not None and getattr(error, "filename", None) == self._folder(request)
            self._say({"failed": number, "errno": code, "folder": of_folder})
            return
        self._programs[number] = program
        self._say({"started": number, "pid": program.handle.pid})

    def _run(self, request: Mapping[str, Any], source: int, out: int, err: int) -> _Program:
        """Start a program. Its ends are closed here, or belong to what is returned."""
        with contextlib.ExitStack() as lent:
            for fd in (source, out, err):
                lent.callback(os.close, fd)
            argv = request["argv"]
            if isinstance(argv, str):
                argv = [next((shell for shell in SHELLS if os.access(shell, os.X_OK)), SHELLS[-1]), "-c", argv]
            environment = {**self._environment, **request["env"]}
            cwd = self._folder(request)
            if request["pty"] is None:
                handle = subprocess.Popen(
                    argv, stdin=source, stdout=out, stderr=err, cwd=cwd, env=environment, start_new_session=True
                )
                return _Program(handle, -1, -1, -1)
            master, terminal = os.openpty()
            lent.callback(os.close, terminal)
            try:
                _resize(master, *request["pty"])
                environment.setdefault("TERM", "xterm-256color")
                handle = subprocess.Popen(
                    argv,
                    stdin=terminal,
                    stdout=terminal,
                    stderr=terminal,
                    cwd=cwd,
                    env=environment,
                    start_new_session=True,
                    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                )
            except BaseException:
                os.close(master)
                raise
            source, out = os.dup(source), os.dup(out)
            for fd in (master, source, out):
                os.set_blocking(fd, False)
            return _Program(handle, master, source, out)

    def _folder(self, request: Mapping[str, Any]) -> str:
        return os.path.join(self._home, request["cwd"] or "")

    def _signal(self, request: Mapping[str, Any]) -> None:
        program = self._programs.get(request["number"])
        if program is not None and program.code is None:  # not reaped, so its number is still its own
            _signal_session(program.handle.pid, request["signal"])

    def _interrupt(self, request: Mapping[str, Any]) -> None:
        program = self._programs.get(request["number"])
        if program is not None and program.code is None:
            program.interrupted = True
            _signal_session(program.handle.pid, signal.SIGINT, everywhere=True)

    def _prune(self, request: Mapping[str, Any]) -> None:
        """Kill what a program has started."""
        program = self._programs.get(request["number"])
        if program is not None and program.code is None:
            for pid in _members(program.handle.pid):
                if pid != program.handle.pid:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)

    def _size(self, request: Mapping[str, Any]) -> None:
        program = self._programs.get(request["number"])
        if program is not None and program.master >= 0:
            with contextlib.suppress(OSError):
                _resize(program.master, request["rows"], request["cols"])

    def _reap(self) -> None:
        """Reap what has ended: programs, and what they left behind, whose parent this process has become."""
        known = {program.handle.pid: program for program in self._programs.values()}
        for pid, stopped in known.items():
            if stopped.interrupted and stopped.code is None and _has_ended(pid):
                _signal_session(pid, signal.SIGKILL)  # until it is reaped, its number is its own
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            program = known.get(pid)
            if program is not None and program.code is None:
                program.code = program.handle.returncode = os.waitstatus_to_exitcode(status)

    def _say(self, note: Mapping[str, Any]) -> None:
        frames.send_all(self._control.fileno(), frames.encode(note))

    def _carry_out(self, request: Mapping[str, Any]) -> None:
        operations = {
            "start": self._start,
            "signal": self._signal,
            "interrupt": self._interrupt,
            "prune": self._prune,
            "size": self._size,
        }
        operations[request["op"]](request)


def run(control: int, home: str, environment: Mapping[str, str]) -> NoReturn:
    try:
        sys.settrace(None)
        sys.setprofile(None)
        os.dup2(control, harden.CONTROL_FD)
        syscalls.close_from(harden.CONTROL_FD + 1)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.close(null)
        fixed = {signal.SIGKILL, signal.SIGSTOP}
        for number in signal.valid_signals() - fixed:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, lambda *_: None)  # no SIG_IGN: programs would inherit that
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setpgid(0, 0)  # a signal to the interpreter's group is not for this process
        os.chdir("/")
        syscalls.prctl(_SUBREAPER, 1)
        Launcher(socket.socket(fileno=harden.CONTROL_FD), home, environment).serve()
    finally:
        os._exit(1)


def _resize(master: int, rows: int, cols: int) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def _signal_session(leader: int, number: int, *, everywhere: bool = False) -> None:
    """Signal the group of a program. SIGKILL, and a signal that is to go `everywhere`, also reach what the program has
    started in other groups, unless that has left its session (`setsid`)."""
    with contextlib.suppress(OSError):
        os.killpg(leader, number)
    if number == signal.SIGKILL or everywhere:
        for pid in _members(leader, outside_group=number != signal.SIGKILL):
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def _members(leader: int, *, outside_group: bool = False) -> Iterator[int]:
    """Yield the processes of the session that a program leads. Yields none where there is no /proc.

    Args:
        outside_group: whether to leave out those in the program's own group.
    """
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{int(name)}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].split()
            if int(words[3]) == leader and not (outside_group and int(words[2]) == leader):
                yield int(name)


def _has_ended(pid: int) -> bool:
    """Whether a child has ended and waits to be reaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _read(fd: int) -> bytes | None:
    """Read what is there; None: nothing now; empty: there will be no more."""
    try:
        return os.read(fd, _READ_SIZE)
    except BlockingIOError:
        return None
    except OSError:  # of a terminal: no program has it open
        return b""


def _write(fd: int, data: bytes) -> int:
    """Write what fits. Returns how much is done with: all of it, if there is no reader any more."""
    try:
        return os.write(fd, data)
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)
