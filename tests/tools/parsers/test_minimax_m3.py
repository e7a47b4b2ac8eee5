"""A table of cases for MiniMax M3, and values that come back with the types of their schema."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolgym.tools.parsers import get_parser
from toolgym.tools.parsers.minimax_m3 import BLOCK, CLOSE, END_BLOCK, MARK, OPEN
from toolgym.tools.parsers.strict_json import MAX_DEPTH
from toolgym.tools.schema import ToolSchema

DEEP = {"depth": {"type": "object", "properties": {"most": {"type": "integer"}}}}
PLOT = ToolSchema(
    "plot",
    "",
    {
        "type": "object",
        "properties": {
            "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
            "options": {"type": ["object", "null"], "properties": {"item": {"type": "string"}, **DEEP}},
            "either": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]},
            "all": {"allOf": [{"type": "object", "properties": {"flag": {"type": "boolean"}}}]},
        },
        "additionalProperties": {"type": "array", "items": {"type": "boolean"}},
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}, "name": {"type": "string"}}}},
    },
)


def tag(key, inside=""):
    return f"{MARK}<{key}>{inside}{MARK}</{key}>"


def call(inside="", name="f"):
    return f'{OPEN} name="{name}">{inside}{CLOSE}'


def block(*calls):
    return f"{BLOCK}\n" + "".join(f"{one}\n" for one in calls) + END_BLOCK


A1 = call(tag("a", "1"))
TABLE = [
    ("none", "A <tool_call> in words, <b>bold</b>.", "A <tool_call> in words, <b>bold</b>.", [], [], ""),
    ("one", "Hi." + block(A1), None, [("f", {"a": 1})], [], ""),
    ("several", block(A1, call()), None, [("f", {"a": 1}), ("f", {})], [], ""),
    ("white space is data", block(call(tag("s", " x\n"))), None, [("f", {"s": " x\n"})], [], ""),
    (
        "other tags are data",
        block(call(tag("s", "<s></s></invoke>"))),
        None,
        [("f", {"s": "<s></s></invoke>"})],
        [],
        "",
    ),
    ("an object", block(call(tag("o", tag("b", "true")))), None, [("f", {"o": {"b": "true"}})], [], ""),
    ("an empty object", block(call(tag("o"))), None, [("f", {"o": {}})], [], ""),
    ("JSON in a value", block(call(tag("o", '{"b": 1}'))), None, [("f", {"o": {"b": 1}})], [], ""),
    ("lines between tags", block(call(f"\n{tag('a', '1')}\n")), None, [("f", {"a": 1})], [], ""),
    ("without a block", A1, "", [("f", {"a": 1})], [], ""),
    ("an unknown tool", block(call(tag("x", tag("item", "1")), "g")), None, [("g", {"x": ["1"]})], [], ""),
    ("a thought", f"<think>{A1}</think>Done", f"<think>{A1}</think>Done", [], [], ""),
    ("a text like a head", block(call(tag("s", '1234 name="x">'))), None, [("f", {"s": '1234 name="x">'})], [], ""),
    ("a key like a block", block(call(tag("tool_call", "1"))), None, [("f", {"tool_call": "1"})], [], ""),
    ("an empty block", block(), None, [], ["malformed_call"], "no ]<]minimax[>[<invoke"),
    ("no name", block(f"{OPEN}>{CLOSE}"), None, [], ["malformed_call"], 'expected name="tool">'),
    ("no closing tag", block(call(f"{MARK}<a>1")), None, [], ["malformed_call"], "expected ]<]minimax[>[</a>"),
    (
        "a missing tag",
        block(call(f"{MARK}<s>x{tag('a', '1')}")),
        None,
        [],
        ["malformed_call"],
        "expected ]<]minimax[>[</s>",
    ),
    (
        "no token",
        block(call(f"{MARK}<s>x</s>{tag('a', '1')}")),
        None,
        [],
        ["malformed_call"],
        "expected ]<]minimax[>[</s>",
    ),
    ("text and tags", block(call(tag("o", "x" + tag("b")))), None, [], ["malformed_call"], "'o' has text between"),
    ("a misspelt tag", block(call(f"{MARK}<s>x{MARK}</t>")), None, [], ["malformed_call"], "got ]<]minimax[>[</t>"),
    ("text in a call", block(call("x" + tag("a", "1"))), None, [], ["malformed_call"], "the call has text between"),
    ("a token alone", block(call(tag("s", f"x{MARK}y"))), None, [], ["malformed_call"], "expected a tag after"),
    ("a key twice", block(call(tag("a", "1") * 2)), None, [], ["malformed_call"], "'a' occurs twice"),
    ("a key twice inside", block(call(tag("o", tag("b") * 2))), None, [], ["malformed_call"], "'b' occurs twice"),
    ("a call that never ends", block(f'{OPEN} name="f">', A1), None, [("f", {"a": 1})], ["unclosed_tag"], ""),
    ("cut", BLOCK + f'{OPEN} name="f">{MARK}<a>1', "", [], ["unclosed_tag"], "Send the whole call again"),
    ("cut in the block's tag", f"Hi. {BLOCK[:-3]}", "Hi. ", [], ["unclosed_tag"], "Send the whole call again"),
    ("outside", f"{tag('a', '1')}{CLOSE}{END_BLOCK}", None, [], ["malformed_call"], "stands outside of a call"),
    ("too deep", block(call(f"{MARK}<o>" * 999)), None, [], ["malformed_call"], f"more than {MAX_DEPTH} tags are open"),
]


@pytest.mark.parametrize("case", TABLE, ids=[case[0] for case in TABLE])
def test_table(check_case, case):
    check_case("minimax_m3", case)


def read(inside):
    (only,) = get_parser("minimax_m3")(block(call(inside, "plot")), schemas={"plot": PLOT}).calls
    return only.arguments


def test_the_schema_types_the_parts_of_lists_and_objects():
    point = tag("item", tag("x", "1.5") + tag("name", "5"))
    assert read(tag("points", point * 2)) == {"points": [{"x": 1.5, "name": "5"}] * 2}
    assert read(tag("options", tag("depth", tag("most", "3")))) == {"options": {"depth": {"most": 3}}}
    assert read(tag("options", tag("item", "5"))) == {"options": {"item": "5"}}
    assert read(tag("either", tag("item", "5"))) == {"either": [5]}
    assert read(tag("either")) == {"either": ""}
    assert read(tag("all", tag("flag", "true"))) == {"all": {"flag": True}}
    assert read(tag("more", tag("item", "false"))) == {"more": [False]}


def test_unions_of_recursive_types_take_linear_time():
    operands = {"anyOf": [{"$ref": "#/$defs/add"}, {"$ref": "#/$defs/multiply"}, {"$ref": "#/$defs/any"}]}
    operation = {"type": "object", "properties": {"left": operands, "value": {"type": "integer"}}}
    kinds = {"add": operation, "multiply": dict(operation), "any": operands}
    schema = {"type": "object", "properties": {"left": operands}, "$defs": kinds}
    inside, value = tag("value", "5"), {"value": 5}
    for _ in range(MAX_DEPTH - 2):
        inside, value = tag("left", inside), {"left": value}
    turn = get_parser("minimax_m3")(block(call(inside)), schemas={"f": ToolSchema("f", "", schema)})
    assert [one.arguments for one in turn.calls] == [value]


words = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: MARK not in text)
keys = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
leaves = st.one_of(
    st.tuples(st.just({"type": "string"}), words),
    st.tuples(st.just({"type": "integer"}), st.integers()),
    st.tuples(st.just({"type": "boolean"}), st.booleans()),
)


def in_list(one):
    schema, value = one
    return {"type": "array", "items": schema}, [value] * 2


def in_object(properties):
    schema = {"type": "object", "properties": {key: part for key, (part, _) in properties.items()}}
    return schema, {key: value for key, (_, value) in properties.items()}


typed_values = st.recursive(
    leaves, lambda inner: inner.map(in_list) | st.dictionaries(keys, inner, max_size=3).map(in_object), max_leaves=6
)


def written(value):
    if isinstance(value, dict):
        return "".join(tag(key, written(part)) for key, part in value.items())
    if isinstance(value, list):
        return "".join(tag("item", written(part)) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


@settings(deadline=None)
@given(arguments=st.dictionaries(keys, typed_values, max_size=3))
def test_values_come_back_with_the_types_of_their_schema(arguments):
    schema, values = in_object(arguments)
    turn = get_parser("minimax_m3")(block(call(written(values))), schemas={"f": ToolSchema("f", "", schema)})
    assert [one.arguments for one in turn.calls] == [values]
