"""Episodes that a limit on tokens ends: their env scores what is there, with the cut turn, as at any other end."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.envs import Outcome, Score, ToolEnv
from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.rewards import overlong_penalty
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, GroupPlan, RunConfig, Runner, SamplingParams, group_advantages, make_batch
from toolgym.tools import tool
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import user

CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "hi"}}\n</tool_call>'
SHORT = SamplingParams(max_new_tokens=40)
calls = []


@tool
def echo(text: str) -> str:
    """Say it again."""
    calls.append(text)
    return text


@tool
def flood() -> str:
    """Say very much."""
    return "much " * 200


class Watching:
    """A scorer that keeps what it saw."""

    def __init__(self, value: float = 1.0) -> None:
        self.seen: list[Outcome] = []
        self.value = value

    def __call__(self, outcome: Outcome) -> Score:
        self.seen.append(outcome)
        return Score(self.value, {"seen": 1.0})


async def play(scripted, tokenizer, script, scorer, *, env=None, **config):
    calls.clear()
    make = env or (lambda: ToolEnv([echo, flood], [Task((user("q"),))], scorer=scorer))
    config = {"seed": 3, "sampling": SamplingParams(max_new_tokens=100), **config}
    runner = Runner(make, scripted(script), tokenizer=tokenizer, config=RunConfig(**config))
    return await runner.run([Task((user("q"),))])


def turns(*texts):
    return lambda prompt, request_id: texts[int(request_id.rpartition("-")[2])]


async def test_a_turn_that_was_cut_is_scored_and_its_calls_are_not_run(scripted, tokenizer):
    scorer = Watching()
    long = f"I know: {CALL} " + "word " * 90
    [one] = await play(scripted, tokenizer, turns(CALL, long), scorer)
    assert (one.stop_reason, one.in_group_statistics, one.reward) == (StopReason.LENGTH, True, 1.0)
    assert (one.metrics["score"], one.metrics["score/seen"]) == (1.0, 1.0)
    assert [turn.reward for turn in one.turns] == [0.0, 1.0]
    [outcome] = scorer.seen
    assert (outcome.stop_reason, outcome.turns, outcome.final_text) == (StopReason.LENGTH, 2, "")
    assert '"text": "hi"' in outcome.written[-1]
    assert outcome.written[-1].count("word") > 9
    assert calls == ["hi"]  # the first turn's alone
    assert one.turns[1].tool_calls == ()
    batch = make_batch([one], pad_token_id=0)
    assert batch.token_rewards.sum() == 1.0


async def test_a_cut_text_is_not_an_answer(scripted, tokenizer):
    scorer = Watching()
    [one] = await play(scripted, tokenizer, turns("word " * 90), scorer, sampling=SHORT)
    assert one.stop_reason is StopReason.LENGTH
    assert scorer.seen[0].final_text == ""
    assert scorer.seen[0].turn_texts == [one.turns[0].text] != [""]


async def test_an_observation_without_room_and_a_turn_without_room_for_its_end_are_scored(scripted, tokenizer):
    scorer = Watching()
    script = turns(CALL.replace('"echo", "arguments": {"text": "hi"}', '"flood", "arguments": {}'))
    limits = EpisodeLimits(max_response_tokens=150)
    [one] = await play(scripted, tokenizer, script, scorer, limits=limits)
    assert (one.stop_reason, one.reward, one.turns[0].reward) == (StopReason.BUDGET, 1.0, 1.0)
    assert scorer.seen[0].tool_calls[0].name == "flood"
    limits = EpisodeLimits(max_response_tokens=20)
    [one] = await play(scripted, tokenizer, turns("word " * 90), scorer, limits=limits, on_truncated_turn="close")
    assert (one.stop_reason, one.reward, scorer.seen[1].written) == (StopReason.BUDGET, 1.0, [one.turns[0].text])


async def test_who_was_cut_changes_no_advantage(scripted, tokenizer):
    asked = []

    def script(prompt, request_id):
        asked.append(request_id)
        return "done" if len(asked) % 2 else "w " * 90

    group = await play(scripted, tokenizer, script, lambda outcome: 1.0, sampling=SHORT, group_size=4)
    assert {one.stop_reason for one in group} == {StopReason.LENGTH, StopReason.ANSWERED}
    assert group_advantages(group) == [0.0] * 4


@pytest.mark.parametrize(("length", "penalty"), [(20, 0.0), (55, -25 / 30), (65, -1.0), (100, -1.0)])
async def test_what_was_cut_has_the_whole_overlong_penalty(scripted, tokenizer, length, penalty):
    [one] = await play(
        scripted, tokenizer, turns("x" * length), overlong_penalty(60, 30), sampling=SamplingParams(max_new_tokens=70)
    )
    assert (one.stop_reason is StopReason.LENGTH) == (length == 100)
    assert one.reward == pytest.approx(penalty)


async def test_a_scorer_that_fails_or_hangs_at_a_cut_is_the_failure_that_it_is_at_any_end(scripted, tokenizer):
    def broken(outcome):
        raise ValueError("no")

    async def hanging(outcome):
        await asyncio.sleep(60)

    def slow_env():
        return ToolEnv([echo], [Task((user("q"),))], scorer=hanging, score_timeout=0.05)

    [one] = await play(scripted, tokenizer, turns("word " * 90), broken, sampling=SHORT)
    assert (one.stop_reason, one.in_group_statistics) == (StopReason.SCORE_FAILED, False)
    [one] = await play(scripted, tokenizer, turns("word " * 90), None, env=slow_env, sampling=SHORT)
    assert one.stop_reason is StopReason.SCORE_TIMEOUT
    # The episode's own clock, which waits `score_grace` for a scorer at work.
    hangs = lambda: ToolEnv([echo], [Task((user("q"),))], scorer=hanging)  # noqa: E731
    limits = EpisodeLimits(episode_timeout=0.3, score_grace=0.05)
    [one] = await play(scripted, tokenizer, turns("word " * 90), None, env=hangs, sampling=SHORT, limits=limits)
    assert one.stop_reason is StopReason.EPISODE_TIMEOUT
    # Scoring has a clock of its own, so it does not count towards that of the env or of the turn.
    late = Watching()
    waits = lambda: ToolEnv([echo], [Task((user("q"),))], scorer=after(0.4, late))  # noqa: E731
    limits = EpisodeLimits(env_timeout=0.2, turn_timeout=0.3)
    [one] = await play(scripted, tokenizer, turns("word " * 90), None, env=waits, sampling=SHORT, limits=limits)
    assert (one.stop_reason, one.reward) == (StopReason.LENGTH, 1.0)


@pytest.mark.parametrize(("seconds", "how"), [(60, "keep"), (0.3, "carry")])
async def test_a_straggler_that_is_scored_at_its_cut_is_ended_or_waited_for(scripted, tokenizer, seconds, how):
    begun = []

    def script(prompt, request_id):
        begun.append(request_id)
        return "done" if len(begun) == 2 else "w " * 90

    async def scorer(outcome):
        if outcome.stop_reason is StopReason.LENGTH:
            await asyncio.sleep(seconds)
        return 1.0

    config = RunConfig(sampling=SHORT, seed=3)
    env = lambda: ToolEnv([echo], [Task((user("q"),))], scorer=scorer)  # noqa: E731
    async with Runner(env, scripted(script), tokenizer=tokenizer, config=config) as runner:
        plan = GroupPlan(spare_members=1, stragglers=how)
        done = await runner.run([Task((user("q"),))], plan=plan)
        done += await runner.run([], plan=plan)
    late = StopReason.STRAGGLER if how == "keep" else StopReason.LENGTH
    assert {one.stop_reason: (one.in_group_statistics, one.reward) for one in done} == {
        StopReason.ANSWERED: (True, 1.0),
        late: (how == "carry", float(how == "carry")),
    }


def after(seconds, scorer):
    async def score(outcome):
        await asyncio.sleep(seconds)
        return scorer(outcome)

    return score


class Plain(BaseEnv):
    """An env of someone's own, without `truncate`."""

    async def reset(self, *, seed=None, options=None):
        return [user("q")], {}

    async def step(self, action):
        return StepResult([user("go on")], 0.25, False, {"metrics": {"steps": 1}})

    async def close(self):
        pass


