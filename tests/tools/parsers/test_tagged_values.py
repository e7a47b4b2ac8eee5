"""Typing values that a format writes as text, by the tool's schema."""

from __future__ import annotations

import pytest

from toolgym.tools.parsers import get_parser
from toolgym.tools.parsers.tagged_values import typed
from toolgym.tools.schema import ToolSchema

STRING, INTEGER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (STRING, "5", "5"),
        (STRING, "null", "null"),
        (STRING, '"quoted"', '"quoted"'),
        (INTEGER, "5", 5),
        (INTEGER, " 5\n", 5),
        (INTEGER, "five", "five"),
        (INTEGER, '"5"', '"5"'),
        (INTEGER, "5 6", "5 6"),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "null"}, "None", None),
        ({"type": "array"}, "[1, {}]", [1, {}]),
        ({"type": "object"}, '{"a": "b"}', {"a": "b"}),
        ({"type": "object"}, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "nul", "nul"),
        ({"type": ["integer", "string"]}, "5", "5"),
        ({"anyOf": [STRING, {"type": "null"}]}, "null", None),
        ({"anyOf": [STRING, {"type": "null"}]}, "None", "None"),
        ({"type": ["string", "null"]}, " null", " null"),
        ({"type": ["integer", "null"]}, "None", None),
        ({"anyOf": [INTEGER, {"type": "null"}]}, "5", 5),
        ({"oneOf": [INTEGER, {}]}, "5", "5"),
        ({"anyOf": [INTEGER, {"type": "array"}], "type": "integer"}, "5", 5),
        ({"allOf": [{"type": ["integer", "string"]}, INTEGER]}, "5", 5),
        ({"allOf": [{"type": "number"}, INTEGER]}, "5", 5),
        ({"$ref": "#/$defs/count"}, "5", 5),
        ({"$ref": "#/$defs/a~1b"}, "5", 5),
        ({"$ref": "#/$defs/absent"}, "5", "5"),
        ({"$ref": "#/$defs/loop"}, "5", "5"),
        ({"$ref": "elsewhere.json"}, "5", "5"),
        ({"enum": ["a", "b"]}, "a", "a"),
        ({"enum": [1, 2]}, "1", 1),
        ({"enum": [True, None]}, "true", True),
        ({"enum": ["1", 1]}, "1", "1"),
        ({"const": 3}, "3", 3),
        ({}, "5", "5"),
        (True, "5", "5"),
    ],
)
def test_values(schema, text, value):
    definitions = {"count": INTEGER, "a/b": INTEGER, "loop": {"$ref": "#/$defs/loop"}}
    tool = ToolSchema("f", "", {"type": "object", "properties": {"x": schema}, "$defs": definitions}, external=True)
    found = typed("f", {"x": text}, {"f": tool})["x"]
    assert found == value
    assert type(found) is type(value)


def test_parameters_that_are_not_named():
    anything = ToolSchema("f", "", {"type": "object", "additionalProperties": INTEGER})
    assert typed("f", {"x": "5"}, {"f": anything}) == {"x": 5}
    assert typed("f", {"x": "5"}, {"f": ToolSchema("f")}) == {"x": "5"}
    assert typed("g", {"x": "5"}, {"f": anything}) == {"x": "5"}
    assert typed("f", {"x": "5"}, None) == {"x": "5"}


def test_without_schemas_every_value_stays_text():
    text = "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"
    assert get_parser("qwen3_coder")(text).calls[0].arguments == {"a": "1"}
    text = "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    assert get_parser("glm45")(text).calls[0].arguments == {"a": "1"}


NULLABLE = ToolSchema("f", "", {"type": "object", "properties": {"x": {"type": ["string", "null"]}}})


@pytest.mark.parametrize(("nulls", "null", "text"), [(("None",), "None", "null"), ((), "", "null")])
def test_a_string_that_may_be_null_is_null_only_if_written_so(nulls, null, text):
    def read(value):
        return typed("f", {"x": value}, {"f": NULLABLE}, nulls)["x"]

    assert read(text) == text
    assert read(null) == (None if null in nulls else null)
