"""Histories that are read once: what is remembered of earlier requests never changes what a request says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rollout.capture.wires.scripted import BY_NAME, read
from toolgym.rollout.capture.agent_call import CallRefusedError
from toolgym.rollout.capture.wires.memory import RequestMemory

CALL = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ENTRIES = {
    "chat": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [CALL]},
        {"role": "assistant", "content": "b"},
        {"role": "tool", "tool_call_id": "call_a", "content": "c"},
        {"role": "tool", "content": "no id"},
    ],
    "responses": [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "b"}]},
        {"role": "assistant", "content": "<think>t</think>"},
        {"role": "assistant", "content": "c"},
        {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_a", "output": "d"},
        {"type": "item_reference", "id": "rs_1"},
    ],
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_a", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_a", "content": "b"}]},
        {"role": "user", "content": []},
        {"role": "robot"},
    ],
}
FIELDS = {"chat": "messages", "responses": "input", "messages": "messages"}


def outcome(reading):
    try:
        call = reading()
    except CallRefusedError as error:
        return str(error)
    return call.messages, call.tools


@settings(max_examples=4 * settings.default.max_examples, deadline=None)
@given(data=st.data(), wire=st.sampled_from(sorted(ENTRIES)))
def test_a_request_says_the_same_whatever_came_before_it(data, wire):
    memory, entries = RequestMemory(), st.lists(st.sampled_from(ENTRIES[wire]), max_size=6)
    history = []
    for _ in range(5):
        history = [*history[: data.draw(st.integers(0, len(history)))], *data.draw(entries)]
        body = {FIELDS[wire]: [dict(entry) for entry in history]}
        assert outcome(lambda body=body: BY_NAME[wire].read(body, memory)) == outcome(
            lambda body=body: read(wire, body)
        )


@pytest.mark.parametrize("wire", ["chat", "messages"])
def test_what_stands_in_an_earlier_request_is_the_same_object(wire):
    memory, history = RequestMemory(), ENTRIES[wire][:1]
    first = BY_NAME[wire].read({"messages": history, "tools": []}, memory)
    grown = BY_NAME[wire].read({"messages": [dict(history[0]), dict(ENTRIES[wire][0], content="b")]}, memory)
    assert grown.messages[0] is first.messages[0]
    assert BY_NAME[wire].read({"messages": history, "tools": []}, memory).tools is first.tools
