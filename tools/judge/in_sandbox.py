"""Runs inside a sandbox: the program in one process, its tests in another.

`judge` sends the source of this file, followed by a call of `main` with the program. The first thing that `main` does
is to fork. The child runs the program and answers requests; the parent then reads the tests and a secret word from
standard input, runs the tests, and prints the word with what came of them. So the program's process never holds the
tests or the word in any object of its own, nor the descriptors of the parent, and the kernel refuses it the parent's
memory (`PR_SET_DUMPABLE`).

What crosses between the two is plain data: numbers, texts, lists, tuples, sets, dictionaries. Every other object stays
in the program's process, and the tests hold a `Remote` of it, which can be called, iterated, indexed and asked for
attributes, but computes and compares nothing. So an object whose `__eq__` is always true equals nothing here. (Objects
of the program's own classes are equal where they are the same.)

It needs the standard library alone, and no other file of toolgym.
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
import operator
import os
import signal
import struct
import sys
import traceback
import types
import zlib
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, NoReturn

_PR_SET_DUMPABLE = 4
_MODULES = frozenset({"numpy", "sympy", "pandas", "scipy"})
"""Modules beside the standard library's that a test may use because the program has imported them."""

_NUMBERS = (("decimal", "Decimal"), ("fractions", "Fraction"))
_NUMPY_KINDS = "biufcSU"
_TEXT = 2000
_MOST_BITS = 14_000  # the judge's Python reads no longer numbers

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
"""What programs for function tests may use without an import, as LiveCodeBench lets them. `math` has another `pow`."""


class _ProgramError(Exception):
    """What the program raised, where it is none of Python's own exceptions."""


class _GoneError(Exception):
    """The program's process has ended."""


