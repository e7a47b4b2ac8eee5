"""Runs inside a sandbox: a program in some processes, its tests in another.

The judge sends the files of this folder, followed by a call of `main`, which forks first.
The child becomes the *loader*: it waits, and later loads the program once and forks a process for each test. The parent
reads the tests and a secret word from standard input, runs the tests, and prints the word with each outcome. So the
program's processes never hold the tests or the word in any object, nor the descriptors of the parent, and the kernel
refuses them the parent's memory (`PR_SET_DUMPABLE`). A failure before the program runs is no fault of the program.

Only plain data crosses between the program and assertions: see `link`. The tests hold a `Remote` of each other object.
The folder needs only Linux and the standard library.
"""

from __future__ import annotations

import ast
import base64
import builtins
import collections
import contextlib
import gc
import importlib
import io
import json
import linecache
import os
import shutil
import signal
import sys
import traceback
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from toolgym.tools.judge.inside import emptiness, processes
from toolgym.tools.judge.inside.files import Folder, Streams
from toolgym.tools.judge.inside.limits import (
    LimitError,
    LimitWatch,
    SliceOverError,
    TestLimits,
    alarm,
    await_end,
    cpu_clock,
    prepare_alarm,
)
from toolgym.tools.judge.inside.link import (
    DATA_MODULES,
    OPERATIONS,
    BrokenLinkError,
    Link,
    NotJudgeableError,
    encode_integer,
    said,
)
from toolgym.tools.judge.inside.pipes import Pipe, WatchedReader, WatchedWriter, drain, is_drained

_SHORT_NAMES = {"np": "numpy", "pd": "pandas"}
_MAX_MESSAGE = 65536
_MAX_ERROR = 4000
_OWN_CALLS = 40
"""Calls of the judge below each call of a program's function, which must not count against its recursion."""
_FIRST_FREE = 4
"""Descriptor 3 of a program's process may be the sandbox's."""
_FILE = "<judge>"
_ENDED = "the program's process has ended"

PRELUDE = """
import bisect, collections, copy, datetime, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import pow
"""
"""Names for function tests without an import, as in LiveCodeBench. `math` has another `pow`."""


# ---------------------------------------------------------------------- the program's processes


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


class CompiledProgram:
    """A program of another language: compiled once, and started for each test. It has the methods of `Loader`."""

    def __init__(self, command: Mapping[str, Any], program: str) -> None:
        self._command, self._program = command, program
        self._environment = {**os.environ, **command["env"]}
        self.pid = 0
        self._memory_mb: int | None = None
        self.streams = Streams()

    def load(self, limits: TestLimits, memory_mb: int | None) -> tuple[str, str]:
        self._memory_mb = memory_mb
        for need in self._command["needs"]:
            if shutil.which(need, path=self._environment.get("PATH")) is None and not os.path.exists(need):
                return "not_installed", need
        with open(self._command["source"], "wb") as file:
            file.write(self._program.encode("utf-8", "surrogatepass"))
        if not self._command["compile"]:
            return "", ""
        self.streams.begin("")
        stdin, out, _ = self.streams.files
        pid = self._start(self._command["compile"], (stdin, out, out), limits)
        status, _, failure = _awaited(self, pid, limits, self.streams)
        if failure:
            return "compile_error", failure[1]
        return ("", "") if status == 0 else ("compile_error", self.streams.read(1, _MAX_ERROR)[0])

    def fork(self, limits: TestLimits, argv: Sequence[str] = ()) -> int:
        words = [*self._command["argv"], *argv]
        return self._start(words, self.streams.files, limits, native=self._command["native"])

    def is_ready(self) -> bool:
        return True

    def reap(self, limits: TestLimits) -> tuple[int, float]:
        return processes.reap(self.pid)

    def end(self) -> None: ...

    def _start(self, argv: Sequence[str], fds: Sequence[int], limits: TestLimits, *, native: bool = False) -> int:
        self.pid = processes.start(
            argv, fds, self._environment, limits.seconds, self._memory_mb if native else None, native=native
        )
        return self.pid


# ---------------------------------------------------------------------- the process of the tests


def main(kind: str, setup: str, program: str, file_name: str, command: Mapping[str, Any] | None) -> types.CodeType:
    """Judge a program. Returns the code to run in this process, which is empty in that of the tests.

    Args:
        kind: `functions` if tests call the program's functions, `script` if it reads and prints, and `command` if it is
            a program of another language.
        setup: source that runs before a program with functions.
        program: source of the program.
        file_name: name of the file that calls this.
        command: how a program of another language is compiled and run.
    """
    nothing = compile("", file_name, "exec")
    sys.set_int_max_str_digits(0)
    subject: Loader | CompiledProgram
    try:
        processes.guard()
        if command is not None:
            processes.check_can_fork()
            subject = CompiledProgram(command, program)
        else:
            subject = Loader(setup, program, file_name if kind == "script" else "")
            if subject.script is not None:
                return subject.script
    except (OSError, AttributeError) as error:  # the program has not run, so it is not to blame
        _say(_read_task(), {"status": "no_fork", "error": str(error)})
        return nothing
    # The program may write modules to its folder.
    sys.path[:] = [folder for folder in sys.path if folder and folder != os.getcwd()]
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    prepare_alarm()
    task = _read_task()
    try:
        _judge(task, subject)
    finally:
        subject.end()
    return nothing


