"""The format of MiniMax M3: a pair of tags for each value, and for each part of a list or an object.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="plot">]<]minimax[>[<title>Foxes]<]minimax[>[</title>]<]minimax[>[<points>]<]minimax[>[
    <item>1]<]minimax[>[</item>]<]minimax[>[<item>2]<]minimax[>[</item>]<]minimax[>[</points>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

A call is one line; it is broken here to fit. Decisions, each with a test:

* The token `]<]minimax[>[` stands in front of each tag of the format. A tag without it is data.
* A value without tags in it is text, white space included; the tool's schema types it
  (`toolgym.tools.parsers.tagged_values`). Without text, an array is `[]` and an object is `{}`.
* A value is either text or tags; white space between tags does not count. Text and tags together are an error, since a
  tag may be missing or misspelt.
* A value with tags is a list if all of them are named `item`, unless the schema wants an object.
* A closing tag must have the name of the tag that was opened last.
* A call counts with or without the block's tags around it; a block without a call is an error.
* The token outside of any call is an error, as is a key that occurs twice.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.scan import TurnBuilder, add_stray, came, region_end, scan, skip_space
from toolgym.tools.parsers.strict_json import MAX_DEPTH
from toolgym.tools.parsers.tagged_values import MalformedError, add_malformed, schema_inside, typed_text, types_of

MARK = "]<]minimax[>["
BLOCK, END_BLOCK = f"{MARK}<tool_call>", f"{MARK}</tool_call>"
OPEN, CLOSE = f"{MARK}<invoke", f"{MARK}</invoke>"
SHAPE = f'{BLOCK}\n{OPEN} name="tool">{MARK}<key>value{MARK}</key>{CLOSE}\n{END_BLOCK}'

_ITEM = "item"
_HEAD = re.compile(r'\s+name="([^"<>]+)"\s*>')
_TAG = re.compile(re.escape(MARK) + r"<(/?)([^<>\n]+)>")
_CUT_TAG = r"<?[a-z_]*\Z"
_OPENER = "|".join([*map(re.escape, (BLOCK, END_BLOCK, OPEN)), f"{re.escape(MARK)}(?!{_CUT_TAG})"])


class _Node(NamedTuple):
    """A value as it is written: its key, and the parts or the text between its tags."""

    key: str
    parts: list[_Node]
    text: list[str]


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    at = mark.end()
    if mark.group() == END_BLOCK:
        return at
    if mark.group() == BLOCK:
        if text.startswith(OPEN, skip_space(text, at)):
            return at
        end, closed = region_end(text, at, END_BLOCK, OPEN, BLOCK)
        turn.add_misread(f"no {OPEN}...> after {BLOCK}", f"Write it as:\n{SHAPE}", text[at:end])
        return end + len(END_BLOCK) if closed else end
    if mark.group() != OPEN:
        return add_stray(turn, text, mark, OPEN, CLOSE, SHAPE)
    try:
        name, call, end = _invocation(text, at)
    except MalformedError as error:
        return add_malformed(turn, error, text, mark.start(), opening=OPEN, close=CLOSE, shape=SHAPE)
    schema = (turn.schemas or {}).get(name)
    root = None if schema is None else schema.parameters
    read = functools.partial(_value, root=root or {}, nulls=turn.nulls)
    turn.add_call(name, {part.key: read(part, schema_inside(root, root or {}, part.key)) for part in call.parts})
    return end


def _invocation(text: str, at: int) -> tuple[str, _Node, int]:
    head = _HEAD.match(text, at)
    if head is None:
        raise MalformedError(f'expected name="tool"> after {OPEN}, {came(text, at)}', at)
    name, at = head[1], head.end()
    call = _Node("invoke", [], [])
    open_nodes = [call]
    while open_nodes:
        start = text.find(MARK, at)
        if start == -1:
            raise MalformedError(f"the text ended before {CLOSE}", at, name)
        node = open_nodes[-1]
        node.text.append(text[at:start])
        tag = _TAG.match(text, start)
        if tag is None or (text.startswith(OPEN, start) and _HEAD.match(text, start + len(OPEN))):
            raise MalformedError(f"expected a tag after {MARK}, {came(text, start + len(MARK))}", start, name)
        at = tag.end()
        if not tag[1]:
            if len(open_nodes) > MAX_DEPTH:
                raise MalformedError(f"more than {MAX_DEPTH} tags are open", at, name)
            part = _Node(tag[2], [], [])
            node.parts.append(part)
            open_nodes.append(part)
            continue
        if tag[2] != node.key:
            raise MalformedError(f"expected {MARK}</{node.key}>, got {tag.group()}", start, name)
        _check_value(node, call, start, name)
        open_nodes.pop()
    return name, call, at


def _check_value(node: _Node, call: _Node, at: int, name: str) -> None:
    """Raise MalformedError if a value has both text and tags, or the same key twice."""
    text = "".join(node.text).strip()
    if text and (node.parts or node is call):
        value = "the call" if node is call else f"the value of {node.key!r}"
        raise MalformedError(f"{value} has text between its tags, {text[:30]!r}: a tag may be missing", at, name)
    keys = [part.key for part in node.parts]
    if len(set(keys)) < len(keys) and (node is call or set(keys) != {_ITEM}):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise MalformedError(f"{twice!r} occurs twice", at, name)


def _value(node: _Node, schema: Any, *, root: Mapping[str, Any], nulls: Collection[str]) -> Any:
    types = types_of(schema, root)
    if not node.parts:
        text = "".join(node.text)
        empty = None if text.strip() or types is None else types - {"null"}
        return [] if empty == {"array"} else {} if empty == {"object"} else typed_text(text, types, nulls)
    read = functools.partial(_value, root=root, nulls=nulls)
    wants_object = types is not None and "object" in types and "array" not in types
    if not wants_object and all(part.key == _ITEM for part in node.parts):
        return [read(part, schema_inside(schema, root)) for part in node.parts]
    return {part.key: read(part, schema_inside(schema, root, part.key)) for part in node.parts}


parse_minimax_m3: Parser = functools.partial(scan, opener=_OPENER, read=_read, openings=(BLOCK, OPEN))
