"""Parsers that are built from a description of a format, instead of written for it.

`toolgym.rollout.tokens.call_format` reads the description off the calls that a chat template renders. Decisions, each
with a test:

* White space at the edges of the format's own texts may differ. All else is read as the template writes it.
* Values are JSON, Python literals, or strings between quotes of the format's own, as `<|"|>`; or texts between tags,
  which `toolgym.tools.parsers.tagged_values` types and checks for damaged tags.
* A call that cannot be read is an error. Nothing is repaired.
* A call counts with or without the texts around all calls, if it has texts of its own around it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from toolgym.tools.message import visible_text
from toolgym.tools.parsers.base import ParsedTurn, Parser
from toolgym.tools.parsers.python_literals import LiteralError, read_literal
from toolgym.tools.parsers.scan import NULLS, THINKING, TurnBuilder, add_stray, came, scan, skip_space
from toolgym.tools.parsers.strict_json import MAX_DEPTH, add_object_call, read_json, read_whole_json
from toolgym.tools.parsers.tagged_values import (
    MalformedError,
    ValueTags,
    parameters_of,
    read_value,
    require_whole,
    typed,
)
from toolgym.tools.schema import ToolSchema

CALL_ID = "\0id\0"
"""Stands for the id of a call in a format's texts."""


KEY = "\0key\0"
"""Stands for an argument's key in the text after its value."""


NUMBER = "\0number\0"
"""Stands for digits that count the calls of a turn."""

KIND = "\0kind\0"
"""Stands for a word that names the type of a value."""


class CallFormat(NamedTuple):
    """A description of how a model writes calls.

    Attributes:
        kind: "object": JSON objects with a name and arguments; "list": a JSON list of such objects; "named": a name and
            a JSON object; "arguments": a name and arguments, each with a key and a value.
        begin: text before all calls.
        open: text before each call.
        close: text after each call.
        separator: text between two calls.
        end: text after all calls.
        path: keys of a JSON object that lead to the object with the name.
        name_key: key of the name in JSON; empty if the name is itself the key of the arguments.
        arguments_key: key of the arguments in JSON.
        after_name: text between a name and the arguments.
        before_key: text before each key.
        after_key: text between a key and its value.
        after_value: text after each value.
        between: text between two arguments, after the first one's `after_value`.
        values: how values are written.
        string_kind: the word for strings, if `KIND` stands in `after_key`. Values of other kinds are JSON.
        cdata: a text may stand between `<![CDATA[` and `]]>`.
        quotes: texts around strings, if `values` is "quoted".
        strays: whether a closing tag outside of a call is an error. False if texts end with such tags as well.
        thinking: pairs of texts around thinking.
    """

    kind: Literal["object", "list", "named", "arguments"]
    begin: str = ""
    open: str = ""
    close: str = ""
    separator: str = ""
    end: str = ""
    path: tuple[str, ...] = ()
    name_key: str = ""
    arguments_key: str = ""
    after_name: str = ""
    before_key: str = ""
    after_key: str = ""
    after_value: str = ""
    between: str = ""
    values: Literal["json", "python", "quoted", "text"] = "json"
    string_kind: str = ""
    cdata: bool = False
    quotes: tuple[str, str] = ("", "")
    strays: bool = True
    thinking: tuple[tuple[str, str], ...] = THINKING


@functools.lru_cache(maxsize=64)
def derived_parser(form: CallFormat) -> Parser | None:
    """Build the parser of a format; None if nothing in it tells a call from other text."""
    reader = _Reader(form)
    if not reader.opener:
        return None
    thinking = tuple(dict.fromkeys([*form.thinking, *THINKING]))
    return functools.partial(read_derived_turn, reader=reader, thinking=thinking)


def read_derived_turn(
    text: str,
    *,
    reader: _Reader,
    thinking: Sequence[tuple[str, str]],
    nulls: Collection[str] = NULLS,
    first_id: int = 0,
    schemas: Mapping[str, ToolSchema] | None = None,
    starts_open: bool = False,
) -> ParsedTurn:
    """Read a turn, and look for a damaged call in what is left of it. With `reader` and `thinking` bound it is a
    `Parser`."""
    turn = scan(
        text,
        opener=reader.opener,
        read=reader.read,
        thinking=thinking,
        openings=reader.openings,
        nulls=nulls,
        first_id=first_id,
        schemas=schemas,
        starts_open=starts_open,
    )
    if turn.errors or turn.open_thinking:
        return turn
    content = visible_text(turn.content)
    remains = reader.remains(tuple(schemas or ())).search(content)
    if remains is None or not turn.content.endswith(raw := content[remains.start() :]):
        return turn
    errors = TurnBuilder(first_id + len(turn.calls))
    why = f"{remains.group().strip()[:60]!r} stands outside of a call"
    errors.add_misread(why, f"Write it as:\n{reader.shape}", raw)
    error = replace(errors.errors[0], index=len(turn.calls))
    return turn._replace(content=turn.content.removesuffix(raw), errors=[error])


