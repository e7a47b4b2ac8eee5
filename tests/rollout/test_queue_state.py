"""A queue that continues after a stop: what the trainer has consumed is saved, and no task is lost or repeated."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.parameters import first
from tests.rollout.test_rollout_queue import Held, queue_of, tasks
from toolgym.envs import ArithmeticTasks, TaskEpochs, TaskList, ToolEnv, write_tasks
from toolgym.envs.tasks.combined.by_level import ByLevel
from toolgym.envs.tasks.combined.mixture import Mixture
from toolgym.envs.tasks.sources import from_generator
from toolgym.envs.tasks.task import Task
from toolgym.rollout import GroupPlan, RolloutQueue, RunConfig, Runner, SamplingParams, rollout
from toolgym.rollout.engines.base import FinishReason, Generation
from toolgym.tools.errors import ConfigError

COUNT = 16


class Uneven(Held):
    """Answers each request after a few turns of the event loop, drawn from a seed."""

    def __init__(self, tokenizer, seed):
        super().__init__(tokenizer)
        self.random = random.Random(seed)

    async def _generate(self, request):
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)
        ids, versions = [*self.tokenizer.encode("done")[:1], self.tokenizer.eos_token_id], [self.weight_version] * 2
        return Generation(tuple(ids), (-0.5, -0.5), FinishReason.STOP, tuple(versions))


def numbered(rng):
    number = rng.randrange(10**9)
    return {"prompt": [{"role": "user", "content": f"question {number}"}], "extra_info": {"index": number}}


def named(prefix, count):
    return [replace(task, id=f"{prefix}{task.id}") for task in tasks(count)]


class Observing(TaskList):
    """Remembers the tasks whose rewards it got."""

    def __init__(self, listed):
        super().__init__(listed)
        self.observed = []

    def observe(self, task, rewards):
        self.observed.append(task.id)

    def state_dict(self):
        return {"observed": list(self.observed)}

    def load_state_dict(self, state):
        self.observed = list(state["observed"])


SOURCES = {
    "a generator": lambda: iter(tasks(COUNT)),
    "TaskList": lambda: TaskList(tasks(COUNT)),
    "TaskEpochs": lambda: TaskEpochs(TaskList(tasks(COUNT)), seed=3),
    "Mixture": lambda: Mixture({"a": TaskList(named("a", 20)), "b": TaskEpochs(TaskList(named("b", 20)), seed=3)}),
    "ByLevel": lambda: ByLevel({1: TaskEpochs(TaskList(named("a", 40))), 2: TaskList(named("b", 40))}, window=8),
    "from_generator": lambda: from_generator(numbered),
    "a list": lambda: tasks(COUNT),
}


def env():
    return ToolEnv([], tasks(1), scorer=lambda outcome: 1.0)


def made_queue(engine, source, **kwargs):
    config = RunConfig(group_size=2, seed=1, sampling=SamplingParams(max_new_tokens=20))
    kwargs = {"batch_size": 4, "max_staleness": 2, "num_tasks": COUNT, **kwargs}
    return RolloutQueue(Runner(env, engine, config=config), source, **kwargs)


async def next_batch(queue):
    """Wait until all groups in flight have finished, so that none of them gets too stale, and take a batch."""
    await asyncio.sleep(0)
    while queue.metrics()["queue/groups_playing"]:
        await asyncio.sleep(0)
    return await anext(queue, None)


async def consume(queue, batches=None):
    """Train on some batches; return the tasks that were consumed, by number, and the state after the last of them."""
    consumed, state, number = {}, None, 0
    async with queue:
        while batch := await next_batch(queue):
            for trajectory in batch:
                seeds = tuple(turn.seed for turn in trajectory.turns)
                consumed.setdefault(trajectory.task_index, []).append((trajectory.task_id, seeds))
            number += 1
            await queue.update_weights({}, version=f"{id(queue)}-{number}")
            state = json.loads(json.dumps(queue.state_dict()))
            if number == batches:
                for _ in range(random.Random(number).randrange(40)):  # in the meantime the queue plays ahead
                    await asyncio.sleep(0)
                break
    return consumed, state


@first("source", SOURCES, short=4)
async def test_stops_lose_and_repeat_no_task(tokenizer, source):
    make = SOURCES[source]
    whole, _ = await consume(made_queue(Uneven(tokenizer, 0), make()))
    assert sorted(whole) == list(range(COUNT))
    assert all(len(members) == 2 for members in whole.values())
    consumed, state = {}, None
    for batches in (1, 2, 1, None):
        queue = made_queue(Uneven(tokenizer, batches or 9), make())
        if state is not None:
            queue.load_state_dict(state)
        part, state = await consume(queue, batches)
        assert consumed.keys().isdisjoint(part)
        consumed |= part
    assert consumed == whole


async def test_a_group_that_later_groups_overtook_is_played_after_a_stop(tokenizer):
    async with queue_of(Held(tokenizer, held={1}), max_staleness=2) as queue:
        batch = await anext(queue)
        state = json.loads(json.dumps(queue.state_dict()))
    assert [trajectory.task_index for trajectory in batch] == [0, 2]
    assert (state["settled"], state["ahead"]) == (1, [2])
    later = queue_of(Held(tokenizer), max_staleness=2)
    later.load_state_dict(state)
    async with later:
        batch = await anext(later)
    assert [(trajectory.task_index, trajectory.task_id) for trajectory in batch] == [(1, "1"), (3, "3")]


async def test_the_queue_draws_the_tasks_that_rollout_draws(scripted, tokenizer):
    played = await rollout(
        env, scripted(lambda *_: "done"), TaskList(tasks(COUNT)), num_tasks=4,
        config=RunConfig(seed=1, training_step=2),
    )  # fmt: skip
    config = RunConfig(seed=1, training_step=2, sampling=SamplingParams(max_new_tokens=20))
    runner = Runner(env, Uneven(tokenizer, 0), config=config)
    async with RolloutQueue(runner, TaskList(tasks(COUNT)), batch_size=4, max_staleness=0) as queue:
        batch = await anext(queue)
    assert [trajectory.task_id for trajectory in batch] == [trajectory.task_id for trajectory in played]


async def test_a_source_gets_the_rewards_of_each_group_once(tokenizer):
    state, source = None, None
    for batches in (2, 1, None):
        source = Observing(tasks(COUNT))
        queue = made_queue(Uneven(tokenizer, 3), source)
        if state is not None:
            queue.load_state_dict(state)
        _, state = await consume(queue, batches)
    assert sorted(source.observed) == sorted(task.id for task in tasks(COUNT))


async def test_groups_that_were_filtered_or_dropped_are_not_played_again(tokenizer):
    def keep(group):
        return int(group[0].task_id) % 3 != 0

    queue = made_queue(Uneven(tokenizer, 0), tasks(COUNT), plan=GroupPlan(keep=keep))
    consumed, state = await consume(queue, 2)
    later = made_queue(Uneven(tokenizer, 1), tasks(COUNT), plan=GroupPlan(keep=keep))
    later.load_state_dict(state)
    rest, _ = await consume(later)
    assert sorted([*consumed, *rest]) == [number for number in range(COUNT) if number % 3]
    assert later.skipped_tasks == {}  # the plan refused the groups; none was too stale


async def test_a_task_that_was_skipped_is_named_after_a_stop_too(tokenizer):
    engine = Held(tokenizer, held={0})
    async with queue_of(engine, 8) as queue:
        seen = []
        for step in range(3):
            seen += [trajectory.task_index for trajectory in await anext(queue)]
            await queue.update_weights({}, version=str(step))
        await engine.let_go(0)  # too stale by now
        seen += [trajectory.task_index for trajectory in await anext(queue)]
        state = json.loads(json.dumps(queue.state_dict()))
    assert sorted(seen) == list(range(1, len(seen) + 1))
    assert (state["settled"], state["skipped"]) == (len(seen) + 1, [[0, "0"]])
    later = queue_of(Held(tokenizer), 9)
    later.load_state_dict(json.loads(json.dumps({**state, "tasks": {**state["tasks"], "size": 9}})))
    assert later.skipped_tasks == {0: "0"}
    async with later:
        assert next(iter(await anext(later))).task_index == len(seen) + 1
        assert later.metrics()["queue/tasks_skipped"] == 1
        assert later.metrics()["queue/groups_dropped"] == 0


async def test_a_config_without_a_seed_takes_the_seed_of_the_state(tokenizer):
    def unseeded(seed=None):
        config = RunConfig(seed=seed, sampling=SamplingParams(max_new_tokens=20))
        runner = Runner(env, Uneven(tokenizer, 0), config=config)
        return RolloutQueue(runner, TaskList(tasks(COUNT)), batch_size=4, num_tasks=COUNT)

    consumed, state = await consume(unseeded(), 3)
    later = unseeded()
    later.load_state_dict(state)
    rest, _ = await consume(later)
    ids = [task for part in (consumed, rest) for members in part.values() for task, _ in members]
    assert sorted(ids, key=int) == [task.id for task in tasks(COUNT)]
    with pytest.raises(ConfigError, match="the saved state has seed"):
        unseeded(seed=4).load_state_dict(state)


@pytest.mark.parametrize(
    ("source", "kwargs", "message"),
    [
        (tasks(COUNT), {}, "is of 'a source with places'"),
        (TaskList(tasks(5)), {}, "has size 16, and this queue has 5"),
    ],
)
async def test_a_state_of_other_tasks_is_refused(tokenizer, source, kwargs, message):
    state = made_queue(Uneven(tokenizer, 0), TaskList(tasks(COUNT))).state_dict()
    with pytest.raises(ConfigError, match=message):
        made_queue(Uneven(tokenizer, 0), source, **kwargs).load_state_dict(state)


async def test_a_state_is_loaded_before_the_queue_is_opened(tokenizer):
    queue = made_queue(Uneven(tokenizer, 0), tasks(4))
    state = queue.state_dict()
    with pytest.raises(ConfigError, match="expected a state of RolloutQueue"):
        queue.load_state_dict({"position": 3})
    async with queue:
        with pytest.raises(ConfigError, match="before `async with`"):
            queue.load_state_dict(state)


async def test_a_task_that_is_not_json_cannot_be_saved_and_is_named(tokenizer):
    source = from_generator(lambda rng: Task(({"role": "user", "content": "hi"},), ground_truth=object(), id="odd"))
    queue = made_queue(Uneven(tokenizer, 0), source)
    async with queue:
        await anext(queue)
        with pytest.raises(ConfigError, match="task 'odd' cannot be saved"):
            queue.state_dict()


# ---------------------------------------------------------------------- kill -9


TRAINER = """
import asyncio, json, os, sys
from tests.rollout.test_queue_state import Uneven, env, next_batch
from toolgym.envs import TaskEpochs, from_jsonl
from toolgym.rollout import RolloutQueue, RunConfig, Runner, SamplingParams, load_tokenizer, tiny_policy_path

