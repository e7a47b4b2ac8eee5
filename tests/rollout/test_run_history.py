"""Warnings about several runs of one engine: a seed that is used again, and steps without a signal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.rollout import RunConfig, rollout
from toolgym.rollout.runner.base import Delivery, RunnerProtocol
from toolgym.tools.message import user

TASKS = [Task((user(f"question {number}"),), id=str(number)) for number in range(3)]
CALL = f"<tool_call>\n{json.dumps({'name': 'calculator', 'arguments': {}})}\n</tool_call>"


@pytest.fixture
def warnings(caplog):
    def texts(part):
        return [record.message for record in caplog.records if part in record.message]

    return texts


async def run(engine, step, scorer=lambda outcome: 0.0, **config):
    config = RunConfig(**{"group_size": 2, "training_step": step, "seed": 1, **config})
    return await rollout(lambda: ToolEnv([], TASKS, scorer=scorer, max_turns=2), engine, TASKS, config=config)


async def test_two_steps_without_a_signal_say_why_once(scripted, warnings):
    engine = scripted(lambda *_: CALL)
    await run(engine, 0)
    assert not warnings("Nothing can be learnt")
    for step in (1, 2, 3):
        await run(engine, step)
    [text] = warnings("Nothing can be learnt")
    assert "2 steps with 12 episodes" in text
    assert "Every reward is 0." in text
    assert "tool calls are of 'calculator', a tool that the env does not have" in text
    assert "12 episodes ended with max_turns" in text


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        (lambda outcome: float(outcome.task.id), "Rewards differ between tasks (0 to 2), not within a group."),
        (lambda outcome: 1 / 0 if outcome.task.id != "0" else 0.5, "8 episodes failed, 8 of them with score_failed."),
    ],
)
async def test_the_reason_is_named(scripted, warnings, scorer, said):
    engine = scripted(lambda *_: "done")
    for step in range(2):
        await run(engine, step, scorer)
    [text] = warnings("Nothing can be learnt")
    assert said in text


async def test_one_signal_validation_and_single_episodes_say_nothing(scripted, warnings):
    rewards = iter([0.0, 1.0, *[0.0] * 100])
    with_signal, validating, single = (scripted(lambda *_: "done") for _ in range(3))
    for step in range(3):
        await run(with_signal, step, lambda outcome: next(rewards))
        await run(validating, step, validate=True)
        await run(single, step, group_size=1)
    assert not warnings("Nothing can be learnt")


class FarRunner(RunnerProtocol):
    """A runner that has no engine in this process, with finished trajectories."""

    def __init__(self, trajectories, **config):
        self.trajectories, self.config = trajectories, RunConfig(**config)

    async def stream(self, tasks=(), **kwargs):
        delivery = Delivery(self, (), print)
        for trajectory in self.trajectories:
            delivery.add(trajectory)
            yield trajectory
        delivery.end()


async def test_a_runner_without_an_engine_warns_once_too(scripted, warnings):
    group = await run(scripted(lambda *_: "done"), 0)
    runner, validating = FarRunner(group, seed=1), FarRunner(group, seed=1, validate=True)
    for step in range(3):
        runner.config = replace(runner.config, training_step=step)
        assert len(warnings("Nothing can be learnt")) == (step == 2)
        await runner.run(())
        await validating.run(())
    assert runner.history is not validating.history
    assert not warnings("the same sampling seeds")


async def test_a_seed_without_a_training_step_is_named_at_the_third_run(scripted, warnings):
    engine = scripted(lambda *_: "done")
    for count in range(4):
        assert len(warnings("the same sampling seeds")) == (count == 3)
        await run(engine, 0)
    [text] = warnings("the same sampling seeds")
    assert "3 runs of this engine or runner had seed 1 and training step 0" in text


async def test_a_seed_of_other_weights_is_named_at_once_and_counting_up_is_silent(scripted, warnings):
    counted, repeated = scripted(lambda *_: "done"), scripted(lambda *_: "done")
    for step in range(4):
        await run(counted, step)
        await run(counted, 0, seed=None)
        await run(counted, 0, validate=True)
    assert not warnings("the same sampling seeds")
    for version in ("a", "b"):
        repeated.version = version
        await run(repeated, 0)
    assert "2 runs of this engine" in warnings("the same sampling seeds")[0]
