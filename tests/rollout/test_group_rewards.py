"""Rewards that depend on the other trajectories of a group, through the runner and on made trajectories."""

from __future__ import annotations

import asyncio
import dataclasses
import re

import pytest
from aiohttp import web

from tests.rollout.engines.http_server import serving
from tests.rollout.trajectories import played
from toolgym.envs import EpisodeFailedError, StopReason, Task, ToolEnv
from toolgym.envs.rewards import LLMJudge
from toolgym.rollout import RunConfig, Runner, SamplingParams, group_advantages, make_batch
from toolgym.rollout.advantages import add_group_reward, diversity_reward, pairwise_reward, token_rewards
from toolgym.rollout.trajectory import Failure
from toolgym.tools.errors import ConfigError, UnknownArgumentError

TASKS = [Task(({"role": "user", "content": f"Question {n}?"},), id=str(n)) for n in range(2)]
ANSWERS = ["<think>long</think>a b c d", "a b c d e f", "x"]


def shorter(question, first, second):
    return 0.5 if len(first) == len(second) else float(len(first) < len(second))


async def rolled_out(scripted, tokenizer):
    """Two groups of three, whose answers are those of `ANSWERS` in some order."""
    left = {task.id: list(ANSWERS) for task in TASKS}
    engine = scripted(lambda prompt, request_id: left["0" if "Question 0?" in prompt else "1"].pop())
    config = RunConfig(group_size=3, seed=0, sampling=SamplingParams(max_new_tokens=100))
    runner = Runner(
        lambda: ToolEnv([], TASKS, scorer=lambda text, task: 1.0), engine, tokenizer=tokenizer, config=config
    )
    return await runner.run(TASKS)


def by_answer(trajectories, task_index=0):
    return {one.turns[-1].text: one for one in trajectories if one.task_index == task_index}


async def test_a_pairwise_reward_of_a_run(scripted, tokenizer):
    trajectories = await rolled_out(scripted, tokenizer)
    rewarded = await add_group_reward(trajectories, pairwise_reward(shorter), weight=0.5, name="brevity")
    assert [one.id for one in rewarded] == [one.id for one in trajectories]
    for task_index in (0, 1):
        found = by_answer(rewarded, task_index)
        assert [found[text].reward for text in ANSWERS] == [1.25, 1.0, 1.5]
        assert [found[text].metrics["score/brevity"] for text in ANSWERS] == [0.5, 0.0, 1.0]
        assert found["x"].metrics["score"] == 1.0
    assert [one.reward for one in trajectories] == [1.0] * 6  # those given are not changed
    best = by_answer(rewarded)["x"]
    assert token_rewards(best)[0].sum() == 1.5
    advantages = dict(zip([one.id for one in rewarded], group_advantages(rewarded, form="dr_grpo"), strict=True))
    assert advantages[best.id] == pytest.approx(0.25)
    assert make_batch(rewarded, pad_token_id=tokenizer.pad_token_id).rewards.sum().item() == pytest.approx(7.5)


async def test_a_judge_compares_the_answers_of_a_run(scripted, tokenizer):
    bodies = []

    async def chat(request):
        bodies.append((await request.json())["messages"][0]["content"])
        prefers_first = re.search(r"<first-(\w+)>\nx\n</first-\1>", bodies[-1]) is not None
        return web.json_response({"choices": [{"message": {"content": f"Verdict: {int(prefers_first)}"}}]})

    trajectories = await rolled_out(scripted, tokenizer)
    async with serving({"POST /v1/chat/completions": chat}) as url, LLMJudge(f"{url}/v1", "m") as judge:
        rewarded = await add_group_reward(trajectories, pairwise_reward(judge.compare))
    assert len(bodies) == 2 * 3 * 2
    assert all("Question 0?" in body or "Question 1?" in body for body in bodies)
    assert not any("long" in body for body in bodies)  # thinking is left out
    assert [by_answer(rewarded)[text].metrics["score/group"] for text in ANSWERS] == [0.25, 0.25, 1.0]


async def test_a_diversity_reward_of_a_run(scripted, tokenizer):
    rewarded = await add_group_reward(await rolled_out(scripted, tokenizer), diversity_reward(words=1))
    found = by_answer(rewarded)
    first, second, third = (found[text].metrics["score/group"] for text in ANSWERS)
    assert third == 1.0
    # the tags stand at "a": {<think>long</think>a, b, c, d} and {a, b, c, d, e, f} share three of seven words
    assert first == second == pytest.approx((1 - 3 / 7 + 1) / 2)