folder, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

async def main():
    source = from_jsonl(folder + "/tasks.jsonl")
    source = TaskEpochs(source, seed=2) if kind == "epochs" else source
    checkpoint = folder + "/checkpoint.json"
    saved = json.load(open(checkpoint)) if os.path.exists(checkpoint) else {"trained": [], "step": 0}
    config = RunConfig(group_size=2, seed=1, sampling=SamplingParams(max_new_tokens=20))
    runner = Runner(env, Uneven(load_tokenizer(tiny_policy_path()), os.getpid()), config=config)
    queue = RolloutQueue(runner, source, batch_size=4, max_staleness=2, num_tasks=count)
    if "queue" in saved:
        queue.load_state_dict(saved["queue"])
    async with queue:
        while batch := await next_batch(queue):
            saved["trained"] += [trajectory.task_id for trajectory in batch[::2]]
            saved["step"] += 1
            await queue.update_weights({}, version=f"{os.getpid()}-{saved['step']}")
            saved["queue"] = queue.state_dict()
            with open(checkpoint + ".new", "w") as file:
                json.dump(saved, file)
            os.replace(checkpoint + ".new", checkpoint)
            print(saved["step"], flush=True)
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["places", "epochs"])
def test_ten_kills_of_a_training_lose_and_repeat_no_task(tmp_path, kind):
    count, kills, rng = 240, 10, random.Random(5)
    listed = [replace(task, id=str(n)) for n, task in enumerate(ArithmeticTasks().take(count, seed=9))]
    write_tasks(tmp_path / "tasks.jsonl", listed)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", TRAINER, str(tmp_path), kind, str(count)]
    for _ in range(kills):
        with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE) as trainer:
            for _ in range(rng.randrange(1, 5)):
                assert trainer.stdout.readline()
            trainer.send_signal(signal.SIGKILL)
    subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL)
    trained = json.loads((tmp_path / "checkpoint.json").read_text())["trained"]
    assert sorted(trained, key=int) == [str(number) for number in range(count)]
