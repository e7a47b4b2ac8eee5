"""The format of a template's calls, read off rendered calls whose names, keys and values are known.

The texts between the known words are the format's own: what opens a call, what stands between a key and its value, and
so on. They are a guess until a parser that is built from them has read back other calls, see
`toolgym.rollout.tokens.parser_choice`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from toolgym.rollout.tokens.end_of_turn import shared_beginning
from toolgym.tools.parsers.derived import CALL_ID, KEY, KIND, NUMBER, CallFormat
from toolgym.tools.parsers.strict_json import read_json

Calls = Sequence[tuple[str, dict[str, Any]]]
Write = Callable[[Calls, str], str | None]
"""Renders a turn with calls and a text before them; None if the template refuses it."""

NAMES = ("probe_tool", "second_tool")
_KEYS = ("word", "more")
_VALUES = ("zzfirst", "zzsecond")
_SPOKEN = "zzspoken."
_BOUNDARY = re.compile(r"\](?=[<~])|[<\[{(\s]")


class _Span(NamedTuple):
    start: int
    end: int


def derive_formats(write: Write, ids: Sequence[str], thinking: Sequence[tuple[str, str]] = ()) -> Iterator[CallFormat]:
    """Read formats off rendered calls.

    Args:
        write: renders a turn of the tools `NAMES`, whose parameters are `word` and `more`, both texts, and `count`, a
            number.
        ids: the ids of the rendered calls.
        thinking: pairs of texts around thinking.

    Yields:
        Formats that the template may have written, the most likely one first.
    """
    single = write([(NAMES[0], {_KEYS[0]: _VALUES[0]})], "")
    if single is None:
        return
    pair = write([(name, {_KEYS[0]: value}) for name, value in zip(NAMES, _VALUES, strict=True)], "")
    spoken = write([(NAMES[0], {_KEYS[0]: _VALUES[0]})], _SPOKEN)
    texts = _Texts(single, pair, spoken, ids, thinking)
    whole = _json_calls(texts) or _named_json(texts)
    formats = [whole] if whole is not None else list(_arguments(texts, write))
    for form in [*formats, *(form._replace(strays=False) for form in formats)]:
        yield form._replace(thinking=tuple(thinking)) if thinking else form


class _Texts(NamedTuple):
    single: str
    pair: str | None
    spoken: str | None
    ids: Sequence[str]
    thinking: Sequence[tuple[str, str]]

    def frame(self, cores: Callable[[str], list[_Span]]) -> dict[str, Any] | None:
        """Split what stands around calls into the texts around each call and those around all of them."""
        spans = cores(self.single)
        if len(spans) != 1:
            return None
        before, after = self._hidden(self.single[: spans[0].start], 0), self.single[spans[0].end :]
        if self.spoken is not None and _SPOKEN in self.spoken:
            with_text = cores(self.spoken)
            start = self.spoken.find(_SPOKEN) + len(_SPOKEN)
            if len(with_text) == 1 and with_text[0].start >= start:
                shared = _shared_end(before, self._hidden(self.spoken[start : with_text[0].start], 0))
                before = _from_boundary(before, shared)
        for _, closes in self.thinking:
            before = before.rpartition(closes)[2] if closes else before
        frame: dict[str, Any] = {"begin": "", "open": before, "close": after, "separator": "", "end": ""}
        both = cores(self.pair) if self.pair is not None else []
        if len(both) != 2 or self.pair is None:
            return frame
        middle = self._hidden(self.pair[both[0].end : both[1].start], 1)
        opening = _from_boundary(before, _shared_end(before, middle))
        rest = middle[: len(middle) - len(opening)]
        closing = shared_beginning(after, rest)
        if closing not in (after, rest):
            closing = closing[: max(closing.rfind(sign) for sign in ">]})\n") + 1]
        begin = before[: len(before) - len(opening)]
        return {
            "begin": "" if any(name in begin for name in NAMES) else begin,
            "open": opening,
            "close": closing,
            "separator": rest[len(closing) :],
            "end": after[len(closing) :],
        }

    def after_name(self, text: str, cores: Callable[[str], list[_Span]]) -> str:
        """Hide ids, and numbers that count calls, in the text that follows a call's name."""
        hidden = self._hidden(text, 0)
        both = cores(self.pair) if self.pair is not None else []
        if len(both) != 2 or self.pair is None:
            return hidden
        other = self._hidden(self.pair[both[1].start + len(NAMES[1]) :][: len(text) + 9], 1)
        pieces, others = re.split(r"(\d+)", hidden), re.split(r"(\d+)", other)
        return "".join(
            NUMBER if at % 2 and at < len(others) and piece != others[at] else piece for at, piece in enumerate(pieces)
        )

    def _hidden(self, text: str, call: int) -> str:
        return text.replace(self.ids[call], CALL_ID)


