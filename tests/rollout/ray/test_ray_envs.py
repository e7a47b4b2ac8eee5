"""Mixtures, and envs with several roles, on several processes: played as on one."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.ray_cluster import cluster
from tests.rollout.ray.parts import Instant, NimPlayer
from toolgym.envs import Task, TaskList, ToolEnv
from toolgym.envs.library.nim import NimEnv, nim_task
from toolgym.rollout import RolePlan, RunConfig, RunMetrics, Runner, SamplingParams, mixture
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.ray.cluster import WorkerLostError
from toolgym.rollout.runner.ray.dispatcher import PendingJob
from toolgym.rollout.runner.ray.packing import TextDecoder
from toolgym.rollout.runner.scheduling.group_scheduler import GroupScheduler
from toolgym.rollout.runner.scheduling.open_group import OpenGroup
from toolgym.rollout.runner.scheduling.scheduler import Scheduler, finish
from toolgym.tools import tool
from toolgym.tools.errors import ConfigError

pytestmark = pytest.mark.ray


@tool
def work() -> str:
    """Work."""
    return "worked"


@tool
def rest() -> str:
    """Rest."""
    return "rested"


def some(name):
    return TaskList([Task(({"role": "user", "content": f"{name} {n}"},), id=f"{name}.{n}") for n in range(5)])


def busy():
    return ToolEnv([work], some("busy"))


def lazy():
    return ToolEnv([work, rest], some("lazy"))


@pytest.fixture(scope="module", autouse=True)
def nodes():
    with cluster(1) as made:
        yield made


def facts(trajectories):
    return [(each.env_id, each.task_id, each.sample_index, len(each.tools), each.sequences) for each in trajectories]


async def test_a_mixture_on_ray_plays_what_one_process_plays():
    from toolgym.rollout import RayRunner

    env = mixture([busy, lazy], weights={"busy": 1, "lazy": 2})
    config = RunConfig(seed=7, group_size=2, max_concurrent=3)
    tasks = (await env.tasks()).take(9, seed=7)
    async with Instant(2) as engine:
        expected = await Runner(env, engine, config=config).run(tasks)
    async with RayRunner(env, partial(Instant, 2), config=config, num_workers=2, ray_options={"num_cpus": 0}) as runner:
        assert facts(await runner.run(tasks)) == facts(expected)
        with pytest.raises(ConfigError, match="must name an env of the mixture"):
            await runner.run(list(some("busy")))
    assert {each.env_id for each in expected} == {"busy", "lazy"}


class Single(Scheduler):
    """Knows one trajectory of a job."""

    async def next(self):
        return OpenGroup(nim_task(5), 0, "g-0", 1, 1).begin()

    def finished(self, job, trajectory):
        return (trajectory,)


def played(trajectory):
    return (
        trajectory.role,
        [message["content"] for message in trajectory.messages],
        [turn.seed for turn in trajectory.turns],
        trajectory.reward,
        trajectory.stop_reason,
        trajectory.sequences,
        trajectory.sampling["temperature"],
    )


async def test_roles_are_played_in_a_worker_as_in_this_process_each_with_its_engine():
    import ray

    from toolgym.rollout import RayRunner
    from toolgym.rollout.runner.ray import EngineActor

    host = ray.remote(EngineActor).options(num_cpus=0).remote(partial(NimPlayer, 1))
    sampling, tasks = SamplingParams(max_new_tokens=8, temperature=0.5), [nim_task(pile) for pile in (7, 8, 9)]
    config, metrics = RunConfig(seed=7, group_size=2), RunMetrics()

    def planned(engine):
        return EnvFactory.of(NimEnv, roles={"second": RolePlan(engine=engine, sampling=sampling)})

    arguments = {"num_workers": 1, "ray_options": {"num_cpus": 0}, "config": config, "observers": [metrics]}
    async with RayRunner(planned(host), NimPlayer, **arguments) as runner, asyncio.timeout(300):
        groups = [group async for group in runner.stream_groups(tasks)]
        with pytest.raises(ConfigError, match="a Single takes one trajectory of a job"):
            await runner.run(Single())
    here = await Runner(planned(NimPlayer(1)), NimPlayer(), config=config).run(tasks)
    there = sorted((one for group in groups for one in group), key=lambda one: (one.task_index, one.role))
    assert [(one.task_index, one.role, one.sample_index) for one in there] == [
        (at, role, sample) for at in range(3) for role in NimEnv.roles for sample in range(2)
    ]
    assert list(map(played, there)) == list(map(played, here))
    assert [len({one.task_index for one in group}) for group in groups] == [1] * 3
    assert {1.0, -1.0} <= {one.reward for one in there}
    assert metrics.metrics()["rollout/episodes/finished"] == 12.0


async def test_each_role_of_a_job_that_kills_its_workers_fails():
    from toolgym.rollout.runner.ray.run import RayRun, WorkerPool

    env, config = EnvFactory.of(NimEnv), RunConfig(seed=1)
    scheduler = GroupScheduler([nim_task(5)], config)
    arguments = {"observers": (), "decoder": TextDecoder(), "metrics": {}, "roles": {env.env_id: NimEnv.roles}}
    run = RayRun(scheduler, WorkerPool(b"", 1, {}), config, env=env, **arguments)
    job = await scheduler.next()
    lost = run._failed(PendingJob(0, job, deaths=3), WorkerLostError("it was killed"))
    assert [(one.role, one.stop_reason.value) for one in lost] == [(role, "worker_died") for role in NimEnv.roles]
    assert len({one.id for one in lost} | {one.group_id for one in lost}) == 4
    assert [one.role for one in finish(scheduler, job, lost)] == list(NimEnv.roles)
