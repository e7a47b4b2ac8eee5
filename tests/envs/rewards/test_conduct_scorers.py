"""Scorers of how an answer was given: format, length, use of tools; and several scorers as one."""

from __future__ import annotations

import asyncio

import pytest

from tests.envs.rewards.outcomes import outcome, record
from toolgym.envs import EpisodeFailedError, Score, StopReason, Task, ToolEnv
from toolgym.envs.rewards import (
    THINK,
    AnswerScorer,
    UnitTests,
    called,
    called_successfully,
    exact,
    failed_calls,
    overlong_penalty,
    turn_format,
    weighted,
)
from toolgym.tools.confined import costly_checks
from toolgym.tools.errors import ConfigError

# ---------------------------------------------------------------------- format


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>hm</think>42", 1.0),
        ("  <think>a\nb</think>\n\n42\n", 1.0),
        ("<think>hm</think>", 0.0),
        ("42", 0.0),
        ("so <think>hm</think>42", 0.0),
    ],
)
def test_thinking_between_tags(text, score):
    assert turn_format(THINK)(outcome(text)) == score


def test_thinking_that_the_models_format_keeps_apart_counts_too():
    apart = {"role": "assistant", "content": "42", "reasoning_content": "hm"}
    assert turn_format(THINK)(outcome(apart)) == 1.0


def test_the_last_turn_or_all():
    turns = outcome("<think>a</think>b", "no", {"role": "user", "content": "go on"}, "<think>a</think>b")
    assert turn_format(THINK)(turns) == 1.0
    assert turn_format(THINK, turns="all")(turns) == pytest.approx(2 / 3)
    assert turn_format(lambda text: len(text) < 5, turns="all")(turns) == pytest.approx(1 / 3)


def test_turns_of_the_task_are_not_the_policys():
    task = Task(({"role": "user", "content": "q"}, {"role": "assistant", "content": "long ago"}))
    given = outcome("42")
    seen = type(given)(task, (*task.messages, *given.messages[1:]), 1, (), "42", StopReason.ANSWERED)
    assert seen.turn_texts == ["42"]


@pytest.mark.parametrize(("form", "turns"), [("(", "last"), (3, "last"), ("x", "first")])
def test_a_form_that_is_none_is_refused(form, turns):
    with pytest.raises(ConfigError):
        turn_format(form, turns=turns)


# ---------------------------------------------------------------------- length


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (60, 0.0), (61, -0.025), (80, -0.5), (100, -1.0), (101, -1.0)]
)
def test_the_penalty_of_an_overlong_response(length, penalty):
    assert overlong_penalty(100, 40)(outcome("x" * length)) == pytest.approx(penalty)


def test_calls_are_part_of_what_the_policy_wrote():
    call = {"id": "call_0", "type": "function", "function": {"name": "python", "arguments": {"code": "x" * 5000}}}
    long = outcome({"role": "assistant", "content": "", "tool_calls": [call]}, "42")
    assert overlong_penalty(200)(long) == -1.0
    assert long.turn_texts == ["", "42"]
    assert [len(text) > 5000 for text in long.written] == [True, False]
    assert overlong_penalty(5100, longest_turn=True)(long) == 0.0


def test_without_a_buffer_the_penalty_comes_at_once():
    assert [overlong_penalty(3)(outcome(text)) for text in ("abc", "abcd")] == [0.0, -1.0]


def test_what_is_counted():
    turns = outcome("a b c", "d e")
    assert overlong_penalty(5, 4, count=lambda text: len(text.split()))(turns) == -1.0
    assert overlong_penalty(5, 4, count=lambda text: len(text.split()), longest_turn=True)(turns) == -0.5


@pytest.mark.parametrize(("args", "kwargs"), [((0,), {}), ((5, 6), {}), ((5, -1), {}), ((5,), {"count": 3})])
def test_a_length_that_is_none_is_refused(args, kwargs):
    with pytest.raises(ConfigError):
        overlong_penalty(*args, **kwargs)


# ---------------------------------------------------------------------- tools

CALLS = [
    record("search", "error"),
    record("search", "timeout", infra_failure=True),
    record("python", "ok"),
    record("", "no_json"),
]


def test_use_of_tools():
    given = outcome("x", calls=CALLS)
    assert [called(name)(given) for name in (None, "search", "python", "bash")] == [1.0, 1.0, 1.0, 0.0]
    assert [called_successfully(name)(given) for name in (None, "search", "python")] == [1.0, 0.0, 1.0]
    assert [failed_calls(name)(given) for name in (None, "search", "python")] == [2.0, 1.0, 0.0]
    assert [one()(outcome("x")) for one in (called, called_successfully, failed_calls)] == [0.0, 0.0, 0.0]


