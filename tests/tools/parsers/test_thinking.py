"""Calls inside of thinking, for every format; and splitting the thinking off."""

from __future__ import annotations

import pytest

from toolgym.tools.parsers import get_parser, split_reasoning
from toolgym.tools.schema import CallProblem

CALLS = {
    "hermes": '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "qwen3_coder": "<tool_call><function=f></function></tool_call>",
    "llama3": '\n{"name": "f", "parameters": {}}',
    "pythonic": "\n[f()]",
    "mistral": "[TOOL_CALLS]f[ARGS]{}",
    "deepseekv3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>",
    "deepseekv31": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    "deepseekv32": '<｜DSML｜invoke name="f">\n</｜DSML｜invoke>',
    "deepseekv4": '<｜DSML｜invoke name="f">\n</｜DSML｜invoke>',
    "glm45": "<tool_call>f\n</tool_call>",
    "hy3": "<tool_call:opensource>f<tool_sep:opensource>\n</tool_call:opensource>",
    "kimi_k2": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
}
each = pytest.mark.parametrize("name", CALLS)


def problems(parsed):
    return [error.problem for error in parsed.errors]


def tags(name):
    if name == "hy3":
        return "<think:opensource>", "</think:opensource>"
    return ("[THINK]", "[/THINK]") if name == "mistral" else ("<think>", "</think>")


@each
def test_calls_in_closed_thinking_are_none(name):
    text = f"<think>I could {CALLS[name]}</think>No."
    parsed = get_parser(name)(text)
    assert (parsed.content, parsed.calls, parsed.errors) == (text, [], [])


@each
def test_a_call_in_open_thinking_is_told(name):
    parsed = get_parser(name)(f"<think>I could {CALLS[name]}")
    assert (parsed.calls, problems(parsed)) == ([], [CallProblem.OPEN_THINKING])
    assert "</think>" in parsed.errors[0].message
    assert get_parser(name)("<think>hm").errors == []


@each
def test_a_call_in_open_thinking_is_run_where_that_is_asked_for(name):
    opening, closing = tags(name)
    parse, call = get_parser(f"open_thinking:{name}"), CALLS[name]
    for text, starts_open in ((f"{opening}I could {call}", False), (f"I could {call}", True)):
        parsed = parse(text, starts_open=starts_open, first_id=3)
        assert ([(one.name, one.index) for one in parsed.calls], parsed.errors) == ([("f", 0)], [])
        assert (parsed.text, parsed.content.strip()) == (text, text.removesuffix(call).strip())
    several = parse(f"{opening}a{call}\n{opening}b{call}\n{opening}c{call[:-3]}")
    assert [one.index for one in several.requests] == list(range(len(several.requests)))
    assert [one.name for one in several.calls[:2]] == ["f", "f"]
    assert len({one.id for one in several.requests}) == len(several.requests)
    for text in (f"{opening}I could {call}{closing}No.", f"{opening}hm{closing}{call}", "Done", f"{opening}hm"):
        assert parse(text) == get_parser(name)(text)


def test_many_calls_in_open_thinking_take_no_time_and_are_bounded():
    text = "<think>x" * 1000 + f"<think>{CALLS['hermes']}" * 2000
    parsed = get_parser("open_thinking:hermes")(text)
    assert (len(parsed.calls), len(parsed.requests)) == (255, 256)


@each
def test_a_text_that_began_inside_of_thinking_is_seen_by_its_closing_tag(name):
    text = f"I could {CALLS[name]}, no.</think>Then {CALLS[name]}"
    parsed = get_parser(name)(text)
    assert len(parsed.calls) == 1
    assert parsed.calls[0].index == 0
    assert parsed.content.startswith(f"I could {CALLS[name]}, no.</think>Then ")
    assert parsed.errors == []


