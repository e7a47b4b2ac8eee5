"""Runs inside a sandbox: starts a program's processes, one for each test, and watches their limits.

The process of the tests calls it. That process is trusted, the program is not. A *loader* is the process that has
loaded the program once. It forks a process for each test, so that no test sees what another one left in memory. The
loader has run the program's code, so nothing that it says decides a verdict: it can only lie about its exit code and
its children.

Limits are counted in seconds that the program computed or slept. A program that waits for a processor, because the
machine is busy, loses nothing. Where /proc is hidden (isolation level `uid`), only its own CPU time can be seen.

It needs Linux and the standard library.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import fcntl
import io
import os
import platform
import resource
import select
import shutil
import signal
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

LOOK_EVERY = 0.1
"""Seconds between two looks at a program that computes."""

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_WALL = 0x40000000
"""Wait also for a child that `fork_apart` made."""
_STACK_GUARD = 1 << 20
_SPACE_BESIDE = 256 << 20
"""Bytes of address space beside the memory of a native program: its code and libraries."""
_MAX_STACK_MB = 1024

_libc = ctypes.PyDLL(None, use_errno=True)


class LimitError(BaseException):
    """The program met a limit. Tests cannot catch it by `except Exception`. `args[0]` is the status of the verdict."""


class SliceOverError(BaseException):
    """The time slice of the run is over, while the program is still at work on a test that is not the run's first."""


class TestLimits:
    """The limits of one test.

    Attributes:
        seconds: seconds that the program may compute, with all its children.
        idle: seconds that it may sleep.
        wall: seconds after which it is ended in any case.
        output_bytes: bytes of standard output that are kept, and that a file of its output may have.
    """

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.seconds, self.idle, self.wall = float(task["seconds"]), float(task["idle"]), float(task["wall"])
        self.output_bytes = int(task["output_bytes"])


class LimitWatch:
    """Raises LimitError once a process, with what it started, has used up its limits.

    Args:
        pid: the process to watch.
        limits: its limits.
        with_tests: whether the CPU time of this process counts too, as it does while tests compute with the values of
            a program.
        alone: whether only the process itself is watched, from now on, without its children.
        left: seconds of the run's time slice, after which SliceOverError is raised.
    """

    def __init__(
        self, pid: int, limits: TestLimits, *, with_tests: bool = False, alone: bool = False, left: float | None = None
    ) -> None:
        self._pid, self._limits, self._alone = pid, limits, alone
        self._began = self._looked = time.monotonic()
        self._own = time.process_time() if with_tests else None
        self._base = cpu_clock(pid) if alone else 0.0
        self._asleep, self._left = False, left
        self.cpu = self.idle = 0.0

    def look(self) -> None:
        now = time.monotonic()
        tree = _tree(self._pid, alone=self._alone)
        if tree is None:
            self.glance()
        else:
            progress = tree[0] - self._base - self.cpu
            self.cpu = max(self.cpu, tree[0] - self._base)
            if tree[1] and self._asleep and progress < _TICK / 2:
                self.idle += now - self._looked
            self._asleep = tree[1]
        self._looked = now
        tests_cpu = time.process_time() - self._own if self._own is not None else 0.0
        if self.cpu + tests_cpu > self._limits.seconds:
            raise LimitError("timeout", f"it used more than {self._limits.seconds:g} s of CPU time")
        if self.idle > self._limits.idle:
            raise LimitError("timeout", f"it slept for more than {self._limits.idle:g} s")
        if now - self._began > self._limits.wall:
            raise LimitError("timeout", f"it ran for more than {self._limits.wall:g} s")
        if self._left is not None and self.used > self._left:
            raise SliceOverError

    def glance(self) -> None:
        """Note the CPU time of the process itself, which may have ended."""
        self.cpu = max(self.cpu, cpu_clock(self._pid) - self._base)

    def wait(
        self, fd: int, ended: int | None = None, check: Callable[[], None] | None = None, *, for_writing: bool = False
    ) -> int:
        """Wait until a descriptor can be read, or written to, and return it.

        If another one, `ended`, can be read before, return that one. `check` is called now and then.
        """
        poll = select.poll()
        poll.register(fd, select.POLLOUT if for_writing else select.POLLIN)
        if ended is not None:
            poll.register(ended, select.POLLIN)
        while not (ready := poll.poll(LOOK_EVERY * 1000)):
            self.look()
            if check is not None:
                check()
        return fd if any(number == fd for number, _ in ready) else ready[0][0]

    @property
    def used(self) -> float:
        """Seconds that it computed or slept."""
        return self.cpu + self.idle


