"""Damaged calls in formats that toolgym derives: text that only a call leaves outside of calls is an error."""

from __future__ import annotations

import pytest

from toolgym.tools.parsers.derived import CallFormat, derived_parser
from toolgym.tools.schema import CallProblem, ToolSchema

TOOLS = {
    name: ToolSchema(name, "", {"type": "object", "properties": {key: {"type": "string"} for key in ("path", "body")}})
    for name in ("write", "read")
}
OPENED = CallFormat("list", open="<|tools|>", name_key="name", arguments_key="arguments")
NAMELESS = CallFormat("list", open="<|tools|>")
ESCAPED = CallFormat(
    "arguments",
    open="<call>call:",
    close="}<end_call>",
    after_name="{",
    after_key=":<escape>",
    after_value="<escape>",
    between=",",
    values="text",
)
BARS = CallFormat(
    "arguments",
    begin="<|open|>tools",
    open='<|sep|><|open|>call tool="',
    close="<|sep|><|close|>call",
    end="<|sep|><|close|>tools<|sep|>",
    after_name='"',
    before_key='<|sep|><|open|>argument key="',
    after_key='"<|sep|>',
    after_value="<|close|>argument",
    values="text",
)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (OPENED, '<|tool|>[{"name": "write", "arguments": {}}]'),
        (OPENED, 'I look. [{"name": "write", "arguments": {}}]'),
        (NAMELESS, '[{"write": {"path": "a"}}]'),
        (BARS, '<|open|>tools<|sep|><|open|>call tool="read"<|sep|><|close|>callread"<|sep|><|close|>call'),
    ],
)
def test_what_only_a_call_leaves_behind_is_an_error(form, text):
    turn = derived_parser(form)(text, schemas=TOOLS)
    assert [error.problem for error in turn.errors] == [CallProblem.MALFORMED_CALL]
    assert "outside of a call" in turn.errors[0].message
    assert turn.errors[0].index == len(turn.calls)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (OPENED, '[{"name": "Ann", "arguments": 3}]'),
        (NAMELESS, '{"writer": {"a": 1}}'),
        (BARS, "An argument that is closed by <|close|>."),
        (OPENED, '<think>{"name": "write"}</think>Done'),
    ],
)
def test_other_json_and_marks_stay_text(form, text):
    turn = derived_parser(form)(text, schemas=TOOLS)
    assert (turn.content, turn.calls, turn.errors) == (text, [], [])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (
            ESCAPED,
            "<call>call:write{path:<escape>a<escape><end_call><call>call:write{body:<escape>b<escape>}<end_call>",
        ),
        (ESCAPED, "<call>call:write{path:<escape>a<escape,body:<escape>b<escape>}<end_call>"),
        (
            BARS,
            '<|open|>tools<|sep|><|open|>call tool="write"<|sep|><|open|>argument key="path"<|sep|>a<|close|>argumnt'
            '<|sep|><|close|>call<|sep|><|open|>call tool="write"<|sep|><|open|>argument key="body"<|sep|>b'
            "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        ),
    ],
)
def test_a_value_never_swallows_the_next_call(form, text):
    turn = derived_parser(form)(text, schemas=TOOLS)
    assert turn.errors
    assert all(set(call.arguments.values()) <= {"a", "b"} for call in turn.calls)
