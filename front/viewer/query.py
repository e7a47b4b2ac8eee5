"""`Query`: which rows of a run to show, as a person types it.

| term | selects |
| --- | --- |
| `reward<0.5`, `turns>=3`, `step=2` | numbers: `= != < <= > >=` |
| `env=Sudoku`, `stop=length`, `blame=env` | texts that are equal, or of which it is a part: `= !=` |
| `tool=malformed_json`, `tool=*` | tool calls with that status; any but ok |
| `failed`, `success`, `branch`, `validate`, `unreadable` | what it says; with `!` before it, the others |
| `word`, `"two words"` | the text in the line, upper or lower case |
| `/regex/` | a regular expression in the texts of the messages, and the names and arguments of calls |
| `sort:reward`, `sort:-seconds` | an order, the second one downwards |

All terms must hold.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.viewer.run_index import decoded

if TYPE_CHECKING:
    from toolgym.viewer.run_index import Row, RunIndex

NUMBERS = ("reward", "step", "sample", "turns", "calls", "tokens", "seconds", "engine_seconds", "env_seconds", "number")
TEXTS = ("env", "task", "group", "stop", "blame", "role", "id", "error")
FLAGS: dict[str, Callable[[Row], bool]] = {
    "failed": lambda row: row.failed,
    "success": lambda row: row.success,
    "branch": lambda row: row.parent is not None,
    "validate": lambda row: row.validate,
    "unreadable": lambda row: not row.readable,
}

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TERM = re.compile(r"([a-z_]+)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)


class _Function(msgspec.Struct):
    name: str = ""
    arguments: Any = ""


class _Call(msgspec.Struct):
    function: _Function = msgspec.field(default_factory=_Function)


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Messages(msgspec.Struct):
    messages: list[_Message] = []
    input: str = ""
    output: str = ""


_messages = msgspec.json.Decoder(_Messages)


@dataclass(frozen=True)
class Query:
    """Terms as `parse` reads them: `rows` look at a row's figures, `lines` at its line as it stands in the file."""

    rows: Sequence[Callable[[Row], bool]] = ()
    lines: Sequence[Callable[[bytes], bool]] = ()
    sort: str = ""
    descending: bool = False

    @classmethod
    def parse(cls, text: str) -> Query:
        """Read a query. Raises ConfigError for a term that makes no sense; it says which, and what would."""
        rows: list[Callable[[Row], bool]] = []
        lines: list[Callable[[bytes], bool]] = []
        sort = ""
        for term in _terms(text):
            name = term.removeprefix("!")
            if term.startswith("sort:"):
                sort = term.removeprefix("sort:")
                if sort.removeprefix("-") not in (*NUMBERS, *TEXTS):
                    raise _unknown(sort.removeprefix("-"), "sort:NAME takes", (*NUMBERS, *TEXTS))
            elif name in FLAGS:
                rows.append(_flag(FLAGS[name], wanted=name == term))
            elif len(term) > 2 and term[0] == term[-1] == "/":
                lines.append(_regex(term[1:-1]))
            elif match := _TERM.fullmatch(term):
                rows.append(_figure(*match.groups()))
            else:
                lines.append(_contains(term))
        return cls(tuple(rows), tuple(lines), sort.removeprefix("-"), sort.startswith("-"))

    def select(self, index: RunIndex, among: Iterable[Row] | None = None) -> Iterator[Row]:
        """Yield the rows that it selects, one by one as they are met, of the index or `among` those given."""
        every = list(index.rows) if among is None else among
        rows = (row for row in every if all(holds(row) for holds in self.rows))
        if not self.lines:
            yield from rows
            return
        for row, line in index.lines(rows):
            if all(holds(line) for holds in self.lines):
                yield row

    def ordered(self, rows: list[Row]) -> list[Row]:
        """Return the rows in its order; those that are equal stay as they were, and NaN comes last."""
        if not self.sort:
            return rows
        values = operator.attrgetter(self.sort)
        known = [row for row in rows if values(row) == values(row)]
        known.sort(key=values, reverse=self.descending)
        return known + [row for row in rows if values(row) != values(row)]


