"""The format of Hy3: sections, its own tags for thinking, and what is not understood."""

from __future__ import annotations

from toolgym.tools.parsers import get_parser
from toolgym.tools.schema import CallProblem, ToolSchema

parse = get_parser("hy3")
SCHEMAS = {
    "f": ToolSchema("f", "", {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}})
}


def tagged(text):
    """Put the suffix into each tag."""
    return text.replace("]", ":opensource>").replace("[", "<")


CALL = tagged("[tool_call]f[tool_sep]\n[arg_key]s[/arg_key]\n[arg_value]5[/arg_value]\n[arg_key]n[/arg_key]\n")
CALL += tagged("[arg_value]5[/arg_value]\n[/tool_call]\n")


def test_calls_in_a_section():
    text = "I look." + tagged("[tool_calls]\n") + CALL * 2 + tagged("[/tool_calls]")
    parsed = parse(text, schemas=SCHEMAS)
    assert [(one.name, one.arguments) for one in parsed.calls] == [("f", {"s": "5", "n": 5})] * 2
    assert (parsed.content.strip(), parsed.errors) == ("I look.", [])


def test_calls_without_their_section_and_calls_behind_thinking():
    parsed = parse(tagged("I could call it.[/think]") + CALL, schemas=SCHEMAS)
    assert (len(parsed.calls), parsed.errors) == (1, [])
    assert parse(tagged("[think]") + CALL).errors[0].problem is CallProblem.OPEN_THINKING


def test_what_is_not_understood_is_told_in_its_own_tags():
    [error] = parse(CALL.replace(tagged("[tool_sep]"), "")).errors
    assert error.problem is CallProblem.MALFORMED_CALL
    assert tagged("[tool_call]tool[tool_sep]") in error.message
    [error] = parse(CALL.replace(tagged("[/tool_call]"), "")).errors
    assert error.problem is CallProblem.UNCLOSED_TAG
    assert tagged("[/tool_call]") in error.message
    assert parse("<tool_call>f\n</tool_call>").calls == []