def _shared_end(text: str, other: str) -> str:
    shared = shared_beginning(text[::-1], other[::-1])
    return text[len(text) - len(shared) :]


def _from_boundary(text: str, shared: str) -> str:
    """The shared end of a text, from the first sign on that can begin a text of a format."""
    if len(shared) == len(text):
        return shared
    begins = _BOUNDARY.search(shared)
    return shared[begins.start() :] if begins else ""


def _json_calls(texts: _Texts) -> CallFormat | None:
    """Calls that are JSON objects with the name in them, alone or in a list."""
    for at in (match.start() for match in re.finditer(r"[\[{]", texts.single)):
        parsed = read_json(texts.single, at)
        if parsed.problem:
            continue
        value = parsed.value
        in_list = isinstance(value, list) and len(value) == 1
        keys = _keys_of_call(value[0] if in_list else value)
        if keys is None:
            continue
        *path, name_key, arguments_key = keys
        shape: dict[str, Any] = {"path": tuple(path), "name_key": name_key, "arguments_key": arguments_key}
        if in_list:
            whole = texts._replace(pair=None).frame(lambda text: _json_spans(text, list))
            return None if whole is None else CallFormat("list", **whole, **shape)
        frame = texts.frame(lambda text: _json_spans(text, dict))
        return None if frame is None else CallFormat("object", **frame, **shape)
    return None


def _keys_of_call(value: Any) -> tuple[str, ...] | None:
    """The keys that lead to the name, then those of the name and the arguments."""
    if not isinstance(value, dict):
        return None
    arguments = {_KEYS[0]: _VALUES[0]}
    name_key = next((key for key, item in value.items() if item == NAMES[0]), None)
    arguments_key = next((key for key, item in value.items() if item == arguments), None)
    if name_key is not None and arguments_key is not None:
        return name_key, arguments_key
    if value == {NAMES[0]: arguments}:
        return "", ""
    for key, item in value.items():
        inner = _keys_of_call(item)
        if inner is not None:
            return key, *inner
    return None


def _json_spans(text: str, kind: type) -> list[_Span]:
    """Return the spans of JSON values that hold the name of a tool."""
    spans: list[_Span] = []
    for at in (match.start() for match in re.finditer(r"[\[{]", text)):
        if spans and at < spans[-1].end:
            continue
        parsed = read_json(text, at)
        if (
            not parsed.problem
            and isinstance(parsed.value, kind)
            and any(name in text[at : parsed.end] for name in NAMES)
        ):
            spans.append(_Span(at, parsed.end))
    return spans


def _name_before(text: str, at: int, after: int = 0) -> int:
    """Return the position of the last tool's name before another position; -1 if there is none."""
    return max(text.rfind(name, after, at) for name in NAMES)


def _named_json(texts: _Texts) -> CallFormat | None:
    """Calls with a name before a JSON object of arguments."""

    def cores(text: str) -> list[_Span]:
        spans: list[_Span] = []
        for at in (match.start() for match in re.finditer(r"\{", text)):
            last = spans[-1].end if spans else 0
            parsed = read_json(text, at) if at >= last else None
            if parsed is None or parsed.problem or not isinstance(parsed.value, dict) or _KEYS[0] not in parsed.value:
                continue
            start = _name_before(text, at, last)
            if start != -1:
                spans.append(_Span(start, parsed.end))
        return spans

    frame = texts.frame(cores)
    if frame is None:
        return None
    core = cores(texts.single)[0]
    inside = texts.single[core.start + len(NAMES[0]) : core.end]
    after_name = texts.after_name(inside[: inside.index("{")], cores)
    return CallFormat("named", **frame, after_name=after_name)


