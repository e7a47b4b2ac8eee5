"""`visible_text`: a text without the thinking of the model that wrote it."""

from __future__ import annotations

import pytest

from toolgym.tools.message import visible_text
from toolgym.tools.parsers import ParsedTurn, get_parser


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("plain", "plain"),
        ("a<think>b</think>c<think>d</think>e", "ace"),
        ("a<think>b", "a"),
        ("a</think>b", "b"),
        ("a</think>b</think>c", "c"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("[THINK]a[/THINK]b", "b"),
        ("<think:opensource>a</think:opensource>b", "b"),
        ("<seed:think>a</seed:think>b", "b"),
        ("\u25c1think\u25b7a\u25c1/think\u25b7b", "b"),
        ("<|START_THINKING|>a<|END_THINKING|>b", "b"),
        ("I <b>think</b> so", "I <b>think</b> so"),
    ],
)
def test_thinking_is_removed(text, visible):
    assert visible_text(text) == visible


@pytest.mark.parametrize(
    ("text", "visible"), [("a", ""), ("a</think>b", "b"), ("<think>a</think>b", "b"), ("a<think>b", "")]
)
def test_thinking_that_the_prompt_opened_is_removed(text, visible):
    assert visible_text(text, starts_open=True) == visible


def test_the_time_is_linear_in_the_text():
    text = "<think>" * 20_000 + "</think>" * 20_000
    assert visible_text(text + "x") == "x"


def test_a_turn_without_thinking_keeps_its_calls():
    text = '<think>a</think>Look. <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    turn = get_parser("hermes")(text)
    assert turn.visible_content == "Look."
    visible = turn.without_thinking()
    assert (visible.calls, "<think>" in visible.text, visible.text.startswith("Look.")) == (turn.calls, False, True)


def test_a_reasoning_field_is_removed():
    turn = ParsedTurn("<|channel|>analysis...", "Hello.", [], [], "a secret").without_thinking()
    assert (turn.text, turn.content, turn.reasoning) == ("Hello.", "Hello.", None)
