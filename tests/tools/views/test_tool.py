"""A tool in a notebook."""

from __future__ import annotations

from typing import Literal

from toolgym.tools import CodeInterpreterTool, tool


@tool
def look_up(place: str, unit: Literal["C", "F"], days: int = 3, note: str | None = None) -> str:
    """Look up the weather.

    Args:
        place: a town
    """
    return f"{place} {unit} {days} {note}"


def test_a_tool_shows_its_parameters():
    html = look_up.tool._repr_html_()
    for part in ("Look up the weather.", "a town", "one of &#x27;C&#x27;, &#x27;F&#x27;", "string or null", "required"):
        assert part in html


def test_a_tool_of_the_library_has_one():
    assert "<summary>schema</summary>" in CodeInterpreterTool()._repr_html_()
