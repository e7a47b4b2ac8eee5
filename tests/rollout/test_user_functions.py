"""Plain functions of users run in threads, so that they hold up no other episode and end at their deadline."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from tests.rollout.trajectories import played
from toolgym.envs import StopReason, Task, ToolEnv
from toolgym.envs.rewards import called, exact, numeric, overlong_penalty, turn_format, weighted
from toolgym.envs.users import FunctionUser
from toolgym.rollout import GroupPlan, RunConfig, Runner, rollout
from toolgym.rollout.advantages import add_group_reward, pairwise_reward
from toolgym.tools import runs_inline
from toolgym.tools.concurrency.execution_pool import call_function, is_inline
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import user
from toolgym.wrappers import FormatPenalty, RewriteObservations, ShapeReward

TASKS = [Task((user(f"question {number}"),), ground_truth="1", id=str(number)) for number in range(4)]
TENANT = contextvars.ContextVar("tenant", default="nobody")


class Together:
    """A plain function that returns once several calls wait in it at the same time: on the event loop none would."""

    def __init__(self, calls, value=1.0):
        self._barrier, self._value = threading.Barrier(calls, timeout=10), value
        self.threads, self.tenants = set(), set()

    def __call__(self, *_):
        self._barrier.wait()
        self.threads.add(threading.get_ident())
        self.tenants.add(TENANT.get())
        return self._value


class Stuck:
    """A plain function that waits until it is released."""

    def __init__(self):
        self.released = threading.Event()

    def __call__(self, *_):
        self.released.wait(20)
        return 1.0


@pytest.fixture
def stuck():
    function = Stuck()
    yield function
    function.released.set()


def env_of(scorer, **kwargs):
    return lambda: ToolEnv([], TASKS, scorer=scorer, **kwargs)


async def test_plain_scorers_of_several_episodes_wait_side_by_side(scripted):
    together = Together(4)
    TENANT.set("somebody")
    trajectories = await rollout(env_of(together), scripted(lambda *_: "done"), TASKS)
    assert [trajectory.reward for trajectory in trajectories] == [1.0] * 4
    assert len(together.threads) == 4
    assert together.tenants == {"somebody"}


async def test_plain_parts_of_a_weighted_scorer_wait_side_by_side(scripted):
    together = Together(2)
    scorer = weighted({"a": (1.0, together), "b": (0.5, together)})
    [trajectory] = await rollout(env_of(scorer), scripted(lambda *_: "done"), TASKS[:1])
    assert trajectory.reward == 1.5


async def test_score_timeout_ends_a_plain_scorer(scripted, stuck):
    scorer = env_of(stuck, score_timeout=0.1)
    trajectories = await rollout(scorer, scripted(lambda *_: "done"), TASKS[:2])
    assert [trajectory.stop_reason for trajectory in trajectories] == [StopReason.SCORE_TIMEOUT] * 2
    assert not stuck.released.is_set()


async def test_a_plain_function_may_return_an_awaitable():
    async def later():
        return 3

    assert await call_function(lambda: later()) == 3


async def test_sys_exit_of_a_plain_scorer_fails_its_episode_alone(scripted):
    def leave(outcome):
        if outcome.task.id == "0":
            raise SystemExit(3)
        return 1.0

    trajectories = await rollout(env_of(leave), scripted(lambda *_: "done"), TASKS[:2])
    reasons = [trajectory.stop_reason for trajectory in trajectories]
    assert reasons == [StopReason.SCORE_FAILED, StopReason.ANSWERED]


async def test_marked_functions_run_on_the_event_loop():
    threads = []

    @runs_inline
    def fast(*_):
        threads.append(threading.get_ident())

    await call_function(fast)
    assert threads == [threading.get_ident()]
    with pytest.raises(ConfigError, match="runs_inline cannot mark"):
        runs_inline(object())


def test_fast_scorers_of_the_library_are_marked():
    for scorer in (exact(), numeric(), called(), overlong_penalty(100)):
        assert is_inline(scorer)
    assert not is_inline(overlong_penalty(100, count=lambda text: len(text.split())))
    assert not is_inline(turn_format(str.isupper))


async def test_a_plain_respond_has_a_deadline(stuck):
    class Asks(ToolEnv):
        def respond(self, turn):
            return stuck()

    env = Asks([], TASKS, tool_timeout=0.1)
    await env.reset(options={"task": TASKS[0]})
    with pytest.raises(TimeoutError):
        await env.step("done")


async def test_plain_functions_of_users_and_wrappers_run_in_threads():
    here, threads = threading.get_ident(), []

    def note(value):
        threads.append(threading.get_ident())
        return value

    session = await FunctionUser(lambda messages, task: note("Go on.")).open(TASKS[0])
    assert (await session.reply([user("hello")])).text == "Go on."
    env = ShapeReward(ToolEnv([], TASKS, scorer=lambda outcome: note(1.0)), lambda result: note(result.reward + 1))
    env = FormatPenalty(RewriteObservations(env, lambda messages: note(messages)), lambda message: note(False), 0.5)
    await env.reset(options={"task": TASKS[0]})
    result = await env.step("done")
    assert result.reward == 1.5
    assert len(threads) == 5
    assert here not in threads


# ---------------------------------------------------------------------- groups


def group_of(rewards, name="g"):
    return [played([[(2, reward)]], name=f"{name}{number}", group=name) for number, reward in enumerate(rewards)]


async def test_plain_group_rewards_wait_side_by_side_and_end_at_their_deadline(stuck):
    groups = [*group_of([0.0, 1.0], "a"), *group_of([0.0, 1.0], "b")]
    together = Together(2, value=[0.5, 0.5])
    rewarded = await add_group_reward(groups, together)
    assert [trajectory.reward for trajectory in rewarded] == [0.5, 1.5, 0.5, 1.5]
    late = await add_group_reward(groups, stuck, timeout=0.1)
    assert {trajectory.stop_reason for trajectory in late} == {StopReason.SCORE_TIMEOUT}


async def test_plain_comparisons_wait_side_by_side():
    rewarded = await add_group_reward(group_of([0.0, 0.0]), pairwise_reward(Together(2, value=0.5)))
    assert [trajectory.reward for trajectory in rewarded] == [0.5, 0.5]


@pytest.mark.parametrize("value", [None, "0.5", [1.0], [1.0, None], [1.0, float("nan")], ["1", "2"], {"a": 1, "b": 2}])
async def test_a_group_reward_without_a_number_for_each_is_named(value):
    def my_reward(group):
        return value

    with pytest.raises(ConfigError, match="'my_reward' must return a finite number for each of 2"):
        await add_group_reward(group_of([0.0, 1.0]), my_reward)


def runner_of(scripted, **config):
    def scorer(outcome):
        return float(outcome.task.id)

    config = RunConfig(group_size=2, seed=1, **config)
    return Runner(env_of(scorer), scripted(lambda *_: "done"), config=config)


def is_even(group):
    return int(group[0].task_id) % 2 == 0


async def is_even_later(group):
    await asyncio.sleep(0)
    return is_even(group)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("keep", [is_even, is_even_later, runs_inline(lambda group: is_even(group))])
async def test_keep_may_be_plain_async_or_marked(scripted, keep, in_order):
    runner = runner_of(scripted)
    kept = await runner.run(TASKS, plan=GroupPlan(groups=2, keep=keep, in_order=in_order))
    assert [trajectory.task_id for trajectory in kept] == ["0", "0", "2", "2"]
    assert (runner.counts.groups_kept, runner.counts.groups_filtered) == (2, 1)


async def test_plain_keeps_wait_side_by_side(scripted):
    runner = runner_of(scripted)
    kept = await runner.run(TASKS, plan=GroupPlan(keep=Together(4, value=True)))
    assert len(kept) == 8


@pytest.mark.parametrize("stragglers", ["drop", "keep", "carry"])
async def test_groups_that_keep_looks_at_when_the_run_has_enough_are_stragglers(scripted, stuck, stragglers):
    def keep(group):
        return True if group[0].task_id == "0" else bool(stuck())

    async with runner_of(scripted) as runner:
        plan = GroupPlan(groups=1, spare_groups=1, keep=keep, stragglers=stragglers)
        kept = await runner.run(TASKS[:2], plan=plan)
        assert {trajectory.task_id for trajectory in kept} >= {"0"}
        stuck.released.set()
        if stragglers == "carry":
            kept = await runner.run(TASKS[2:3], plan=plan)
            assert [trajectory.task_id for trajectory in kept] == ["1", "1"]


async def test_a_keep_that_returns_none_or_hangs_ends_the_run_by_name(scripted, stuck):
    def forgets(group):
        pass

    for keep, said in ((forgets, "'forgets', must return True or False, got None"), (stuck, "'Stuck', did not finish")):
        with pytest.raises(ConfigError, match=said):
            await runner_of(scripted).run(TASKS, plan=GroupPlan(keep=keep, keep_timeout=0.1))