def cpu_clock(pid: int) -> float:
    """Return the CPU seconds of a process without its children, also of one that ended and was not waited for."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


_TICK = 1 / os.sysconf("SC_CLK_TCK")


def _tree(pid: int, *, alone: bool) -> tuple[float, bool] | None:
    """Return the CPU seconds of a process and all below it, and whether all sleep; None if /proc does not show it."""
    pending, seconds, asleep = [pid], cpu_clock(pid), True
    for process in pending:
        try:
            words = _text(f"/proc/{process}/stat").rpartition(")")[2].split()
            # Of the process itself the clock is more exact. The next two fields are those of children that ended.
            fields = words[11:15] if process != pid else words[13:15] if not alone else []
            for thread in os.listdir(f"/proc/{process}/task"):
                if not alone:
                    pending += map(int, _text(f"/proc/{process}/task/{thread}/children").split())
                state = _text(f"/proc/{process}/task/{thread}/stat").rpartition(")")[2].split()[0]
                asleep = asleep and state in ("S", "T")
        except OSError:
            if process == pid:
                return None
            continue
        seconds += sum(map(int, fields)) * _TICK
    return seconds, asleep


def _text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


class Pipe:
    """Reads and writes descriptors without a buffer, which would be memory to copy after a fork."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer

    def read(self, size: int) -> bytes:
        data = os.read(self._reader, size)
        if len(data) == size or not data:
            return data
        parts, left = [data], size - len(data)
        while left and (data := os.read(self._reader, left)):
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    def write(self, data: bytes) -> None:
        sent = os.write(self._writer, data)
        view = memoryview(data)
        while sent < len(data):
            sent += os.write(self._writer, view[sent:])

    def flush(self) -> None: ...


class WatchedReader(io.RawIOBase):
    """Reads a pipe from the program, and watches the program's limits while it waits.

    It is at its end if there is nothing to read and `ended` can be read, which tells that the process has ended.
    """

    def __init__(self, fd: int, watch: LimitWatch, ended: int) -> None:
        self._fd, self._watch, self._ended = fd, watch, ended

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._watch.wait(self._fd, self._ended) != self._fd:
            return 0
        return os.readv(self._fd, [buffer])


class WatchedWriter(io.RawIOBase):
    """Writes to a pipe to the program, and watches the program's limits while it does not read."""

    def __init__(self, fd: int, watch: LimitWatch) -> None:
        self._fd, self._watch = fd, watch
        os.set_blocking(fd, False)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        while True:
            try:
                return os.write(self._fd, data)
            except BlockingIOError:
                self._watch.wait(self._fd, for_writing=True)


def drain(fd: int) -> bool:
    """Read all that is in a pipe. Returns whether it was empty at last: nothing goes on writing to it."""
    for _ in range(64):
        if not _waits(fd):
            return True
        os.read(fd, 1 << 16)
    return False


def is_drained(fd: int) -> bool:
    """Whether a pipe that is open for writing holds nothing that was not read."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4), sys.byteorder) == 0


def _waits(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


# ---------------------------------------------------------------------- this process


def guard() -> None:
    """Keep the program out of this process's memory, and become the parent of what the program leaves behind."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork_apart() -> int:
    """Fork a process that `waitpid(-1)` does not report. So that call tells whether the program left processes behind.

    Raises OSError if no process can be started.
    """
    if _CLONE is None:
        raise OSError("this kind of machine is not supported")
    ctypes.set_errno(0)
    pid = int(_libc.syscall(_CLONE, 0, 0, 0, 0, 0))
    if pid < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return pid


