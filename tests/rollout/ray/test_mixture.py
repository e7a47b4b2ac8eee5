"""A mixture of envs whose groups are played on several processes: as on one."""

from __future__ import annotations

from functools import partial

import pytest

from tests.ray_cluster import cluster
from tests.rollout.ray.parts import Instant
from toolgym.envs import Task, TaskList, ToolEnv
from toolgym.rollout import RunConfig, Runner, mixture
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
