"""A tool in a notebook."""

from __future__ import annotations

from typing import Literal

import pytest

from toolgym.tools import CodeInterpreterTool, tool
from toolgym.tools.schema import ToolSchema
from toolgym.tools.views.tool import example_arguments


@tool
def look_up(place: str, unit: Literal["C", "F"], days: int = 3, note: str | None = None) -> str:
    """Look up the weather.

    Args:
        place: a town
    """
    return f"{place} {unit} {days} {note}"


async def test_a_tool_shows_its_parameters_and_a_call_that_works():
    html = look_up.tool._repr_html_()
    for part in ("Look up the weather.", "a town", "one of &#x27;C&#x27;, &#x27;F&#x27;", "string or null", "required"):
        assert part in html
    assert "A call: look_up(place=&#x27;text&#x27;, unit=&#x27;C&#x27;)" in html
    arguments = look_up.tool.tool_schema.with_defaults(example_arguments(look_up.tool.tool_schema))
    result = await look_up.tool.execute(await look_up.tool.create(), arguments)
    assert result.text == "text C 3 None"


@pytest.mark.parametrize(
    ("rules", "value"),
    [
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": "string", "examples": ["print(1)"]}, "print(1)"),
        ({"const": "x"}, "x"),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"type": "boolean"}, True),
        ({}, "text"),
    ],
)
def test_an_example_fits_the_schema(rules, value):
    parameters = {"type": "object", "properties": {"x": rules}, "required": ["x"]}
    assert example_arguments(ToolSchema("f", "", parameters)) == {"x": value}


def test_there_is_no_example_where_simple_values_do_not_fit():
    parameters = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["x"]}
    assert example_arguments(ToolSchema("f", "", parameters)) is None


def test_a_tool_of_the_library_has_one():
    html = CodeInterpreterTool()._repr_html_()
    assert "A call: code_interpreter(code=" in html
    assert "<summary>schema</summary>" in html
