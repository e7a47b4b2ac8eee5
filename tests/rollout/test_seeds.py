"""Which tasks a run draws and which seeds it samples with: by seed and training step, and known afterwards."""

from __future__ import annotations

import dataclasses

import pytest

from toolgym.envs import ArithmeticTasks, TaskList, ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, Runner, SamplingParams, replay, rollout
from toolgym.rollout.recording import recorded
from toolgym.tools.errors import ConfigError


def listed(count=10):
    return [Task(({"role": "user", "content": f"question {n}"},), id=str(n)) for n in range(count)]


def env():
    return ToolEnv([], ArithmeticTasks())


async def played(scripted, source=None, num_tasks=4, **config):
    """The ids of the tasks, the sampling seeds as the engine got them, and the trajectories of a run."""
    engine = scripted(lambda *_: "done")
    config = RunConfig(sampling=SamplingParams(max_new_tokens=20), group_size=2, **config)
    done = await rollout(env, engine, source, num_tasks=num_tasks, config=config)
    seeds = [engine.seen[f"{one.id}-0"][1].seed for one in done]
    assert seeds == [one.turns[0].seed for one in done]
    return [one.task_id for one in done[::2]], seeds, done


SOURCES = {"generated": lambda: None, "given": ArithmeticTasks, "a list": lambda: TaskList(listed(1000))}
"""So many tasks in each that two runs do not draw the same ones by chance."""


@pytest.mark.parametrize("source", SOURCES)
async def test_the_same_seed_and_step_repeat_tasks_and_sampling_and_another_step_gives_others(scripted, source):
    runs = {
        (seed, step): await played(scripted, SOURCES[source](), seed=seed, training_step=step)
        for seed in (0, 7) for step in (0, 1, 2)
    }  # fmt: skip
    again = await played(scripted, SOURCES[source](), seed=7, training_step=2)
    assert again[:2] == runs[7, 2][:2]
    assert len({tuple(tasks) for tasks, _, _ in runs.values()}) == 6
    assert len({seed for _, seeds, _ in runs.values() for seed in seeds}) == 6 * 8
    assert {one.training_step for one in again[2]} == {2}


@pytest.mark.parametrize("source", SOURCES)
async def test_without_a_seed_each_run_differs_and_can_be_repeated(scripted, source):
    one, other = [await played(scripted, SOURCES[source](), training_step=3) for _ in range(2)]
    assert one[0] != other[0]
    assert set(one[1]).isdisjoint(other[1])
    [seed] = {trajectory.sampling["seed"] for trajectory in one[2]}
    [step] = {trajectory.training_step for trajectory in one[2]}
    assert (await played(scripted, SOURCES[source](), seed=seed, training_step=step))[:2] == one[:2]


async def test_one_runner_without_a_seed_never_repeats_itself(scripted):
    runner = Runner(env, scripted(lambda *_: "done"))
    seeds = [one.turns[0].seed for _ in range(3) for one in await runner.run(listed(2))]
    assert len(set(seeds)) == 6


async def test_to_validate_is_to_draw_the_same_tasks_at_every_step(scripted):
    runs = [await played(scripted, seed=1, training_step=step, validate=True) for step in (0, 5)]
    assert runs[0][0] == runs[1][0]
    assert runs[0][1] != runs[1][1]


@pytest.mark.parametrize("source", SOURCES)
async def test_validation_shares_neither_tasks_nor_sampling_seeds_with_training(scripted, source):
    trained = [await played(scripted, SOURCES[source](), seed=1, training_step=step) for step in (0, 1)]
    tasks, seeds, _ = await played(scripted, SOURCES[source](), seed=1, validate=True)
    for train_tasks, train_seeds, _ in trained:
        assert set(tasks).isdisjoint(train_tasks)
        assert set(seeds).isdisjoint(train_seeds)


async def test_validation_has_its_own_sampling_and_the_record_says_which_it_was(scripted, tmp_path, tokenizer):
    own = SamplingParams(max_new_tokens=7, temperature=0.0)
    given = {"sampling": SamplingParams(max_new_tokens=20, top_p=0.9), "seed": 1}
    for config, expected in [
        (RunConfig(**given, validation_sampling=own), given["sampling"]),
        (RunConfig(**given, validation_sampling=own, validate=True), own),
        (RunConfig(**given, validate=True), given["sampling"]),
    ]:
        engine = scripted(lambda *_: "done")
        with recorded(Runner(env, engine, config=config), listed(1), tmp_path / f"{id(config)}.jsonl") as runner:
            [one] = await runner.run(listed(1))
        [(_, sent)] = engine.seen.values()
        for name in ("max_new_tokens", "temperature", "top_p"):
            assert getattr(sent, name) == getattr(expected, name) == one.sampling[name]
        assert one.validate == config.validate
        assert sent.seed == one.turns[0].seed
        assert (await replay(tmp_path / f"{id(config)}.jsonl", tokenizer, env=env)).equal


