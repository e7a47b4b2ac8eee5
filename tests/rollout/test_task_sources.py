"""Sources of tasks through the runner: files, epochs that go on where a run ended, curricula that hear of rewards."""

from __future__ import annotations

import json

import pytest

from toolgym.envs import ToolEnv
from toolgym.envs.tasks.combined.by_level import ByLevel
from toolgym.envs.tasks.epochs import TaskEpochs
from toolgym.envs.tasks.sources import TaskList, from_generator
from toolgym.envs.tasks.stored import from_jsonl, from_parquet
from toolgym.envs.tasks.task import Task
from toolgym.envs.tasks.writing import write_tasks
from toolgym.rollout import RunConfig, Runner, SamplingParams, rollout
from toolgym.rollout.runner import GroupScheduler
from toolgym.tools.errors import EngineError


def tasks(count):
    rows = [{"prompt": [{"role": "user", "content": f"q{n}"}], "extra_info": {"index": n}} for n in range(count)]
    return list(map(Task.from_row, rows))


def score(outcome):
    return float(outcome.final_text) if outcome.final_text.isdecimal() else 0.0


def env(source=None):
    return ToolEnv([], source or tasks(1), scorer=score)


def config(**kwargs):
    return RunConfig(**{"seed": 1, "sampling": SamplingParams(max_new_tokens=50), **kwargs})


def asked(prompt):
    return prompt.rpartition("user\n")[2].partition("<")[0]


def ids(trajectories):
    return [one.task_id for one in trajectories]


class Observed(TaskList):
    """Tasks that remember what was made of them."""

    def __init__(self, tasks):
        super().__init__(tasks)
        self.seen = []

    def observe(self, task, rewards):
        self.seen.append((task.id, list(rewards)))


@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.parquet"])
async def test_files_that_are_not_read_whole_are_played_as_lists_are(scripted, tmp_path, name):
    path = tmp_path / name
    write_tasks(path, tasks(7))
    source = (from_jsonl if path.suffix == ".jsonl" else from_parquet)(path)
    played = []
    for one in (source, TaskList(tasks(7))):
        runs = [await rollout(env, scripted(lambda *_: "1"), one, num_tasks=4, config=config(training_step=step))
                for step in (0, 1)]  # fmt: skip
        played.append(ids(runs[0] + runs[1]))
    assert played[0] == played[1]
    assert len(set(played[0][:7])) == 7  # the first epoch has each once


async def test_epochs_go_on_where_a_run_ended_also_in_another_process(scripted):
    source = TaskEpochs(TaskList(tasks(10)), seed=3)
    engine = scripted(lambda *_: "1")
    first = ids(await rollout(env, engine, source, num_tasks=4, config=config()))
    state = json.loads(json.dumps(source.state_dict()))
    then = ids(await rollout(env, engine, source, num_tasks=6, config=config()))
    assert sorted(map(int, first + then)) == list(range(10))
    again = TaskEpochs(TaskList(tasks(10)), seed=3)
    again.load_state_dict(state)
    assert ids(await rollout(env, engine, again, num_tasks=6, config=config(seed=9, training_step=7))) == then
    assert (again.epoch, again.position) == (1, 10)


async def test_a_source_hears_of_each_group_in_the_order_of_the_tasks(scripted):
    def script(prompt, request_id):
        answered.append(asked(prompt))
        if asked(prompt) == "q1":
            return EngineError("gone") if answered.count("q1") == 2 else "5"
        if asked(prompt) == "q2":
            return EngineError("gone")
        return 0.05 if asked(prompt) == "q0" else str(len(answered) % 2)

    answered = []
    source = Observed(tasks(4))
    trajectories = await rollout(env, scripted(script), source, num_tasks=4, config=config(group_size=2, seed=None))
    by_task = {}
    for one in trajectories:
        if one.in_group_statistics:
            by_task.setdefault(one.task_id, []).append(one.reward)
    assert source.seen == list(by_task.items())
    assert {id: len(rewards) for id, rewards in source.seen} == {"0": 2, "1": 1, "3": 2}


async def test_the_source_of_the_env_hears_too_but_not_of_a_validation(scripted):
    source = Observed(tasks(2))
    engine = scripted(lambda *_: "1")
    for validate in (False, True):
        await rollout(lambda: env(source), engine, num_tasks=2, config=config(validate=validate))
    assert len(source.seen) == 2


async def test_a_run_of_several_groups_at_once_teaches_as_one_after_the_other(scripted):
    def script(prompt, request_id):
        return {"q0": 0.03, "q1": 0.01}.get(asked(prompt), "2")

    seen = []
    for most in (1, 8):
        source = Observed(tasks(5))
        await rollout(env, scripted(script), source, num_tasks=5, config=config(group_size=2, max_concurrent=most))
        seen.append(source.seen)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 5


async def test_a_runner_by_hand_tells_a_source(scripted):
    source = Observed(tasks(3))
    run = config(group_size=2)
    runner = Runner(env, scripted(lambda *_: "1"), config=run)
    async for _ in runner.stream(GroupScheduler(source.take(3), run, observe=source.observe)):
        pass
    assert source.seen == [(str(n), [1.0, 1.0]) for n in range(3)]


async def test_a_source_that_breaks_ends_the_run_and_says_why(scripted):
    class Broken(TaskList):
        def observe(self, task, rewards):
            raise RuntimeError("a bug of the curriculum")

    with pytest.raises(RuntimeError, match="a bug of the curriculum"):
        await rollout(env, scripted(lambda *_: "1"), Broken(tasks(3)), num_tasks=3, config=config())


async def test_a_curriculum_goes_up_with_a_policy_that_solves_and_goes_on_after_a_checkpoint(scripted):
    """The policy solves all of level 1 and half of level 2, and nothing of level 3."""

    def policy(prompt, request_id):
        level = int(asked(prompt)[1])
        asked_for.append(level)
        return str(int(level == 1 or (level == 2 and len(asked_for) % 2)))

    asked_for = []
    rows = [
        {
            "prompt": [{"role": "user", "content": f"L{level} {n}"}],
            "extra_info": {"index": f"{level}.{n}", "level": level},
        }
        for n in range(6)
        for level in (3, 1, 2)
    ]

    def curriculum():
        return ByLevel.of_column(TaskList(list(map(Task.from_row, rows))), window=4, raise_at=0.5, lower_at=0.1)

    source, levels = curriculum(), []
    engine = scripted(policy)
    for step in range(4):
        levels.append(source.level)
        played = await rollout(
            env, engine, source, num_tasks=4, config=config(group_size=2, training_step=step, max_concurrent=1)
        )
        assert {one.task_id.partition(".")[0] for one in played} == {str(levels[-1])}
        if step == 1:
            saved = json.loads(json.dumps(source.state_dict()))
    assert levels == [1, 2, 3, 2]
    again = curriculum()
    again.load_state_dict(saved)
    assert again.level == 3
    assert again.take(4, seed=1, training_step=2) == curriculum_at(curriculum(), 3).take(4, seed=1, training_step=2)


def curriculum_at(source, level):
    source.load_state_dict({"level": level, "recent": []})
    return source


async def test_a_generator_is_played(scripted):
    source = from_generator(lambda rng: {"prompt": [{"role": "user", "content": f"q{rng.randrange(10**9)}"}]})
    first, again = [
        await rollout(env, scripted(lambda *_: "1"), source, num_tasks=3, config=config()) for _ in range(2)
    ]
    assert [one.messages[0] for one in first] == [one.messages[0] for one in again]
