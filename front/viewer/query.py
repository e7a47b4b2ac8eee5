"""`Query`: which rows of a run to show, as a person types it.

| term | selects |
| --- | --- |
| `reward<0.5`, `turns>=3`, `step=2` | numbers: `= != < <= > >=` |
| `env=Sudoku`, `stop=length`, `blame=env` | texts that are equal, or of which it is a part: `= !=` |
| `tool=malformed_json`, `tool=*` | tool calls with that status; any but ok |
| `failed`, `success`, `branch`, `validate`, `unreadable` | what it says; with `!` before it, the others |
| `word`, `"two words"` | a text in messages, names and arguments of calls, ids or the error; upper or lower case |
| `/regex/` | a regular expression in the same texts |
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


_HIDDEN = ("role", "type", "id", "tool_call_id", "turn")
"""Keys of messages, calls and errors whose values are no texts for a reader."""


class _Texts(msgspec.Struct):
    """The keys of a line with texts that are searched; others are skipped."""

    format_version: Any = 0
    id: Any = None
    task_id: Any = None
    group_id: Any = None
    request_id: Any = None
    error: Any = None
    messages: Any = None
    input: Any = None
    output: Any = None


_decoder = msgspec.json.Decoder(_Texts)


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
    if name in NUMBERS:
        try:
            number = float(value)
        except ValueError:
            raise ConfigError(f"{name}{sign} takes a number, got {value!r}") from None
        compare, figure = _COMPARISONS[sign], operator.attrgetter(name)
        return lambda row: compare(figure(row), number)
    if name not in (*TEXTS, "tool"):
        raise _unknown(name, "a figure is", (*NUMBERS, *TEXTS, "tool"))
    if sign not in ("=", "!="):
        what = "the status of a call" if name == "tool" else "a text"
        raise ConfigError(f"{name} is {what} and takes = or !=, got {sign}")
    if name == "tool":
        return lambda row: any(value == "*" or value in problem for problem in row.problems) is (sign == "=")
    text, of_row = value.lower(), operator.attrgetter(name)
    return lambda row: (text in of_row(row).lower()) is (sign == "=")


def _contains(word: str) -> Callable[[bytes], bool]:
    wanted = word.lower()
    # A part that JSON writes in one way alone: few lines need more than a look for it.
    part = max(re.findall("[a-z0-9 ]+", wanted), key=len, default="").encode()
    return lambda line: part in line.lower() and any(wanted in text.lower() for text in _texts(line))


def _regex(pattern: str) -> Callable[[bytes], bool]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"/{pattern}/ is no regular expression: {error}") from None
    return lambda line: any(map(compiled.search, _texts(line)))


def _texts(line: bytes) -> list[str]:
    """Return the texts that a line is searched by; the line itself if it is no JSON object, or nested too deeply."""
    try:
        value = decoded(_decoder, line)
        spoken = value.messages if value.format_version else [value.input, value.output]
        return _leaves([value.id, value.task_id, value.group_id, value.request_id, value.error, spoken], _HIDDEN)
    except (msgspec.DecodeError, RecursionError):
        return [line.decode(errors="replace").rstrip("\r\n")]


def _leaves(value: Any, hidden: Sequence[str] = ()) -> list[str]:
    """Return the texts within a value, and its numbers as texts. Arguments of calls, which are JSON, are read."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        texts = []
        for name, part in value.items():
            if hidden and name == "arguments":
                texts += _leaves(_read(part))
            elif name not in hidden:
                texts += _leaves(part, hidden)
        return texts
    if isinstance(value, list):
        return [text for part in value for text in _leaves(part, hidden)]
    return [] if value is None else [json.dumps(value)]


def _read(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return arguments


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