def _read_task() -> dict[str, Any]:
    task: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(sys.stdin.read())))
    return task


def _say(task: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    sys.stdout.write(f"\n{task['word']}{json.dumps(report)}\n")
    sys.stdout.flush()


def _judge(task: dict[str, Any], subject: Loader | CompiledProgram) -> None:
    """Run tests in their order and report each outcome, until one may have left something behind for the next."""
    tests = [prepare(test) for test in task["tests"]]
    status, error = subject.load(TestLimits(task["load"]), task["memory_mb"])
    if status:
        _say(task, {"load": status, "error": error, "unprepared": _unprepared(tests)})
        return
    folder = Folder()
    left = max(task["slice"], 3 * cpu_clock(subject.pid))
    for number, test in enumerate(tests):
        try:
            outcome = test.outcome or test.run(subject, left if number else None)
        except SliceOverError:
            return
        _say(task, {"test": number, **outcome})
        if outcome["status"] not in ("value", "output", "passed") and task["stop"]:
            return
        left -= outcome.get("seconds", 0.0)
        if left < 0 or not (subject.is_ready() and processes.end_leftovers() and folder.is_clean()):
            return


def _unprepared(tests: Sequence[_Test]) -> dict[int, str]:
    return {number: test.outcome["error"] for number, test in enumerate(tests) if test.outcome is not None}


class _Test:
    """A test that is ready to run; or one that is not judgeable, and has its `outcome` already."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.task, self.limits = task, TestLimits(task)
        self.outcome: dict[str, Any] | None = None

    def run(self, subject: Loader | CompiledProgram, left: float | None) -> dict[str, Any]:
        """Run it. Raises SliceOverError if it still runs after `left` seconds of its own."""
        raise NotImplementedError


class _ScriptTest(_Test):
    """Runs a program that reads standard input and prints."""

    def run(self, subject: Loader | CompiledProgram, left: float | None) -> dict[str, Any]:
        files, reads, streams = self.task["files"], self.task["reads"], subject.streams
        most = self.limits.output_bytes
        assert streams is not None
        try:
            Folder.place(files)
            streams.begin(self.task["stdin"])
        except OSError as error:
            return {"status": "no_room", "error": str(error)}
        try:
            pid = subject.fork(self.limits, self.task["argv"])
            status, used, failure = _awaited(subject, pid, self.limits, streams, left)
            outcome: dict[str, Any] = {"status": "output", "code": status, "seconds": used}
            if failure:
                outcome |= {"status": failure[0], "error": failure[1]}
            outcome["stderr"] = streams.read_end(2, _MAX_ERROR)
            outcome["stdout"], outcome["truncated"] = streams.read(1, most)
            if reads:
                data, outcome["truncated"] = Folder.read(reads, most)
                outcome["stdout"] = data.decode("utf-8", "replace")
        except BrokenLinkError as error:
            return {"status": "error", "error": said(error), "stderr": streams.read_end(2, _MAX_ERROR)}
        finally:
            Folder.remove([*files, *filter(None, [reads])])
        return outcome


def _awaited(
    subject: Loader | CompiledProgram, pid: int, limits: TestLimits, streams: Streams, left: float | None = None
) -> tuple[int, float, tuple[str, str] | None]:
    """Wait for a process. Returns its exit status, the seconds that it used, and the limit that it met, if any."""
    watch, failure = LimitWatch(pid, limits, left=left), None
    try:
        await_end(pid, watch, lambda: streams.check(limits.output_bytes))
        watch.glance()
        streams.check(limits.output_bytes)
    except LimitError as error:
        failure = (str(error.args[0]), str(error.args[1]))
        processes.kill(pid)
    except OSError as error:
        raise BrokenLinkError("the program's process has ended") from error
    status, cpu = subject.reap(limits)
    if failure is None and cpu > limits.seconds:
        failure = ("timeout", f"it used more than {limits.seconds:g} s of CPU time")
    return status, max(watch.used, cpu), failure


class _CallTest(_Test):
    """Calls functions of the program, from here."""

    def run(self, subject: Loader | CompiledProgram, left: float | None) -> dict[str, Any]:
        assert isinstance(subject, Loader)
        try:
            pid = subject.fork(self.limits)
        except (LimitError, BrokenLinkError) as error:
            return _ended(error)
        watch = LimitWatch(pid, self.limits, with_tests=True, left=left)
        with alarm(self.limits.seconds):
            outcome = self.outcome_of(subject.link(watch))
        watch.glance()
        processes.kill(pid)
        try:
            _, cpu = subject.reap(self.limits)
        except BrokenLinkError:
            cpu = 0.0
        if max(watch.cpu, cpu) > self.limits.seconds:
            outcome = {"status": "timeout", "error": f"it used more than {self.limits.seconds:g} s of CPU time"}
        return {**outcome, "seconds": max(watch.used, cpu)}

    def outcome_of(self, link: Link) -> dict[str, Any]:
        """Run the test over a link. Whatever the other end does, the outcome is a report."""
        try:
            return self.ask(link)
        except NotJudgeableError as error:
            return {"status": "not_judgeable", "error": said(error)}
        except AssertionError as error:
            return {"status": "wrong", "error": said(error) or "an assertion does not hold"}
        except SliceOverError:
            raise
        except MemoryError:
            return {"status": "limit", "error": "what the program returned does not fit into the memory"}
        except BaseException as error:  # noqa: BLE001  the tests run the program
            return _ended(error)

    def ask(self, link: Link) -> dict[str, Any]:
        raise NotImplementedError


def _ended(error: BaseException) -> dict[str, Any]:
    if isinstance(error, LimitError):
        return {"status": error.args[0], "error": error.args[1]}
    name = "" if isinstance(error, BrokenLinkError) else f"{type(error).__name__}: "
    return {"status": "error", "error": f"{name}{said(error)}"}


class _FunctionTest(_CallTest):
    def ask(self, link: Link) -> dict[str, Any]:
        args = [link.decode(value) for value in self.task["args"]]
        return {"status": "value", "value": plain(link.ask("function", self.task["function"], *args))}


class _AssertTest(_CallTest):
    """Runs assertions. All that can fail without the program fails when it is made."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        super().__init__(task)
        self._namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
        namespace = self._namespace
        try:
            imports = [node for node in ast.parse(task["setup"]).body if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(list(imports), []), "<setup>", "exec"), namespace)
            namespace.update(emptiness.NAMES)
            emptiness.guard_numpy(f"{task['setup']}\n{task['helpers']}\n{task['code']}")
            helpers = emptiness.guard_source(ast.parse(task["helpers"], "<helpers>"))
            exec(compile(helpers, "<helpers>", "exec"), namespace)
            tree = ast.parse(task["code"], "<tests>")
            self._names = _asked(tree, task["entry_points"], namespace)
            self._code = compile(emptiness.guard_source(_told(tree)), "<tests>", "exec")
        except BaseException as error:  # noqa: BLE001  the test's own fault, whatever it raises
            self.outcome = {"status": "not_judgeable", "error": f"{type(error).__name__}: {said(error)}"}

    def ask(self, link: Link) -> dict[str, Any]:
        values = link.ask("find", self._names)
        if not values.keys() <= set(self._names):
            raise BrokenLinkError("the program's process has sent names that were not asked for")
        self._namespace.update(values)
        exec(self._code, self._namespace)
        return {"status": "passed"}


