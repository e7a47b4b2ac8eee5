"""The process that has loaded a Python program once, and forks a process for each of its tests.

The loader has run the program's code, so nothing that it says decides a verdict. It can only lie about its exit code
and its children. No test sees what another one left in memory.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import io
import json
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from toolgym.tools.judge.inside import processes
from toolgym.tools.judge.inside.files import Streams
from toolgym.tools.judge.inside.limits import LimitError, LimitWatch, TestLimits
from toolgym.tools.judge.inside.link import OPERATIONS, BrokenLinkError, Link, said
from toolgym.tools.judge.inside.pipes import Pipe, WatchedReader, WatchedWriter, drain, is_drained

_MAX_MESSAGE = 65536
_MAX_ERROR = 4000
_OWN_CALLS = 40
"""Calls of the judge below each call of a program's function, which must not count against its recursion."""
_FIRST_FREE = 4
"""Descriptor 3 of a program's process may be the sandbox's."""
_FILE = "<judge>"
_ENDED = "the program's process has ended"


class Loader:
    """The process that has loaded the program, as the tests' process sees it. All that it says may be a lie.

    It and the tests' process share pipes, and the files of a script's streams, which all tests use in turn.
    """

    def __init__(self, setup: str, program: str, script_name: str) -> None:
        """Fork it. `script_name` is the file of a program that is a script, and empty for a program with functions.

        In a process that a script's test was forked in, `script` is the code to run.
        """
        self.script: types.CodeType | None = None
        self.streams = Streams() if script_name else None
        # Each pair is what the loader reads, and what it writes.
        control, calls = (os.pipe(), os.pipe()), (os.pipe(), os.pipe())
        self.pid = processes.fork_apart()
        if self.pid == 0:
            theirs = [pair[at][at] for pair in (control, calls) for at in (0, 1)]
            streams = self.streams.files if self.streams is not None else ()
            self.script = _be_loader(theirs, streams, setup, program, script_name)
            return
        for pair in (control, calls):
            os.close(pair[0][0])
            os.close(pair[1][1])
        self._asks, self._replies = control[0][1], control[1][0]
        self.asks, self.answers = calls[0][1], calls[1][0]
        self.can_share = True
        self._received = b""

    def load(self, limits: TestLimits, memory_mb: int | None) -> tuple[str, str]:
        """Load the program. Returns the status of all its tests and an error, both empty if it could be loaded.

        Only the first reply, about the setup, comes from a process that has not run the program yet.
        """
        message = json.dumps({"seconds": limits.seconds, "memory_mb": memory_mb}).encode()
        watch = LimitWatch(self.pid, limits)
        try:
            failed = json.loads(self._ask(message, watch))
            if failed:
                return "not_judgeable", str(failed)
            error, shares = json.loads(self._receive(watch))
            self.can_share = bool(shares)
            return ("error", str(error)) if error else ("", "")
        except LimitError as error:
            return str(error.args[0]), str(error.args[1])
        except (BrokenLinkError, ValueError, TypeError, RecursionError):
            return "error", _ENDED

    def fork(self, limits: TestLimits, argv: Sequence[str] = ()) -> int:
        """Have it fork a process for a test. Returns the process's id."""
        message = "\0".join(["share" if self.can_share else "alone", *argv])
        try:
            return int(self._ask(message.encode(), LimitWatch(self.pid, limits, alone=True)))
        except ValueError as error:
            raise BrokenLinkError(_ENDED) from error

    def link(self, watch: LimitWatch) -> Link:
        """Return a link to the last test's process."""
        reader = WatchedReader(self.answers, watch, self._replies)
        writer = WatchedWriter(self.asks, watch)
        return Link(io.BufferedReader(reader), io.BufferedWriter(writer), {"call": OPERATIONS["call"]}, False)

    def reap(self, limits: TestLimits) -> tuple[int, float]:
        """Wait for the end of the last test's process. Returns its exit status, and CPU seconds with its children."""
        if not self.can_share:
            return processes.reap(self.pid)
        try:
            status, cpu = self._receive(LimitWatch(self.pid, limits, alone=True)).split()
            return int(status), float(cpu)
        except (ValueError, LimitError) as error:
            raise BrokenLinkError(_ENDED) from error

    def is_ready(self) -> bool:
        """Empty what the last test left in the pipes. Returns whether the loader can fork for another test."""
        return self.can_share and drain(self.answers) and is_drained(self.asks)

    def end(self) -> None:
        processes.kill(self.pid)
        with contextlib.suppress(OSError):
            processes.reap(self.pid)

    def _ask(self, message: bytes, watch: LimitWatch) -> bytes:
        try:
            os.write(self._asks, message)
        except OSError as error:
            raise BrokenLinkError(_ENDED) from error
        return self._receive(watch)

    def _receive(self, watch: LimitWatch) -> bytes:
        """Read a line. Raises BrokenLinkError if the loader has ended."""
        while b"\n" not in self._received:
            watch.wait(self._replies)
            part = os.read(self._replies, _MAX_MESSAGE)
            self._received += part
            if not part or len(self._received) > _MAX_MESSAGE:
                raise BrokenLinkError(_ENDED)
        line, _, self._received = self._received.partition(b"\n")
        return line