async def test_a_malformed_call_reached_no_tool():
    async with ToolEnv([], [Task(({"role": "user", "content": "q"},))], scorer=called()) as env:
        await env.reset()
        await env.step("<tool_call>{</tool_call>")
        assert (await env.step("done")).reward == 0.0


@pytest.mark.parametrize("scorer", [called, called_successfully, failed_calls])
def test_a_tools_name_is_text(scorer):
    with pytest.raises(ConfigError, match="tool"):
        scorer(3)


# ---------------------------------------------------------------------- several as one


async def test_each_part_is_reported_on_its_own():
    async def judge(outcome):
        await asyncio.sleep(0)
        return Score(0.5, {"style": 0.25})

    scorer = weighted({"answer": (1.0, exact()), "judge": (0.2, judge), "calls": (-0.1, lambda outcome: 3)})
    async with ToolEnv([], [Task(({"role": "user", "content": "q"},), ground_truth="42")], scorer=scorer) as env:
        await env.reset()
        last = await env.step("42")
    assert last.reward == pytest.approx(0.8)
    metrics = {name: value for name, value in last.info["metrics"].items() if name.startswith("score")}
    assert metrics == {
        "score": pytest.approx(0.8), "score/answer": 1.0, "score/judge": 0.5, "score/judge/style": 0.25,
        "score/calls": 3.0,
    }  # fmt: skip


async def test_the_scorers_of_questions_and_programs_are_parts_too():
    scorer = weighted({"qa": (0.5, AnswerScorer("f1", 0.25)), "tests": (1.0, UnitTests())})
    cases = {"inputs": ["1"], "outputs": ["1"]}
    score = await scorer(outcome("<answer>42</answer>", truth={"target": ["42"], **cases}))
    assert (score.components["qa/f1"], score.components["qa/format"]) == (1.0, 1.0)
    assert (score.value, score.components["tests/has_program"]) == (0.5, 0.0)


async def test_async_parts_run_at_the_same_time():
    barrier = asyncio.Barrier(2)

    async def part(outcome):
        await barrier.wait()  # nothing passes alone
        return 1.0

    score = await asyncio.wait_for(weighted({"a": (1.0, part), "b": (2.0, part)})(outcome("x")), 60)
    assert score == Score(3.0, {"a": 1.0, "b": 1.0})


async def test_a_part_of_text_and_task_counts_nothing_without_an_answer():
    scorer = weighted({"a": (1.0, lambda text, task: 1.0)})
    assert await scorer(outcome("x")) == Score(1.0, {"a": 1.0})
    assert await scorer(outcome("x", stop_reason=StopReason.MAX_TURNS)) == Score(0.0, {"a": 0.0})


async def test_a_part_that_fails_fails_the_whole_and_ends_the_others():
    ended = asyncio.Event()

    async def slow(outcome):
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def broken(outcome):
        await asyncio.sleep(0)
        raise EpisodeFailedError(StopReason.SCORE_FAILED, "no judge")

    with pytest.raises(EpisodeFailedError, match="no judge"):
        await weighted({"slow": (1.0, slow), "broken": (1.0, broken)})(outcome("x"))
    assert ended.is_set()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, "at least one part"),
        ([("a", 1.0)], "at least one part"),
        ({"": (1.0, exact())}, "needs a name"),
        ({"a": exact()}, r"'a' of weighted must be \(weight, scorer\)"),
        ({"a": ("1", exact())}, "weight of 'a'"),
        ({"a": (float("nan"), exact())}, "weight of 'a'"),
        ({"a": (1.0, 3)}, "the part 'a' of weighted: a scorer takes"),
    ],
)
def test_parts_that_are_none_are_refused(parts, said):
    with pytest.raises(ConfigError, match=said):
        weighted(parts)


@pytest.mark.parametrize(("value", "said"), [("good", "'a' of weighted: the scorer"), (None, "number, got None")])
async def test_a_part_without_a_number_is_named(value, said):
    with pytest.raises(ConfigError, match=said):
        await weighted({"a": (1.0, lambda outcome: value)})(outcome("x"))


async def test_a_pattern_is_matched_in_another_process_and_a_text_without_end_does_not_have_it(monkeypatch):
    monkeypatch.setattr(costly_checks, "SECONDS", 0.3)
    scorer = turn_format(r"(a+)+b")
    assert await scorer(outcome("aaab")) == 1.0
    assert await scorer(outcome("aaa")) == 0.0
    assert await scorer(outcome("a" * 60)) == 0.0
