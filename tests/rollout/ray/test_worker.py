"""What a worker does for its driver, in this process and without Ray."""

from __future__ import annotations

import asyncio
import logging
import pickle

import cloudpickle
import pytest

from tests.rollout.ray.parts import Instant, NimPlayer, make_env, task
from toolgym.envs.library.nim import NimEnv, nim_task
from toolgym.rollout import RayRunner, RolePlan, RunConfig, Runner
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.runner import EnvFactory
from toolgym.rollout.runner.ray.engine import EngineActor
from toolgym.rollout.runner.ray.packing import unpack
from toolgym.rollout.runner.ray.worker import RolloutWorker, WorkerSetup
from toolgym.tools.errors import ConfigError, EngineError


def setup(env=make_env, engine=Instant, **kwargs):
    return cloudpickle.dumps(WorkerSetup(EnvFactory.of(env), engine, **kwargs))


def jobs(*numbers, **execute_kwargs):
    made = [(at, Job(task(at, **execute_kwargs), EpisodeKey(at, 0), f"group {at}", 5)) for at in numbers]
    return pickle.dumps(made)


async def begun(worker, **config):
    await worker.start()
    return await worker.begin(cloudpickle.dumps(RunConfig(max_concurrent=16, **config)), True)


async def collected(worker, count, taken=0, tools=0):
    results, schemas = [], []
    while len(results) < count:
        reply = await worker.collect(taken + len(results), tools + len(schemas))
        assert reply.broken is None
        results += reply.results
        schemas += reply.tools
    return results, schemas, reply


async def test_what_has_finished_is_told_again_until_the_driver_has_it():
    worker = RolloutWorker(setup())
    facts = await begun(worker)
    assert pickle.loads(facts.tokenizer).eos_token_id is not None
    assert facts.roles == {"make_env": ()}
    await worker.add(jobs(0, 1, 2), [])
    await worker.add(jobs(2, 1), [])  # the answer to the first call was lost
    results, tools, reply = await collected(worker, 3)
    assert sorted(number for number, _ in results) == [0, 1, 2]
    again = await worker.collect(2, 0)  # the last one at least is given again, until the driver has it
    assert again.results == results[2:]
    assert again.tools == tools
    assert [unpack(*data, tools, str).task_index for _, data in results] == [number for number, _ in results]
    assert reply.room == 18
    assert reply.metrics["episodes"] == 3
    await worker.close()


async def test_the_end_of_a_run_cancels_its_episodes_and_the_next_one_begins_anew(tmp_path):
    worker, note = RolloutWorker(setup()), tmp_path / "note"
    await begun(worker)
    await worker.add(jobs(0, 1, seconds=600, note=str(note)), [])
    async with asyncio.timeout(60):
        while not note.exists() or len(note.read_text().split("\n")) < 3:
            await asyncio.sleep(0.01)
    await worker.end()
    assert note.read_text().count("cancelled") == 2
    assert await worker.begin(cloudpickle.dumps(RunConfig(training_step=4)), False) is None
    await worker.add(jobs(0), [])
    results, tools, _ = await collected(worker, 1)
    assert unpack(*results[0][1], tools, str).training_step == 4
    await worker.close()


async def test_an_episode_is_cut_while_it_plays_and_before_it_begins(tmp_path):
    worker, note = RolloutWorker(setup()), tmp_path / "note"
    await begun(worker)
    await worker.add(jobs(0, seconds=600, note=str(note)), [])
    async with asyncio.timeout(60):
        while not note.exists():
            await asyncio.sleep(0.01)
    await worker.add(jobs(1, 2), [0, 1])
    results, tools, _ = await collected(worker, 3)
    ends = {number: unpack(*data, tools, str).stop_reason.value for number, data in results}
    assert ends == {0: "straggler", 1: "straggler", 2: "answered"}
    await worker.close()


async def test_what_the_process_logs_as_a_warning_reaches_the_driver():
    worker = RolloutWorker(setup())
    await begun(worker)
    logging.getLogger("toolgym.rollout").info("a detail")
    logging.getLogger("toolgym.rollout").warning("an actor of %d is dead", 2)
    assert (await worker.collect(0, 0)).warnings == ["an actor of 2 is dead"]
    assert (await worker.collect(0, 0, 1)).warnings == []
    await worker.end()
    assert not [one for one in logging.getLogger("toolgym").handlers if type(one).__name__ == "_Warnings"]
    await worker.close()


async def test_an_error_in_the_first_env_ends_the_run():
    worker = RolloutWorker(setup(env=lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        await begun(worker)
    assert await worker.begin(cloudpickle.dumps(RunConfig()), False) is None  # a later worker, which is not asked
    await worker.add(jobs(0), [])
    reply = await worker.collect(0, 0)
    with pytest.raises(ZeroDivisionError):
        raise reply.broken
    await worker.close()


async def test_an_actor_of_something_else_than_an_engine_says_so_and_one_that_does_not_start_is_closed():
    class Broken(Instant):
        closed = 0

        async def start(self):
            raise EngineError("no memory")

        async def close(self):
            Broken.closed += 1

    with pytest.raises(ConfigError, match="a function that makes an Engine, it made 7"):
        await EngineActor(lambda: 7).about()
    with pytest.raises(EngineError, match="no memory"):
        await EngineActor(Broken).about()
    assert Broken.closed == 1


async def test_a_role_with_an_engine_of_its_own_sends_its_texts_and_all_engines_are_closed():
    closed = NimPlayer.closed
    env = EnvFactory.of(NimEnv, roles={"second": RolePlan(engine=NimPlayer)})
    worker = RolloutWorker(setup(env, NimPlayer))
    assert (await begun(worker, seed=3)).roles == {"NimEnv": ("first", "second")}
    await worker.add(pickle.dumps([(0, Job(nim_task(5), EpisodeKey(0, 0), "g", 5))]), [])
    [(number, data)], tools, _ = await collected(worker, 1)
    first, second = (unpack(packed, tools, lambda ids: "decoded here") for packed in data)
    assert (number, first.role, second.role) == (0, "first", "second")
    assert first.prompt_text == "decoded here"
    assert "left" in second.prompt_text
    await worker.close()
    assert NimPlayer.closed == closed + 2


async def test_an_engine_of_a_role_is_made_there_for_a_ray_runner_and_here_for_a_runner():
    with pytest.raises(ConfigError, match="must be made in each worker"):
        RayRunner(EnvFactory.of(NimEnv, roles={"second": RolePlan(engine=Instant())}), "tiny")
    with pytest.raises(ConfigError, match="engine of the RolePlan of 'second' must be an Engine"):
        Runner(EnvFactory.of(NimEnv, roles={"second": RolePlan(engine=Instant)}), Instant())
