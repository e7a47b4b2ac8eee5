"""The loader's own side: load the program once, and fork a process for each test. See `Loader`.

The process has run the program's code, so whatever it sends may be a forgery.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import gc
import json
import linecache
import marshal
import os
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from toolgym.tools.judge.inside import processes, values
from toolgym.tools.judge.inside.link import OPERATIONS, Link, said
from toolgym.tools.judge.inside.pipes import Pipe

MAX_MESSAGE = 65536
PID_SIZE = 8
"""Bytes of the reply that tells the id of a new process."""
FORK = "fork"
"""What the loader is told for a test that talks to its process. For a call it is told the length of the call."""

_MAX_ERROR = 4000
_OWN_CALLS = 40
"""Calls of the judge below each call of a program's function, which must not count against its recursion."""
_FIRST_FREE = 4
"""Descriptor 3 of a program's process may be the sandbox's."""
_FILE = "<judge>"

kept: list[object] = []
"""Objects that the process of a script's test must not free: each would be a page to copy."""


def be_loader(
    pipes: Sequence[int], streams: Sequence[int], setup: str, program: str, script_name: str
) -> types.CodeType:
    """Load the program when asked to, then fork a process for each test. Returns in the process of a script's test.

    After each fork, every page of memory that either process writes to is copied. So little is done from there on.
    """
    control, replies, reader, writer = pipes
    _leave_parent([*pipes, *streams])
    processes.be_dumpable()
    data = os.read(control, MAX_MESSAGE)
    if not data:
        os._exit(0)
    limits = json.loads(data)
    processes.limit_cpu(limits["seconds"])
    processes.limit_memory(limits["memory_mb"])
    processes.free_stack(limits["memory_mb"])
    if not script_name:
        _load_functions(control, replies, reader, writer, setup, program)
    os.write(replies, b'""\n')
    script = _compiled_script(program, script_name)
    _hide_judge()
    message = _fork_for_tests(control, replies, None, "")
    return _enter_script(script, streams, [script_name, *message.decode().split("\0")[1:]])


def _load_functions(control: int, replies: int, reader: int, writer: int, setup: str, program: str) -> NoReturn:
    """Load a program with functions, and serve its tests."""
    module = sys.modules["solution"] = types.ModuleType("solution")
    namespace = module.__dict__
    namespace["__builtins__"] = builtins
    sys.setrecursionlimit(sys.getrecursionlimit() + _OWN_CALLS)
    os.write(replies, json.dumps(_error_of(setup, "<setup>", namespace)).encode() + b"\n")
    error = _error_of(program, "solution.py", namespace)
    pipe = Pipe(reader, writer)
    link = Link(pipe, pipe, {**OPERATIONS, **_operations(namespace)}, True)
    _fork_for_tests(control, replies, _caller(link, reader, writer, namespace), error)
    _serve(link)


def _fork_for_tests(control: int, replies: int, call: Callable[[int], NoReturn] | None, error: str) -> bytes:
    """Fork a process for each message, and report its end. Returns the message, in the process of a test.

    A process that only calls a function does not return: after the fork each object that it touches costs a page.
    """
    read, write, close, fork, wait = os.read, os.write, os.close, processes.libc_fork, processes.libc_wait
    report = processes.ChildReport()
    kept.append(report)
    end, arguments = report.data, report.arguments
    shares = processes.is_alone()
    gc.collect()  # or each script ends with a thorough one
    gc.freeze()
    processes.unfreeze(sys.modules["__main__"].__dict__)
    write(replies, json.dumps([error, shares]).encode() + b"\n")
    while message := read(control, MAX_MESSAGE):
        pid = fork() if shares else 0
        if pid < 0:
            break
        if pid:
            write(replies, b"%8d" % pid)
            while wait(pid, *arguments) != pid:
                if ctypes.get_errno() != errno.EINTR:
                    os._exit(0)
            write(replies, end)
            continue
        if not shares:
            write(replies, b"%8d" % os.getpid())
        if call is None:
            return message
        close(control)
        if shares:  # or the tests' process would not notice that this one has ended
            close(replies)
        if not message.isdigit():
            return message
        call(int(message))
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
    }


def _caller(link: Link, reader: int, writer: int, namespace: dict[str, Any]) -> Callable[[int], NoReturn]:
    """Return a function that calls the program for a test, writes its reply, and ends the process.

    It runs after the fork, where each object that it touches costs a copied page.
    """
    pipe = Pipe(reader, writer)
    read, write, loads, leave = os.read, os.write, marshal.loads, os._exit
    has_class = isinstance(namespace.get("Solution"), type)
    value_reply = values.value_reply

    def call(size: int) -> NoReturn:
        try:
            try:
                data = read(reader, size)
                if len(data) < size:
                    data += pipe.read(size - len(data))
                name, args, encoded = loads(data)
                if encoded:
                    args = link.decode(args)
                if has_class or name not in namespace:
                    reply = value_reply(_function(namespace, name)(*args))
                else:
                    reply = value_reply(namespace[name](*args))
            except BaseException as error:  # noqa: BLE001  whatever the program raises is its answer
                reply = values.error_reply(error)
            sent = write(writer, reply)
            if sent < len(reply):
                pipe.write(reply[sent:])
        finally:
            leave(0)

    return call


def _serve(link: Link) -> NoReturn:
    """Serve a test that uses the program's objects."""
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
