"""The adapter for tinker-cookbook with its own rollout, strategies and data processing; sampling is a stand-in."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.rollout.adapters.page import program
from tests.rollout.adapters.slime_router_stand_in import CALL, call_then_answer
from toolgym.envs import ArithmeticTasks
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout import EpisodeLimits, RunConfig, Trajectory, tiny_policy_path
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.tools.errors import ConfigError, EpisodeError, MissingExtraError

pytest.importorskip("tinker_cookbook", reason="tinker-cookbook is not installed")

import tinker
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages
from tinker_cookbook.rl.rollout_strategy import MinViableGroup
from tinker_cookbook.rl.rollouts import (
    do_group_rollout,
    do_group_rollout_and_filter_constant_reward,
    do_single_rollout,
    set_rollout_executor,
)

from toolgym.rollout.adapters.tinker import ToolgymDatasetBuilder, ToolgymGroupBuilder, to_groups

[TASK] = ArithmeticTasks().take(1, seed=0)
TASK = dataclasses.replace(TASK, ground_truth="6")


class Sampled(TokenCompleter):
    """Says what `policy(prompt_text)` says."""

    def __init__(self, tokenizer, policy=call_then_answer, max_tokens=200):
        self.tokenizer, self.policy, self.most = tokenizer, policy, max_tokens
        self.asked = []

    async def __call__(self, model_input, stop, *, max_tokens=None):
        self.asked.append((model_input.to_ints(), stop, max_tokens))
        said = self.policy(self.tokenizer.decode(model_input.to_ints()))
        ids = [*self.tokenizer.encode(said, add_special_tokens=False), self.tokenizer.eos_token_id]
        most = min(self.most, max_tokens or self.most)
        reason = "stop" if len(ids) <= most else "length"
        ids = ids[:most]
        return TokensWithLogprobs(
            tokens=ids, maybe_logprobs=[-0.5 - n / 64 for n in range(len(ids))], stop_reason=reason
        )


class SamplingClient:
    """The part of Tinker's client that its completer calls."""

    def __init__(self, sampled):
        self.sampled = sampled

    async def sample(self, prompt, num_samples, sampling_params):
        made = await self.sampled(prompt, sampling_params.stop, max_tokens=sampling_params.max_tokens)
        tokens, logprobs = np.array(made.tokens, np.int32), np.array(made.maybe_logprobs, np.float32)
        return tinker.SampleResponse([tinker.SampledSequence(made.stop_reason, "s", tokens, logprobs)])


def builder(**changes):
    given = {"env": "CodeInterpreter-v0", "task": TASK, "tokenizer": str(tiny_policy_path()), "group_size": 2}
    return ToolgymGroupBuilder(**{**given, "max_trajectory_tokens": 2048, **changes})


async def test_an_episode_becomes_one_datum(tokenizer):
    policy = Sampled(tokenizer)
    group = await do_group_rollout(pickle.loads(pickle.dumps(builder(group_size=1))), policy)
    [trajectory] = group.trajectories_G
    assert trajectory.stop_reason == "completed"
    assert [one.reward for one in trajectory.transitions] == [0.0, 1.0]
    assert trajectory.transitions[-1].metrics == {"stop/completed": 1.0, "tool_calls": 1}
    (first, stop, most), (second, _, _) = policy.asked
    assert tokenizer.eos_token_id in stop
    assert most == 2048 - len(first)
    [datum], _ = assemble_training_data([group], compute_advantages([group]))
    answer = [*tokenizer.encode("#### 6"), tokenizer.eos_token_id]
    called = len(tokenizer.encode(CALL.format("print(2*3)"))) + 1
    whole = [*second, *answer]
    mask = [0] * len(first) + [1] * called + [0] * (len(second) - len(first) - called) + [1] * len(answer)
    assert datum.model_input.to_ints() == whole[:-1]
    told = {name: value.tolist() for name, value in datum.loss_fn_inputs.items()}
    assert told["target_tokens"] == whole[1:]
    assert told["mask"] == mask[1:]
    assert told["logprobs"][len(first) - 1] == -0.5
    assert not np.array(told["logprobs"])[np.array(mask[1:]) == 0].any()


