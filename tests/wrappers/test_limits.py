"""Limits: when they end an episode, how it is scored then, and that forks count on their own."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.errors import ConfigError, EpisodeError
from toolgym.tools.message import user
from toolgym.wrappers import Compact, FormatPenalty, Record, ShapeReward, TimeLimit, TokenBudget, TurnLimit


async def test_the_last_turn_is_taken_and_the_episode_scored(counting, counter, call):
    async with TurnLimit(counting(), 2) as env:
        await env.reset(seed=0)
        assert not (await env.step(call(1))).done
        last = await env.step(call(4))
        assert (last.obs, last.reward, last.stop_reason, last.truncated) == ([], 0.05, StopReason.MAX_TURNS, True)
        assert last.info["tool_calls"][0].text == "5"
        assert last.info["message"]["tool_calls"][0]["function"]["arguments"] == {"by": 4}
        assert (last.info["metrics"]["turn"], last.info["metrics"]["score"]) == (2, 0.0)
        assert counter.open_sessions == 0


async def test_an_answer_in_the_last_turn_is_an_answer(counting):
    async with TurnLimit(counting(), 1) as env:
        _, info = await env.reset(seed=0)
        result = await env.step(info["task"].ground_truth)
        assert (result.reward, result.stop_reason) == (1.0, StopReason.ANSWERED)


@pytest.mark.parametrize(("last", "seen"), [("7", "7"), ("<tool_call>no JSON</tool_call>", "")])
async def test_the_scorer_sees_a_last_turn_that_got_a_reply_as_the_final_text(last, seen):
    class Chatty(ToolEnv):
        def respond(self, turn):
            return [user("And now?")]

    outcomes = []
    async with TurnLimit(Chatty([], [Task((user("7?"),))], scorer=lambda one: outcomes.append(one) or 1.0), 2) as env:
        await env.reset()
        await env.step("Well.")
        result = await env.step(last)
    [outcome] = outcomes
    assert (result.reward, result.obs) == (1.0, [])
    assert (outcome.final_text, outcome.turns, outcome.stop_reason) == (seen, 2, StopReason.MAX_TURNS)


async def test_a_fork_has_its_own_turns(counting, call):
    async with TurnLimit(counting(), 2) as env:
        await env.reset(seed=0)
        await env.step(call(1))
        async with await env.fork() as twin:
            assert (await twin.step(call(1))).done
            await twin.reset()
            assert not (await twin.step(call(1))).done
        assert (await env.step(call(1))).done


async def test_what_the_end_adds_is_shaped_too(counting, call):
    async with TurnLimit(ShapeReward(counting(), lambda result: result.reward + 10), 1) as env:
        await env.reset(seed=0)
        assert (await env.step(call(1))).reward == pytest.approx(20.01)


async def test_a_truncated_env_refuses_further_steps(counting, call):
    async with counting() as env:
        with pytest.raises(EpisodeError, match="truncate needs an episode under way"):
            await env.truncate(StopReason.MAX_TURNS)
        await env.reset(seed=0)
        await env.truncate(StopReason.BUDGET)
        with pytest.raises(EpisodeError, match="after the episode ended"):
            await env.step(call(1))


async def test_a_turn_that_was_cut_reaches_the_env_through_wrappers(counting, counter, call, tmp_path):
    path = tmp_path / "episodes.jsonl"
    outcomes = []
    env = counting(scorer=lambda outcome: outcomes.append(outcome) or 1.0)
    env = Record(FormatPenalty(TurnLimit(env, 9), "^$", 0.25), path)
    async with env:
        await env.reset(seed=0)
        await env.step(call(1))
        last = await env.truncate(StopReason.LENGTH, "and so I th")
        assert last.reward == 0.75 + 0.01  # the score and what the tool's total is worth, less the form of the text
        assert (last.info["metrics"]["bad_format"], last.info["message"]["content"]) == (1, "and so I th")
        with pytest.raises(EpisodeError):
            await env.step(call(1))
    [outcome] = outcomes
    assert (outcome.turns, outcome.final_text, outcome.messages[-1]["content"]) == (2, "", "and so I th")
    [line] = map(json.loads, path.read_text().splitlines())
    assert (line["actions"][-1], line["messages"][-1]["content"], line["stop_reason"]) == (
        *["and so I th"] * 2,
        "length",
    )
    assert (len(line["rewards"]), line["stop_reason"]) == (2, "length")


async def test_a_summary_that_was_cut_stays_outside(counting, call):
    outcomes = []
    env = counting(scorer=lambda outcome: outcomes.append(outcome) or 1.0)
    async with Compact(env, 1, tokenizer=len) as env:
        await env.reset(seed=0)
        await env.step(call(1))
        assert (await env.truncate(StopReason.LENGTH, "The summ")).info["metrics"]["compactions"] == 0
    assert outcomes[0].turns == 1


async def test_turns_and_observations_use_up_the_budget(counting, call):
    used = len(call(1)) + len("1") + len(call(2)) + len("3")
    for budget, ends in ((used + 1, False), (used, True)):
        async with TokenBudget(counting(), budget, tokenizer=len) as env:
            await env.reset(seed=0)
            assert not (await env.step(call(1))).done
            result = await env.step(call(2))
            assert (result.done, result.stop_reason) == (ends, StopReason.BUDGET if ends else None)


async def test_a_long_turn_is_counted_whole(counting, call):
    async with TokenBudget(counting(), 20_001, tokenizer=lambda text: text.count("z")) as env:
        await env.reset(seed=0)
        assert not (await env.step(call(1, "z" * 10_000))).done  # and as many in the observation
        assert (await env.step(call(1, "z"))).stop_reason is StopReason.BUDGET


async def test_the_step_under_way_is_cancelled_and_its_tools_freed(counting, counter, call):
    counter.hangs = True
    async with TimeLimit(counting(), 60) as env:
        await env.reset(seed=0)
        env._deadline = time.monotonic() + 0.2
        result = await asyncio.wait_for(env.step(call(1)), 30)
        assert (result.stop_reason, result.reward, result.truncated) == (StopReason.EPISODE_TIMEOUT, 0.0, True)
        assert counter.open_sessions == 0
        with pytest.raises(EpisodeError):
            await env.step(call(1))
        counter.hangs = False
        await env.reset()  # the env lives on
        assert (await env.step("1")).done


async def test_time_that_is_up_already_costs_no_step(counting, counter, call):
    async with TimeLimit(counting(), 60) as env:
        await env.reset(seed=0)
        twin = await env.fork()
        twin._deadline = 0.0  # on a clock that never was that early
        assert (await twin.step(call(1))).stop_reason is StopReason.EPISODE_TIMEOUT
        await twin.close()
        assert not (await env.step(call(1))).done  # the origin has its own time


async def test_a_reset_that_takes_too_long_is_a_failure(counting):
    class Slow(TurnLimit):
        async def reset(self, **arguments):
            await asyncio.Event().wait()

    async with TimeLimit(Slow(counting(), 1), 0.01) as env:
        with pytest.raises(EpisodeFailedError, match=r"did not begin within 0\.01 seconds") as raised:
            await asyncio.wait_for(env.reset(), 60)
        assert raised.value.stop_reason is StopReason.EPISODE_TIMEOUT


async def test_a_time_out_of_the_env_itself_is_not_the_limits(counting):
    class Raises(TurnLimit):
        async def limited_step(self, action):
            raise TimeoutError("mine")

    async with TimeLimit(Raises(counting(), 1), 60) as env:
        await env.reset()
        with pytest.raises(TimeoutError, match="mine"):
            await env.step("1")


async def test_a_cancelled_caller_stays_cancelled(counting, counter, call):
    counter.hangs = True
    async with TimeLimit(counting(), 60) as env:
        await env.reset(seed=0)
        step = asyncio.ensure_future(env.step(call(1)))
        await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
    assert counter.open_sessions == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda env: TurnLimit(env, 0), "max_turns"),
        (lambda env: TokenBudget(env, 0, tokenizer=len), "max_tokens"),
        (lambda env: TokenBudget(env, 5, tokenizer="gpt2"), "tokenizer must be a tokenizer, or a function"),
        (lambda env: TimeLimit(env, 0), "seconds"),
        (lambda env: ShapeReward(env, 1.0), "shape must be a function"),
    ],
)
def test_wrong_arguments(make, said, counting):
    with pytest.raises(ConfigError, match=said):
        make(counting())


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "much", None])
async def test_a_reward_that_is_no_number_is_the_functions_fault(reward, counting):
    async with ShapeReward(counting(), lambda result: reward) as env:
        await env.reset()
        with pytest.raises(ConfigError, match="shape must return a finite number"):
            await env.step("1")