def _arguments(texts: _Texts, write: Write) -> Iterator[CallFormat]:
    """Calls with a name, and a key and a value for each argument."""

    def cores(text: str) -> list[_Span]:
        spans: list[_Span] = []
        for match in re.finditer("|".join(_VALUES), text):
            key = text.rfind(_KEYS[0], spans[-1].end if spans else 0, match.start())
            start = _name_before(text, key, spans[-1].end if spans else 0) if key != -1 else -1
            if start != -1:
                spans.append(_Span(start, match.end()))
        return spans

    frame = texts.frame(cores)
    double = write([(NAMES[0], {_KEYS[0]: _VALUES[0], _KEYS[1]: _VALUES[1]})], "")
    number = write([(NAMES[0], {"count": 7531})], "")
    if frame is None or double is None or number is None:
        return
    first, second = _KEYS
    if not 0 <= double.find(_VALUES[0]) < double.find(_VALUES[1]):  # sorted by their keys
        first, second = second, first
    values = dict(zip(_KEYS, _VALUES, strict=True))
    core = cores(texts.single)[0]
    whole = texts.single[core.start :]
    head, _, tail = whole.partition(_KEYS[0])
    after_key, _, after = tail.partition(_VALUES[0])
    at_first = double.find(values[first])
    between = double[at_first + len(values[first]) : double.rfind(second, 0, double.find(values[second]))]
    after_name = texts.after_name(head[len(NAMES[0]) :], cores)
    number_after_key, _, number_after = number[number.find("count") + len("count") :].partition("7531")
    quotes = ("", "")
    string_kind = ""
    kinds = _with_kind(after_key, number_after_key)
    if kinds is not None:
        after_key, string_kind = kinds
    elif after_key.startswith(number_after_key) and after.endswith(number_after) and after_key != number_after_key:
        quotes = (after_key[len(number_after_key) :], after[: len(after) - len(number_after)])
        after_key, after = number_after_key, number_after
        between = between.removeprefix(quotes[1])
    before_key = _from_boundary(after_name, _shared_end(after_name, between)) if after_name != between else after_name
    rest = between[: len(between) - len(before_key)]
    after_value = shared_beginning(rest, after.replace(_KEYS[0], first))
    if after_value != rest:
        after_value = after_value[: max(after_value.rfind(sign) for sign in ">]})\n") + 1]
    after_value = after_value.replace(first, KEY)
    if quotes[0] and not after_value.strip(" ,"):
        after_value = ""
    frame["close"] = frame["close"].removeprefix(quotes[1] + after_value.replace(KEY, _KEYS[0]))
    form = CallFormat(
        "arguments",
        **frame,
        after_name=after_name[: len(after_name) - len(before_key)],
        before_key=before_key,
        after_key=after_key,
        string_kind=string_kind,
        after_value=after_value,
        between=rest[len(after_value.replace(KEY, first)) :],
    )
    yield from _with_values(form, quotes)


def _with_kind(after_key: str, number_after_key: str) -> tuple[str, str] | None:
    """Hide the word that differs between a string and a number after a key; return the text and the string's word."""
    words, others = (re.split(r"([A-Za-z]+)", text) for text in (after_key, number_after_key))
    differing = [at for at, pair in enumerate(zip(words, others, strict=False)) if pair[0] != pair[1]]
    if len(words) != len(others) or len(differing) != 1 or not differing[0] % 2:
        return None
    at = differing[0]
    return "".join([*words[:at], KIND, *words[at + 1 :]]), words[at]


def _with_values(form: CallFormat, quotes: tuple[str, str]) -> Iterator[CallFormat]:
    """The format with each way to write values that its quotes allow."""
    if not quotes[0]:
        yield form._replace(values="text")
        yield form._replace(values="text", cdata=True)
        return
    yield form._replace(values="json")
    yield form._replace(values="python")
    yield form._replace(values="quoted", quotes=quotes)
