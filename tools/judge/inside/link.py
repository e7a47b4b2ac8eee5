"""Messages between a program's process and that of its tests: questions, answers and values. See `in_sandbox`.

Everything from the program's process is hostile. A message of another shape, an answer to no question, and a value that
cannot be read end the test, and count against the program. An object of the tests that cannot cross is the test's own
fault. So everything that a program can send can be sent back. Like `in_sandbox`, it needs only the standard library.
"""

from __future__ import annotations

import builtins
import collections
import importlib
import io
import json
import operator
import re
import struct
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

DATA_MODULES = frozenset({"numpy", "sympy", "pandas", "scipy"})
"""Modules beside the standard library's that tests may use."""

_LONG = 1 << 4000
_MAX_DIGITS = 4000
"""Digits of an integer in JSON. Longer integers cross in hexadecimal."""
_MAX_MESSAGE = 1 << 30
_FRAMEWORKS = frozenset(
    {"unittest", "doctest", "bdb", "pdb", "asyncio", "concurrent", "multiprocessing", "threading", "_thread", "test"}
)
"""Modules whose exceptions steer a framework, and do not tell of an error: `unittest.SkipTest` makes a test pass."""

_NUMPY_KINDS = "biufcSU"
_DATA = (int, float, str, bool, list, tuple, set, frozenset, dict, bytes, bytearray, complex, range)
_CHANGING = (list, dict, set, bytearray, collections.deque)
_DTYPE = re.compile(
    r"(u?int|U?Int|float|Float|complex)\d+|bool(ean)?|object|str(ing)?|category|(datetime|timedelta)64\[[\w, /+:-]+\]"
)
_SHAPES: dict[str, tuple[type, ...]] = {
    "ask": (int, str, list, dict),
    "answer": (int, object, list),
    "raised": (int, object),
}
_REPLIES: dict[str, type] = {"len": int, "hash": int, "bool": bool, "isinstance": bool, "str": str, "find": dict}
"""Types of the answers that can have only one."""


class BrokenLinkError(BaseException):
    """The other process has ended, or sent a forgery. Tests cannot catch it by `except Exception`."""


class NotJudgeableError(BaseException):
    """The tests need things that cannot be done here, whatever the program is."""


class _ProgramError(Exception):
    """Raised if the program raised no `Exception`: `KeyboardInterrupt`, for example."""


class Remote:
    """An object of the program's process.

    The program must neither see the tests' expected value nor say that it has come. So a `Remote` and a value of the
    tests are never equal, and have no operators; the program compares or adds only two `Remote`s.
    """

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
        if name.startswith("__") and name != "__name__":  # libraries would read `__array_interface__` and the like
            raise AttributeError(name)
        return self._link.ask("getattr", self, name)

    def __contains__(self, item: Any) -> bool:
        if type(item) is Remote:
            return bool(self._link.ask("contains", self, item))
        return any(item is element or item == element for element in self._link.ask("iter", self))

    def __repr__(self) -> str:
        return f"<{self._type} of the program>"

    def __instancecheck__(self, instance: object) -> bool:
        return type(instance) is Remote and bool(self._link.ask("isinstance", instance, self))


def _asking(name: str) -> Callable[..., Any]:
    return lambda self, *args: self._link.ask(name, self, *args)


def _between(name: str) -> Callable[[Remote, object], Any]:
    return lambda self, other: self._link.ask(name, self, other) if type(other) is Remote else NotImplemented


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_OPERATORS = (*_COMPARISONS, "add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor")
for _name in ("setattr", "getitem", "setitem", "iter", "next", "len", "bool", "str", "hash"):
    setattr(Remote, f"__{_name}__", _asking(_name))