@each
def test_a_text_that_is_known_to_begin_inside(name):
    opening, closing = tags(name)
    parse = get_parser(name)
    parsed = parse(f"I could {CALLS[name]}", starts_open=True)
    assert (parsed.calls, problems(parsed)) == ([], [CallProblem.OPEN_THINKING])
    assert opening in parsed.errors[0].message
    parsed = parse(f"hm {CALLS[name]}{closing}{CALLS[name]}", starts_open=True)
    assert (len(parsed.calls), parsed.errors) == (1, [])
    assert parse("hm", starts_open=True)[:4] == ("hm", "hm", [], [])


@each
@pytest.mark.parametrize("began", ["<think>", ""])
def test_a_turn_that_ends_with_its_thinking_does_not_end_in_silence(name, began):
    parsed = get_parser(name)(f"{began}I call {CALLS[name]}</think>\n")
    assert (parsed.calls, problems(parsed)) == ([], [CallProblem.CALL_IN_THINKING])


@each
def test_a_turn_that_is_known_to_begin_inside_and_ends_with_its_thinking(name):
    closing = tags(name)[1]
    parsed = get_parser(name)(f"I call {CALLS[name]}{closing}", starts_open=True)
    assert (parsed.calls, problems(parsed)) == ([], [CallProblem.CALL_IN_THINKING])


@each
def test_a_second_closing_tag_is_just_text(name):
    text = f"a</think>b {CALLS[name]}</think>c"
    parsed = get_parser(name)(text)
    assert (len(parsed.calls), parsed.errors) == (1, [])


@each
def test_a_thought_that_mentions_the_marks_of_a_call(name):
    mention = {
        "llama3": "<|python_tag|>",
        "pythonic": "<|python_start|>",
        "mistral": "[TOOL_CALLS]",
    }.get(name) or CALLS[name][: CALLS[name].index(">") + 1]
    thought = f"I could write {mention} here.</think>"
    parsed = get_parser(name)(f"{thought}Then {CALLS[name]}")
    assert (len(parsed.calls), parsed.errors) == (1, [])
    assert parsed.content.startswith(f"{thought}Then ")
    assert get_parser(name)(f"{thought}Done")[1:4] == (f"{thought}Done", [], [])


def test_a_closing_tag_in_an_argument_is_data():
    text = '<tool_call>{"name": "f", "arguments": {"s": "</think>"}}</tool_call>'
    assert len(get_parser("hermes")(text).calls) == 1


def test_gpt_oss_keeps_its_analysis_apart():
    parse = get_parser("gpt_oss")
    text = "<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>analysis<|message|>two<|end|>"
    parsed = parse(text + "<|start|>assistant<|channel|>final<|message|>Done<|return|>")
    assert (parsed.reasoning, parsed.content) == ("one\ntwo", "Done")
    assert parse("Done").reasoning is None
    begun = parse(
        "hm<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}<|call|>", starts_open=True
    )
    assert (begun.reasoning, [call.name for call in begun.calls]) == ("hm", ["f"])
    assert parse("hm", starts_open=True).reasoning == "hm"
    assert parse("assistant<|channel|>final<|message|>Done").content == "Done"


@pytest.mark.parametrize(
    ("text", "starts_open", "reasoning", "content"),
    [
        ("Done", False, None, "Done"),
        ("<think>hm</think>\n\nDone", False, "hm", "\n\nDone"),
        ("\n<think>\nhm\n</think>Done", False, "\nhm\n", "Done"),
        ("<think></think>Done", False, "", "Done"),
        ("<think>hm", False, "hm", ""),
        ("Done <think>hm</think>", False, None, "Done <think>hm</think>"),
        ("print('</think>')", False, None, "print('</think>')"),
        ("hm</think>Done</think>", True, "hm", "Done</think>"),
        ("hm", True, "hm", ""),
        ("<think>hm</think>Done", True, "hm", "Done"),
        ("", True, "", ""),
    ],
)
def test_splitting_reasoning(text, starts_open, reasoning, content):
    assert split_reasoning(text, starts_open=starts_open) == (reasoning, content)


def test_splitting_with_other_tags():
    assert split_reasoning("[THINK]a[/THINK]b", open_tag="[THINK]", close_tag="[/THINK]") == ("a", "b")
