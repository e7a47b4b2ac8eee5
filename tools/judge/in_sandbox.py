"""Runs inside a sandbox: the program in one process, its tests in another.

`judge` sends the source of this file and of `link`, followed by a call of `main`, which forks first. The child waits;
the parent reads the tests and a secret word from standard input, prepares the tests, lets the child run the program,
runs the tests, and prints the word with their outcome. So the program's process never holds the tests or the word in
any object, nor the descriptors of the parent, and the kernel refuses it the parent's memory (`PR_SET_DUMPABLE`). A
failure before the program runs is no fault of the program.

Only plain data crosses between the two: see `link`. The tests hold a `Remote` of each other object. The file needs only
the standard library and `link`.
"""

from __future__ import annotations

import ast
import base64
import builtins
import collections
import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
import types
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from toolgym.tools.judge.link import DATA_MODULES, OPERATIONS, BrokenLinkError, Link, NotJudgeableError, said

_PR_SET_DUMPABLE = 4
_MOST_BITS = 14_000  # the judge's Python reads no longer numbers
_SHORT_NAMES = {"np": "numpy", "pd": "pandas"}

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


# ---------------------------------------------------------------------- the program's process


def _be_program(setup: str, program: str, reader: int, writer: int) -> NoReturn:
    try:
        _leave_parent(reader, writer)
        module = types.ModuleType("solution")
        module.__dict__["__builtins__"] = builtins
        sys.modules["solution"] = module
        namespace = module.__dict__
        sys.path.insert(0, os.getcwd())
        serves: dict[str, Callable[..., Any]] = {
            "setup": lambda: exec(compile(setup, "<setup>", "exec"), namespace),
            "begin": lambda: _begin(program, namespace),
            "find": lambda names: {name: namespace[name] for name in names if name in namespace},
            "function": lambda name: _function(namespace, name),
        }
        Link(os.fdopen(reader, "rb"), os.fdopen(writer, "wb"), {**OPERATIONS, **serves}, True).serve()
    finally:
        os._exit(0)


def _begin(program: str, namespace: dict[str, Any]) -> None:
    try:
        exec(compile(program, "solution.py", "exec"), namespace)
    except BaseException:
        traceback.print_exc()
        raise


def _leave_parent(reader: int, writer: int) -> None:
    """Close all descriptors but these two and standard error, to which all prints of the program go."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    last = 2
    for kept in sorted((reader, writer)):
        os.closerange(last + 1, kept)
        last = kept
    os.closerange(last + 1, max(256, nothing + 1, last + 2))


def _function(namespace: dict[str, Any], name: str) -> Any:
    """Return the function, or else the method of that name of a new `Solution`, as LiveCodeBench has it."""
    solution = namespace.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined")
    return namespace[name]


# ---------------------------------------------------------------------- the process of the tests


def main(setup: str, program: str) -> None:
    with contextlib.suppress(AttributeError):  # before Python 3.11
        sys.set_int_max_str_digits(0)
    # The program may write modules to its folder.
    sys.path[:] = [folder for folder in sys.path if folder and folder != os.getcwd()]
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    asks, answers = os.pipe(), os.pipe()
    try:
        child = os.fork()
    except OSError as error:  # the program has not run, so it is not to blame
        _say(_read_task(), {"status": "no_fork", "error": str(error)})
        return
    if child == 0:
        os.close(asks[1])
        os.close(answers[0])
        _be_program(setup, program, asks[0], answers[1])
    os.close(asks[0])
    os.close(answers[1])
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    task = _read_task()
    link = Link(os.fdopen(answers[0], "rb"), os.fdopen(asks[1], "wb"), {"call": OPERATIONS["call"]}, False)
    _say(task, _report(link, task))
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _read_task() -> dict[str, Any]:
    task: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(sys.stdin.read())))
    return task


def _say(task: dict[str, Any], report: dict[str, Any]) -> None:
    print(f"\n{task['word']}{json.dumps(report)}", flush=True)


def _report(link: Link, task: dict[str, Any]) -> dict[str, Any]:
    status = "not_judgeable"
    try:
        run = _called(task) if "function" in task else _prepared(task)
        link.ask("setup")
        status = "error"
        link.ask("begin")
        status = "wrong"
        return run(link)
    except NotJudgeableError as error:
        return {"status": "not_judgeable", "error": said(error)}
    except BaseException as error:  # noqa: BLE001  the tests run the program
        if isinstance(error, AssertionError) and status == "wrong":
            return {"status": "wrong", "error": said(error) or "an assertion does not hold"}
        name = "" if isinstance(error, BrokenLinkError) else f"{type(error).__name__}: "
        return {"status": "error" if status == "wrong" else status, "error": f"{name}{said(error)}"}


def _called(task: dict[str, Any]) -> Callable[[Link], dict[str, Any]]:
    return lambda link: {"status": "value", "value": _plain(link.ask("function", task["function"])(*task["args"]))}


def _plain(value: Any) -> Any:
    """Write a value for the judge: JSON, but for `{"dict": pairs}` and `{"other": text}`."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < _MOST_BITS else {"other": "a very large number"}
    if isinstance(value, list | tuple | collections.deque):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if type(value).__module__ == "numpy":
        return _plain(value.tolist())
    if type(value).__module__ in ("decimal", "fractions") and value == float(value):
        return float(value)
    return {"other": said(value)}


def _prepared(task: dict[str, Any]) -> Callable[[Link], dict[str, Any]]:
    """Make assertions ready to run: all that can fail without the program fails here."""
    namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    imports = [node for node in ast.parse(task["setup"]).body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(list(imports), []), "<setup>", "exec"), namespace)
    exec(compile(task["helpers"], "<helpers>", "exec"), namespace)
    if "allclose" in task["code"]:
        _refuse_emptiness()
    tree = ast.parse(task["code"], "<tests>")
    names = _asked(tree, task["entry_points"], namespace)
    code = compile(_told(tree), "<tests>", "exec")

    def run(link: Link) -> dict[str, Any]:
        values = link.ask("find", names)
        if not values.keys() <= set(names):
            raise BrokenLinkError("the program's process has sent names that were not asked for")
        namespace.update(values)
        exec(code, namespace)
        return {"status": "passed"}

    return run


def _refuse_emptiness() -> None:
    """Keep `numpy.allclose` from holding for no numbers at all: HumanEval+ would take `[]` for each number."""
    numpy: Any = importlib.import_module("numpy")
    close = numpy.allclose

    def allclose(a: Any, b: Any, *args: Any, **kwargs: Any) -> bool:
        a, b = numpy.asarray(a), numpy.asarray(b)
        return bool(a.size) == bool(b.size) and bool(close(a, b, *args, **kwargs))

    numpy.allclose = allclose


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