def prepare(task: Mapping[str, Any]) -> _Test:
    """Make a test ready to run."""
    kinds: dict[str, type[_Test]] = {"script": _ScriptTest, "function": _FunctionTest, "assert": _AssertTest}
    return kinds[task["kind"]](task)


def plain(value: Any) -> Any:
    """Write a value for the judge: JSON, but for `{"dict": pairs}`, `{"int": hexadecimal}` and `{"other": text}`."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return encode_integer(value)
    if isinstance(value, list | tuple | collections.deque):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[plain(key), plain(item)] for key, item in value.items()]}
    if type(value).__module__ == "numpy":
        return plain(value.tolist())
    if type(value).__module__ in ("decimal", "fractions") and value == float(value):
        return float(value)
    return {"other": said(value)}


def _asked(tree: ast.Module, entry_points: Sequence[str], namespace: dict[str, Any]) -> list[str]:
    """Return the names for the program to find: never those of the tests themselves, of their helpers or imports.

    Modules that the tests use without an import, because the program should have it, come into `namespace`.
    """
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    owners = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {node.id for node in used} - namespace.keys()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.alias):
            names.discard((getattr(node, "asname", None) or node.name).partition(".")[0])
    for name in sorted(names - {node.id for node in used if id(node) not in owners} - set(entry_points)):
        module = _SHORT_NAMES.get(name, name)
        if module in DATA_MODULES or module in sys.stdlib_module_names:
            with contextlib.suppress(ImportError):
                namespace[name] = importlib.import_module(module)
                names.discard(name)
    known = set(entry_points) or {name for name in names if not hasattr(builtins, name)}
    return sorted(names & known)


def _told(tree: ast.Module) -> ast.Module:
    """Give each `assert one == other` without a message a message with both."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.msg is None and isinstance(node.test, ast.Compare):
            test = node.test
            if len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
                names = ("_got", "_expected")
                sides = [
                    ast.NamedExpr(ast.Name(name, ast.Store()), side)
                    for name, side in zip(names, (test.left, test.comparators[0]), strict=True)
                ]
                test.left, test.comparators = sides[0], [sides[1]]
                node.msg = ast.parse("f'got {_got!r}, expected {_expected!r}'", mode="eval").body
    return ast.fix_missing_locations(tree)
