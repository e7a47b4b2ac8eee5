"""Requests that say where a turn ends, that no tool is wanted, and which format the answer has."""

from __future__ import annotations

import pytest

from tests.rollout.capture.played_agent import START, back, user, written_call
from toolgym.rollout.capture.agent_call import CallRefusedError
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.engines.base import FinishReason, SamplingParams

WRITTEN = "Action: look\nObservation: I invent this."


async def test_a_stop_text_ends_the_answer_before_it_and_keeps_all_sampled_ids(play, tokenizer):
    agent = play(WRITTEN, "Done.")
    first = await agent.ask(*START, sampling={"stop": ("\nObservation:", "never")})
    assert (first.content, first.finish, first.stop_text) == ("Action: look", "stop", "\nObservation:")
    await agent.ask(*START, back(first), user("Observation: a file."))
    trajectory = agent.session.finish(1.0)
    [sequence] = trajectory.sequences
    text = tokenizer.decode(next(part for part in sequence.segments if part.is_policy).token_ids)
    assert text.startswith("Action: look\nObservation:")
    assert "invent" not in text
    assert (len(trajectory.turns), trajectory.turns[0].truncated) == (2, False)
    assert not any(name.startswith("calls_ignored") for name in trajectory.metrics)
    assert list(agent.prompt(1))[: len(agent.prompt(0))] == agent.prompt(0)


async def test_stop_texts_of_the_session_and_of_the_request_both_hold(play):
    sampling = SamplingParams(max_new_tokens=200, stop=("look",))
    agent = play(WRITTEN, WRITTEN, sampling=sampling)
    assert (await agent.ask(*START, sampling={"stop": ("Obs",)})).content == "Action: "
    assert (await agent.ask(*START, user("x"), sampling={"stop": ("Act",)})).content == ""


async def test_a_turn_that_ended_by_itself_has_no_stop_text(play):
    agent = play("Fine.")
    reply = await agent.ask(*START, sampling={"stop": ("Observation:",)})
    assert (reply.content, reply.stop_text) == ("Fine.", None)


async def test_a_conversation_after_a_stop_text_is_put_together_again(play):
    agent = play(WRITTEN, "One.", "Two.")
    first = await agent.ask(*START, sampling={"stop": ("\nObservation:",)})
    messages = (*START, back(first), user("More."))
    second = await agent.ask(*messages)
    for call in agent.session._forest:
        call.conversation = None
    await agent.ask(*messages, back(second), user("And more."))
    agent.assert_goes_on(2, 1)
    assert [len(row.segments) for row in agent.session.finish(1.0).sequences] == [5]


async def test_where_no_tool_is_wanted_calls_are_text(play):
    agent = play(written_call("ls"), "Done.")
    first = await agent.ask(*START, plain=True)
    assert (first.calls, first.finish) == ((), "stop")
    assert first.content.strip() == written_call("ls").strip()
    await agent.ask(*START, back(first), user("No calls, please."))
    assert agent.finish() == [("start", [0, 1])]
    assert agent.trajectory.metrics["calls_ignored_calls"] == 1


async def test_log_probabilities_are_those_of_the_sampled_tokens(play):
    agent = play("Fine.")
    reply = await agent.ask(*START, logprobs=True)
    agent.finish()
    [segment] = [part for part in agent.trajectory.sequences[0].segments if part.is_policy]
    assert [token.logprob for token in reply.tokens] == list(segment.logprobs)
    assert "".join(token.text for token in reply.tokens).startswith("Fine.")


@pytest.mark.parametrize("untrained", [(), ("constrained",)])
async def test_a_turn_under_a_grammar_is_trained_only_if_the_session_says_so(play, untrained):
    agent = play('{"a": 1}', "Done.", rules=CaptureRules(formats="follow", untrained=untrained))
    type(agent.engine).takes_grammars = property(lambda engine: True)
    try:
        await agent.ask(*START, grammar=("json_schema", "{}"))
    finally:
        del type(agent.engine).takes_grammars
    assert agent.engine.seen[f"{agent.session.id}-0"][1].grammar == ("json_schema", "{}")
    assert agent.finish() == ([] if untrained else [("start", [0])])
    assert agent.trajectory.metrics.get("left_out_constrained", 0) == len(untrained)


async def test_a_grammar_is_refused_by_an_engine_that_takes_none(play):
    agent = play("x")
    with pytest.raises(CallRefusedError, match="the engine samples without a grammar; open the session with"):
        await agent.ask(*START, grammar=("regex", "a+"))


async def test_a_stop_text_across_parts_of_a_turn_is_found(play):
    """The engine aborts a turn in the middle of the stop text, as when its weights change."""
    parts = [("Action: x\nObser", FinishReason.ABORT), "vation: y"]
    agent = play(*parts)
    reply = await agent.ask(*START, sampling={"stop": ("\nObservation:",)})
    assert (reply.content, reply.stop_text) == ("Action: x", "\nObservation:")
