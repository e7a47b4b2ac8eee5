"""What a scorer sees, what it may return, and what becomes of turns without calls."""

from __future__ import annotations

import asyncio
import json
from fractions import Fraction

import numpy as np
import pytest

from toolgym.envs import End, EpisodeFailedError, Score, StopReason, Task, ToolEnv
from toolgym.tools import BaseTool, ToolSchema, tool
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import ConfigError, EpisodeError, SandboxError
from toolgym.tools.message import user
from toolgym.tools.parsers import get_parser
from toolgym.tools.parsers.base import read_plain_turn

TASK = Task(({"role": "user", "content": "go"},), ground_truth=["a", "b"], id="t")


@tool
def shout(text: str) -> str:
    """Shout."""
    return text.upper()


def call(**arguments):
    return f"<tool_call>{json.dumps({'name': 'shout', 'arguments': arguments})}</tool_call>"


def make(scorer=None, kind=ToolEnv, **kwargs):
    return kind([shout], [TASK], scorer=scorer, **kwargs)


async def test_a_scorer_sees_the_whole_episode():
    seen = []

    def scorer(outcome):
        seen.append(outcome)
        return Score(0.75, {"right": 1.0, "brief": -0.25})

    async with make(scorer) as env:
        await env.reset()
        await env.step(call(text="hi"))
        last = await env.step("done")
    assert last.reward == 0.75
    assert last.info["metrics"] == {
        "turn": 2, "bad_calls": 0, "score": 0.75, "score/right": 1.0, "score/brief": -0.25, "reward/shout": 0.0,
    }  # fmt: skip
    [outcome] = seen
    assert (outcome.task, outcome.turns, outcome.final_text) == (TASK, 2, "done")
    assert outcome.stop_reason is StopReason.ANSWERED
    assert [message["role"] for message in outcome.messages] == ["user", "assistant", "tool", "assistant"]
    assert outcome.messages[2]["content"] == "HI"
    assert [(record.name, record.text) for record in outcome.tool_calls] == [("shout", "HI")]


async def test_a_scorer_of_outcomes_is_asked_at_every_end_one_of_texts_for_answers_alone():
    async with make(lambda outcome: float(outcome.stop_reason is StopReason.MAX_TURNS), max_turns=1) as env:
        await env.reset()
        assert (await env.step(call(text="hi"))).reward == 1.0
    async with make(lambda text, task: 1.0, max_turns=1) as env:
        await env.reset()
        last = await env.step(call(text="hi"))
        assert (last.reward, "score" in last.info["metrics"]) == (0.0, False)


class Named:
    async def score(self, outcome):
        return Score(0.5)

    async def __call__(self, text, task, weight=0.5):
        return weight


@pytest.mark.parametrize("scorer", [Named().score, Named(), lambda outcome, weight=0.5: weight, lambda *args: 0.5])
async def test_scorers_are_told_apart_by_what_they_take(scorer):
    async with make(scorer) as env:
        await env.reset()
        assert (await env.step("done")).reward == 0.5


@pytest.mark.parametrize("scorer", [lambda: 1.0, lambda a, b, c: 1.0, lambda *, outcome: 1.0, 3, "score"])
def test_a_scorer_that_takes_anything_else_is_refused(scorer):
    with pytest.raises(ConfigError, match="takes an Outcome, or a text and a Task"):
        make(scorer)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("odd"), StopReason.SCORE_FAILED),
        (SandboxError("odd"), StopReason.SANDBOX_FAILED),
        (EpisodeFailedError(StopReason.TOOL_FAILED, "odd"), StopReason.TOOL_FAILED),
    ],
)
async def test_a_scorer_that_fails_says_what_failed(error, reason):
    def scorer(outcome):
        raise error

    async with make(scorer) as env:
        await env.reset()
        with pytest.raises(EpisodeFailedError, match="odd") as caught:
            await env.step("done")
        assert caught.value.stop_reason is reason
        with pytest.raises(EpisodeError, match="after the episode ended"):
            await env.step("done")


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (None, r"got None \(a function without `return` returns None\)"),
        ("0.5", "got '0.5'"),
        (float("nan"), "got nan"),
        ([1.0, 2.0], r"got \[1.0, 2.0\]"),
        (Score(float("inf")), "value is a finite number, got inf"),
        (Score(1.0, {"part": float("nan")}), "component 'part' is a finite number, got nan"),
    ],
)
@pytest.mark.parametrize("of_answers", [False, True])
async def test_a_scorer_that_returns_no_number_fails_by_name(value, got, of_answers):
    def judge_answer(*_):
        return value

    async with make(judge_answer if of_answers else lambda outcome: value) as env:
        await env.reset()
        name = "judge_answer" if of_answers else "<lambda>"
        with pytest.raises(EpisodeFailedError, match=f"the scorer '{name}' must return a Score .*{got}") as caught:
            await env.step("done")
        assert caught.value.stop_reason is StopReason.SCORE_FAILED