class Remote:
    """An object of the program's process. It has no operators: the program would decide what they give."""

    __slots__ = ("_id", "_link", "_type")
    _id: int
    _link: Link
    _type: str

    def __init__(self, link: Link, id: int, type: str) -> None:
        for name, value in (("_link", link), ("_id", id), ("_type", type)):
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.ask("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._link.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._link.ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._link.ask("setitem", self, key, value)

    def __contains__(self, item: Any) -> bool:
        return bool(self._link.ask("contains", self, item))

    def __iter__(self) -> Any:
        return self._link.ask("iter", self)

    def __next__(self) -> Any:
        return self._link.ask("next", self)

    def __len__(self) -> int:
        return int(self._link.ask("len", self))

    def __bool__(self) -> bool:
        return bool(self._link.ask("bool", self))

    def __str__(self) -> str:
        return str(self._link.ask("str", self))

    def __repr__(self) -> str:
        return f"<{self._type} of the program>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and self._id == other._id

    def __hash__(self) -> int:
        return int(self._id)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, *args, **kwargs: target(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "contains": operator.contains,
    "iter": iter,
    "next": next,
    "len": len,
    "bool": bool,
    "str": str,
}


class Link:
    """One end of the two pipes between the program's process and that of the tests.

    Args:
        reader: a binary file to read from.
        writer: likewise, to write to.
        serves: the operations that the other end may ask for.
        keeps: whether objects that are no plain data can be sent, as references. Functions always can.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO, serves: dict[str, Callable[..., Any]], keeps: bool) -> None:
        self._reader, self._writer = reader, writer
        self._serves, self._keeps = serves, keeps
        self._objects: dict[int, Any] = {}
        self._ids: dict[int, int] = {}

    # -------------------------------------------------------------- messages

    def _send(self, message: list[Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self._writer.write(struct.pack("<I", len(data)) + data)
            self._writer.flush()
        except OSError as error:
            raise _GoneError("the program's process has ended") from error

    def _receive(self) -> Any:
        head = self._reader.read(4)
        data = self._reader.read(struct.unpack("<I", head)[0]) if len(head) == 4 else b""
        if not data:
            raise _GoneError("the program's process has ended")
        return json.loads(data)

    def ask(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Let the other end do something, and return what comes of it; what it raised is raised here."""
        changing = [value if type(value) in (list, dict, set, bytearray) else None for value in args]
        encoded = [self.encode(value) for value in args]
        self._send(["ask", operation, encoded, {name: self.encode(value) for name, value in kwargs.items()}])
        while True:
            message = self._receive()
            if message[0] == "ask":
                self._answer(*message[1:])
                continue
            if message[0] == "raised":
                raise _exception(*message[1:])
            for at, value in message[2]:
                _refill(changing[at], self.decode(value))
            return self.decode(message[1])

    def serve(self) -> NoReturn:
        """Answer until the other end is gone."""
        while True:
            message = self._receive()
            if message[0] == "ask":
                self._answer(*message[1:])

    def _answer(self, operation: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        try:
            if operation not in self._serves:
                raise TypeError(f"there is no operation {operation!r}")
            given = [self.decode(value) for value in args]
            named = {name: self.decode(value) for name, value in kwargs.items()}
            value = self._serves[operation](*given, **named)
            changed = [
                [at, after]
                for at, (one, before) in enumerate(zip(given, args, strict=True))
                if type(one) in (list, dict, set, bytearray) and (after := self.encode(one)) != before
            ]
            reply = ["answer", self.encode(value), changed]
        except _GoneError:
            raise
        except BaseException as error:  # noqa: BLE001  whatever the program raises is its answer
            reply = ["raised", type(error).__name__, _said(error)]
        self._send(reply)

    # -------------------------------------------------------------- values

    def encode(self, value: Any) -> Any:
        """Return a value as JSON holds it: each object of JSON has one key, which says what stands behind it."""
        if value is None or value is True or value is False or type(value) in (int, float, str):
            return value
        if type(value) is Remote:
            return {"own": value._id}
        encode = _ENCODERS.get(type(value)) or next(
            (made for kind, made in _ENCODERS.items() if isinstance(value, kind)), None
        )
        if encode is not None:
            return encode(self, value)
        if isinstance(value, types.ModuleType):
            return {"module": value.__name__}
        for module, kind in _NUMBERS:
            if module in sys.modules and isinstance(value, getattr(sys.modules[module], kind)):
                return {kind: str(value)}
        if "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].generic):
            return self.encode(value.item())
        if "numpy" in sys.modules and type(value) is sys.modules["numpy"].ndarray and value.dtype.kind in _NUMPY_KINDS:
            return {"array": [value.dtype.str, self.encode(value.tolist())]}
        if not self._keeps and not isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            raise TypeError(f"an object of {type(value).__name__} cannot be handed to the program")
        id = self._ids.setdefault(builtins.id(value), len(self._ids))
        self._objects[id] = value  # kept, so that its id stays its own
        return {"ref": [id, type(value).__name__]}

    def decode(self, value: Any) -> Any:
        """Return the value that `encode` gave at the other end."""
        if isinstance(value, list):
            return [self.decode(one) for one in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "own":
            return self._objects[content]
        if kind == "ref":
            return Remote(self, int(content[0]), str(content[1]))
        return _DECODERS[kind](self, content)


def _sequence(kind: str) -> Callable[[Link, Any], Any]:
    return lambda link, value: {kind: [link.encode(one) for one in value]}


_ENCODERS: dict[type, Callable[[Link, Any], Any]] = {
    bool: lambda link, value: bool(value),
    int: lambda link, value: int(value),
    float: lambda link, value: float(value),
    str: lambda link, value: str.__str__(value),
    list: lambda link, value: [link.encode(one) for one in value],
    tuple: _sequence("tuple"),
    frozenset: _sequence("frozenset"),
    set: _sequence("set"),
    collections.deque: _sequence("deque"),
    dict: lambda link, value: {"dict": [[link.encode(key), link.encode(one)] for key, one in value.items()]},
    bytes: lambda link, value: {"bytes": value.hex()},
    bytearray: lambda link, value: {"bytearray": value.hex()},
    complex: lambda link, value: {"complex": [value.real, value.imag]},
    range: lambda link, value: {"range": [value.start, value.stop, value.step]},
}

_DECODERS: dict[str, Callable[[Link, Any], Any]] = {
    "tuple": lambda link, value: tuple(link.decode(value)),
    "frozenset": lambda link, value: frozenset(link.decode(value)),
    "set": lambda link, value: set(link.decode(value)),
    "deque": lambda link, value: collections.deque(link.decode(value)),
    "dict": lambda link, value: {link.decode(key): link.decode(one) for key, one in value},
    "bytes": lambda link, value: bytes.fromhex(value),
    "bytearray": lambda link, value: bytearray.fromhex(value),
    "complex": lambda link, value: complex(*value),
    "range": lambda link, value: range(*value),
    "Decimal": lambda link, value: importlib.import_module("decimal").Decimal(value),
    "Fraction": lambda link, value: importlib.import_module("fractions").Fraction(value),
    "array": lambda link, value: _array(link.decode(value[1]), value[0]),
    "module": lambda link, value: _module(value),
}


def _module(name: str) -> types.ModuleType:
    """Import a module for the tests: one that the program cannot have written."""
    top = name.partition(".")[0]
    if top not in sys.stdlib_module_names and top not in _MODULES:
        raise NameError(f"the tests cannot use the program's module {name!r}")
    return importlib.import_module(name)


def _array(items: Any, kind: str) -> Any:
    numpy = importlib.import_module("numpy")
    if numpy.dtype(kind).kind not in _NUMPY_KINDS:
        raise TypeError(f"the tests take no array of {kind!r}")
    return numpy.array(items, dtype=kind)


def _refill(kept: Any, value: Any) -> None:
    """Give a list, dictionary, set or bytearray of the tests the content that the program has left in it."""
    if isinstance(kept, list | bytearray):
        kept[:] = value
    elif kept is not None:
        kept.clear()
        kept.update(value)


def _exception(name: str, text: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(Exception):  # some, such as UnicodeDecodeError, want other arguments
            return kind(text)
    return _ProgramError(f"{name}: {text}")


def _said(error: object) -> str:
    try:
        return str(error)[:_TEXT]
    except BaseException:  # noqa: BLE001  its `__str__` is the program's
        return ""


# ---------------------------------------------------------------------- the program's process


def _be_program(setups: Sequence[str], program: str, reader: int, writer: int) -> NoReturn:
    """Run the program and answer the tests. Never returns."""
    try:
        _leave_parent(reader, writer)
        link = Link(os.fdopen(reader, "rb"), os.fdopen(writer, "wb"), dict(_OPERATIONS), True)
        module = types.ModuleType("solution")
        module.__dict__["__builtins__"] = builtins
        sys.modules["solution"] = module
        namespace = module.__dict__
        sys.path.insert(0, os.getcwd())
        try:
            for source in setups:
                exec(compile(source, "<setup>", "exec"), namespace)
            exec(compile(program, "solution.py", "exec"), namespace)
            begun: list[Any] = ["answer", None, []]
        except BaseException as error:  # noqa: BLE001  as above
            begun = ["raised", type(error).__name__, _said(error)]
            traceback.print_exc()
        link._serves |= {
            "find": lambda names: {name: namespace[name] for name in names if name in namespace},
            "function": lambda name: _function(namespace, name),
        }
        link._send(begun)
        link.serve()
    finally:
        os._exit(0)


def _leave_parent(reader: int, writer: int) -> None:
    """Close all descriptors but these two and standard error, to which all that the program prints goes."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    last = 2
    for kept in sorted((reader, writer)):
        os.closerange(last + 1, kept)
        last = kept
    os.closerange(last + 1, max(256, nothing + 1, last + 2))


def _function(namespace: dict[str, Any], name: str) -> Any:
    """The function of that name, or else the method of that name of a new `Solution`, as LiveCodeBench has it."""
    solution = namespace.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined")
    return namespace[name]


# ---------------------------------------------------------------------- the process of the tests


def main(setups: Sequence[str], program: str) -> None:
    """Fork for the program, run the tests that standard input holds, and print what came of them."""
    with contextlib.suppress(AttributeError):  # before Python 3.11
        sys.set_int_max_str_digits(0)
    sys.path[:] = [one for one in sys.path if one and one != os.getcwd()]  # the program may write modules there
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
        _be_program(setups, program, asks[0], answers[1])
    os.close(asks[0])
    os.close(answers[1])
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    task = _read_task()
    link = Link(os.fdopen(answers[0], "rb"), os.fdopen(asks[1], "wb"), {"call": _OPERATIONS["call"]}, False)
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
    """The result of the tests: a `status`, with an `error` or the function's `value`."""
    try:
        begun = link._receive()
        if begun[0] == "raised":
            return {"status": "error", "error": f"{begun[1]}: {begun[2]}"}
        if "function" in task:
            value = link.ask("function", task["function"])(*task["args"])
            return {"status": "value", "value": _plain(value)}
        _run_tests(link, task)
        return {"status": "passed"}
    except AssertionError as error:
        return {"status": "wrong", "error": _said(error) or "an assertion does not hold"}
    except BaseException as error:  # noqa: BLE001  the tests run the program
        return {"status": "error", "error": f"{type(error).__name__}: {_said(error)}"}


def _plain(value: Any) -> Any:
    """A function's value as the judge reads it: JSON, but for `{"dict": pairs}` and `{"other": text}`."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < _MOST_BITS else {"other": "a very large number"}
    if isinstance(value, list | tuple | collections.deque):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(one)] for key, one in value.items()]}
    if type(value).__module__ == "numpy":
        return _plain(value.tolist())
    return {"other": _said(value)}


def _run_tests(link: Link, task: dict[str, Any]) -> None:
    namespace = {"__name__": "tests", "__builtins__": builtins}
    exec(compile(_imports(task["setup"]), "<setup>", "exec"), namespace)
    exec(compile(task["helpers"], "<helpers>", "exec"), namespace)
    tree = _told(ast.parse(task["code"], "<tests>"))
    names = task["entry_points"] or [
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id not in namespace and not hasattr(builtins, node.id)
    ]
    namespace |= link.ask("find", sorted(set(names)))
    exec(compile(tree, "<tests>", "exec"), namespace)


def _imports(source: str) -> ast.Module:
    body: list[ast.stmt] = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return ast.Module(body, [])


def _told(tree: ast.Module) -> ast.Module:
    """Let each `assert one == other` without a message say what both are."""
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