@pytest.mark.parametrize("wrong", [{"temperature": 0}, 0.0, SamplingParams(max_new_tokens=4, seed=5)])
def test_a_wrong_validation_sampling_is_refused(wrong):
    with pytest.raises(ConfigError, match="validation_sampling"):
        RunConfig(validation_sampling=wrong)


async def test_a_sequence_goes_on_where_the_step_before_ended(scripted):
    steps = [(await played(scripted, listed(5), num_tasks=3, training_step=step))[0] for step in range(3)]
    assert steps == [["0", "1", "2"], ["3", "4", "0"], ["1", "2", "3"]]
    assert (await played(scripted, listed(2), num_tasks=3))[0] == ["0", "1"]


@pytest.mark.parametrize("seed", [0, 5, -5])
def test_a_list_is_gone_through_whole_before_a_task_comes_again(seed):
    source = TaskList(listed(5))
    ids = [task.id for step in range(5) for task in source.take(3, seed=seed, training_step=step)]
    laps = [ids[start : start + 5] for start in (0, 5, 10)]
    assert [sorted(lap) for lap in laps] == [list("01234")] * 3
    assert laps[0] != laps[1]
    assert [task.id for task in source.take(12, seed=seed)] == (ids + ids)[:12]


@pytest.mark.parametrize("seed", [None, 3])
def test_steps_of_any_size_play_each_task_once_an_epoch(seed):
    def taken(source, step, count):
        return [task.id for task in source.take(count, seed=seed, training_step=step)]

    source, sizes = TaskList(listed(10)), [8, 4, 8]
    steps = [taken(source, step, count) for step, count in enumerate(sizes)]
    epochs = [*steps[0], *steps[1], *steps[2]]
    assert sorted(epochs[:10]) == sorted(epochs[10:]) == sorted(map(str, range(10)))
    assert [taken(source, step, count) for step, count in enumerate(sizes)] == steps  # a step again is the same step
    assert taken(source, 1, 4) == steps[1]
    assert taken(source, 5, 2) == taken(TaskList(listed(10)), 12, 2)  # of steps that it has not seen it knows nothing
    assert taken(TaskList(listed(10)), 2, 8) == [task.id for task in TaskList(listed(10)).take(24, seed=seed)][16:]


async def test_rollouts_of_any_size_play_each_task_once_an_epoch(scripted):
    source, sizes = TaskList(listed(10)), [8, 4, 8]
    ids = []
    for step, count in enumerate(sizes):
        ids += (await played(scripted, source, num_tasks=count, seed=1, training_step=step))[0]
        await played(scripted, source, num_tasks=3, seed=1, training_step=step, validate=True)
    assert sorted(ids[:10]) == sorted(ids[10:]) == sorted(map(str, range(10)))


def test_negative_seeds_are_seeds_of_their_own():
    source = TaskList(listed(50))
    assert source.take(50, seed=5) != source.take(50, seed=-5)


def test_a_seed_of_the_sampling_would_be_the_same_for_a_whole_group_and_is_refused():
    with pytest.raises(ConfigError, match=r"give RunConfig\(seed=5\)"):
        RunConfig(sampling=SamplingParams(max_new_tokens=4, seed=5))


@pytest.mark.parametrize("seed", [None, 4])
async def test_a_recorded_step_is_replayed_with_its_seeds(scripted, tokenizer, tmp_path, seed):
    config = RunConfig(sampling=SamplingParams(max_new_tokens=20), group_size=2, seed=seed, training_step=6)
    with recorded(Runner(env, scripted(lambda *_: "done"), config=config), listed(2), tmp_path / "run.jsonl") as runner:
        done = await runner.run(listed(2))
    for given in (None, dataclasses.replace(config, seed=None)):
        result = await replay(tmp_path / "run.jsonl", tokenizer, env=env, config=given)
        assert (result.compared, result.differences, result.misses) == (4, [], [])
        assert [one.turns[0].seed for one in result.trajectories] == [one.turns[0].seed for one in done]
        assert {one.training_step for one in result.trajectories} == {6}