for _name in _OPERATORS:
    setattr(Remote, f"__{_name.rstrip('_')}__", _between(_name))

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, /, *args, **kwargs: target(*args, **kwargs),
    **{function.__name__: function for function in (getattr, setattr, iter, next, len, bool, str, hash, isinstance)},
    **{name: getattr(operator, name) for name in ("getitem", "setitem", "contains", *_OPERATORS)},
}
"""Operations of the program's objects for the tests."""


def read_json(data: bytes) -> Any:
    """Read JSON from the other end. Raises ValueError for long decimal integers, which take quadratic time to read."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(_MAX_DIGITS)
    try:
        return json.loads(data)
    finally:
        sys.set_int_max_str_digits(limit)


class Stream(Protocol):
    """One end of a pipe, or both."""

    def read(self, size: int, /) -> bytes: ...

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class Link:
    """One end of the two pipes between the program's process and that of the tests.

    The other end may ask for the operations `serves`. With `keeps`, objects that are no plain data can be sent, as
    references. Functions always can.
    """

    def __init__(self, reader: Stream, writer: Stream, serves: dict[str, Callable[..., Any]], keeps: bool) -> None:
        self._reader, self._writer = reader, writer
        self._serves, self.keeps = serves, keeps
        self._asked = 0
        self._objects: dict[int, Any] = {}
        self._ids: dict[int, int] = {}
        self._remotes: dict[int, Any] = {}

    @classmethod
    def data(cls) -> Link:
        """Return a link without another end, which only encodes and decodes plain data."""
        return cls(io.BytesIO(), io.BytesIO(), {}, False)

    # -------------------------------------------------------------- messages

    def _send(self, message: list[Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self._writer.write(struct.pack("<I", len(data)) + data)
            self._writer.flush()
        except OSError as error:
            raise BrokenLinkError("the program's process has ended") from error

    def _receive(self) -> tuple[str, list[Any]]:
        head = self._reader.read(4)
        size = struct.unpack("<I", head)[0] if len(head) == 4 else 0
        data = self._reader.read(size) if size <= _MAX_MESSAGE else b""
        if not data:
            raise BrokenLinkError("the program's process has ended")
        try:
            kind, *content = read_json(data)
            shape = _SHAPES[kind]
            if len(content) != len(shape) or not all(map(isinstance, content, shape)):
                raise TypeError(kind)
        except Exception as error:
            raise BrokenLinkError("the program's process has sent what is no message") from error
        return kind, content

    def ask(self, operation: str, /, *args: Any, **kwargs: Any) -> Any:
        """Let the other end do something, and return its value; its exception is raised here."""
        encoded = [self.encode(value) for value in args], {name: self.encode(value) for name, value in kwargs.items()}
        self._asked += 1
        number = self._asked
        self._send(["ask", number, operation, *encoded])
        while True:
            kind, content = self._receive()
            if kind == "ask":
                self._answer(*content)
                continue
            try:
                if content[0] != number:
                    raise ValueError(f"an answer to {content[0]}, where {number} was asked")
                if kind == "answer":
                    return self._taken(operation, content[1], content[2], [*args, *kwargs.values()])
                raised = self.decode(content[1])
                if not isinstance(raised, BaseException):
                    raise TypeError(f"{type(raised).__name__} was raised")
            except Exception as error:
                raise BrokenLinkError(f"the program's process has sent what is no answer: {error}") from error
            if isinstance(raised, StopIteration | StopAsyncIteration) and operation != "next":
                raised = RuntimeError(f"{type(raised).__name__}: {raised}")  # it would end a loop of the tests
            raise raised

    def serve(self) -> NoReturn:
        while True:
            kind, content = self._receive()
            if kind == "ask":
                self._answer(*content)

    def _answer(self, number: int, operation: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        try:
            if operation not in self._serves:
                raise TypeError(f"there is no operation {operation!r}")
            positional = [self.decode(value) for value in args]
            named = {name: self.decode(value) for name, value in kwargs.items()}
            value = self._serves[operation](*positional, **named)
            changed = [
                [at, after]
                for at, (argument, before) in enumerate(
                    zip([*positional, *named.values()], [*args, *kwargs.values()], strict=True)
                )
                if type(argument) in _CHANGING and (after := self.encode(argument)) != before
            ]
            reply = ["answer", number, self.encode(value), changed]
        except BrokenLinkError:
            raise
        except BaseException as error:  # noqa: BLE001  whatever the program raises is its answer
            reply = ["raised", number, _encode_error(self, error)]
        self._send(reply)

    def _taken(self, operation: str, value: Any, changed: list[Any], arguments: list[Any]) -> Any:
        """Read an answer, and put the other end's changes of lists and the like into the arguments."""
        taken = self.decode(value)
        if operation in _REPLIES and type(taken) is not _REPLIES[operation]:
            raise TypeError(f"{type(taken).__name__} for {operation}")
        for at, content in changed:
            kept, left = arguments[at], self.decode(content)
            if type(left) is not type(kept) or type(kept) not in _CHANGING:
                raise TypeError("an argument has changed its type")
            kept.clear()
            (kept.update if isinstance(kept, dict | set) else kept.extend)(left)
        return taken

    # -------------------------------------------------------------- values

    def encode(self, value: Any) -> Any:
        """Make JSON of a value: each object of JSON has one key, which tells the kind of its value."""
        if value is None or value is True or value is False or type(value) in (float, str):
            return value
        encode = _ENCODERS.get(type(value)) or next(
            (encoder for kind, encoder in _ENCODERS.items() if isinstance(value, kind)), None
        )
        if encode is not None:
            return encode(self, value)
        if isinstance(value, BaseException):
            return _encode_error(self, value)
        if isinstance(value, type) and (value in _DATA or issubclass(value, BaseException)):
            return _encode_class(self, value)
        for name, (module, pack, _) in _LIBRARY.items():
            if module in sys.modules and isinstance(value, getattr(sys.modules[module], name, ())):
                return {name: pack(self, value)}
        if "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].generic):
            return self.encode(value.item())
        if "numpy" in sys.modules and type(value) is sys.modules["numpy"].ndarray and value.dtype.kind in _NUMPY_KINDS:
            return {"array": [value.dtype.str, list(value.shape), self.encode(value.ravel().tolist())]}
        if not self.keeps and not isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            raise NotJudgeableError(f"an object of {type(value).__name__} cannot be handed to the program")
        return {"ref": [self.keep(value), type(value).__name__]}

    def keep(self, value: Any) -> int:
        """Return the number of an object for the other end."""
        id = self._ids.setdefault(builtins.id(value), len(self._ids))
        self._objects[id] = value  # kept, so that its id stays its own
        return id

    def decode(self, value: Any) -> Any:
        """Read a value that the other end has encoded. Raises if it is none."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind in _LIBRARY:
            module, _, unpack = _LIBRARY[kind]
            return unpack(getattr(importlib.import_module(module), kind), self.decode(content))
        return _DECODERS[kind](self, content)


def _sequence(kind: str) -> Callable[[Link, Any], Any]:
    return lambda link, value: {kind: [link.encode(item) for item in value]}


def encode_integer(value: int) -> Any:
    """Write a long integer in hexadecimal: in decimal that takes quadratic time, and Python limits the digits."""
    return value if -_LONG < value < _LONG else {"int": hex(value)}


def _encode_tuple(link: Link, value: Any) -> Any:
    items = [link.encode(item) for item in value]
    fields = getattr(type(value), "_fields", None)
    return {"tuple": items} if fields is None else {"named": [type(value).__name__, list(fields), items]}


_ENCODERS: dict[type, Callable[[Link, Any], Any]] = {
    Remote: lambda link, value: {"own": value._id},
    int: lambda link, value: encode_integer(int(value)),
    float: lambda link, value: float(value),
    str: lambda link, value: str.__str__(value),
    list: lambda link, value: [link.encode(item) for item in value],
    tuple: _encode_tuple,
    frozenset: _sequence("frozenset"),
    set: _sequence("set"),
    collections.deque: _sequence("deque"),
    dict: lambda link, value: {"dict": [[link.encode(key), link.encode(item)] for key, item in value.items()]},
    bytes: lambda link, value: {"bytes": value.hex()},
    bytearray: lambda link, value: {"bytearray": value.hex()},
    complex: lambda link, value: {"complex": [value.real, value.imag]},
    range: lambda link, value: {"range": [value.start, value.stop, value.step]},
}

_DECODERS: dict[str, Callable[[Link, Any], Any]] = {
    "own": lambda link, value: link._objects[value],
    "int": lambda link, value: int(value, 16),
    "ref": lambda link, value: _known(link, int(value[0]), lambda: Remote(link, int(value[0]), str(value[1]))),
    "tuple": lambda link, value: tuple(link.decode(value)),
    "named": lambda link, value: _named_tuple(value[0], value[1], link.decode(value[2])),
    "frozenset": lambda link, value: frozenset(link.decode(value)),
    "set": lambda link, value: set(link.decode(value)),
    "deque": lambda link, value: collections.deque(link.decode(value)),
    "dict": lambda link, value: {link.decode(key): link.decode(item) for key, item in value},
    "bytes": lambda link, value: bytes.fromhex(value),
    "bytearray": lambda link, value: bytearray.fromhex(value),
    "complex": lambda link, value: complex(*value),
    "range": lambda link, value: range(*value),
    "array": lambda link, value: _array(link.decode(value[2]), value[1], value[0]),
    "class": lambda link, value: _decode_class(link, *value),
    "error": lambda link, value: _decode_error(*map(link.decode, value)),
}


def _named_tuple(name: str, fields: list[str], items: Any) -> Any:
    """Make a tuple with names. A field that has the name of a method of tuples is renamed."""
    safe = [f"_{at}" if hasattr(tuple, field) else field for at, field in enumerate(fields)]
    return collections.namedtuple(name, safe, rename=True)(*items)


def _known(link: Link, id: int, make: Callable[[], Any]) -> Any:
    if id not in link._remotes:
        link._remotes[id] = make()
    return link._remotes[id]


def _array(items: Any, shape: list[int], kind: str) -> Any:
    numpy = importlib.import_module("numpy")
    if numpy.dtype(kind).kind not in _NUMPY_KINDS:
        raise TypeError(f"the tests take no array of {kind!r}")
    return numpy.array(items, dtype=kind).reshape(shape)


# ---------------------------------------------------------------------- values of libraries


def _items(link: Link, value: Any) -> list[Any]:
    pandas = sys.modules["pandas"]
    return [None if item is pandas.NaT or item is pandas.NA else link.encode(item) for item in value.tolist()]


def _pack_index(link: Link, value: Any) -> Any:
    return [str(value.dtype), link.encode(list(value.names)), _items(link, value)]


def _pack_series(link: Link, value: Any) -> Any:
    return [str(value.dtype), link.encode(value.name), link.encode(value.index), _items(link, value)]


def _pack_frame(link: Link, value: Any) -> Any:
    columns = [value.iloc[:, at] for at in range(value.shape[1])]
    return [link.encode(value.columns), link.encode(value.index), [_pack_series(link, column) for column in columns]]


def _index(kind: Any, value: Any) -> Any:
    dtype, names, items = value
    if len(names) > 1:
        return importlib.import_module("pandas").MultiIndex.from_tuples(items, names=names)
    return kind(items, dtype=_dtype(dtype), name=names[0])


def _series(kind: Any, value: Any) -> Any:
    return kind(value[3], value[2], _dtype(value[0]), value[1])


def _frame(kind: Any, value: Any) -> Any:
    series = importlib.import_module("pandas").Series
    frame = kind({at: _series(series, column) for at, column in enumerate(value[2])}, value[1])
    frame.columns = value[0]
    return frame


def _dtype(name: Any) -> str:
    if not _DTYPE.fullmatch(name):
        raise TypeError(f"the tests take no column of {name!r}")
    return str(name)


def _text(link: Link, value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


_LIBRARY: dict[str, tuple[str, Callable[[Link, Any], Any], Callable[[Any, Any], Any]]] = {
    "datetime": ("datetime", _text, lambda kind, value: kind.fromisoformat(value)),  # before date, its base
    "date": ("datetime", _text, lambda kind, value: kind.fromisoformat(value)),
    "time": ("datetime", _text, lambda kind, value: kind.fromisoformat(value)),
    "timedelta": (
        "datetime",
        lambda link, value: [value.days, value.seconds, value.microseconds],
        lambda kind, value: kind(*value),
    ),
    "Decimal": ("decimal", _text, lambda kind, value: kind(value)),
    "Fraction": ("fractions", _text, lambda kind, value: kind(value)),
    "DataFrame": ("pandas", _pack_frame, _frame),
    "Series": ("pandas", _pack_series, _series),
    "Index": ("pandas", _pack_index, _index),
}
"""By the name of a class: its module, and functions that pack an object and make it again."""


# ---------------------------------------------------------------------- exceptions


def _encode_class(link: Link, kind: type) -> Any:
    if kind.__module__ == "builtins":
        return {"class": [None, "builtins", kind.__name__, None]}
    base = next(parent for parent in kind.__mro__[1:] if issubclass(parent, BaseException))
    return {"class": [link.keep(kind), kind.__module__, kind.__name__, _encode_class(link, base)]}


def _decode_class(link: Link, id: int | None, module: str, name: str, base: Any) -> Any:
    """Find a class of plain data, or of an exception: Python's, the standard library's, or one like the program's."""
    top = module.partition(".")[0]
    is_pythons = top in sys.stdlib_module_names and top not in _FRAMEWORKS and module in sys.modules
    kind = vars(sys.modules[module]).get(name) if is_pythons else None
    if kind in _DATA or (isinstance(kind, type) and issubclass(kind, Exception | SystemExit)):
        return kind
    if base is None:
        return type(name, (_ProgramError,), {})
    kind = link.decode(base)
    if not issubclass(kind, BaseException):
        raise TypeError(f"{name} is no exception")
    return _known(link, int(id or 0), lambda: type(name, (kind,), {"__getattr__": _of_program}))