def fork() -> int:
    """Fork without Python's hooks, which cost most of the time. For a process that has one thread."""
    pid = int(_libc.fork())
    if pid < 0:
        raise OSError("no process can be started")
    return pid


def check_can_fork() -> None:
    """Raise OSError if this process may not start others."""
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def reap(pid: int) -> tuple[int, float]:
    """Wait for a process that ends. Returns its exit status, and CPU seconds with its children."""
    _, status, used = os.wait4(pid, _WALL)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def kill(pid: int) -> None:
    with contextlib.suppress(OSError, RecursionError):
        os.kill(pid, signal.SIGKILL)


def await_end(pid: int, watch: LimitWatch, check: Callable[[], None]) -> None:
    """Wait until a process has ended, and check it now and then. Raises what `LimitWatch.look` and `check` raise."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        watch.wait(fd, check=check)
    finally:
        os.close(fd)


def prepare_alarm() -> None:
    """Prepare `alarm`."""

    def over(*_: object) -> None:
        raise LimitError("timeout", "the tests computed for too long with its values")

    signal.signal(signal.SIGPROF, over)


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise LimitError in this process if it computes for longer than that, and a little more, by itself."""
    signal.setitimer(signal.ITIMER_PROF, seconds + LOOK_EVERY)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def be_dumpable() -> None:
    """Let the process of the tests see this one in /proc."""
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def unfreeze(value: object) -> None:
    """Let the garbage collector see an object again, as one of the youngest generation."""
    for function in (ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track):
        function.restype = None
        function(ctypes.py_object(value))