def _terms(text: str) -> list[str]:
    """Split at blanks, but neither within quotes nor within a regular expression."""
    parts = re.findall(r'/(?:\\.|[^/\\])+/(?=\s|$)|(?:[^\s"]|"[^"]*")+|"[^"]*$', text)
    return [part if part.startswith("/") else part.replace('"', "") for part in parts if part.strip('" ')]


def _flag(holds: Callable[[Row], bool], *, wanted: bool) -> Callable[[Row], bool]:
    return lambda row: holds(row) is wanted


def _figure(name: str, sign: str, value: str) -> Callable[[Row], bool]:
    if name == "tool":
        return _tool(sign, value)
    if name in NUMBERS:
        try:
            number = float(value)
        except ValueError:
            raise ConfigError(f"{name}{sign} takes a number, got {value!r}") from None
        compare, figure = _COMPARISONS[sign], operator.attrgetter(name)
        return lambda row: compare(figure(row), number)
    if name not in TEXTS:
        raise _unknown(name, "a figure is", (*NUMBERS, *TEXTS, "tool"))
    if sign not in ("=", "!="):
        raise ConfigError(f"{name} is a text and takes = or !=, got {sign}")
    text, of_row = value.lower(), operator.attrgetter(name)
    return lambda row: (text in of_row(row).lower()) is (sign == "=")


def _tool(sign: str, status: str) -> Callable[[Row], bool]:
    if sign not in ("=", "!="):
        raise ConfigError(f"tool is the status of a call and takes = or !=, got {sign}")
    if status == "*":
        return lambda row: bool(row.problems) is (sign == "=")
    return lambda row: any(status in problem for problem in row.problems) is (sign == "=")


def _contains(text: str) -> Callable[[bytes], bool]:
    """Look for a text as JSON writes it, escaped or not. Of letters beyond ASCII, upper and lower case differ."""
    needle, escaped = (
        json.dumps(text, ensure_ascii=kind)[1:-1].encode(errors="replace").lower() for kind in (False, True)
    )
    return lambda line: needle in (lower := line.lower()) or (escaped != needle and escaped in lower)


def _regex(pattern: str) -> Callable[[bytes], bool]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"/{pattern}/ is no regular expression: {error}") from None

    def holds(line: bytes) -> bool:
        try:
            value = decoded(_messages, line)
        except msgspec.DecodeError:
            return False
        texts = [text for message in value.messages for text in (message.content, message.reasoning_content) if text]
        calls = [call.function for message in value.messages for call in message.tool_calls or ()]
        called = [str(text) for call in calls for text in (call.name, call.arguments)]
        return any(compiled.search(text) for text in [*(texts or [value.input, value.output]), *called])

    return holds


def _unknown(name: str, what: str, known: Sequence[str]) -> UnknownNameError:
    return UnknownNameError(f"{what} {', '.join(known)}, got {name!r}{nearest(name, known)}")


def toggled(query: str, terms: str) -> str:
    """Return the query with the terms, instead of others about the same figure; without them, if it has them."""
    rest = _without(query, re.split("[<>=]", terms)[0] + "(>=|<|=)")
    return rest if f" {terms} " in f" {query} " else f"{rest} {terms}".strip()


def sorted_by(query: str, name: str) -> str:
    """Return the query with its next order by a figure: downwards, upwards, then none."""
    orders = [f"sort:-{name}", f"sort:{name}", ""]
    place = next((place for place, order in enumerate(orders[:2]) if order in query.split()), -1)
    return f"{_without(query, 'sort:')} {orders[place + 1]}".strip()


def _without(query: str, beginning: str) -> str:
    return re.sub(rf'(?<!\S){beginning}("[^"]*"|\S)*\s*', "", query).strip()