async def test_each_step_is_paid_when_it_is_made(tokenizer):
    paid = iter([0.25, 1.0])

    def make():
        import toolgym
        from toolgym.wrappers import Wrapper

        class Paying(Wrapper):
            async def step(self, action):
                return (await super().step(action))._replace(reward=next(paid))

        return Paying(toolgym.make("CodeInterpreter-v0"))

    made = builder(env=make)
    trajectory = await do_single_rollout(Sampled(tokenizer), (await made.make_envs())[0])
    assert [one.reward for one in trajectory.transitions] == [0.25, 1.0]


async def test_what_breaks_is_left_out_of_its_group(tokenizer):
    breaking = iter([RuntimeError("no sandbox")])

    def make():
        import toolgym

        for error in breaking:
            raise error
        return toolgym.make("CodeInterpreter-v0")

    strategy = MinViableGroup(min_successful=1, max_retries=0)
    answers = iter(["#### 6", "#### 7"])
    policy = Sampled(tokenizer, lambda seen: next(answers))
    group = await do_group_rollout_and_filter_constant_reward(
        SamplingClient(policy), builder(env=make, group_size=3), 200, 1.0, True, strategy=strategy
    )
    assert sorted(group.get_total_rewards()) == [0.0, 1.0]
    assert [(one.error_type, one.error_message) for one in group.rollout_errors] == [
        ("EpisodeFailedError", "RuntimeError: no sandbox")
    ]


async def test_its_executor_plays_a_group_on_a_loop_of_its_own(tokenizer):
    answers = iter(["#### 6", "#### 7"])
    policy = Sampled(tokenizer, lambda seen: next(answers))
    with ThreadPoolExecutor(1) as executor:
        set_rollout_executor(executor)
        try:
            group = await do_group_rollout_and_filter_constant_reward(
                SamplingClient(policy), builder(), 200, 1.0, True, enable_logging=False
            )
        finally:
            set_rollout_executor(None)
    assert sorted(group.get_total_rewards()) == [0.0, 1.0]


async def test_a_turn_that_is_cut_ends_the_episode(tokenizer):
    trajectory = await do_single_rollout(Sampled(tokenizer, max_tokens=9), (await builder().make_envs())[0])
    assert (trajectory.stop_reason, len(trajectory.transitions)) == ("max_tokens", 1)
    assert len(trajectory.transitions[0].ac.tokens) == 9


async def test_a_rollout_that_is_given_up_frees_its_env(tokenizer):
    closed = []

    def make():
        import toolgym
        from toolgym.wrappers import Wrapper

        class Closing(Wrapper):
            async def close(self):
                closed.append(self)
                await super().close()

        return Closing(toolgym.make("CodeInterpreter-v0"))

    class Silent(TokenCompleter):
        async def __call__(self, model_input, stop, *, max_tokens=None):
            asked.set()
            await asyncio.Event().wait()

    asked = asyncio.Event()
    rollout = asyncio.create_task(do_group_rollout(builder(env=make, group_size=1), Silent()))
    await asyncio.wait_for(asked.wait(), 60)
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    assert len(closed) == 1


async def test_out_of_order_and_out_of_bounds(tokenizer):
    made = builder(config=RunConfig(limits=EpisodeLimits(engine_timeout=0.05)))
    env, late = await made.make_envs()
    with pytest.raises(EpisodeError, match="no episode waits for a turn"):
        await env.step([1])
    await late.initial_observation()
    with pytest.raises(EpisodeError, match="plays one episode"):
        await late.initial_observation()
    await asyncio.wait([late._playing], timeout=60)
    with pytest.raises(EpisodeFailedError) as failed:
        await late.step([1])
    assert failed.value.stop_reason is StopReason.ENGINE_TIMEOUT
    [env, _] = await builder(max_trajectory_tokens=400).make_envs()
    await env.initial_observation()
    with pytest.raises(ConfigError, match="keep to the env's `rollout_limits`"):
        await env.step([1] * 400)
    await env.close()
    await made.cleanup()
    with pytest.raises(ConfigError, match=r"limits.max_response_tokens must be None"):
        await builder(config=RunConfig(limits=EpisodeLimits(max_response_tokens=9))).make_envs()