MIN_MARK = 5
"""How many signs a text from the inside of a call must have, so that it tells a damaged call from other text."""

_SLOTS = {CALL_ID: r"(?P<id>[^\s<>|{}\[\]\"]{1,200})", NUMBER: r"\d{1,9}", KIND: r"(?P<kind>[A-Za-z]{1,20})"}


def _loose(text: str) -> str:
    """A pattern for a text of the format: white space in it may differ, and may be missing beside signs."""
    pieces = re.split(r"(\s+|\0[a-z]+\0)", text)
    pattern = ""
    for at, piece in enumerate(pieces):
        if piece in _SLOTS:
            pattern += _SLOTS[piece]
        elif piece.isspace():
            inside = 0 < at < len(pieces) - 1 and pieces[at - 1][-1:].isalnum() and pieces[at + 1][:1].isalnum()
            pattern += r"\s+" if inside else r"\s*"
        else:
            pattern += re.escape(piece)
    return pattern


_CLOSING_TAG = re.compile(r"<[^<>\s]{2,}>|\[[^\[\]\s]{2,}\]")


def _is_mark(text: str) -> bool:
    return re.search(r"[<\[\]{}|]", text) is not None and re.search(r"\w", text) is not None


class _Reader:
    def __init__(self, form: CallFormat) -> None:
        self.form = form
        begin, open_, end = form.begin.strip(), form.open.strip(), form.end.strip()
        self.starts = open_ or begin
        self.loops = not open_
        self.begin = re.compile(_loose(begin)) if begin and open_ else None
        self.end = re.compile(_loose(end)) if end and open_ else None
        self.call = re.compile(_loose(self.starts)) if self.starts else None
        self.opener = ""
        closing = _CLOSING_TAG.findall(form.close if open_ else form.end)
        self.stray = closing[-1] if form.strays and closing and self._is_unique(closing[-1]) else ""
        if _is_mark(self.starts):
            first = _CLOSING_TAG.match(self.starts)
            own_tag = first is not None and self._is_unique(first[0])
            marks = [
                first[0] if first and own_tag else self.starts,
                *([begin] if self.begin else []),
                *([end] if self.end else []),
            ]
            marks += [self.stray] if self.stray else []
            self.opener = "|".join(_loose(mark).replace("(?P<id>", "(?:") for mark in marks)
        elif not self.starts and form.kind == "list" and form.name_key:
            self.opener = rf'^[^\S\n]*\[(?=\s*\{{\s*"{re.escape(form.name_key)}"\s*:)'
        closers = (form.close, form.end) if open_ else (form.end, form.close)
        self.closer = next((closer.strip() for closer in closers if closer.strip()), "")
        self.close = re.compile(rf"\s*{_loose(form.close.strip())}")
        self.separator = re.compile(rf"\s*{_loose(form.separator.strip())}\s*")
        self.last = re.compile(rf"\s*{_loose(end)}")
        if form.kind in ("named", "arguments"):
            self._compile_named()
        self.shape = self._shape().replace(CALL_ID, "id").replace(NUMBER, "1").replace(KIND, form.string_kind)

    @property
    def openings(self) -> tuple[str, ...]:
        """The texts that open a call, or all calls, as far as they are the same in every turn."""
        texts = (self.form.begin.strip(), self.starts)
        return tuple(text for text in texts if _is_mark(text) and "\0" not in text)

    @functools.lru_cache(maxsize=16)  # noqa: B019  readers are remembered as long as their formats
    def remains(self, names: tuple[str, ...]) -> re.Pattern[str]:
        """Return the pattern of what only a damaged call leaves outside of calls: texts from the inside of a call, or
        an object with a tool's name.

        Args:
            names: the names of the offered tools.
        """
        form = self.form
        around = form.begin + form.end + form.separator
        inside = [form.before_key, form.after_value] if form.kind == "arguments" else []
        inside += [form.close] if form.strays else []
        texts = {text.strip() for text in inside}
        patterns = [
            _loose(text).replace("(?P<kind>", "(?:").replace("(?P<id>", "(?:")
            for text in sorted(texts)
            if len(text) >= MIN_MARK and _is_mark(text) and text not in around and KEY not in text
        ]
        name = "|".join(map(re.escape, names))
        if form.kind in ("object", "list") and names and form.name_key:
            patterns.append(rf'\{{\s*+"{re.escape(form.name_key)}"\s*+:\s*+"(?:{name})"')
        elif form.kind in ("object", "list") and names:
            patterns.append(rf'\{{\s*+"(?:{name})"\s*+:\s*+\{{')
        return re.compile("|".join(patterns) or "(?!)")

    def _is_unique(self, tag: str) -> bool:
        """Whether a tag stands in one place of the format only, so that it tells which place that is."""
        form = self.form
        texts = [form.begin, form.open, form.close, form.separator, form.end, form.after_name, form.before_key]
        texts += [form.after_key, form.after_value, form.between]
        return sum(text.count(tag) for text in texts) == 1 and tag not in form.quotes

    def _compile_named(self) -> None:
        form = self.form
        behind = _loose(form.after_name.strip())
        self.name = re.compile(rf"\s*(?P<name>[^\s<>{{}}\[\]()\"'|=,]+)\s*{behind}")
        if form.kind == "named":
            return
        self.bare = re.compile(
            rf"\s*(?P<name>[^\s<>{{}}\[\]()\"'|=,]+)\s*{_loose((form.after_name + form.close).strip())}"
        )
        key = r"(?P<key>[^\s<>{}\[\]()\"'|=,:]+)"
        after_key, after_value = form.after_key.rstrip("\n"), form.after_value.lstrip("\n")
        space = r"\s*" if form.values != "text" else ""
        self.key = re.compile(rf"\s*{_loose(form.before_key.strip())}{key}\s*{_loose(after_key.strip())}{space}")
        self.after_value = re.compile(rf"\s*{_loose(after_value.strip())}")
        self.between = re.compile(rf"\s*{_loose(form.between.strip())}")
        self.tags: ValueTags | None = None
        if form.values == "text" and after_value.strip().startswith("<") and KEY not in after_value:
            opening = form.before_key.strip() or form.after_key.strip()
            names = dict.fromkeys(re.findall(r"[\w:.-]{3,}", after_value + form.before_key))
            following = [form.between.strip() + form.before_key.strip(), form.close.strip() or form.end.strip()]
            form_of_tag = re.search(r"</?[\w:.-]+(\W)", opening)
            self.tags = ValueTags(
                after_value.strip(),
                opening=re.compile(_loose(opening) + (rf"{key}" if form.before_key.strip() else "")),
                follows=re.compile(r"\s*(?:" + "|".join(_loose(text) for text in following if text) + r"|\Z)"),
                names=tuple(names),
                form=re.escape(form_of_tag[1]) if form_of_tag else "(?!)",
            )

    def _shape(self) -> str:
        form = self.form
        before, after = form.begin + form.open, form.close + form.end
        if form.kind == "named":
            return f"{before}tool{form.after_name}{{...}}{after}"
        if form.kind == "arguments":
            quotes = ('"', '"') if form.values in ("json", "python") else form.quotes
            value = f"{quotes[0]}value{quotes[1]}"
            value = f"{form.before_key}key{form.after_key}{value}{form.after_value.replace(KEY, 'key')}"
            return f"{before}tool{form.after_name}{value}{after}"
        call = f'{{"{form.name_key}": "tool", "{form.arguments_key}": {{...}}}}' if form.name_key else '{"tool": {...}}'
        for key in reversed(form.path):
            call = f'{{"{key}": {call}}}'
        return f"{before}[{call}]{after}" if form.kind == "list" else f"{before}{call}{after}"

    def read(self, text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
        """Read what begins at a mark of the format; return where it ends."""
        assert self.opener
        start = mark.start()
        if self.stray and mark.group() == self.stray and mark.group() != self.form.end.strip():
            return add_stray(turn, text, mark, self.starts.partition(CALL_ID)[0], self.stray, self.shape)
        if self.call is None:
            turn.add_content(mark.group()[:-1])
            return self._calls(text, mark.end() - 1, mark.end() - 1, turn)
        opened = self.call.match(text, start)
        ends = self.end.match(text, start) if self.end is not None else None
        if opened is None and not turn.requests and (ends is not None or mark.group() == self.form.end.strip()):
            return add_stray(turn, text, mark, self.starts.partition(CALL_ID)[0], mark.group(), self.shape)
        if opened is None:
            return self._frame(text, mark, turn)
        call_id = opened.groupdict().get("id") or ""
        return self._calls(text, start, opened.end(), turn, call_id)

    def _frame(self, text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
        """Skip a text around all calls. The first one is followed by a call."""
        assert self.call is not None
        at = mark.end()
        is_begin = self.begin is not None and self.begin.match(text, mark.start()) is not None
        is_end = self.end is not None and self.end.match(text, mark.start()) is not None
        if not is_begin and not is_end:
            error = MalformedError(f"expected {self.starts}, {came(text, mark.start())}", at)
            return self._malformed(text, mark.start(), error, turn)
        if is_begin and not self.call.match(text, skip_space(text, at)):
            error = MalformedError(f"expected {self.starts}, {came(text, skip_space(text, at))}", at)
            return self._malformed(text, mark.start(), error, turn)
        return at

    def _calls(self, text: str, start: int, at: int, turn: TurnBuilder, call_id: str = "") -> int:
        at_call = start
        try:
            while True:
                at = self._call(text, at, turn, call_id)
                if not self.loops or self.form.kind == "list":
                    break
                separator = self.separator.match(text, at)
                if separator is None or separator.end() == len(text) or turn.full:
                    break
                if (self.form.end.strip() and self.last.match(text, at)) or not self._begins_call(
                    text, separator.end()
                ):
                    break
                at_call = at = separator.end()
            if self.loops and self.form.end.strip():
                last = self.last.match(text, at)
                if last is None:
                    raise MalformedError(f"expected {self.form.end.strip()}, {came(text, skip_space(text, at))}", at)
                at = last.end()
        except MalformedError as error:
            return self._malformed(text, at_call, error, turn)
        return at

    def _begins_call(self, text: str, at: int) -> bool:
        if self.form.kind == "object":
            return text.startswith("{", at)
        return self.name.match(text, at) is not None

    def _malformed(self, text: str, start: int, error: MalformedError, turn: TurnBuilder) -> int:
        closer = self.closer
        end = text.find(closer, error.at) if closer else -1
        closed = end != -1
        following = -1
        if self.call is not None and (opened := self.call.search(text, max(error.at, start + 1))):
            following = opened.start()
        if following != -1 and (not closed or following < end):
            end, closed = following, False
        elif not closed:
            end = len(text)
        if closer and not closed:
            turn.add_unclosed(closer, text[start:end], error.name)
            return end
        end += len(closer) if closed else 0
        turn.add_misread(str(error), f"Write it as:\n{self.shape}", text[start:end], error.name)
        return end

    def _call(self, text: str, at: int, turn: TurnBuilder, call_id: str) -> int:
        if self.form.kind in ("object", "list"):
            return self._json(text, skip_space(text, at), turn)
        if self.form.kind == "named":
            return self._named(text, at, turn, call_id)
        return self._arguments(text, at, turn, call_id)

    def _json(self, text: str, at: int, turn: TurnBuilder) -> int:
        parsed = read_json(text, at)
        if parsed.problem:
            raise MalformedError(f"it is not valid JSON: {parsed.problem}", at)
        items = parsed.value
        if self.form.kind == "list" and (not isinstance(items, list) or not items):
            raise MalformedError("expected a JSON list of calls", at)
        close = self.close.match(text, parsed.end)
        if close is None:
            why = f"expected {self.form.close.strip()}, {came(text, skip_space(text, parsed.end))}"
            raise MalformedError(why, parsed.end)
        raw = text[at : parsed.end]
        for item in items if self.form.kind == "list" else [items]:
            if turn.full:
                turn.add_overflow_error(raw)
                break
            self._add_object(item, raw, turn)
        return close.end()

    def _add_object(self, item: Any, raw: str, turn: TurnBuilder) -> None:
        form = self.form
        for key in form.path:
            item = item.get(key) if isinstance(item, dict) else item
        if form.name_key:
            renamed = item
            if isinstance(item, dict):
                renamed = {**item, "name": item.get(form.name_key)}
            add_object_call(turn, renamed, raw, keys=(form.arguments_key,), shape=self.shape)
        elif isinstance(item, dict) and len(item) == 1 and isinstance(next(iter(item.values())), dict):
            turn.add_call(*next(iter(item.items())))
        else:
            turn.add_misread("expected an object with one tool's name", f"Write it as {self.shape}.", raw)

    def _head(self, text: str, at: int, call_id: str) -> tuple[str, str, int]:
        head = self.name.match(text, at)
        if head is None:
            expected = f"a tool's name and {self.form.after_name.strip().replace(CALL_ID, 'an id')}".removesuffix(
                " and "
            )
            raise MalformedError(f"expected {expected}, {came(text, skip_space(text, at))}", at)
        return head["name"], head.groupdict().get("id") or call_id, head.end()

    def _named(self, text: str, at: int, turn: TurnBuilder, call_id: str) -> int:
        name, call_id, at = self._head(text, at, call_id)
        parsed = read_json(text, skip_space(text, at))
        if parsed.problem or not isinstance(parsed.value, dict):
            problem = parsed.problem or f"got {type(parsed.value).__name__}"
            raise MalformedError(f"the arguments must be a JSON object: {problem}", at, name)
        close = self.close.match(text, parsed.end)
        if close is None:
            why = f"expected {self.form.close.strip()}, {came(text, skip_space(text, parsed.end))}"
            raise MalformedError(why, parsed.end, name)
        turn.add_call(name, parsed.value, call_id)
        return close.end()

    def _arguments(self, text: str, at: int, turn: TurnBuilder, call_id: str) -> int:
        if bare := self.bare.match(text, at):
            turn.add_call(bare["name"], {}, call_id)
            return bare.end()
        name, call_id, at = self._head(text, at, call_id)
        form = self.form
        known = parameters_of(name, turn.schemas)
        values: dict[str, Any] = {}
        doubts: list[MalformedError | None] = []
        while not (values and self._ends(text, at)):
            key = self.key.match(text, at)
            if key is None:
                why = f"expected an argument or {self.form.close.strip()}, {came(text, skip_space(text, at))}"
                raise MalformedError(why, at, name)
            if key["key"] in values:
                raise MalformedError(f"the argument {key['key']!r} occurs twice", at, name)
            value, at, doubt = self._value(text, key.end(), key["key"], name, known)
            if (kind := key.groupdict().get("kind")) is not None and kind != form.string_kind:
                parsed = read_whole_json(value)
                if parsed.problem:
                    why = f"the value of {key['key']!r} is of the type {kind}, but is not JSON: {parsed.problem}"
                    raise MalformedError(why, at, name)
                value = parsed.value
            values[key["key"]] = value
            doubts.append(doubt)
            separated = self.between.match(text, at)
            if separated is None and not self._ends(text, at):
                raise MalformedError(
                    f"expected {self.form.close.strip()}, {came(text, skip_space(text, at))}", at, name
                )
            if not self._ends(text, at) and separated is not None:
                at = separated.end()
        close = self.close.match(text, at)
        assert close is not None
        require_whole(doubts, values, known)
        untyped = form.values == "text" and not form.string_kind
        turn.add_call(name, typed(name, values, turn.schemas, turn.nulls) if untyped else values, call_id)
        return close.end()

    def _ends(self, text: str, at: int) -> bool:
        close = self.close.match(text, at)
        return close is not None and (close.end() > at or not self.form.close.strip())

    def _value(self, text: str, at: int, key: str, name: str, known: Any) -> tuple[Any, int, MalformedError | None]:
        form = self.form
        if form.values == "text":
            value = self._text(text, at, key, name, known)
            written = value[0]
            self._require_one(written, at, key, name)
            if form.after_key.endswith("\n"):
                written = written.removeprefix("\n")
            if form.after_value.startswith("\n"):
                written = written.removesuffix("\n")
            return written, value[1], value[2]
        result: Any
        end: int
        if form.values == "json":
            parsed = read_json(text, at)
            if parsed.problem:
                raise MalformedError(f"the value of {key!r} is not valid JSON: {parsed.problem}", at, name)
            result, end = parsed.value, parsed.end
        elif form.values == "python":
            try:
                result, end = read_literal(text, at)
            except LiteralError as error:
                raise MalformedError(f"the value of {key!r}: {error}", at, name) from None
        else:
            result, end = _Quoted(text, form.quotes, key, name).value(at, 0)
        closed = self.after_value.match(text, end)
        if closed is None:
            raise MalformedError(f"the value of {key!r} has no closing {form.after_value.strip()}", end, name)
        return result, closed.end(), None

    def _require_one(self, value: str, at: int, key: str, name: str) -> None:
        """Raise if a value holds what opens a call, or most of a closing text that also opens values."""
        closer = self.form.after_value.strip()
        part = "" if closer.startswith("</") or KEY in closer else closer[:-1]
        opened = self.call.search(value) if self.call is not None else None
        tag = opened.group().strip() if opened else part
        if opened or (len(part) >= MIN_MARK and part in value):
            why = f"the value of {key!r} holds {tag!r}, or a closing {closer} is missing"
            raise MalformedError(why, at, name)

    def _text(self, text: str, at: int, key: str, name: str, known: Any) -> tuple[str, int, MalformedError | None]:
        if self.form.cdata and text.startswith(_CDATA, at) and (end := text.find(_END_CDATA, at)) != -1:
            closed = self.after_value.match(text, end + len(_END_CDATA))
            if closed is not None:
                return text[at + len(_CDATA) : end], closed.end(), None
        if self.tags is not None:
            return read_value(text, at, key, name, self.tags, known)
        closer, opening = self.form.after_value.strip().replace(KEY, key), self.form.before_key.strip()
        end = text.find(closer, at) if closer else -1
        if end == -1:
            raise MalformedError(f"the value of {key!r} has no closing {closer}", at, name)
        if opening and text.find(opening, at, end) != -1:
            raise MalformedError(
                f"the value of {key!r} holds {opening!r}, or its closing {closer} is missing", at, name
            )
        return text[at:end], end + len(closer), None


_CDATA, _END_CDATA = "<![CDATA[", "]]>"
_SPACES = re.compile(r"\s*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z]+")
_KEY = re.compile(r"[^\s:,{}\[\]<>|\"']+")
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


class _Quoted:
    """Reads values as JSON writes them, but with strings between quotes of the format's own, and bare keys."""

    def __init__(self, text: str, quotes: Sequence[str], key: str, name: str) -> None:
        self._text, self._open, self._close = text, quotes[0], quotes[1]
        self._key, self._name = key, name

    def _fail(self, expected: str, at: int) -> MalformedError:
        return MalformedError(
            f"the value of {self._key!r}: expected {expected}, {came(self._text, at)}", at, self._name
        )

    def _skip(self, at: int) -> int:
        match = _SPACES.match(self._text, at)
        assert match is not None  # the pattern matches the empty string
        return match.end()

    def _string(self, at: int) -> tuple[str, int]:
        start = at + len(self._open)
        end = self._text.find(self._close, start)
        if end == -1:
            raise self._fail(f"a closing {self._close}", len(self._text))
        return self._text[start:end], end + len(self._close)

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """Read a value; return it and where it ends."""
        text = self._text
        if depth > MAX_DEPTH:
            raise self._fail("less nesting", at)
        if text.startswith(self._open, at):
            return self._string(at)
        if text.startswith("[", at):
            return self._list(at, depth)
        if text.startswith("{", at):
            return self._object(at, depth)
        if number := _NUMBER.match(text, at):
            parsed = read_json(text, at)
            if parsed.problem or parsed.end != number.end():
                raise self._fail("a number", at)
            return parsed.value, number.end()
        word = _WORD.match(text, at)
        if word is None or word[0] not in _CONSTANTS:
            raise self._fail(f"a string between {self._open} and {self._close}, a number, true, false or null", at)
        return _CONSTANTS[word[0]], word.end()

    def _items(self, at: int, close: str, item: Callable[[int], int]) -> int:
        at = self._skip(at + 1)
        while not self._text.startswith(close, at):
            at = self._skip(item(at))
            if self._text.startswith(",", at):
                at = self._skip(at + 1)
            elif not self._text.startswith(close, at):
                raise self._fail(f"',' or {close!r}", at)
        return at + 1

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []

        def item(start: int) -> int:
            value, end = self.value(start, depth + 1)
            values.append(value)
            return end

        return values, self._items(at, "]", item)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}

        def item(start: int) -> int:
            if self._text.startswith(self._open, start):
                key, end = self._string(start)
            else:
                bare = _KEY.match(self._text, start)
                if bare is None:
                    raise self._fail("a key", start)
                key, end = bare[0], bare.end()
            end = self._skip(end)
            if not self._text.startswith(":", end):
                raise self._fail(f"':' after {key!r}", end)
            if key in values:
                raise MalformedError(f"the key {key!r} occurs twice in one object", start, self._name)
            values[key], end = self.value(self._skip(end + 1), depth + 1)
            return end

        return values, self._items(at, "}", item)
