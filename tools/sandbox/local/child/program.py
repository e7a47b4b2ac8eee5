"""Runs one program in a hardened child, reports on it, and ends as the interpreter would."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import atexit
import builtins
import ctypes
import errno
import faulthandler
import gc
import importlib.machinery
import io
import linecache
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from toolgym.tools.sandbox.local.child import generators, recursion_depth
from toolgym.tools.sandbox.local.kernel import harden, syscalls
from toolgym.tools.sandbox.local.protocol import frames

SOURCE = "main.py"

# Plain numbers, and the functions of `_signal`: the module `signal` turns every argument and result into an enum.
_INTERRUPT, _IGNORE = int(signal.SIGINT), int(signal.SIG_IGN)

MAX_FRAMES = 4000

_UNFLUSHED = 120

_MAX_LINE = 200
"""Characters of the longest first line in `offers`."""

_FOLDER = os.path.dirname(os.path.dirname(__file__))

# Programs can replace anything, `os._exit` and `isinstance` too; how one ends must not depend on that.
globals()["__builtins__"] = dict(vars(builtins))
_exit, _own_id, _kill, _write, _usage = os._exit, os.getpid, os.kill, os.write, resource.getrusage
_collect, _counts, _get_trace, _get_profile = gc.collect, gc.get_count, sys.gettrace, sys.getprofile
_set_trace, _set_profile, _mask = sys.settrace, sys.setprofile, _signal.pthread_sigmask
_ALL_SIGNALS = _signal.valid_signals()
_run_exit_functions, _count_exit_functions = atexit._run_exitfuncs, atexit._ncallbacks

_open_c_file = syscalls.libc.fopen
_open_c_file.restype = ctypes.c_void_p
_flush_c_files = syscalls.libc.fflush
_run_c_file = ctypes.pythonapi.PyRun_FileExFlags
_run_c_file.restype = ctypes.py_object
_namespaces = [ctypes.py_object] * 2
_run_c_file.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, *_namespaces, ctypes.c_int, ctypes.c_void_p)
_FILE_INPUT = 257


_ALWAYS_LOADED = (
    "abc", "builtins", "codecs", "encodings", "genericpath", "io", "marshal", "os", "posix", "posixpath", "site",
    "stat", "sys", "time", "zipimport",
)  # fmt: skip


offers: dict[str, Mapping[str, Any]] = {}
"""By the first line of a program: names that it starts with. So code of the library need not be sent with each run."""


def run(request: Mapping[str, Any], *, base: str) -> NoReturn:
    """Carry out a `messages.RunMessage`, report how it ended, and exit. `base` is the folder that /tmp stands for."""
    catch_interrupts()
    if request.get("env"):
        os.environ.update(request["env"])
    _connect_stdin(request.get("stdin") or "")  # first: its file's name may be one of the program's files' too
    if request.get("files"):
        place_files(request["files"])
    if request.get("fetch"):
        # The broker opens the folder before any user code runs, and fetches files through that descriptor.
        frames.send_all(harden.CONTROL_FD, frames.encode({"folder": os.path.relpath(".", base)}))
        if frames.receive(harden.CONTROL_FD) is None:
            os._exit(0)
    harden.limit_cpu(request.get("cpu_seconds"))
    if request.get("argv"):
        _run_command(request)
    _run_python(request["code"], request.get("source", SOURCE), request.get("files") or ())


def place_files(files: Mapping[str, bytes]) -> None:
    """Write files into the working folder. The host has checked their names."""
    for name, data in files.items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "wb") as file:
            file.write(data)


def catch_interrupts() -> None:
    """Make SIGINT a `KeyboardInterrupt` again: the template process ignores it, and programs would inherit that."""
    _signal.signal(_INTERRUPT, _signal.default_int_handler)


def ignore_interrupts() -> None:
    _signal.signal(_INTERRUPT, _IGNORE)


_streams: list[Any] = []
_thread_exits = _exits = _handlers = 0
_depth: recursion_depth.RecursionDepth | None = None


def prepare() -> None:
    global _thread_exits, _exits, _handlers, _depth
    # Stacks are written to stderr when the interpreter crashes, and when the broker asks for them.
    faulthandler.enable(file=2)
    faulthandler.register(frames.SHOW_STACK, file=2)
    _depth = recursion_depth.RecursionDepth()
    _flush_c_files(None)
    sys.orig_argv[:] = [sys.executable, SOURCE]
    sys.dont_write_bytecode = True  # as its environment says
    linecache.clearcache()  # from 3.13 on it holds the code that the process was started with, as "<string>"
    atexit.unregister(
        logging.shutdown
    )  # most programs have no handlers to shut down; `_finish` calls it if there are some
    _thread_exits, _exits, _handlers = _count_thread_exits(), atexit._ncallbacks(), len(logging._handlerList)  # type: ignore[attr-defined]
    kept = {fd: os.dup(fd) for fd in (1, 2)}
    ends = os.pipe()  # streams query their files now, and not in every child
    for fd in kept:
        os.dup2(ends[1], fd)
    _streams[:] = _open_streams()
    for fd, copy in kept.items():
        os.dup2(copy, fd)
    for fd in (*ends, *kept.values()):
        os.close(fd)


def _open_streams() -> list[Any]:
    rows = ((0, "<stdin>", "surrogateescape"), (1, "<stdout>", "strict"), (2, "<stderr>", "backslashreplace"))
    return [_open_stream(fd, name, errors) for fd, name, errors in rows]


def _open_stream(fd: int, name: str, errors: str) -> io.TextIOWrapper:
    mode = "w" if fd else "r"
    buffer: Any = open(fd, f"{mode}b", closefd=False)  # noqa: SIM115  lives as long as the program
    buffer.raw.name = name
    stream = io.TextIOWrapper(buffer, "utf-8", errors, newline="\n", line_buffering=bool(fd))
    stream.mode = mode  # type: ignore[misc]
    return stream


def reopen_stdin() -> None:
    """Give programs another standard input if theirs is closed, as `exit()` does. The descriptor is still open."""
    if getattr(sys.stdin, "closed", False):
        sys.stdin = sys.__stdin__ = _open_stream(0, "<stdin>", "surrogateescape")  # type: ignore[misc]


def _count_thread_exits() -> int:
    return len(getattr(threading, "_threading_atexits", ()))


def fresh_main(name: str) -> types.ModuleType:
    """Make a new `__main__`, with streams and random state of its own. Each object that this touches costs a copied
    page, so it touches as few as possible."""
    generators.renew()
    sys.argv[:] = [name]
    sys.path.insert(0, os.getcwd())
    sys.stdin, sys.stdout, sys.stderr = _streams or _open_streams()
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    gc.freeze()  # a collection must not touch, and so copy, the objects that are shared with the zygote
    main = types.ModuleType("__main__")
    main.__file__ = name
    main.__annotations__, main.__cached__ = {}, None  # type: ignore[attr-defined]
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    gc.enable()
    return main


def _run_python(code: str, source: str, files: Iterable[str]) -> NoReturn:
    name = os.path.abspath(source)
    if source != SOURCE:
        sys.orig_argv[1] = source
    namespace = fresh_main(name).__dict__
    _unload_shadowed(files)
    namespace.update(offers.get(code[:_MAX_LINE].partition("\n")[0], ()))
    namespace["__loader__"] = importlib.machinery.SourceFileLoader("__main__", name)
    first, streams, raised = _own_id(), (sys.stdout, sys.stderr), None
    _announce_user_code()
    depth = _depth or recursion_depth.RecursionDepth()
    place = depth.frame_place()
    here = place.value
    try:
        with open(source, "wb") as file:
            file.write(code.encode("utf-8", "surrogatepass"))
        linecache.cache[source] = (lambda: code,)  # for a program that has changed its folder
        # The interpreter's way to run a file: unlike the others, it reports errors in the source as such.
        file_pointer = _open_c_file(source.encode(), b"rb")
        if file_pointer is None:
            raise OSError(f"{source} cannot be opened")
        program = file_pointer, source.encode(), _FILE_INPUT, namespace, namespace, 1, None
        depth.reset_depth()
        place.value = None
        _run_c_file(*program)
    except BaseException as error:  # noqa: BLE001  all that the program raises is its result
        place.value = here
        raised = error
    place.value = here
    if _get_trace() or _get_profile():
        _set_trace(None)
        _set_profile(None)
    status, why = _end_of(raised)
    del raised
    status = _finish(status)
    _mask(
        _signal.SIG_BLOCK, _ALL_SIGNALS
    )  # from here on, a signal handler of the program's could raise anything anywhere
    # End what the program's names still hold: write files, close generators, call `__del__`.
    sys.stdout, sys.stderr = streams
    sys.modules.pop("__main__", None)
    # At this point no warning should advise to use it.
    sys.modules["tracemalloc"] = None  # type: ignore[assignment]
    for last in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(last, None)
    generations = (0, 1) if _counts()[1:] == (0, 0) else (2, 2)
    place.value = None
    _collect(generations[0])  # frees holders before what they hold, as buffered files need
    del namespace, program
    _collect(generations[1])
    place.value = here
    _flush(0, report=False)
    if _own_id() == first:
        _report_and_exit(status, why)
    _leave(status)


def _unload_shadowed(files: Iterable[str]) -> None:
    """Unload modules that a file in the working folder shadows, as `queue.py` does."""
    for file in files:
        name, _, rest = file.removesuffix(".py").partition("/")
        if (rest == "__init__" or (not rest and file.endswith(".py"))) and name not in _ALWAYS_LOADED:
            sys.modules.pop(name, None)


def limit_of(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "memory_limit"
    if isinstance(error, OSError):
        return {errno.EFBIG: "file_limit", errno.ENOSPC: "disk_limit"}.get(error.errno or 0, "")
    return ""


def _end_of(raised: BaseException | None) -> tuple[int, str]:
    """A program's exit status (negative: a signal), and the limit that it met. An exception is printed as the
    interpreter would, without this module's own frames."""
    if raised is None:
        return 0, ""
    if isinstance(raised, SystemExit):
        return exit_status(raised.code), ""
    raised.__traceback__ = own_frames(raised.__traceback__)
    kind = type(raised)
    exc_info = sys.last_type, sys.last_value, sys.last_traceback = kind, raised, raised.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = raised
    hook = getattr(sys, "excepthook", None)
    second = None
    try:
        sys.audit("sys.excepthook", hook, *exc_info)
        if hook is None:
            _say("sys.excepthook is missing\n")
            hook = sys.__excepthook__
        hook(*exc_info)  # not `traceback`, which before 3.12 has no "Did you mean"
    except BaseException as another:  # noqa: BLE001  the hook is user code
        second = another
    if isinstance(second, SystemExit):
        return exit_status(second.code), ""
    if second is not None:
        second.__traceback__ = own_frames(second.__traceback__)
        _say("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        _say("\nOriginal exception was:\n")
        sys.__excepthook__(*exc_info)
    return -_INTERRUPT if kind is KeyboardInterrupt else 1, limit_of(raised)


def _say(text: str) -> None:
    with suppress(BaseException):  # it may be the program's own object
        sys.stderr.write(text)


def own_frames(frames: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames at its top that belong to the sandbox. The middle of a very deep one is dropped:
    printing a million frames takes minutes, and memory that a program which has run out of it does not have."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_FOLDER):
        frames = frames.tb_next
    depth, last = 0, frames
    while last is not None:
        depth, last = depth + 1, last.tb_next
    if depth > MAX_FRAMES:
        head = tail = frames
        for _ in range(depth - MAX_FRAMES // 2):
            tail = tail.tb_next if tail is not None else None
        for _ in range(MAX_FRAMES // 2 - 1):
            head = head.tb_next if head is not None else None
        if head is not None:
            head.tb_next = tail
    return frames


def exit_status(code: object) -> int:
    """Return the exit status for the argument of `sys.exit`. A text is printed, as the interpreter does."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 255
    with suppress(BaseException):  # its `__str__` is user code
        _say(str(code))
    _say("\n")
    return 1


def _finish(status: int) -> int:
    """Wait for threads, run exit functions and flush, as the interpreter does at exit. Returns the new status."""
    if _thread._count() > 0 or _count_thread_exits() > _thread_exits:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
        except BaseException as error:  # noqa: BLE001  the program may have replaced it, and what follows too
            _ignore(error, threading)
    if _count_exit_functions() > _exits:
        try:
            _run_exit_functions()
        except BaseException as error:  # noqa: BLE001
            _ignore(error, atexit)
    if len(logging._handlerList) > _handlers:  # type: ignore[attr-defined]
        try:
            logging.shutdown()
        except BaseException as error:  # noqa: BLE001
            _ignore(error, logging.shutdown)
    return _flush(status)


def _flush(status: int, *, report: bool = True) -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except BaseException as error:  # noqa: BLE001  a stream may be the program's own object
            status = _UNFLUSHED
            if report and stream is sys.stdout:
                _ignore(error, stream, "on flushing sys.stdout:" if sys.version_info >= (3, 13) else "")
    _flush_c_files(None)
    return status


def _ignore(error: BaseException, where: object, what: str = "") -> None:
    error.__traceback__ = own_frames(error.__traceback__)
    with suppress(BaseException):
        _say(f"Exception ignored {what or f'in: {where!r}'}\n")
        sys.__excepthook__(type(error), error, error.__traceback__)


def _leave(status: int) -> NoReturn:
    if status < 0:
        _signal.signal(-status, int(signal.SIG_DFL))
        _mask(_signal.SIG_UNBLOCK, [-status])
        _kill(_own_id(), -status)
    _exit(status & 0xFF)


def _run_command(request: Mapping[str, Any]) -> NoReturn:
    """Compile if asked to, then run; each as a process below this one."""
    with open(request["source"], "wb") as file:
        file.write(request["code"].encode("utf-8", "surrogatepass"))
    _announce_user_code()
    if not request.get("fork", True):
        _exec(request["argv"])
    if request.get("compile"):
        status, _ = _spawn(request["compile"])
        frames.send_all(harden.CONTROL_FD, frames.encode({"compiled": status}))
        if frames.receive(harden.CONTROL_FD) is None or status != 0:
            _report_and_exit(1)
    status, used = _spawn(request["argv"])
    report = {"done": status, "cpu": used.ru_utime + used.ru_stime, "rss_kb": used.ru_maxrss}
    frames.send_all(harden.CONTROL_FD, frames.encode(report))
    os._exit(0)


def _exec(argv: list[str]) -> NoReturn:
    os.close(harden.CONTROL_FD)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _spawn(argv: list[str]) -> tuple[int, resource.struct_rusage]:
    """Run a program to its end. Returns its exit code, negative for a signal, 127 if it does not exist; and what it and
    its children used. A compiler that ran before it is not counted."""
    try:
        process = subprocess.Popen(argv, close_fds=True)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        return 127, resource.getrusage(resource.RUSAGE_THREAD)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used


def _connect_stdin(text: str) -> None:
    if not text:
        return
    with open(".stdin", "wb") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
    fd = os.open(".stdin", os.O_RDONLY)
    os.unlink(".stdin")
    os.dup2(fd, 0)
    os.close(fd)


def _announce_user_code() -> None:
    """Tell the broker that user code begins: from here on it must not believe this socket about sandbox failures."""
    frames.send_all(harden.CONTROL_FD, frames.encode({"begins": True}))


def _report_and_exit(status: int, why: str = "") -> NoReturn:
    """Report how the program ended, and the limit that it met, and exit without the interpreter's slow teardown. The
    report comes first, so that the host can answer while the kernel still tears this process down."""
    used = _usage(resource.RUSAGE_SELF)
    below = _usage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime + below.ru_utime + below.ru_stime
    # Without `json`, which the program may have changed.
    body = f'{{"done":{status},"why":"{why}","cpu":{cpu},"rss_kb":{used.ru_maxrss}}}'.encode()
    with suppress(OSError):  # the program may have closed the socket; then the broker goes by the exit code
        _write(harden.CONTROL_FD, frames.HEADER.pack(len(body)) + body)
    _exit(status & 0xFF)