# ---------------------------------------------------------------------- made trajectories


def made(name, group="g", **changes):
    return dataclasses.replace(played([[(1, 0.0)]], name=name, group=group), **changes)


BROKEN = {"stop_reason": StopReason.SANDBOX_FAILED, "error": Failure("died", 0)}


async def test_what_does_not_count_is_not_seen_and_not_changed():
    seen = []

    def reward(group):
        seen.append([one.id for one in group])
        return [1.0] * len(group)

    broken = made("x", **BROKEN)
    found = await add_group_reward([made("a"), broken, made("b"), made("c", group="h")], reward)
    assert sorted(seen) == [["a", "b"], ["c"]]
    assert [one.reward for one in found] == [1.0, 0.0, 1.0, 1.0]
    assert found[1] is broken


async def test_groups_are_rewarded_at_the_same_time():
    barrier = asyncio.Barrier(2)

    async def reward(group):
        await barrier.wait()  # nothing passes alone
        return [1.0]

    found = await asyncio.wait_for(add_group_reward([made("a"), made("b", group="h")], reward), 50)
    assert [one.reward for one in found] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("down"), StopReason.SCORE_FAILED),
        (EpisodeFailedError(StopReason.SCORE_FAILED, "no verdict"), StopReason.SCORE_FAILED),
        (None, StopReason.SCORE_TIMEOUT),
    ],
)
async def test_a_group_that_cannot_be_judged_fails_and_the_others_do_not(error, reason):
    async def reward(group):
        if group[0].group_id == "h":
            return [1.0]
        await asyncio.sleep(3600 if error is None else 0)
        raise error

    timeout = 0.3 if error is None else 60
    a, b = await add_group_reward([made("a"), made("b", group="h")], reward, timeout=timeout)
    assert (a.stop_reason, a.failed, a.in_group_statistics, a.trainable, a.reward) == (reason, True, False, False, 0.0)
    assert a.error.message.startswith("the reward of the group: ")
    assert (b.reward, b.failed) == (1.0, False)


@pytest.mark.parametrize("given", [[1.0], [1.0, float("nan")], ["a", "b"], 3, None])
async def test_what_is_no_reward_for_each_is_the_users_error(given):
    with pytest.raises(ConfigError, match="must return a finite number for each"):
        await add_group_reward([made("a"), made("b")], lambda group: given)


@pytest.mark.parametrize("value", [2, -1, "first", None, True])
async def test_a_comparison_gives_a_number_from_0_to_1(value):
    with pytest.raises(ConfigError, match="from 0 to 1"):
        await add_group_reward([made("a"), made("b")], pairwise_reward(lambda *texts: value))


async def test_each_pair_is_asked_once_or_in_both_orders():
    def first(question, first, second):
        return 1.0

    group = [made("a"), made("b"), made("c")]
    assert await pairwise_reward(first)(group) == [0.5, 0.5, 0.5]  # a prejudice for a place is evened out
    assert await pairwise_reward(first, both_orders=False)(group) == [1.0, 0.5, 0.0]
    assert await pairwise_reward(first)(group[:1]) == [0.5]


def test_diversity():
    def texts(*given):
        group = [made(str(place)) for place in range(len(given))]
        by_id = dict(zip([one.id for one in group], given, strict=True))
        return diversity_reward(words=2, text=lambda one: by_id[one.id])(group)

    assert texts("a b c", "a b c") == [0.0, 0.0]
    assert texts("a b c", "d e f") == [1.0, 1.0]
    assert texts("a b c", "a b d") == pytest.approx([2 / 3, 2 / 3])
    assert texts("a", "") == [1.0, 1.0]
    assert texts("", "") == [0.0, 0.0]
    assert texts("a b") == [0.0]


async def test_arguments_that_cannot_be_used_are_refused():
    for arguments in ({"reward": 3}, {"weight": float("inf")}, {"weight": "1"}, {"timeout": 0}):
        with pytest.raises(ConfigError):
            await add_group_reward([made("a")], **{"reward": lambda group: [0.0], **arguments})
    with pytest.raises(UnknownArgumentError):
        await add_group_reward([made("a")], lambda group: [0.0], wieght=1.0)
    with pytest.raises(ConfigError, match="Trajectories"):
        await add_group_reward([3], lambda group: [0.0])
    for bad in (lambda: pairwise_reward(3), lambda: diversity_reward(words=0), lambda: diversity_reward(text="x")):
        with pytest.raises(ConfigError):
            bad()
