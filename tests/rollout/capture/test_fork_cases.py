"""Calls that do not go on: forks, rewinds, retries, other systems and tools. Each case says the rows that it makes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.rollout.capture.played_agent import (
    START,
    SYSTEM,
    TOOLS,
    USER,
    back,
    foreign,
    result,
    system,
    user,
    written_call,
)
from toolgym.rollout.capture.agent_call import CallRefusedError
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.tools.errors import EngineError

LS, CAT = written_call("ls"), written_call("cat")
OTHER = system("You summarise conversations.")


def _parent(agent, number):
    """The number of the call that a call goes on from."""
    call = next(call for call in agent.session._forest if call.number == number)
    return call.parent.number


async def test_case_25_another_system_prompt(play):
    agent = play(LS, "Sub.", "Done.")
    first = await agent.ask(*START)
    await agent.ask(system("You are a helper."), USER)
    await agent.ask(*START, back(first), result(first, "a"))
    assert agent.finish() == [("start", [0, 2]), ("sub_agent", [1])]
    assert [turn.reward for turn in agent.trajectory.turns] == [None, 1.0, None]


async def test_case_26_two_users_behind_one_system(play):
    agent = play("One.", "Two.")
    await agent.ask(SYSTEM, user("A"))
    await agent.ask(SYSTEM, user("B"))
    assert agent.finish() == [("start", [0]), ("rewrite", [1])]


async def test_case_27_the_same_request_twice(play):
    agent = play("One.", "Two.")
    await agent.ask(*START)
    await agent.ask(*START)
    assert agent.finish() == [("start", [0]), ("retry", [1])]


async def test_case_27_an_answer_that_was_lost_is_not_trained(play):
    agent = play(LS, "One.", "Two.", "Bye.")
    first = await agent.ask(*START)
    messages = (*START, back(first), result(first, "a"))
    lost = await agent.ask(*messages)
    agent.session.undelivered(lost.id)
    again = await agent.ask(*messages)
    await agent.ask(*messages, back(again), user("Thanks."))
    assert agent.finish() == [("start", [0, 2, 3])]
    assert agent.trajectory.metrics["left_out_undelivered"] == 1
    assert agent.trajectory.metrics["left_out_undelivered_tokens"] == len(agent.sampled(1))


@pytest.mark.parametrize("used", [0, 1, 2])
async def test_of_equal_requests_the_answer_in_use_continues_the_row(play, used):
    """The other answers were delivered, so they are trained, and are called what they are."""
    agent = play(LS, "One.", "Two.", "Three.", "Bye.")
    first = await agent.ask(*START)
    messages = (*START, back(first), result(first, "a"))
    replies = await asyncio.gather(*(agent.ask(*messages) for _ in range(3)))
    await agent.ask(*messages, back(replies[used]), user("Thanks."))
    unused = [number for number in range(3) if number != used]
    assert agent.finish() == [("start", [0, 1 + used, 4]), *(("retry", [1 + number]) for number in unused)]


async def test_equal_requests_that_all_go_on_are_forks(play):
    agent = play("One.", "Two.", "Left.", "Right.")
    replies = await asyncio.gather(*(agent.ask(*START) for _ in range(2)))
    for reply in replies:
        await agent.ask(*START, back(reply), user("Go on."))
    assert agent.finish() == [("start", [0, 2]), ("fork", [1, 3])]


async def test_repeated_requests_of_a_further_row_keep_its_cause(play):
    agent = play("One.", "A.", "B.", "Bye.")
    await agent.ask(*START)
    edited = (SYSTEM, user("Something else."))
    for _ in range(2):
        second = await agent.ask(*edited)
    await agent.ask(*edited, back(second), user("Thanks."))
    assert agent.finish() == [("start", [0]), ("retry", [1]), ("rewrite", [2, 3])]


async def test_a_failed_attempt_leaves_the_answers_beside_it_trained(play):
    agent = play("One.", EngineError("out of memory"), "Three.", "Again.")
    replies = await asyncio.gather(*(agent.ask(*START) for _ in range(3)), return_exceptions=True)
    assert [isinstance(reply, CallRefusedError) for reply in replies] == [False, True, False]
    await agent.ask(*START)
    assert agent.finish() == [("start", [0]), ("retry", [2]), ("retry", [3])]
    assert not any(name.startswith("left_out") for name in agent.trajectory.metrics)


async def test_an_answer_that_comes_back_was_delivered(play):
    agent = play(LS, "Done.")
    first = await agent.ask(*START)
    agent.session.undelivered(first.id)
    await agent.ask(*START, back(first), result(first, "a"))
    assert agent.finish() == [("start", [0, 1])]


@pytest.mark.parametrize("continued", [0, 1, 2])
async def test_case_28_and_29_equal_siblings_by_id(play, continued):
    agent = play(LS, LS, LS, "Done.")
    replies = [await agent.ask(*START) for _ in range(3)]
    await agent.ask(*START, back(replies[continued]), result(replies[continued], "a"))
    assert _parent(agent, 3) == continued
    # All three were sampled alike, so the rows do not say which is which.
    assert [(cause, len(calls)) for cause, calls in agent.finish()] == [("start", 2), ("retry", 1), ("retry", 1)]


@pytest.mark.parametrize("continued", [0, 1])
async def test_case_29_equal_siblings_by_id_where_a_blank_has_changed(play, continued):
    agent = play(LS, LS, "Done.")
    replies = [await agent.ask(*START) for _ in range(2)]
    messages = (replace(SYSTEM, content=SYSTEM.content + " "), USER, back(replies[continued]))
    await agent.ask(*messages, result(replies[continued], "a"))
    assert _parent(agent, 2) == continued
    assert [(cause, len(calls)) for cause, calls in agent.finish()] == [("start", 2), ("retry", 1)]


async def test_case_28_siblings_that_say_the_same_without_an_id(play, tokenizer):
    """The latest is taken. If they were sampled as other tokens, that is counted."""
    agent = play("Hello", "Hello ", "Bye.")
    first = await agent.ask(*START)
    await agent.ask(*START)
    await agent.ask(*START, back(first, ids=frozenset()), user("Thanks."))
    agent.assert_goes_on(2, 1)
    assert agent.finish() == [("start", [1, 2]), ("retry", [0])]
    assert agent.trajectory.metrics["calls_ambiguous"] == 1


async def test_case_30_a_reply_that_was_never_served(play):
    agent = play(LS, LS, "Done.", "Bye.")
    for _ in range(2):
        await agent.ask(*START)
    messages = (*START, foreign("Not mine."), user("Go on."))
    third = await agent.ask(*messages)
    await agent.ask(*messages, back(third), user("Thanks."))
    assert agent.finish() == [("start", [0]), ("retry", [1]), ("rewrite", [2, 3])]


async def test_ids_of_another_session_find_nothing(play):
    other, agent = play(LS), play("Done.")
    reply = await other.ask(*START)
    await agent.ask(*START, back(reply), result(reply, "a"))
    assert agent.finish() == other.finish() == [("start", [0])]
    assert agent.trajectory.policy_tokens == len(agent.sampled(0))


async def test_case_31_an_edited_history_goes_on(play):
    agent = play(LS, "One.", "Two.", "Three.")
    first = await agent.ask(*START)
    second = await agent.ask(*START, back(first), result(first, "a"))
    edited = (*START, back(first), result(first, "[cleared]"), back(second), user("More."))
    third = await agent.ask(*edited)
    await agent.ask(*edited, back(third), user("More."))
    assert agent.finish() == [("start", [0, 1]), ("rewrite", [2, 3])]


async def test_case_32_two_results_of_one_call(play):
    agent = play(LS, "One.", "Two.")
    first = await agent.ask(*START)
    await agent.ask(*START, back(first), result(first, "x"))
    await agent.ask(*START, back(first), result(first, "y"))
    agent.assert_goes_on(2, 0)
    assert agent.finish() == [("start", [0, 1]), ("fork", [2])]


async def test_case_33_two_shared_turns_and_three_ends(play):
    agent = play(LS, CAT, "One.", "Two.", "Three.")
    first = await agent.ask(*START)
    messages = (*START, back(first), result(first, "a"))
    second = await agent.ask(*messages)
    for text in "xyz":
        await agent.ask(*messages, back(second), result(second, text))
    assert agent.finish() == [("start", [0, 1, 2]), ("fork", [3]), ("fork", [4])]


async def test_case_34_a_deep_branch_that_was_left(play):
    agent = play(LS, CAT, "One.", "Two.")
    first = await agent.ask(*START)
    messages = (*START, back(first), result(first, "a"))
    second = await agent.ask(*messages)
    await agent.ask(*messages, back(second), result(second, "b"))
    await agent.ask(*START, user("Once more."))
    assert agent.finish() == [("start", [0, 1, 2]), ("rewrite", [3])]


async def test_case_35_an_earlier_result_is_edited(play):
    agent = play(LS, CAT, "One.", "Two.")
    first = await agent.ask(*START)
    messages = [*START, back(first), result(first, "a")]
    second = await agent.ask(*messages)
    messages += [back(second), result(second, "b")]
    third = await agent.ask(*messages)
    messages[3] = replace(messages[3], content="edited")
    await agent.ask(*messages, back(third), user("Thanks."))
    assert agent.finish() == [("start", [0, 1, 2]), ("rewrite", [3])]


async def test_case_36_the_first_reply_is_dropped(play):
    agent = play("BAD", LS, "Done.")
    await agent.ask(*START)
    messages = (*START, user("Tool call error."))
    second = await agent.ask(*messages)
    await agent.ask(*messages, back(second), result(second, "a"))
    assert agent.finish() == [("start", [0]), ("retraction", [1, 2])]


@pytest.mark.parametrize("untrained", [(), ("retracted",)], ids=["trained", "left-out"])
async def test_case_37_a_later_reply_is_dropped(play, untrained):
    agent = play(LS, "BAD", CAT, "Done.", rules=CaptureRules(untrained=untrained))
    first = await agent.ask(*START)
    messages = (*START, back(first), result(first, "a"))
    await agent.ask(*messages)
    messages += (user("Tool call error."),)
    third = await agent.ask(*messages)
    agent.assert_goes_on(2, 0)
    await agent.ask(*messages, back(third), result(third, "b"))
    rows = agent.finish()
    if untrained:
        assert rows == [("start", [0, 2, 3])]
        assert agent.trajectory.metrics["left_out_retracted"] == 1
    else:
        assert rows == [("start", [0, 1]), ("retraction", [2, 3])]


async def test_case_38_and_39_a_rewind_of_two_replies(play):
    agent = play(LS, CAT, "One.", "Two.")
    first = await agent.ask(*START)
    messages = (*START, back(first), result(first, "a"))
    second = await agent.ask(*messages)
    await agent.ask(*messages, back(second), result(second, "b"))
    await agent.ask(*START, back(first), result(first, "other"))
    agent.assert_goes_on(3, 0)
    assert agent.finish() == [("start", [0, 1, 2]), ("fork", [3])]


async def test_case_40_other_tools(play):
    agent = play(LS, "Done.")
    first = await agent.ask(*START)
    await agent.ask(*START, back(first), result(first, "a"), tools=TOOLS[:1])
    assert agent.finish() == [("start", [0]), ("tools", [1])]


async def test_case_42_a_new_short_history(play):
    agent = play(LS, "There is one file, and its name is a.", "Done.")
    first = await agent.ask(*START)
    messages = (*START, back(first), result(first, "a"))
    second = await agent.ask(*messages)
    await agent.ask(*START, user("So far: " + second.content))
    assert agent.finish() == [("start", [0, 1]), ("compacted", [2])]
    assert [turn.reward for turn in agent.trajectory.turns] == [None, None, 1.0]


async def test_case_43_a_summary_behind_the_old_history(play):
    agent = play(LS, "A summary.")
    first = await agent.ask(*START)
    await agent.ask(*START, back(first), result(first, "a"), user("Respond with text only."))
    assert agent.finish() == [("start", [0, 1])]


@pytest.mark.parametrize("how", ["declared", "no-tools", "other-system", "transcript"])
async def test_case_44_a_summary_in_another_conversation(play, how):
    agent = play("I shall list the files now.\n" + LS, "A summary.", "Done.")
    first = await agent.ask(*START)
    history = (back(first), result(first, "a"), user("Summarise."))
    if how == "declared":
        await agent.ask(*START, *history, tools=(), compacts=True)
    elif how == "no-tools":
        await agent.ask(*START, *history, tools=())
    elif how == "other-system":
        await agent.ask(OTHER, USER, *history, tools=())
    else:
        await agent.ask(OTHER, user(f"[assistant] {first.content}"), tools=())
    await agent.ask(*START, back(first), result(first, "a"))
    assert agent.finish() == [("start", [0, 2]), ("compaction", [1])]


@pytest.mark.parametrize("question", ["none", "user", "other-system"])
async def test_a_last_call_without_tools_is_the_answer(play, question):
    agent = play(LS, "The file is a.", rules=CaptureRules(untrained=("compaction",)))
    first = await agent.ask(*START)
    history = (back(first), result(first, "a"), *([] if question == "none" else [user("Give the final answer.")]))
    await agent.ask(OTHER if question == "other-system" else SYSTEM, USER, *history, tools=())
    assert agent.finish() == [("start", [0]), ("tools", [1])]
    assert [turn.reward for turn in agent.trajectory.turns] == [None, 1.0]


async def test_a_summary_that_a_new_conversation_quotes_was_a_compaction(play):
    agent = play(LS, "There is one file, and its name is a.", "Done.")
    first = await agent.ask(*START)
    second = await agent.ask(*START, back(first), result(first, "a"), user("Summarise."), tools=())
    await agent.ask(*START, user("So far: " + second.content))
    assert agent.finish() == [("start", [0]), ("compacted", [2]), ("compaction", [1])]


async def test_a_helper_with_tools_that_reads_an_answer_is_a_sub_agent(play):
    agent = play("The file that you look for is a.", "Right.")
    first = await agent.ask(*START)
    await agent.ask(system("You check answers."), user(first.content), tools=TOOLS[:1])
    assert agent.finish() == [("start", [0]), ("sub_agent", [1])]


@pytest.mark.parametrize("untrained", [(), ("side_call",)], ids=["trained", "left-out"])
async def test_case_45_a_title_before_the_main_call(play, untrained):
    agent = play("Files", LS, "Done.", rules=CaptureRules(untrained=untrained))
    await agent.ask(system("Write a title."), USER, tools=())
    first = await agent.ask(*START)
    await agent.ask(*START, back(first), result(first, "a"))
    rows = agent.finish()
    if untrained:
        assert rows == [("start", [1, 2])]
        assert agent.trajectory.metrics["left_out_side_call"] == 1
        assert agent.trajectory.messages[0]["content"] == SYSTEM.content
    else:
        assert rows == [("start", [1, 2]), ("side_call", [0])]
    assert [turn.reward for turn in agent.trajectory.turns][:2] == [None, 1.0]
    assert agent.trajectory.tools[0]["function"]["name"] == "bash"


async def test_case_45_a_title_after_the_main_call(play):
    agent = play(LS, "Files", "Done.")
    first = await agent.ask(*START)
    await agent.ask(system("Write a title."), USER, tools=())
    await agent.ask(*START, back(first), result(first, "a"))
    assert agent.finish() == [("start", [0, 2])]
    assert agent.trajectory.metrics["left_out_side_call"] == 1


async def test_case_46_an_agent_that_reads_the_whole_history(play):
    agent = play(LS, "Done.", CAT, "Noted.")
    first = await agent.ask(*START)
    history = (USER, back(first), result(first, "a"))
    second = await agent.ask(SYSTEM, *history)
    messages = (system("You keep notes."), *history, back(second), user("What is worth a note?"))
    third = await agent.ask(*messages, tools=TOOLS[:1])
    await agent.ask(*messages, back(third), result(third, "b"), tools=TOOLS[:1])
    assert agent.finish() == [("start", [0, 1]), ("sub_agent", [2, 3])]


async def test_case_47_and_48_sub_agents_by_header(play):
    """Two with the same messages and tools as the main agent stay apart, whatever the order of their calls."""
    agent = play(LS, LS, LS, "One.", "Two.", "Main.")
    replies = {name: await agent.ask(*START, agent=name) for name in ("", "one", "two")}
    for name in ("two", "one", ""):
        reply = replies[name]
        await agent.ask(*START, back(reply), result(reply, "a"), agent=name)
    assert agent.finish() == [("start", [0, 5]), ("sub_agent", [1, 4]), ("sub_agent", [2, 3])]


async def test_case_48_a_sub_agent_that_begins_with_the_main_history(play):
    """It leaves the leaf to the main agent, and reads the shared turns as context."""
    agent = play(LS, "Sub.", "Main.")
    first = await agent.ask(*START)
    messages = (*START, back(first), result(first, "a"))
    await agent.ask(*messages, user("Your task."), agent="one")
    await agent.ask(*messages)
    assert agent.finish() == [("start", [0, 2]), ("sub_agent", [1])]


async def test_a_session_id_that_changes_makes_no_sub_agent_of_a_conversation_that_goes_on(play):
    agent = play(LS, "One.", "Two.", "Sub.")
    first = await agent.ask(*START)
    messages = (*START, back(first), result(first, "a"))
    second = await agent.ask(*messages, agent="new-id", agent_is_guess=True)
    bare = replace(back(second), ids=frozenset())
    await agent.ask(*messages, bare, user("More."), agent="newer-id", agent_is_guess=True)
    await agent.ask(*START, agent="newest-id", agent_is_guess=True)
    assert agent.finish() == [("start", [0, 1, 2]), ("sub_agent", [3])]


async def test_sub_agents_of_one_kind_without_a_header(play):
    """Two, one after the other, with the system prompt and the tools of sub-agents; a title before it all."""
    agent = play("Files", LS, LS, "One.", "Two.", "Main.")
    await agent.ask(system("Write a title."), USER, tools=())
    first = await agent.ask(*START)
    helper = (system("You help."), user("Look there."))
    second = await agent.ask(*helper, tools=TOOLS[:1])
    await agent.ask(*helper, back(second), result(second, "a"), tools=TOOLS[:1])
    await agent.ask(system("You help."), user("And here."), tools=TOOLS[:1])
    await agent.ask(*START, back(first), result(first, "One. Two."))
    assert agent.finish() == [("start", [1, 5]), ("sub_agent", [2, 3]), ("sub_agent", [4])]
    assert [turn.reward for turn in agent.trajectory.turns] == [None, 1.0, None, None, None]


async def test_case_65_each_row_has_the_reward_of_the_episode(play):
    from toolgym.rollout.batch import make_batch

    agent = play(LS, "One.", "Two.")
    first = await agent.ask(*START)
    await agent.ask(*START, back(first), result(first, "x"))
    await agent.ask(*START, back(first), result(first, "y"))
    agent.finish(0.5)
    batch = make_batch([agent.trajectory], pad_token_id=0)
    assert (agent.trajectory.group_id, agent.trajectory.sample_index) == ("the-group", 1)
    assert batch.rewards.tolist() == [0.5, 0.5]


async def test_messages_of_a_fork_are_those_behind_the_shared_part(play):
    agent = play(LS, "One.", "Two.")
    first = await agent.ask(*START)
    await agent.ask(*START, back(first), result(first, "x"))
    await agent.ask(*START, back(first), result(first, "y"))
    agent.finish()
    contents = [message["content"] for message in agent.trajectory.messages]
    assert contents[3:] == ["x", "One.", "y", "Two."]
