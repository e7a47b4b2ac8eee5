"""Running one program in a confined child."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import atexit
import base64
import builtins
import contextlib
import errno
import gc
import linecache
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from typing import Any, NoReturn

from toolgym.tools.sandbox.local import confine, wire

SOURCE = "main.py"

# Numbers, and the plain functions: the module `signal` makes an enum's members of all that comes and goes.
_INTERRUPT, _IGNORE = int(signal.SIGINT), int(signal.SIG_IGN)

_MERSENNE = 624
"""Words of state of numpy's global generator; at this position it draws new ones before the first is used."""

MOST_FRAMES = 4000
"""Of a traceback, how many are shown."""


def run(request: Mapping[str, Any], *, base: str) -> NoReturn:
    """Carry out a `run` request, tell how it ended on the control socket, and exit.

    Args:
        request: see `template`.
        base: the folder that absolute names of files to fetch, which begin with /tmp, mean.
    """
    catch_interrupts()
    if request.get("env"):
        os.environ.update(request["env"])
    if request.get("files"):
        place_files(request["files"])
    if request.get("fetch"):
        _hand_over_folder(base)
    _connect_stdin(request.get("stdin") or "")
    confine.limit_cpu(request.get("cpu_seconds"))
    if request.get("argv"):
        _run_command(request)
    _run_python(request["code"])


def place_files(files: Mapping[str, str]) -> None:
    """Write base64 files into the working folder. Names were checked by the host."""
    for name, data in files.items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            file.write(base64.b64decode(data))


def catch_interrupts() -> None:
    """SIGINT is a `KeyboardInterrupt` again: the template ignores it, and so would all programs."""
    _signal.signal(_INTERRUPT, _signal.default_int_handler)


def note_interrupts() -> list[int]:
    """SIGINT is noted in the list that is returned, and does nothing else. (Programs do not inherit that.)"""
    noted: list[int] = []
    _signal.signal(_INTERRUPT, lambda number, _: noted.append(number))
    return noted


def ignore_interrupts() -> None:
    """SIGINT does nothing."""
    _signal.signal(_INTERRUPT, _IGNORE)


_streams: list[Any] = []
_thread_exits = _exits = _handlers = 0


def prepare() -> None:
    """In the template: make what all programs get alike, so that they need not."""
    global _thread_exits, _exits, _handlers
    atexit.unregister(logging.shutdown)  # most programs have nothing that it would shut down; `_finish` looks
    _thread_exits, _exits, _handlers = _count_thread_exits(), atexit._ncallbacks(), len(logging._handlerList)  # type: ignore[attr-defined]
    kept = {fd: os.dup(fd) for fd in (1, 2)}
    ends = os.pipe()  # what streams find out about their files, they find out now
    for fd in kept:
        os.dup2(ends[1], fd)
    _streams[:] = _open_streams()
    for fd, copy in kept.items():
        os.dup2(copy, fd)
    for fd in (*ends, *kept.values()):
        os.close(fd)


def _open_streams() -> list[Any]:
    """Standard input, output and error. Lines are flushed, so that a killed program's are kept."""
    return [
        open(0, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=False),
        open(1, "w", encoding="utf-8", errors="strict", buffering=1, closefd=False),
        open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False),
    ]


def _count_thread_exits() -> int:
    """How many functions wait for the end of all threads."""
    return len(getattr(threading, "_threading_atexits", ()))


def fresh_main(name: str) -> types.ModuleType:
    """Make a new `__main__`, with streams and random state of its own.

    Every object that is touched here is a page copied from the template, so as few as possible are.
    """
    main = types.ModuleType("__main__")
    main.__file__ = name
    main.__annotations__, main.__cached__ = {}, None  # type: ignore[attr-defined]
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        # As good as `seed()`, which touches far more.
        key = sys.modules["numpy"].frombuffer(os.urandom(4 * _MERSENNE), "uint32")
        numpy_random.set_state(("MT19937", key, _MERSENNE))
    sys.argv[:] = [name]
    sys.path.insert(0, os.getcwd())
    sys.stdin, sys.stdout, sys.stderr = _streams or _open_streams()
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    gc.freeze()  # a collection must not touch, and so copy, what the template keeps of all its other children
    gc.enable()
    return main


