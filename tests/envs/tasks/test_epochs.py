"""Epochs with a position: each task once in an epoch, in steps of any size, before and after a checkpoint."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgym.envs import ArithmeticTasks
from toolgym.envs.tasks.epochs import TaskEpochs
from toolgym.envs.tasks.sources import TaskList
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError


def listed(count):
    return TaskList([Task(({"role": "user", "content": str(n)},), id=str(n)) for n in range(count)])


@given(st.integers(1, 9), st.lists(st.integers(0, 12), max_size=6), st.integers(0, 3) | st.none())
def test_steps_of_any_size_with_a_checkpoint_between_each_are_one_walk(count, steps, seed):
    whole = [task.id for task in TaskEpochs(listed(count), seed=seed).take(sum(steps))]
    walked, state = [], TaskEpochs(listed(count), seed=seed).state_dict()
    for step in steps:
        epochs = TaskEpochs(listed(count), seed=seed)
        epochs.load_state_dict(json.loads(json.dumps(state)))
        walked += [task.id for task in epochs.take(step)]
        state = epochs.state_dict()
    assert walked == whole
    assert state["position"] == sum(steps)
    for epoch in range(len(whole) // count):
        assert sorted(whole[epoch * count : (epoch + 1) * count], key=int) == [str(n) for n in range(count)]


def test_what_an_env_draws_moves_nothing():
    epochs = TaskEpochs(listed(4))
    assert epochs.sample(random.Random(0)).id in "0123"
    assert (epochs.task(2).id, epochs.size, epochs.position) == ("2", 4, 0)
    assert [task.id for task in epochs.take(6)] == ["0", "1", "2", "3", "0", "1"]
    assert epochs.epoch == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"position": 3, "seed": 2, "size": 4}, "belongs to seed 2, and here it is 1"),
        ({"position": 3, "seed": 1, "size": 5}, "belongs to size 5, and here it is 4"),
        ({"position": -1, "seed": 1, "size": 4}, "position must be a whole number"),
        ({"position": 3}, "expected a state with position, seed, size"),
        ([], "expected a state"),
    ],
)
def test_a_position_of_other_data_is_refused(state, said):
    with pytest.raises(ConfigError, match=said):
        TaskEpochs(listed(4), seed=1).load_state_dict(state)


def test_what_has_no_end_has_no_epochs():
    with pytest.raises(ConfigError, match="a source whose tasks have places"):
        TaskEpochs(ArithmeticTasks())
    with pytest.raises(ConfigError, match="seed"):
        TaskEpochs(listed(2), seed="x")
