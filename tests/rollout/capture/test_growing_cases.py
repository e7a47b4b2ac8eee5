"""Calls that go on: a conversation that only grows is one row. The numbers in the names are those of the cases that
gateways of other projects are tested with."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from tests.rollout.capture.played_agent import (
    START,
    SYSTEM,
    TOOLS,
    USER,
    back,
    foreign,
    result,
    schema,
    system,
    user,
    written_call,
)
from toolgym.rollout.capture.agent_call import AgentCall
from toolgym.rollout.engines.base import FinishReason, SamplingParams
from toolgym.rollout.engines.callable import CallableEngine

LS = written_call("ls")


async def test_case_01_one_call(play):
    agent = play("Hello.")
    reply = await agent.ask(*START)
    assert (reply.content, reply.finish, reply.calls) == ("Hello.", "stop", ())
    assert agent.finish() == [("start", [0])]
    [segment] = agent.trajectory.sequence.segments
    assert segment.token_ids[-1] == agent.tokenizer.eos_token_id


async def test_case_02_a_result_is_masked_and_the_turns_are_trained(play):
    agent = play(LS, "Two files.")
    first = await agent.ask(*START)
    assert first.finish == "tool_calls"
    reply = await agent.ask(*START, back(first), result(first, "a b"))
    assert agent.finish() == [("start", [0, 1])]
    agent.assert_goes_on(1, 0)
    sequence = agent.trajectory.sequence
    assert [segment.is_policy for segment in sequence.segments] == [True, False, True]
    between = agent.tokenizer.decode(sequence.segments[1].token_ids)
    assert "a b" in between
    assert between.endswith("assistant\n")
    assert (reply.prompt_tokens, reply.completion_tokens) == (len(agent.prompt(1)), len(agent.sampled(1)))
    assert [turn.observation_tokens for turn in agent.trajectory.turns] == [len(sequence.segments[1]), 0]
    assert [message["role"] for message in agent.trajectory.messages] == [
        "system", "user", "assistant", "tool", "assistant"
    ]  # fmt: skip
    assert agent.trajectory.messages[3]["name"] == "bash"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["case-03-in-order", "case-04-as-completed"])
async def test_two_results_are_rendered_as_they_come(play, order):
    agent = play(LS + "\n" + written_call("a.txt", "read"), "Done.")
    first = await agent.ask(*START)
    assert [call.name for call in first.calls] == ["bash", "read"]
    texts = ["the files", "the text"]
    await agent.ask(*START, back(first), *(result(first, texts[number], number) for number in order))
    assert agent.finish() == [("start", [0, 1])]
    messages = agent.trajectory.messages[3:5]
    assert [(message["content"], message["name"]) for message in messages] == [
        (texts[number], ["bash", "read"][number]) for number in order
    ]


async def test_case_05_a_user_goes_on(play):
    agent = play("<think>Hm.</think>Hello.", "Bye.")
    first = await agent.ask(*START)
    assert (first.content, first.reasoning) == ("Hello.", "Hm.")
    assert first.reasoning_tokens == len(agent.tokenizer.encode("<think>Hm.</think>", add_special_tokens=False))
    await agent.ask(*START, back(first), user("Thanks."))
    agent.assert_goes_on(1, 0)
    assert agent.finish() == [("start", [0, 1])]


@pytest.mark.parametrize("messages", [(USER,), (SYSTEM, system("Be brief."), USER)], ids=["no-system", "two-systems"])
async def test_case_06_system_messages_at_the_start(play, messages):
    agent = play(LS, "Done.")
    first = await agent.ask(*messages)
    await agent.ask(*messages, back(first), result(first, "a"))
    assert agent.finish() == [("start", [0, 1])]


async def test_case_07_turns_in_the_first_prompt_are_masked(play):
    agent = play("Hello.", "Bye.")
    messages = (SYSTEM, user("The folder is /."), foreign("Got it."), USER)
    first = await agent.ask(*messages)
    await agent.ask(*messages, back(first), user("Thanks."))
    assert agent.finish() == [("start", [0, 1])]
    assert "Got it." in agent.tokenizer.decode(agent.trajectory.sequence.prompt_ids)
    assert [agent.trajectory.messages[place]["content"] for place in agent.trajectory.turn_places] == ["Hello.", "Bye."]


async def test_case_08_a_foreign_turn_behind_ours_begins_a_root(play):
    agent = play("Hello.", "Bye.")
    first = await agent.ask(*START)
    await agent.ask(*START, back(first), user("Well?"), foreign("I said so."), user("Go on."))
    assert agent.finish() == [("start", [0]), ("rewrite", [1])]
    assert agent.trajectory.metrics["sequences_rewrite"] == 1


async def test_case_10_a_turn_cut_by_its_length_stays_and_goes_on(play):
    agent = play("word " * 100, "Done.", sampling=SamplingParams(max_new_tokens=20))
    first = await agent.ask(*START)
    assert (first.finish, first.completion_tokens) == ("length", 20)
    await agent.ask(*START, back(first), user("Go on."))
    agent.assert_goes_on(1, 0)
    assert agent.finish() == [("start", [0, 1])]
    assert [turn.truncated for turn in agent.trajectory.turns] == [True, False]


async def test_case_10_a_turn_cut_inside_its_thinking(play):
    agent = play("<think>" + "word " * 100, "Done.", sampling=SamplingParams(max_new_tokens=20))
    first = await agent.ask(*START)
    assert (first.finish, first.content) == ("length", "")
    await agent.ask(*START, back(first), user("Go on."))
    agent.assert_goes_on(1, 0)
    assert agent.finish() == [("start", [0, 1])]
    behind = agent.tokenizer.decode(agent.trajectory.sequence.segments[1].token_ids)
    assert behind.lstrip().startswith("</think>")


async def test_case_11_two_wires_in_one_session(play):
    agent = play(LS, "Done.")
    first = await agent.ask(*START)
    call = AgentCall("messages", (*START, back(first), result(first, "a")), TOOLS)
    await agent.session.answer(call)
    assert agent.finish() == [("start", [0, 1])]


async def test_case_12_a_thousand_turns(play, tokenizer):
    """A call of the last hundred takes little more than one of the first hundred: what is new."""
    turns = 1000
    ids = (*tokenizer.encode("ok", add_special_tokens=False), tokenizer.eos_token_id)

    async def generate(request):
        return ids, [-0.5] * len(ids), "stop"

    agent = play(context_length=10**6)
    agent.session._engine = CallableEngine(generate, tokenizer=tokenizer, context_length=10**6)
    messages, times = [*START], []
    for number in range(turns):
        began = time.process_time()
        reply = await agent.ask(*messages)
        times.append(time.process_time() - began)
        messages += [back(reply), user(f"And {number}?")]
    trajectory = agent.session.finish(1.0)
    assert [turn.sequence for turn in trajectory.turns] == [0] * turns
    assert trajectory.sequence.policy_tokens == turns * len(ids)
    assert statistics.median(times[-100:]) < 10 * statistics.median(times[:100])


async def test_case_41_a_late_system_message_goes_on(play):
    agent = play(LS, "Done.", "Bye.")
    first = await agent.ask(SYSTEM, system("Skills: none."), USER)
    messages = (SYSTEM, system("Skills: none."), USER, back(first), result(first, "a"), system("Hurry."))
    second = await agent.ask(*messages)
    await agent.ask(*messages, back(second), user("One."), system("Two."), user("Three."))
    assert agent.finish() == [("start", [0, 1, 2])]
    text = agent.tokenizer.decode(agent.trajectory.sequence.response_ids)
    assert "<|im_start|>system\nHurry." in text
    assert "One.\n\nTwo.\n\nThree." in text


async def test_case_49_and_50_calls_in_flight_at_once(play):
    agent = play()
    turns = iter([LS, LS + " "])
    agent.engine.script = lambda text, request_id: next(turns)
    first, again = await asyncio.gather(agent.ask(*START), agent.ask(*START))
    assert first.id != again.id
    agent.engine.script = lambda text, request_id: "Done."
    messages = (*START, back(again), result(again, "a"))
    await asyncio.gather(agent.ask(*messages), agent.ask(*messages))
    for number in (2, 3):
        agent.assert_goes_on(number, 1)
    assert agent.finish() == [("start", [1, 2]), ("retry", [0]), ("retry", [3])]


async def test_case_63_each_token_has_the_version_that_sampled_it(play):
    agent = play(LS, "Done.")
    first = await agent.ask(*START)
    agent.engine.version = "8"
    await agent.ask(*START, back(first), result(first, "a"))
    agent.finish()
    versions = [segment.version_runs[0][0] for segment in agent.trajectory.sequence.policy_segments]
    assert versions == ["7", "8"]


async def test_tools_are_shown_in_the_order_of_the_request(play):
    agent = play("One.", "Two.")
    await agent.ask(*START, tools=(schema("bash"), schema("read")))
    await agent.ask(*START, tools=(schema("read"), schema("bash")))
    one, two = (agent.tokenizer.decode(agent.prompt(number)) for number in (0, 1))
    assert one.index('"bash"') < one.index('"read"')
    assert two.index('"bash"') > two.index('"read"')


async def test_case_09_no_tokens_make_no_row(play):
    agent = play(([], FinishReason.LENGTH), "Hello.")
    reply = await agent.ask(*START)
    assert (reply.content, reply.finish, reply.completion_tokens) == ("", "length", 0)
    await agent.ask(*START)
    assert agent.finish() == [("start", [1])]
    assert agent.trajectory.metrics["calls_empty"] == 1