async def test_the_data_set():
    given = {"env": "CodeInterpreter-v0", "tokenizer": str(tiny_policy_path()), "max_trajectory_tokens": 2048}
    made = ToolgymDatasetBuilder(num_tasks=5, batch_size=2, group_size=4, num_test_tasks=3, seed=1, **given)
    train, test = await made()
    assert [len(train.get_batch(n)) for n in range(len(train))] == [2, 2, 1]
    assert {one.group_size for one in train.get_batch(0)} == {4}
    assert [one.task_index for one in test.get_batch(0)] == [5, 6]
    assert {one.group_size for one in test.get_batch(1)} == {1}
    assert train.get_batch(0)[0].logging_tags() == ["CodeInterpreter-v0"]
    with pytest.raises(IndexError):
        train.get_batch(3)
    with pytest.raises(ConfigError, match="there are 1 tasks"):
        await ToolgymDatasetBuilder(num_tasks=2, batch_size=2, group_size=4, tasks=[TASK], **given)()
    with pytest.raises(ConfigError, match="group_size=1 trains on nothing"):
        await ToolgymDatasetBuilder(num_tasks=2, batch_size=2, group_size=1, **given)()


def test_its_own_config_takes_the_builder():
    exec(program("tinker-cookbook"), names := {})
    assert names["config"].dataset_builder.group_size == 8
    assert isinstance(names["config"].effective_rollout_strategy(), MinViableGroup)


def policy_tokens(*ids):
    return Segment.policy(ids, [-0.5] * len(ids), ["3"] * len(ids))


TWO = Trajectory(
    id="two", env_id="e", task_id="t", source="", group_id="g", task_index=0, sample_index=0, messages=(), tools=(),
    sequences=(
        TokenSequence(np.array([5, 6]), (policy_tokens(7), policy_tokens(8), Segment.env([9]), policy_tokens(4))),
        TokenSequence(np.array([5]), (policy_tokens(1), Segment.env([2])), "template"),
    ),
    reward=1.0, stop_reason=StopReason.ANSWERED,
)  # fmt: skip


def test_trajectories_played_elsewhere():
    wrong = dataclasses.replace(
        TWO, id="wrong", reward=0.0, sequences=TWO.sequences[1:], stop_reason=StopReason.MAX_TURNS
    )
    broken = dataclasses.replace(TWO, id="broken", reward=0.0, stop_reason=StopReason.SANDBOX_FAILED)
    alone = dataclasses.replace(broken, group_id="h")
    [group] = to_groups([TWO, broken, wrong, alone])
    assert group.get_total_rewards() == [1.0, 0.0]
    assert [one.stop_reason for one in group.trajectories_G] == ["completed", "max_turns"]
    assert [one.error_type for one in group.rollout_errors] == ["sandbox_failed"]
    data, places = assemble_training_data([group], compute_advantages([group]))
    assert [one["traj_idx"] for one in places] == [0, 0, 1]
    assert data[0].model_input.to_ints() == [5, 6, 7, 8, 9]
    told = {name: value.tolist() for name, value in data[0].loss_fn_inputs.items()}
    assert told == {
        "target_tokens": [6, 7, 8, 9, 4], "logprobs": [0, -0.5, -0.5, 0, -0.5], "mask": [0, 1, 1, 0, 1],
        "advantages": [0, 0.5, 0.5, 0, 0.5],
    }  # fmt: skip
    assert [one.loss_fn_inputs["advantages"].tolist() for one in data[1:]] == [[0.5], [-0.5]]
    silent = dataclasses.replace(TWO, sequences=(), stop_reason=StopReason.BUDGET, reward=0.0)
    assert to_groups([silent]) == []
    [group] = to_groups([TWO, silent])
    assert [one.error_type for one in group.rollout_errors] == ["budget"]


def test_without_tinker_cookbook(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tinker_cookbook.completers", None)
    monkeypatch.delitem(sys.modules, "toolgym.rollout.adapters.tinker")
    with pytest.raises(MissingExtraError, match="needs the package 'tinker-cookbook"):
        import toolgym.rollout.adapters.tinker  # noqa: F401