@pytest.mark.parametrize("value", [1, True, np.float32(1), np.bool_(True), Fraction(1), Score(1)])
async def test_numbers_of_every_type_are_scores(value):
    async with make(lambda outcome: value) as env:
        await env.reset()
        result = await env.step("done")
        assert result.reward == 1.0
        assert type(result.info["metrics"]["score"]) is float


async def test_a_tool_that_cannot_say_its_reward_is_to_blame():
    class Torn(BaseTool):
        default_schema = ToolSchema("torn")
        released = 0

        async def execute(self, instance_id, parameters, **kwargs):
            return "ok"

        async def calc_reward(self, instance_id, **kwargs):
            raise OSError("no")

        async def release(self, instance_id, **kwargs):
            self.released += 1

    torn = Torn()
    async with ToolEnv([torn], [TASK]) as env:
        await env.reset()
        with pytest.raises(EpisodeFailedError, match="'torn' failed: OSError: no") as caught:
            await env.step("done")
        assert caught.value.stop_reason is StopReason.TOOL_FAILED
    assert torn.released == 1


# ---------------------------------------------------------------------- turns without calls


class Insistent(ToolEnv):
    """Asks twice before it takes an answer."""

    async def respond(self, turn):
        if self.turns < 3:
            return [user(f"{turn.content}? Are you sure?")]
        return End(reward=0.125)


async def test_a_reply_goes_to_the_policy_and_the_episode_goes_on():
    async with make(lambda outcome: len(outcome.messages) / 8, kind=Insistent) as env:
        await env.reset()
        first = await env.step("one")
        assert (first.obs, first.reward, first.done) == ([user("one? Are you sure?")], 0.0, False)
        assert first.info["stop_reason"] is None
        assert [message["content"] for message in env.messages] == ["go", "one", "one? Are you sure?"]
        assert not (await env.step(call(text="x"))).done
        last = await env.step("three")
        assert (last.obs, last.reward, last.stop_reason) == ([], 0.875, StopReason.ANSWERED)


async def test_replies_end_at_the_last_turn():
    async with make(kind=Insistent, max_turns=2) as env:
        await env.reset()
        await env.step("one")
        last = await env.step("two")
        assert (last.obs, last.stop_reason) == ([], StopReason.MAX_TURNS)


async def test_an_end_may_have_a_reason_of_its_own():
    class Strict(ToolEnv):
        def respond(self, turn):
            return End(StopReason.TOO_MANY_BAD_CALLS, reward=-1.0)

    async with make(kind=Strict) as env:
        await env.reset()
        last = await env.step("x")
        assert (last.reward, last.stop_reason) == (-1.0, StopReason.TOO_MANY_BAD_CALLS)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [(None, ConfigError, "got None"), ([], ConfigError, "not empty"), ("wait", DeadlineError, "0.2 seconds")],
)
async def test_a_respond_that_breaks_ends_the_episode(answer, error, said):
    class Broken(ToolEnv):
        async def respond(self, turn):
            if answer == "wait":
                await asyncio.sleep(60)
            return answer

    async with make(kind=Broken, tool_timeout=0.2) as env:
        await env.reset()
        with pytest.raises(error, match=said):
            await env.step("x")
        with pytest.raises(EpisodeError, match="after the episode ended"):
            await env.step("x")


async def final_text_of(act):
    seen = []
    async with make(lambda outcome: float(seen.append(outcome.final_text) is not None)) as env:
        await env.reset()
        await act(env)
    return seen[0]


@pytest.mark.parametrize("text", ["6 * 7 = 42", "so \\boxed{42}", "<think>42", "#### 42"])
async def test_a_turn_that_a_limit_cut_has_no_final_text(text):
    assert await final_text_of(lambda env: env.truncate(StopReason.LENGTH, text)) == ""


@pytest.mark.parametrize(
    ("text", "starts_open", "final_text"),
    [
        ("6 * 7 is 42", False, "6 * 7 is 42"),
        ("6 * 7 is 42", True, ""),
        ("<think>6 * 7 is 42", False, ""),
        ("<think>Hm.</think>42", False, "<think>Hm.</think>42"),
        ("Hm.</think>42", True, "Hm.</think>42"),
        ("<think>Hm.</think>41. <think>Or 42", False, ""),
    ],
)
@pytest.mark.parametrize("parser", [get_parser("hermes"), read_plain_turn])
async def test_a_turn_that_ends_inside_of_its_thinking_has_no_final_text(parser, text, starts_open, final_text):
    assert await final_text_of(lambda env: env.step(parser(text, starts_open=starts_open))) == final_text


async def test_a_limit_between_turns_scores_the_last_whole_turn():
    class Chatty(ToolEnv):
        def respond(self, turn):
            return [user("And now?")]

    async def last_said(*turns):
        seen = []
        env = make(lambda outcome: float(seen.append(outcome.final_text) is not None), kind=Chatty)
        async with env:
            await env.reset()
            for turn in turns:
                await env.step(turn)
            await env.truncate(StopReason.BUDGET)
        return seen[0]

    thought = get_parser("hermes")("41?", starts_open=True)
    assert await last_said("41") == "41"
    assert [await last_said("41", turn) for turn in (thought, call(text="hi"))] == ["", ""]
    assert await last_said() == ""
