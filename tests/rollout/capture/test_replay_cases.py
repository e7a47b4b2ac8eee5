"""Turns that come back otherwise than they were sent: the same turn, or another one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.rollout.capture.played_agent import START, SYSTEM, USER, back, foreign, result, schema, user, written_call
from toolgym.rollout.capture.agent_call import AgentMessage, WrittenCall

TALK = "<think>Hm, files.</think> Let me run it. \n" + written_call("ls -l  .")


def with_call(message, arguments, **changes):
    [call] = message.calls
    return replace(message, calls=(replace(call, arguments=arguments, **changes),))


REPLAYS = {
    "case-13-spaces": lambda turn: with_call(turn, '{ "command" :\n"ls -l  ."}'),
    "case-13-parsed": lambda turn: with_call(turn, {"command": "ls -l  ."}),
    "case-14-renamed": lambda turn: with_call(replace(turn, ids=frozenset()), '{"command":"ls -l  ."}', id="toolu_1"),
    "case-16-no-thinking": lambda turn: replace(turn, reasoning=None),
    "case-16-empty-thinking": lambda turn: replace(turn, reasoning=" "),
    "case-17-thinking-trimmed": lambda turn: replace(turn, reasoning="\nHm, files.\n"),
    "case-18-blanks-lost": lambda turn: replace(turn, content="Let me run it."),
    "case-18-blanks-added": lambda turn: replace(turn, content="\nLet me run it.  \n"),
    "case-20-no-ids": lambda turn: replace(turn, ids=frozenset()),
    "case-24-flattened": lambda turn: foreign(
        "Let me run it.\nCalling tools:\n[{'id': '" + turn.calls[0].id + "', 'type': 'function', 'function': {}}]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
async def test_the_same_turn(play, replay):
    agent = play(TALK, "Done.", "Bye.")
    first = await agent.ask(*START)
    turn = replay(back(first))
    answer = replace(result(first, "a"), call_id=turn.calls[0].id) if turn.calls else user("Observation:\na")
    second = await agent.ask(*START, turn, answer)
    agent.assert_goes_on(1, 0)
    await agent.ask(*START, turn, answer, back(second), user("Thanks."))
    agent.assert_goes_on(2, 1)
    assert agent.finish() == [("start", [0, 1, 2])]
    if turn.calls:
        assert agent.trajectory.messages[3]["name"] == "bash"
    assert agent.trajectory.metrics.get("calls_flattened", 0) == (0 if turn.calls else 1)


CHANGES = {
    "case-17-other-thinking": lambda turn: replace(turn, reasoning="Well, no files."),
    "other-text": lambda turn: replace(turn, content="Let me not run it."),
    "other-arguments": lambda turn: with_call(turn, '{"command":"ls"}'),
    "other-tool": lambda turn: with_call(turn, turn.calls[0].arguments, name="read"),
    "one-call-more": lambda turn: replace(turn, calls=turn.calls * 2),
    "no-call": lambda turn: replace(turn, calls=()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_changed_turn_begins_a_sequence(play, change):
    """Its own sample stays in the first row, and the changed one is context of the second."""
    agent = play(TALK, "Done.", "Bye.")
    first = await agent.ask(*START)
    messages = (*START, change(back(first)), user("Well?"))
    second = await agent.ask(*messages)
    await agent.ask(*messages, back(second), user("Thanks."))
    assert agent.finish() == [("start", [0]), ("rewrite", [1, 2])]


async def test_case_15_a_result_with_a_fresh_id(play):
    agent = play(written_call("ls") + "\n" + written_call("x", "read"), "Done.", "Bye.")
    first = await agent.ask(*START)
    messages = (*START, back(first), result(first, "a", 1), replace(result(first, "b", 0), call_id="fresh"))
    second = await agent.ask(*messages)
    fresh = (*messages[:-1], replace(messages[-1], call_id="another"), back(second), user("Thanks."))
    await agent.ask(*fresh)
    assert agent.finish() == [("start", [0, 1, 2])]
    assert [message.get("name") for message in agent.trajectory.messages[3:5]] == ["read", "bash"]


async def test_case_14_renamed_ids_of_results_in_another_order(play):
    agent = play(written_call("ls") + "\n" + written_call("x", "read"), "Done.")
    first = await agent.ask(*START)
    turn = back(first, ids=frozenset())
    turn = replace(turn, calls=tuple(replace(call, id=f"toolu_{number}") for number, call in enumerate(turn.calls)))
    results = [AgentMessage("tool", text, call_id=f"toolu_{number}") for number, text in ((1, "text"), (0, "files"))]
    await agent.ask(*START, turn, *results)
    assert agent.finish() == [("start", [0, 1])]
    assert [(message["content"], message["name"]) for message in agent.trajectory.messages[3:5]] == [
        ("text", "read"),
        ("files", "bash"),
    ]


async def test_case_19_an_empty_text_beside_a_call(play):
    agent = play(written_call("ls"), "Done.")
    first = await agent.ask(*START)
    assert first.content == ""
    await agent.ask(*START, back(first, content="\n"), result(first, "a"))
    assert agent.finish() == [("start", [0, 1])]


async def test_case_20_user_text_with_other_blanks(play):
    agent = play("Hello.", "Bye.")
    first = await agent.ask(*START)
    await agent.ask(replace(SYSTEM, content=SYSTEM.content + "\n"), USER, back(first), user("Thanks."))
    assert agent.finish() == [("start", [0, 1])]


async def test_case_22_a_spelling_that_no_template_would_write(play, tokenizer):
    """A word in single letters stays so: nothing is encoded again."""
    ids = [token for letter in "Hello" for token in tokenizer.encode(letter, add_special_tokens=False)]
    agent = play((([*ids, tokenizer.eos_token_id]), "stop"), "Bye.")
    agent.engine.script = _spelled(agent, [*ids, tokenizer.eos_token_id])
    first = await agent.ask(*START)
    assert first.content == "Hello"
    await agent.ask(*START, back(first), user("Thanks."))
    agent.assert_goes_on(1, 0)
    assert agent.finish() == [("start", [0, 1])]


def _spelled(agent, ids):
    from toolgym.rollout.engines.base import FinishReason

    answers = iter([(ids, FinishReason.STOP), "Bye."])
    return lambda text, request_id: next(answers)


HEALED = [
    {"__unparsedToolInput": {"raw": '{"command": "echo hel', "len": 21}},
    {"INVALID_JSON": '{"command": "echo hel'},
    {"command": "echo hel"},
]


async def test_case_23_and_55_a_broken_call_is_answered_as_text(play):
    """Its ids are kept and trained, and the agent reads what the policy wrote."""
    broken = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo hel\n</tool_call>'
    agent = play(broken, "Done.")
    first = await agent.ask(*START)
    assert (first.content, first.calls, first.finish) == (broken, (), "stop")
    await agent.ask(*START, back(first), user("Tool call error"))
    assert agent.finish() == [("start", [0, 1])]
    assert agent.trajectory.metrics["calls_ill_formed"] == 1


@pytest.mark.parametrize("arguments", HEALED, ids=["unparsed", "invalid", "repaired"])
def test_case_23_a_call_whose_arguments_are_no_json(arguments):
    """Agents write something else in its place; the id says which turn it is."""
    from toolgym.rollout.capture.canonical import Likeness, likeness

    sent = AgentMessage("assistant", "", calls=(WrittenCall("call_g1_0", "bash", '{"command": "echo hel'),))
    seen = AgentMessage("assistant", "", calls=(WrittenCall("call_g1_0", "invalid", json.dumps(arguments)),))
    assert likeness(seen, sent, by_id=True) is Likeness.HEALED
    assert likeness(seen, sent, by_id=False) is Likeness.OTHER


async def test_case_24_code_with_its_calls_behind_it(play):
    agent = play("I run <code>ls()</code>", "Done.")
    await agent.ask(*START, tools=())
    flat = foreign("I run <code>ls()</code>\nCalling tools:\n[{'id': 'call_1', 'type': 'function'}]")
    await agent.ask(*START, flat, user("Observation:\na"), tools=())
    assert agent.finish() == [("start", [0, 1])]
    assert agent.trajectory.metrics["calls_flattened"] == 1


async def test_schemas_with_other_order_of_keys_are_the_same_tools(play):
    agent = play("Hello.", "Bye.")
    one = schema("bash")
    first = await agent.ask(*START, tools=(one,))
    other = {"function": dict(reversed(one["function"].items())), "type": "function"}
    await agent.ask(*START, back(first), user("Thanks."), tools=(other,))
    assert agent.finish() == [("start", [0, 1])]