def is_alone() -> bool:
    """Whether this process has no other threads and no children, so that a fork of it is a whole copy."""
    if _thread._count() > 0:
        return False
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def start(
    argv: Sequence[str],
    fds: Sequence[int],
    environment: Mapping[str, str],
    seconds: float,
    memory_mb: int | None,
    *,
    native: bool,
) -> int:
    """Start a program with these three streams. A `native` one may use all its memory for its stack."""
    pid = fork()
    if pid:
        return pid
    try:
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in fds]
        for target, fd in enumerate(copies):
            os.dup2(fd, target)
        os.closerange(3, 256)
        limit_cpu(seconds)
        if native:
            _free_whole_stack(memory_mb)
        os.execvpe(argv[0], list(argv), environment)
    except BaseException as error:  # noqa: BLE001  this process must end here
        os.write(2, f"{argv[0]}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _free_whole_stack(memory_mb: int | None) -> None:
    """Let a stack grow without limit, and limit the address space instead.

    A limit of the stack is also the size of each thread's stack, so a large one would leave no memory for threads.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if hard == resource.RLIM_INFINITY:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = [limit for limit in (most, (memory_mb or 0) << 20) if limit > 0]
        if wanted:
            space = min(wanted) + _SPACE_BESIDE
            resource.setrlimit(resource.RLIMIT_AS, (space, space))
        resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, hard))


def end_leftovers() -> bool:
    """End processes that the program left behind. Returns whether none is left."""
    for _ in range(20):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        try:
            children = _text(f"/proc/self/task/{os.getpid()}/children").split()
        except OSError:
            return False
        for child in map(int, children):
            try:
                if os.waitpid(child, os.WNOHANG)[0] == 0:  # the loader is not one that this call knows
                    os.kill(child, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.001)
    return False


class Folder:
    """The files that the program can write. It notices what a test leaves behind."""

    def __init__(self) -> None:
        self.places = [os.getcwd()]
        with contextlib.suppress(OSError, RecursionError):
            if os.stat("/tmp").st_dev == os.stat("/dev/shm").st_dev:  # one private file system, not the host's
                self.places += ["/tmp", "/dev/shm"]
        self._before = self._look()

    def _look(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for place in self.places:
            with contextlib.suppress(OSError, RecursionError), os.scandir(place) as listing:
                for entry in listing:
                    about = entry.stat(follow_symlinks=False)
                    entries[entry.path] = about.st_ino, about.st_size, about.st_mtime_ns, about.st_mode
        return entries

    def is_clean(self) -> bool:
        """Whether all is as it was at the beginning. New plain files are removed."""
        after = self._look()
        for path, about in after.items():
            if path not in self._before and stat.S_ISREG(about[3]):
                with contextlib.suppress(OSError, RecursionError):
                    os.unlink(path)
        return after == self._before or self._look() == self._before

    @staticmethod
    def place(files: Mapping[str, str]) -> None:
        """Write the files of a test."""
        for name, text in files.items():
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            with open(name, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
                file.write(text)

    @staticmethod
    def read(name: str, most: int) -> tuple[bytes, bool]:
        """Return a file that the program wrote, and whether it is longer than `most` bytes. Absent: empty."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return b"", False
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return b"", False
            data = file.read(most + 1)
        return data[:most], len(data) > most

    @staticmethod
    def remove(names: Sequence[str]) -> None:
        for name in names:
            top = name.partition("/")[0]
            with contextlib.suppress(OSError, RecursionError):
                shutil.rmtree(top) if os.path.isdir(top) and not os.path.islink(top) else os.unlink(top)


class Streams:
    """Standard input, output and error of a program, as files without names, which all its tests use in turn."""

    def __init__(self) -> None:
        name = f".stream-{os.getpid()}"
        self.files: list[int] = []
        for at in range(3):
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | (os.O_APPEND if at else 0), 0o600)
            if at == 0:
                self._input = fd
                fd = os.open(name, os.O_RDONLY)
            self.files.append(fd)
            os.unlink(name)

    def begin(self, stdin: str) -> None:
        """Empty the files, and write the input of a test. Raises OSError if it does not fit."""
        for fd in (self._input, *self.files[1:]):
            os.ftruncate(fd, 0)
        data = memoryview(stdin.encode("utf-8", "surrogatepass"))
        at = 0
        while at < len(data):
            at += os.pwrite(self._input, data[at:], at)
        os.lseek(self.files[0], 0, os.SEEK_SET)

    def check(self, most: int) -> None:
        for fd in self.files[1:]:
            if os.fstat(fd).st_size > 64 * most:
                raise LimitError("limit", "it printed far more than is kept of its output")

    def read(self, at: int, most: int) -> tuple[str, bool]:
        """Return the beginning of a stream as text, and whether it is longer than `most` bytes."""
        data = os.pread(self.files[at], most + 1, 0)
        while len(data) <= most and (more := os.pread(self.files[at], most + 1 - len(data), len(data))):
            data += more
        return data[:most].decode("utf-8", "replace"), len(data) > most

    def read_end(self, at: int, most: int) -> str:
        size = os.fstat(self.files[at]).st_size
        return os.pread(self.files[at], most, max(0, size - most)).decode("utf-8", "replace")


# ---------------------------------------------------------------------- the program's processes


def limit_cpu(seconds: float) -> None:
    """Limit this process and each that it starts. The watch is more exact, and ends the program before."""
    most = int(seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def limit_memory(memory_mb: int | None) -> None:
    """Lower the limit of private memory, if this is less than the sandbox allows."""
    if memory_mb is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = memory_mb << 20
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def free_stack(memory_mb: int | None) -> None:
    """Let the stack of this thread grow as far as memory and the address space allow.

    The kernel looks at the limit whenever a stack grows. What lies below the stack has been there since the interpreter
    began, so this looks for the room.
    """
    wanted = min(memory_mb or _MAX_STACK_MB, _MAX_STACK_MB) << 20
    end = ctypes.c_void_p.in_dll(_libc, "__libc_stack_end").value
    if not end:
        return
    mmap, munmap = _libc.mmap, _libc.munmap
    mmap.restype = ctypes.c_void_p
    mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    used = (8 << 20) if soft == resource.RLIM_INFINITY else soft
    while wanted > used:
        begin = (end - wanted - _STACK_GUARD) & ~0xFFF
        length = wanted - used
        # PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE
        address = mmap(begin, length, 0, 0x104022, -1, 0)
        free = address == begin
        if address not in (None, ctypes.c_void_p(-1).value):
            munmap(address, length)
        if free:
            break
        wanted //= 2
    if wanted > used and (hard == resource.RLIM_INFINITY or wanted <= hard):
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
