"""Calls of which only the beginning is written, and calls in Python's syntax that lack a sign, are errors."""

from __future__ import annotations

import time

import pytest

from toolgym.tools.parsers import get_parser
from toolgym.tools.schema import CallProblem, ToolSchema

SCHEMAS = {
    name: ToolSchema(name, "", {"type": "object", "properties": {key: {"type": "string"} for key in keys}})
    for name, keys in {"search": ("query", "site"), "get_time": (), "plot": ("points",)}.items()
}

BROKEN = {
    "no parenthesis": "[searchquery='fox', site='a')]",
    "another sign for the parenthesis": "[search{query='fox')]",
    "no arguments, no parenthesis": "[get_time)]",
    "not closed before the next call": "[get_time(, get_time()]",
    "not closed before the end of the list": "[get_time(]",
    "another sign for what closes it": "[get_timex, search(query='fox')]\n[get_time(x, get_time()]",
    "no bracket": "I look.\nsearch(query='fox')]",
    "no bracket, several": "search(query='fox', site=''), get_time()]",
    "another letter for the bracket": "xsearch(query='fox')]",
    "no brackets at all": "search(query='fox')",
    "no brackets, two lines": "search(query='fox')\nget_time()\n",
    "behind thinking": "<think>[a] is it.</think>\nsearch(query='fox')]",
}
TEXTS = {
    "a function": "[plot(x)] is the bracket",
    "a link": "[search](https://example.org) and [search results](b)",
    "a list": "[search, plot]",
    "a code block": "Write it so:\n```python\nsearch(query='fox')\n```",
    "a call in a sentence": "search(query='fox') is what I would call.",
    "another function": "compute(query='fox')]",
    "an array": "[1, 2, 3]\n[note]\n[x = 3]",
    "a bracket in the line": "It lies in [0, 1) or [",
    "a thought": "<think>\n[searchquery='fox')]\n</think>It is 4.",
    "a method": "plot.show(a)]",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_list_of_calls_is_an_error(name):
    turn = get_parser("pythonic")(BROKEN[name], schemas=SCHEMAS)
    assert not turn.calls
    assert [error.problem for error in turn.errors] == [CallProblem.MALFORMED_CALL]
    assert "Write it as [tool(" in turn.errors[0].message
    assert turn.content + turn.errors[0].raw == BROKEN[name]


@pytest.mark.parametrize("name", TEXTS)
def test_text_with_brackets_stays_text(name):
    turn = get_parser("pythonic")(TEXTS[name], schemas=SCHEMAS)
    assert (turn.content, turn.calls, turn.errors) == (TEXTS[name], [], [])


@pytest.mark.parametrize("text", ["[", "[sea", "I look.\n [search", "[search(", "[search(que"])
def test_a_list_of_calls_that_is_cut_is_an_error(text):
    turn = get_parser("pythonic")(text, schemas=SCHEMAS)
    assert not turn.calls
    assert len(turn.errors) == 1
    assert not get_parser("pythonic")(text).errors  # nothing tells it from text if the tools are not known


CALLS = {
    "hermes": ('<tool_call>{"name": "get_time", "arguments": {}}</tool_call>', "<tool_call>"),
    "qwen3_coder": ("<tool_call><function=get_time></function></tool_call>", "<tool_call>"),
    "glm45": ("<tool_call>get_time</tool_call>", "<tool_call>"),
    "mistral": ("[TOOL_CALLS]get_time[ARGS]{}", "[TOOL_CALLS]"),
    "kimi_k2": (
        "<|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "<|tool_call_begin|>",
    ),
    "deepseekv4": ('<｜DSML｜invoke name="get_time"/>', "<｜DSML｜invoke"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_turn_that_ends_inside_of_an_opening_tag_is_an_error(name):
    call, opening = CALLS[name]
    parse = get_parser(name)
    for before, length in ((call + "\n", 1), (call, len(opening) - 1), ("I look it up. ", len(opening) - 1)):
        turn = parse(before + opening[:length], schemas=SCHEMAS)
        assert len(turn.calls) == before.startswith(call)
        assert [error.problem for error in turn.errors] == [CallProblem.UNCLOSED_TAG]
        assert turn.errors[0].raw == opening[:length]
        assert "Send the whole call again" in turn.errors[0].message
    for text in ("It is 1 " + opening[:1], "<think>" + opening[:-1] + "</think>It is 4."):
        assert not parse(text, schemas=SCHEMAS).errors


def test_a_gpt_oss_turn_that_ends_inside_of_a_head_is_an_error():
    parse = get_parser("gpt_oss")
    for text in ("<|channel|>", "<|channel|>comm", "<|channel|>commentary t", "Well.<|channel|>commentary "):
        turn = parse(text)
        assert [error.problem for error in turn.errors] == [CallProblem.UNCLOSED_TAG]
        assert turn.content + turn.errors[0].raw == text
    assert not parse("<|channel|>fin").errors
    assert not parse("<|channel|>ana").errors


@pytest.mark.parametrize(
    "piece",
    ["\n[", "[" + " " * 1000, "\nsearch(query='", "[search(", "\n[search" + "x" * 1000, "<|channel|>" + " " * 999],
)
def test_looking_for_broken_calls_takes_linear_time(piece):
    def seconds(size):
        text = "[ " + piece * (size // len(piece)) + "."
        started = time.process_time()
        for name in ("pythonic", "gpt_oss"):
            get_parser(name)(text, schemas=SCHEMAS)
        return time.process_time() - started

    seconds(1000)
    assert seconds(80_000) < 16 * (seconds(20_000) + 0.005)  # four times is linear, sixteen times is quadratic