def _be_loader(
    pipes: Sequence[int], streams: Sequence[int], setup: str, program: str, script_name: str
) -> types.CodeType:
    """Load the program when asked to, then fork a process for each test. Returns in the process of a script's test.

    After each fork, every page of memory that either process writes to is copied. So little is done from there on.
    """
    control, replies, reader, writer = pipes
    _leave_parent([*pipes, *streams])
    processes.be_dumpable()
    data = os.read(control, _MAX_MESSAGE)
    if not data:
        os._exit(0)
    limits = json.loads(data)
    processes.limit_cpu(limits["seconds"])
    processes.limit_memory(limits["memory_mb"])
    processes.free_stack(limits["memory_mb"])
    module = types.ModuleType("solution")
    namespace = module.__dict__
    script: types.CodeType | BaseException | None = None
    error = ""
    own_pid, fork, wait, read, write = os.getpid, processes.fork, processes.reap, os.read, os.write
    if script_name:
        write(replies, b'""\n')
        script = _compiled_script(program, script_name)
        _hide_judge()
    else:
        namespace["__builtins__"] = builtins
        sys.modules["solution"] = module
        sys.setrecursionlimit(sys.getrecursionlimit() + _OWN_CALLS)
        write(replies, json.dumps(_error_of(setup, "<setup>", namespace)).encode() + b"\n")
        error = _error_of(program, "solution.py", namespace)
    reply = [error, processes.is_alone()]
    pipe = Pipe(reader, writer)
    link = Link(pipe, pipe, {**OPERATIONS, **_operations(namespace)}, True)
    gc.collect()  # or each script ends with a thorough one
    gc.freeze()
    processes.unfreeze(sys.modules["__main__"].__dict__)
    write(replies, json.dumps(reply).encode() + b"\n")
    while data := read(control, _MAX_MESSAGE):
        shares = data.startswith(b"share")
        pid = fork() if shares else 0
        if pid == 0:
            if not shares:
                write(replies, b"%d\n" % own_pid())
            if script_name:
                return _enter_script(script, streams, [script_name, *data.decode().split("\0")[1:]])
            if shares:  # or the tests' process would take it that this one has ended
                os.close(replies)
            os.close(control)
            _serve(link)
        write(replies, b"%d\n" % pid)
        write(replies, b"%d %f\n" % wait(pid))
    os._exit(0)


def _leave_parent(kept: Sequence[int]) -> None:
    """Close all descriptors but these and standard error, to which all prints of the program go."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    last = 2
    for fd in sorted(kept):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, max(256, nothing + 1, last + 2))


def _error_of(source: str, name: str, namespace: dict[str, Any]) -> str:
    """Run a source. Returns what it raised, if anything, after its traceback was printed."""
    try:
        exec(compile(source, name, "exec"), namespace)
    except BaseException as error:  # noqa: BLE001  whatever the program raises is its answer
        with contextlib.suppress(BaseException):
            traceback.print_exc()
        return f"{type(error).__name__}: {said(error)}".encode(errors="replace").decode()[:_MAX_ERROR]
    return ""


def _operations(namespace: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Return what the tests may ask of a program, in addition to `OPERATIONS`."""
    return {
        "find": lambda names: {name: namespace[name] for name in names if name in namespace},
        "function": lambda name, *args: _function(namespace, name)(*args),
    }


def _serve(link: Link) -> NoReturn:
    """Serve the tests that call the program's functions."""
    try:
        link.serve()
    finally:
        os._exit(0)


def _function(namespace: dict[str, Any], name: str) -> Any:
    """Return the function, or the method of that name of a new `Solution`, as LiveCodeBench does."""
    solution = namespace.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined")
    return namespace[name]


def _compiled_script(program: str, name: str) -> types.CodeType | BaseException:
    """Compile a script. A mistake in it is raised where it would run."""
    linecache.cache[name] = (lambda: program,)
    try:
        with open(name, "wb") as file:
            file.write(program.encode("utf-8", "surrogatepass"))
        return compile(program, name, "exec")
    except BaseException as error:  # noqa: BLE001
        return error


def _hide_judge() -> None:
    """Make the interpreter look as if it had just started."""
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not (name.startswith("__") and name.endswith("__"))]:
        del main[name]
    for module in [module for module in sys.modules if module.startswith("toolgym.tools.judge.inside")]:
        del sys.modules[module]
    sys.excepthook = _show_error
    sys.setrecursionlimit(sys.getrecursionlimit() + 1)  # for the call that runs the script


def _enter_script(
    script: types.CodeType | BaseException | None, streams: Sequence[int], argv: list[str]
) -> types.CodeType:
    """Connect this process's streams, and return the code of the script."""
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
    os.closerange(_FIRST_FREE, 64)
    sys.argv[:] = argv
    if isinstance(script, types.CodeType):
        return script
    assert script is not None
    raise script.with_traceback(None)


def _show_error(kind: type[BaseException], error: BaseException, frames: types.TracebackType | None) -> None:
    """Print an error without the frames that belong to the judge."""
    frames = None if frames is None else frames.tb_next  # the first one is that of the file which calls `main`
    while frames is not None and frames.tb_frame.f_code.co_filename == _FILE:
        frames = frames.tb_next
    sys.__excepthook__(kind, error.with_traceback(frames), frames)