def _run_python(code: str) -> NoReturn:
    main = fresh_main(os.path.abspath(SOURCE))
    status, why = 0, ""
    _hand_over()
    try:
        source = code.encode("utf-8", "surrogatepass")
        with open(SOURCE, "wb") as file:
            file.write(source)
        linecache.cache[SOURCE] = (len(code), None, f"{code}\n".splitlines(True), SOURCE)
        # Compiled from bytes, as the interpreter would: encoding declarations count, lone surrogates are errors.
        exec(compile(source, SOURCE, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as error:
        status = _exit_status(error.code)
    except BaseException as error:  # noqa: BLE001  whatever the program raised is its own
        status, why = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1, limit_of(error)
        show_error(error)
    _finish(status, why)


def _hand_over() -> None:
    """Say that what follows is the user's: from now on no failure is the sandbox's because somebody says so here."""
    wire.send_all(confine.CONTROL_FD, wire.encode({"begins": True}))


def limit_of(error: BaseException) -> str:
    """The status of the limit that an exception tells of; empty for all others."""
    if isinstance(error, MemoryError):
        return "memory_limit"
    if isinstance(error, OSError):
        return {errno.EFBIG: "file_limit", errno.ENOSPC: "disk_limit"}.get(error.errno or 0, "")
    return ""


def show_error(error: BaseException) -> None:
    """Print an exception as the interpreter would, without this module's own frames."""
    error.__traceback__ = own_frames(error.__traceback__)
    with contextlib.suppress(BaseException):  # the hook: before 3.12 `traceback` knows no "Did you mean"
        sys.excepthook(type(error), error, error.__traceback__)


def own_frames(frames: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames at its top that belong to the sandbox.

    Of one that is absurdly deep the middle is dropped: to print a million frames takes minutes, and the memory that an
    error for want of memory has not got.
    """
    folder = os.path.dirname(__file__)
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(folder):
        frames = frames.tb_next
    depth, last = 0, frames
    while last is not None:
        depth, last = depth + 1, last.tb_next
    if depth > MOST_FRAMES:
        head = tail = frames
        for _ in range(depth - MOST_FRAMES // 2):
            tail = tail.tb_next if tail is not None else None
        for _ in range(MOST_FRAMES // 2 - 1):
            head = head.tb_next if head is not None else None
        if head is not None:
            head.tb_next = tail
    return frames


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 255
    with contextlib.suppress(BaseException):
        print(code, file=sys.stderr)
    return 1


def _finish(status: int, why: str) -> NoReturn:
    """End as the interpreter would: wait for threads, run exit functions, flush; then skip the slow dismantling.

    A negative status stands for the signal that the program dies of.
    """
    if _thread._count() > 0 or _count_thread_exits() > _thread_exits:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
    if atexit._ncallbacks() > _exits:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
    if len(logging._handlerList) > _handlers:  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    _tell_and_exit(status, why)


def _tell_and_exit(status: int, why: str = "") -> NoReturn:
    """Say how it went and leave. Said first, it lets the host answer while the kernel still clears away."""
    with contextlib.suppress(BaseException):
        wire.send_all(confine.CONTROL_FD, last_words(status, why))
    os._exit(status & 0xFF)


def last_words(status: int, why: str = "") -> bytes:
    """The frame that tells how a program ended, and what it and its children used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    below = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime + below.ru_utime + below.ru_stime
    return wire.encode({"done": status, "why": why, "cpu": cpu, "rss_kb": used.ru_maxrss})


def _run_command(request: Mapping[str, Any]) -> NoReturn:
    """Compile where needed, then run; both as processes of their own below this one."""
    with open(request["source"], "wb") as file:
        file.write(request["code"].encode("utf-8", "surrogatepass"))
    _hand_over()
    if not request.get("fork", True):
        _exec(request["argv"])
    if request.get("compile"):
        status = _spawn(request["compile"])
        wire.send_all(confine.CONTROL_FD, wire.encode({"compiled": status}))
        if wire.receive(confine.CONTROL_FD) is None or status != 0:
            _tell_and_exit(1)
    status = _spawn(request["argv"])
    _tell_signal_or_status(status)


def _exec(argv: list[str]) -> NoReturn:
    os.close(confine.CONTROL_FD)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _spawn(argv: list[str]) -> int:
    """Run a program to its end. Returns its code, negative for a signal, 127 where it does not exist."""
    try:
        process = subprocess.Popen(argv, close_fds=True)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        return 127
    return process.wait()


def _tell_signal_or_status(status: int) -> NoReturn:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    message = {"done": status, "cpu": used.ru_utime + used.ru_stime, "rss_kb": used.ru_maxrss}
    wire.send_all(confine.CONTROL_FD, wire.encode(message))
    os._exit(0)


def _connect_stdin(text: str) -> None:
    if not text:
        return
    with open(".stdin", "wb") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
    fd = os.open(".stdin", os.O_RDONLY)
    os.unlink(".stdin")
    os.dup2(fd, 0)
    os.close(fd)


def _hand_over_folder(base: str) -> None:
    """Have the template take hold of a folder before any foreign code runs; it fetches files through it."""
    wire.send_all(confine.CONTROL_FD, wire.encode({"folder": os.path.relpath(".", base)}))
    if wire.receive(confine.CONTROL_FD) is None:
        os._exit(0)