async def test_an_env_without_truncate_keeps_the_rewards_of_its_steps(scripted, tokenizer):
    [one] = await play(scripted, tokenizer, turns("a", "word " * 90), None, env=Plain, sampling=SHORT)
    assert (one.stop_reason, one.reward, one.metrics) == (StopReason.LENGTH, 0.25, {"steps": 1})


async def test_an_env_that_ends_with_a_failure_or_no_finite_reward_fails(scripted, tokenizer):
    class Lost(Plain):
        async def truncate(self, reason, turn=None):
            return StepResult([], 0.0, True, {"stop_reason": StopReason.SANDBOX_FAILED})

    class Odd(Plain):
        async def truncate(self, reason, turn=None):
            return StepResult([], float("nan"), True, {})

    for env, reason in ((Lost, StopReason.SANDBOX_FAILED), (Odd, StopReason.ENV_FAILED)):
        [one] = await play(scripted, tokenizer, turns("word " * 90), None, env=env, sampling=SHORT)
        assert one.stop_reason is reason


def test_an_env_whose_truncate_takes_no_turn_is_refused_where_it_is_written():
    with pytest.raises(ConfigError, match=r"Old\.truncate must take \(reason, turn=None\)"):

        class Old(Plain):
            async def truncate(self, reason):
                return StepResult([], 0.0, True, {})
