"""The kinds of tests, as the process of the tests runs them. Whatever a program does, the outcome is a report."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.judge.inside import emptiness, processes, values
from toolgym.tools.judge.inside.compiled import CompiledProgram, await_program
from toolgym.tools.judge.inside.files import Folder
from toolgym.tools.judge.inside.limits import LimitError, LimitWatch, SliceOverError, TestLimits, alarm
from toolgym.tools.judge.inside.link import DATA_MODULES, BrokenLinkError, NotJudgeableError, said
from toolgym.tools.judge.inside.loader import Loader

_MAX_ERROR = 4000
_SHORT_NAMES = {"np": "numpy", "pd": "pandas"}


class SandboxTest:
    """A test that is ready to run; or one that is not judgeable, and has its `outcome` already."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.task, self.limits = task, TestLimits(task)
        self.outcome: dict[str, Any] | None = None

    def run(self, subject: Loader | CompiledProgram, left: float | None) -> dict[str, Any]:
        """Run it. Raises SliceOverError if it still runs after `left` seconds of its own."""
        raise NotImplementedError


class _ScriptTest(SandboxTest):
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
            status, used, failure = await_program(subject, pid, self.limits, streams, left)
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


class _CallTest(SandboxTest):
    """Calls functions of the program."""

    def run(self, subject: Loader | CompiledProgram, left: float | None) -> dict[str, Any]:
        assert isinstance(subject, Loader)
        limits, cpu = self.limits, 0.0
        try:
            pid = self.begin(subject)
        except (LimitError, BrokenLinkError) as error:
            return _ended(error)
        watch = LimitWatch(pid, limits, with_tests=True, left=left)
        outcome = self.outcome_of(subject, watch)
        watch.glance()
        processes.kill(pid)
        with contextlib.suppress(BrokenLinkError):
            _, cpu = subject.reap(limits)
        if max(watch.cpu, cpu) > limits.seconds:
            outcome = {"status": "timeout", "error": f"it used more than {limits.seconds:g} s of CPU time"}
        return {**outcome, "seconds": max(watch.used, cpu)}

    def begin(self, subject: Loader) -> int:
        """Have a process forked for the test. Returns its id."""
        return subject.fork(self.limits)

    def outcome_of(self, subject: Loader, watch: LimitWatch) -> dict[str, Any]:
        """Run the test. Whatever the other process does, the outcome is a report."""
        try:
            return self.ask(subject, watch)
        except NotJudgeableError as error:
            return {"status": "not_judgeable", "error": said(error)}
        except AssertionError as error:
            return {"status": "wrong", "error": said(error) or "an assertion does not hold"}
        except SliceOverError:
            raise
        except MemoryError:
            return {"status": "limit", "error": values.TOO_LARGE}
        except BaseException as error:  # noqa: BLE001  the tests run the program
            return _ended(error)

    def ask(self, subject: Loader, watch: LimitWatch) -> dict[str, Any]:
        raise NotImplementedError


def _ended(error: BaseException) -> dict[str, Any]:
    if isinstance(error, LimitError):
        return {"status": error.args[0], "error": error.args[1]}
    name = "" if isinstance(error, BrokenLinkError) else f"{type(error).__name__}: "
    return {"status": "error", "error": f"{name}{said(error)}"}


class _FunctionTest(_CallTest):
    """Calls one function, and reads what it returned."""

    def begin(self, subject: Loader) -> int:
        return subject.call(self.task["function"], self.task["args"], self.limits)

    def ask(self, subject: Loader, watch: LimitWatch) -> dict[str, Any]:
        line = subject.reply(watch, self.limits.output_bytes)
        try:
            return values.read_reply(line)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise BrokenLinkError("the program's process has sent what is no value") from error


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

    def ask(self, subject: Loader, watch: LimitWatch) -> dict[str, Any]:
        with alarm(self.limits.seconds):
            names = subject.link(watch).ask("find", self._names)
            if not names.keys() <= set(self._names):
                raise BrokenLinkError("the program's process has sent names that were not asked for")
            self._namespace.update(names)
            exec(self._code, self._namespace)
        return {"status": "passed"}


def prepare(task: Mapping[str, Any]) -> SandboxTest:
    """Make a test ready to run."""
    kinds: dict[str, type[SandboxTest]] = {"script": _ScriptTest, "function": _FunctionTest, "assert": _AssertTest}
    return kinds[task["kind"]](task)


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
