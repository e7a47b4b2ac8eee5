"""A curriculum over levels: what moves it, what does not, and its state; with reasoning-gym's curricula as levels."""

from __future__ import annotations

import json
import random

import pytest

from toolgym.envs import ArithmeticTasks
from toolgym.envs.tasks.combined.by_level import ByLevel
from toolgym.envs.tasks.sources import TaskList, from_generator
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError


def level(name, count=3):
    rows = [
        {"prompt": [{"role": "user", "content": f"{name} {n}"}], "extra_info": {"index": f"{name}.{n}", "level": name}}
        for n in range(count)
    ]
    return TaskList(list(map(Task.from_row, rows)))


def made(**options):
    return ByLevel({1: level(1), 2: level(2), 3: level(3)}, **{"window": 2, **options})


def play(source, *rewards):
    """Play a group of one for each reward, and return the level behind each."""
    levels = []
    for reward in rewards:
        [task] = source.take(1, seed=0)
        source.observe(task, [reward])
        levels.append(source.level)
    return levels


def test_it_goes_up_and_down_by_the_mean_of_a_whole_window():
    assert play(made(), 1, 1, 1, 1, 1, 1) == [1, 2, 2, 3, 3, 3]  # no level beyond the last
    assert play(made(), 1, 1, 0, 0, 0, 0) == [1, 2, 2, 1, 1, 1]  # nor before the first
    assert play(made(), 1, 0.5, 1, 0.6) == [1, 1, 1, 2]  # the last two
    assert play(made(lower_at=None), 1, 1, 0, 0, 0) == [1, 2, 2, 2, 2]


def test_a_group_is_its_mean():
    source = made(window=1, raise_at=0.5)
    source.observe(source.take(1)[0], [1.0, 0.0, 0.0])
    assert source.level == 1
    source.observe(source.take(1)[0], [1.0, 0.0])
    assert source.level == 2


def test_results_of_another_level_say_nothing():
    source = made()
    late = source.take(4)
    play(source, 1, 1)
    for task in late:
        source.observe(task, [0.0])
    source.observe(level(2).task(0), [0.0])  # not drawn here
    assert source.level == 2
    assert source.state_dict() == {"level": 2, "recent": []}


def test_each_task_says_its_level_and_is_the_same_otherwise():
    source = made()
    for task in (source.sample(random.Random(0)), *source.take(3)):
        assert task.extra_info["curriculum_level"] == task.extra_info["level"] == 1
        row = task.to_row()
        del row["extra_info"]["curriculum_level"]
        assert row in [one.to_row() for one in level(1)]
    bare = ByLevel({"sums": ArithmeticTasks()}).take(1, seed=1)[0]
    assert bare == ArithmeticTasks().take(1, seed=1)[0]
    assert Task.from_row(json.loads(json.dumps(bare.to_row()))) == bare


def test_places_do_not_depend_on_the_level():
    source = made()
    before = [source.task(n) for n in range(9)]
    play(source, 1, 1)
    assert [source.task(n) for n in range(source.size)] == before
    for index in (9, -1):
        with pytest.raises(IndexError):
            source.task(index)
    endless = ByLevel({1: level(1), 2: ArithmeticTasks()})
    assert endless.size is None
    assert endless.task(3) == ArithmeticTasks().task(0)


def test_its_state_is_json_and_goes_on():
    source, again = made(), made()
    play(source, 1, 1, 1)
    again.load_state_dict(json.loads(json.dumps(source.state_dict())))
    assert play(source, 1, 0.5) == play(again, 1, 0.5) == [3, 3]
    for state, said in (
        ({"level": 7, "recent": []}, "there is no level 7; the levels are 1, 2, 3"),
        ({"level": 1}, "expected a state with level, recent"),
        (None, "expected a state"),
    ):
        with pytest.raises(ConfigError, match=said):
            again.load_state_dict(state)


def test_levels_of_a_column_from_the_easiest():
    mixed = TaskList([level(name).task(n) for n in range(3) for name in ("Level 3", "Level 1")])
    source = ByLevel.of_column(mixed, window=1)
    assert source.level == "Level 1"
    assert {task.extra_info["level"] for task in source.take(3)} == {"Level 1"}
    assert play(source, 1) == ["Level 3"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ByLevel.of_column(level(None)), r"task 'None\.0' \(number 1\): extra_info\.level must be a level"),
        (lambda: ByLevel.of_column(TaskList([level(1).task(0), level("a").task(0)])), "numbers and texts"),
        (lambda: ByLevel({}), "levels must map each level to a TaskSource"),
        (lambda: ByLevel([level(1)]), "levels must map each level to a TaskSource"),
        (lambda: ByLevel({1: [1]}), r"whole numbers or texts to TaskSources, got 1: \[1\]"),
        (lambda: ByLevel({1.5: level(1)}), "whole numbers or texts"),
        (lambda: made(window=0), "window must be a whole number"),
        (lambda: made(lower_at=0.9), "lower_at must be less than raise_at, got 0.9 and 0.8"),
    ],
)
def test_what_is_no_curriculum_is_said(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_levels_of_reasoning_gym():
    reasoning_gym = pytest.importorskip("reasoning_gym")
    from reasoning_gym.factory import create_curriculum

    def chain_sum(at):
        curriculum = create_curriculum("chain_sum")
        curriculum.set_global_level(at)

        def make(rng):
            config = curriculum.generate_configuration({"seed": rng.getrandbits(32), "size": 1})
            [item] = reasoning_gym.create_dataset("chain_sum", **vars(config))
            return {
                "prompt": [{"role": "user", "content": item["question"]}],
                "reward_model": {"style": "rule", "ground_truth": item["answer"]},
                "extra_info": {"metadata": item["metadata"]},
            }

        return from_generator(make)

    source = ByLevel({at: chain_sum(at) for at in range(3)}, window=4)
    seen = []
    for step in range(3):
        tasks = source.take(4, seed=0, training_step=step)
        seen.append({task.extra_info["metadata"]["difficulty"]["num_terms"] for task in tasks})
        for task in tasks:
            source.observe(task, [1.0])
    assert source.level == 2
    assert [sorted(one) for one in seen] == [[(2, 2)], [(2, 3)], [(2, 4)]]


@pytest.mark.parametrize(
    ("columns", "level"),
    [
        ({}, ""),
        ({"level": "Level 5"}, "Level 5"),
        ({"difficulty": 3}, "3"),
        ({"difficulty": None, "level": [1]}, ""),
        ({"level": "easy", "difficulty": 2, "curriculum_level": 7}, "7"),
    ],
)
def test_a_task_has_the_level_that_a_curriculum_or_its_data_set_names(columns, level):
    row = {"prompt": [{"role": "user", "content": "6 * 7?"}], "extra_info": columns}
    assert Task.from_row(row).level == level