def _of_program(error: Any, name: str) -> Any:
    return getattr(vars(error).get("_object"), name)


def _encode_error(link: Link, error: BaseException) -> Any:
    if "_object" in vars(error):  # it came from there
        return link.encode(vars(error)["_object"])
    kind = next(parent for parent in type(error).__mro__ if link.keeps or parent.__module__ == "builtins")
    try:
        args = [link.encode(arg) for arg in error.args]
    except BaseException:  # noqa: BLE001  what an own exception holds may raise anything
        args = [said(error)]
    kept = {"ref": [link.keep(error), type(error).__name__]} if link.keeps else None
    return {"error": [_encode_class(link, kind), args, kept]}


def _decode_error(kind: Any, args: Any, original: Any) -> BaseException:
    if not issubclass(kind, BaseException) or not isinstance(original, Remote | None):
        raise TypeError("this is no exception")
    error: BaseException
    try:
        error = kind(*args)
    except Exception:  # noqa: BLE001  some, such as UnicodeDecodeError, want other arguments
        error = kind.__new__(kind, *args)
    if original is not None:
        vars(error)["_object"] = original
    return error


def said(error: object, most: int = 2000) -> str:
    """Return the text of an exception, or of the value in its place."""
    try:
        return str(error)[:most]
    except BaseException:  # noqa: BLE001  its `__str__` is the program's
        return ""
