"""The Hermes parser: every decision that its module lists."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgym.tools.errors import UnknownNameError
from toolgym.tools.parsers import get_parser, parse_hermes
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import CallProblem


def call(name="f", **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_text_without_calls_is_content():
    assert parse_hermes("Just words.") == ParsedTurn("Just words.", "Just words.", [], [])


def test_several_calls_keep_their_order_and_ids():
    parsed = parse_hermes(f"one {call('a', x=1)} two {call('b', y='z')} three", first_id=5)
    assert parsed.content == "one  two  three"
    assert [(c.id, c.name, c.arguments, c.index) for c in parsed.calls] == [
        ("call_5", "a", {"x": 1}, 0),
        ("call_6", "b", {"y": "z"}, 1),
    ]


def test_a_malformed_call_keeps_its_place_between_good_ones():
    parsed = parse_hermes(f"{call('a')}<tool_call>{{oops}}</tool_call>{call('b')}")
    assert [c.index for c in parsed.calls] == [0, 2]
    assert [c.id for c in parsed.calls] == ["call_0", "call_2"]
    [error] = parsed.errors
    assert (error.index, error.id, error.problem) == (1, "call_1", CallProblem.MALFORMED_JSON)
    assert "not valid JSON" in error.message


def test_a_closing_tag_inside_a_string_does_not_end_the_call():
    code = "print('</tool_call><tool_call>')"
    parsed = parse_hermes(call(code=code))
    assert parsed.calls[0].arguments == {"code": code}
    assert parsed.errors == []


def test_raw_line_breaks_in_strings_are_accepted():
    parsed = parse_hermes('<tool_call>{"name": "f", "arguments": {"code": "a = 1\n\tprint(a)"}}</tool_call>')
    assert parsed.calls[0].arguments == {"code": "a = 1\n\tprint(a)"}


def test_arguments_as_a_json_string():
    parsed = parse_hermes('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>')
    assert parsed.calls[0].arguments == {"x": 1}


@pytest.mark.parametrize(
    ("inner", "problem", "said"),
    [
        ('{"name": "f", "arguments": {"x": }}', CallProblem.MALFORMED_JSON, "near"),
        ("", CallProblem.MALFORMED_JSON, "not valid JSON"),
        ('{"name": "f", "arguments": {}} and more', CallProblem.MALFORMED_JSON, "unexpected text 'and more'"),
        ('{"name": "f", "arguments": {}}}', CallProblem.MALFORMED_JSON, "unexpected text '}'"),
        ('["f", {}]', CallProblem.NOT_A_CALL, "expected a JSON object, got list"),
        ('{"arguments": {}}', CallProblem.NOT_A_CALL, "'name' is missing"),
        ('{"name": 3, "arguments": {}}', CallProblem.NOT_A_CALL, "'name' is missing or not a string"),
        ('{"name": "f"}', CallProblem.NOT_A_CALL, "'arguments' is missing"),
        ('{"name": "f", "arguments": [1]}', CallProblem.NOT_A_CALL, "must be an object, got list"),
        ('{"name": "f", "arguments": null}', CallProblem.NOT_A_CALL, "must be an object"),
        ('{"name": "f", "arguments": "words"}', CallProblem.NOT_A_CALL, "a string that holds no JSON"),
        ("[" * 100_000, CallProblem.MALFORMED_JSON, "nested too deeply"),
    ],
)
def test_what_is_not_a_call_is_an_error_that_says_why(inner, problem, said):
    parsed = parse_hermes(f"<tool_call>{inner}</tool_call>")
    assert parsed.calls == []
    [error] = parsed.errors
    assert error.problem is problem
    assert said in error.message


@pytest.mark.parametrize(
    "text", ['<tool_call>{"name": "f", "arg', '<tool_call>\n{"name": "f", "arguments": {}}\n', "<tool_call>"]
)
def test_an_unclosed_tag_is_an_error_even_if_its_json_is_complete(text):
    parsed = parse_hermes(text)
    assert parsed.calls == []
    assert [e.problem for e in parsed.errors] == [CallProblem.UNCLOSED_TAG]


def test_an_unclosed_call_does_not_swallow_the_next():
    parsed = parse_hermes(f'<tool_call>{{"name": "f", {call("g")}')
    assert [e.problem for e in parsed.errors] == [CallProblem.UNCLOSED_TAG]
    assert [c.name for c in parsed.calls] == ["g"]


def test_calls_inside_closed_thinking_are_thoughts():
    parsed = parse_hermes(f"<think>I could {call('a')}</think>{call('b')}")
    assert [c.name for c in parsed.calls] == ["b"]
    assert parsed.errors == []
    assert parsed.content == f"<think>I could {call('a')}</think>"


def test_a_call_inside_open_thinking_is_not_run_and_the_model_is_told():
    parsed = parse_hermes(f"<think>hm {call('a')}")
    assert parsed.calls == []
    [error] = parsed.errors
    assert error.problem is CallProblem.OPEN_THINKING
    assert "</think>" in error.message


def test_open_thinking_without_a_call_is_just_content():
    assert parse_hermes("<think>hm") == ParsedTurn("<think>hm", "<think>hm", [], [], open_thinking=True)


def test_a_think_tag_inside_an_argument_is_data():
    parsed = parse_hermes(call(code="print('<think>')") + call("b"))
    assert [c.name for c in parsed.calls] == ["f", "b"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.text(min_size=1), st.dictionaries(st.text(), json_values, max_size=4)), max_size=4))
def test_whatever_json_can_hold_comes_through_unchanged(calls):
    text = " ".join(f"<tool_call>{json.dumps({'name': n, 'arguments': a})}</tool_call>" for n, a in calls)
    parsed = parse_hermes(text)
    assert [(c.name, c.arguments) for c in parsed.calls] == calls
    assert parsed.errors == []


pieces = st.sampled_from([*"{}[]\"':,ab1 \n", "<tool_call>", "</tool_call>", "<think>", "</think>"])


@given(st.lists(pieces))
def test_no_text_makes_it_fail(parts):
    parsed = parse_hermes("".join(parts))
    indices = sorted([c.index for c in parsed.calls] + [e.index for e in parsed.errors])
    assert indices == list(range(len(indices)))


def test_parsers_are_found_by_name():
    assert get_parser("hermes") is parse_hermes
    with pytest.raises(UnknownNameError, match="did you mean 'hermes'"):
        get_parser("herms")


def test_numbers_and_nesting_beyond_all_reason_are_errors_that_the_model_reads():
    turns = [
        '<tool_call>{"name": "f", "arguments": {"x": ' + "1" * 5000 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 300 + "]" * 300 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": ' + "1" * 5000 + '}"}</tool_call>',
    ]
    for turn, said in zip(turns, ["too many digits", "nested more than", "holds no JSON"], strict=True):
        parsed = parse_hermes(turn)
        assert not parsed.calls
        assert said in parsed.errors[0].message
