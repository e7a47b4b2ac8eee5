"""Python's call syntax, restricted to names and literals, read without compiling or running anything. `ast.parse` may
take all memory or very long on texts that are made for it, and it refuses raw line breaks inside of strings."""

from __future__ import annotations

import codecs
import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

from toolgym.tools.errors import ToolgymError
from toolgym.tools.parsers.scan import came
from toolgym.tools.parsers.strict_json import MAX_DEPTH

NAME = r"[^\W\d][\w-]*(?:\.[^\W\d][\w-]*)*"

_TOKEN = re.compile(
    rf"""\s*(?:
    (?P<string>[rR]?(?:\"\"\"(?:[^"\\]++|\\.|"(?!\"\"))*+\"\"\"|'''(?:[^'\\]++|\\.|'(?!''))*+'''
        |"(?!"\")(?:[^"\\]++|\\.)*+"|'(?!'')(?:[^'\\]++|\\.)*+'))
    |(?P<number>[-+]?\.?\d(?:[eE][-+](?=\d)|[\w.])*)
    |(?P<name>{NAME})
    |(?P<sign>[\[\](){{}},:=])
    |(?P<end>\Z)
    |(?P<other>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:\r\n|[\r\n]|[\\'\"abfnrtv]|[0-7]{1,3}"
    r"|x[\da-fA-F]{0,2}|u[\da-fA-F]{0,4}|U[\da-fA-F]{0,8}|N(?:\{[^}]*\})?)"
)
_CONSTANTS = {"True": True, "False": False, "None": None}

Calls = list[tuple[str, dict[str, Any]]]


class LiteralError(ToolgymError, ValueError):
    """The text is not a list of calls with literal arguments. `name` is that of the call which was being read."""

    def __init__(self, why: str, name: str = "") -> None:
        super().__init__(why)
        self.name = name


def read_calls(text: str, at: int) -> tuple[Calls, int]:
    return _Reader(text, at).calls()


def read_open_calls(text: str, at: int) -> tuple[list[str], int, bool]:
    """Read calls that no bracket opens.

    Args:
        text: the text.
        at: position of the first call's name.

    Returns:
        The names of the tools, the position after the calls, and whether a closing bracket follows them.

    Raises:
        LiteralError: the text is not a call with literal arguments.
    """
    return _Reader(text, at).open_calls()


def read_literal(text: str, at: int) -> tuple[Any, int]:
    """Read a literal; return it and the position after it. Raises LiteralError."""
    return _Reader(text, at).literal()


class _Reader:
    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._name = ""
        self._move(at)

    def _move(self, at: int) -> None:
        match = _TOKEN.match(self._text, at)
        assert match is not None  # the pattern takes any character, and the end
        self._token = match
        self._kind = match.lastgroup or "end"
        self._word = match.group(self._kind)

    def _next(self) -> str:
        word = self._word
        self._move(self._token.end())
        return word

    def _error(self, expected: str) -> LiteralError:
        start = self._token.start(self._kind)
        return LiteralError(f"expected {expected}, {came(self._text, start)}", self._name)

    def _expect(self, sign: str) -> None:
        if self._word != sign or self._kind != "sign":
            raise self._error(repr(sign))
        self._next()

    def _is(self, sign: str) -> bool:
        return self._kind == "sign" and self._word == sign

    def calls(self) -> tuple[Calls, int]:
        self._expect("[")
        calls = [self._call() for _ in self._items("]")]
        return calls, self._token.end()

    def open_calls(self) -> tuple[list[str], int, bool]:
        names = [self._call()[0]]
        end = self._start
        while self._is(",") or self._kind == "name":
            if self._is(","):
                self._next()
            names.append(self._call()[0])
            end = self._start
        return names, self._token.end() if self._is("]") else end, self._is("]")

    @property
    def _start(self) -> int:
        return self._token.start(self._kind)

    def literal(self) -> tuple[Any, int]:
        value = self._value(0)
        return value, self._token.start(self._kind)

    def _items(self, close: str) -> Iterator[None]:
        """Stand before each item of a list, and at last before what closes it."""
        while not self._is(close):
            yield
            if not self._is(close):
                self._expect(",")

    def _call(self) -> tuple[str, dict[str, Any]]:
        if self._kind != "name":
            raise self._error("a tool's name")
        self._name = self._next()
        self._expect("(")
        arguments: dict[str, Any] = {}
        for _ in self._items(")"):
            if self._kind != "name":
                raise self._error("an argument as name=value")
            key = self._next()
            if not self._is("="):
                raise self._error(f"'=' after {key!r}")
            self._next()
            if key in arguments:
                raise LiteralError(f"the argument {key!r} occurs twice", self._name)
            arguments[key] = self._value(0)
        self._next()
        return self._name, arguments

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise LiteralError(f"an argument is nested more than {MAX_DEPTH} levels deep", self._name)
        if self._kind == "string":
            parts = []
            while self._kind == "string":  # neighbours are one string
                parts.append(self._string(self._next()))
            return "".join(parts)
        if self._kind == "number":
            return self._number(self._next())
        if self._kind == "name" and self._word in _CONSTANTS:
            return _CONSTANTS[self._next()]
        if self._is("["):
            return self._list(depth)
        if self._is("{"):
            return self._dict(depth)
        raise self._error("a string, a number, True, False, None, a list or a dict")

    def _list(self, depth: int) -> list[Any]:
        self._next()
        values = [self._value(depth + 1) for _ in self._items("]")]
        self._next()
        return values

    def _dict(self, depth: int) -> dict[str, Any]:
        self._next()
        values: dict[str, Any] = {}
        for _ in self._items("}"):
            if self._kind != "string":
                raise self._error("a string as a key")
            key = self._value(depth + 1)
            self._expect(":")
            if key in values:
                raise LiteralError(f"the key {key!r} occurs twice in one dict", self._name)
            values[key] = self._value(depth + 1)
        self._next()
        return values

    def _string(self, token: str) -> str:
        raw = token[0] in "rR"
        token = token[1:] if raw else token
        quote = 3 if token[:3] in ('"""', "'''") and len(token) >= 6 else 1
        body = token[quote:-quote]
        return body if raw else _ESCAPE.sub(self._escape, body)

    def _escape(self, match: re.Match[str]) -> str:
        sequence = match.group()
        if sequence[1] in "\r\n":
            return ""
        if sequence[1] in "01234567":
            return chr(int(sequence[1:], 8))
        try:
            return codecs.decode(sequence, "unicode_escape")
        except ValueError:
            raise LiteralError(f"{sequence[:20]!r} is not an escape sequence", self._name) from None

    def _number(self, token: str) -> int | float:
        value: int | float = math.nan
        try:
            value = int(token, 0)
        except ValueError:  # also Python's limit on digits
            if set(token) & set(".eE"):
                with contextlib.suppress(ValueError):
                    value = float(token)
        if isinstance(value, int) or math.isfinite(value):
            return value
        raise LiteralError(f"{token[:40]!r} is not a number that can be used", self._name)
