"""Members of a group begin in the same state: which seed `reset` of an env gets."""

from __future__ import annotations

import json
import random

import gymnasium
import pytest

from toolgym.envs import ToolEnv, wrap
from toolgym.envs.driven_episode import DrivenEpisode
from toolgym.envs.roles.base import RolesEnv, RolesStep
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, rollout, run_episode
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.tools.message import user
from toolgym.tools.schema import ToolSchema
from toolgym.tools.stateful import StatefulTool, ToolSession

TASKS = [Task((user(f"question {number}"),), id=str(number)) for number in range(3)]


class Hidden(ToolEnv):
    """Draws a secret number from the seed of `reset`."""

    def __init__(self, secrets, fail_first=False):
        super().__init__([], TASKS)
        self.secrets, self.fail_first = secrets, fail_first

    async def reset(self, *, seed=None, options=None):
        messages, info = await super().reset(seed=seed, options=options)
        self.secrets.setdefault(info["task"].id, []).append(random.Random(seed).randrange(10**9))
        if self.fail_first and len(self.secrets[info["task"].id]) == 1:
            raise OSError("the first attempt is lost")
        return messages, info


async def secrets_of(scripted, *, fail_first=False, validate=False, **config):
    secrets = {}
    config = RunConfig(group_size=3, validate=validate, **config)
    await rollout(lambda: Hidden(secrets, fail_first), scripted(lambda *_: "done"), TASKS, config=config)
    return secrets


async def test_members_of_a_group_begin_in_the_same_state_and_groups_differ(scripted):
    secrets = await secrets_of(scripted, seed=4)
    assert [len(set(drawn)) for drawn in secrets.values()] == [1, 1, 1]
    assert len({drawn[0] for drawn in secrets.values()}) == 3
    assert await secrets_of(scripted, seed=4) == secrets


async def test_another_seed_step_or_validation_begins_in_another_state(scripted):
    runs = [
        await secrets_of(scripted, seed=4),
        await secrets_of(scripted, seed=5),
        await secrets_of(scripted, seed=4, training_step=1),
        await secrets_of(scripted, seed=4, validate=True),
    ]
    assert len({run["0"][0] for run in runs}) == 4


async def test_an_attempt_that_is_played_again_begins_in_the_same_state(scripted):
    secrets = await secrets_of(scripted, seed=4, fail_first=True, refills=1)
    assert [(len(drawn), len(set(drawn))) for drawn in secrets.values()] == [(4, 1)] * 3


class Maze(gymnasium.Env):
    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(1000)

    def __init__(self, starts):
        self.starts = starts

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.starts.append(int(self.np_random.integers(10**9)))
        return f"A maze with the exit {self.starts[-1]}", {}

    def step(self, action):
        return "over", 0.0, True, False, {}


async def test_wrapped_env_with_tasks_of_ones_own_begins_alike_in_a_group(scripted):
    starts = []
    config = RunConfig(group_size=4, seed=2)
    await rollout(lambda: wrap(Maze(starts), tasks=TASKS), scripted(lambda *_: "out"), TASKS[:1], config=config)
    assert len(set(starts[-4:])) == 1


class Duel(RolesEnv):
    roles = ("first", "second")

    def __init__(self, seeds):
        self.seeds = seeds

    async def begin(self, task, *, seed):
        self.seeds.append(seed)
        return RolesStep("first", {"first": [user("your move")]})

    async def act(self, turns):
        if "first" in turns:
            return RolesStep("second", {"second": [user("your move")]})
        return RolesStep((), rewards={"first": 1.0, "second": 0.0})


async def test_begin_of_a_roles_env_gets_the_seed_of_the_group(scripted):
    seeds = []
    await rollout(lambda: Duel(seeds), scripted(lambda *_: "move"), TASKS[:2], config=RunConfig(group_size=3, seed=2))
    assert len(seeds) == 6
    assert len(set(seeds)) == 2


class DiceSession(ToolSession):
    async def execute(self, parameters):
        return "a six"


class Dice(StatefulTool):
    """A tool that draws from a seed."""

    def __init__(self):
        super().__init__(tool_schema=ToolSchema("dice", "Roll dice.", {"type": "object", "properties": {}}))
        self.rolls = []

    async def open(self, *, seed=0):
        self.rolls.append(random.Random(seed).randrange(10**9))
        return DiceSession()


async def test_seeded_tool_begins_alike_in_a_group(scripted):
    dice, config = Dice(), RunConfig(group_size=3, seed=1)
    tasks = [
        Task((user("roll"),), tools_kwargs={"dice": {"create_kwargs": {"seed": seed}}}, id=str(seed)) for seed in (1, 2)
    ]
    await rollout(lambda: ToolEnv([dice], tasks), scripted(lambda *_: "done"), tasks, config=config)
    assert sorted(map(dice.rolls.count, set(dice.rolls))) == [3, 3]


@pytest.mark.parametrize(
    "group",
    [{"seed": 3, "task_index": 5}, {"group_id": "7", "task_index": 5}, {"task_index": 0}],
    ids=["a seed", "the id of the group", "the task alone"],
)
async def test_a_trainer_that_plays_members_one_by_one_gets_one_state(scripted, group):
    secrets = {}
    for sample in range(3):
        await run_episode(Hidden(secrets), TASKS[0], scripted(lambda *_: "done"), sample_index=sample, **group)
    assert len(set(secrets["0"])) == 1


async def test_a_driven_episode_without_a_seed_begins_as_its_task_says():
    secrets = {}
    for task in (TASKS[0], TASKS[0], TASKS[1]):
        await DrivenEpisode(Hidden(secrets)).reset(options={"task": task})
    assert secrets["0"][0] == secrets["0"][1] != secrets["1"][0]


def test_members_with_different_run_seeds_share_the_seed_of_their_group():
    jobs = [Job(TASKS[0], EpisodeKey(0, 0), "group", seed, group_seed=9) for seed in (1, 2)]
    assert [job.for_role("other").env_seed(job.seed) for job in jobs] == [9, 9]


async def test_resuming_a_run_of_another_seed_rule_warns(scripted, tmp_path, caplog):
    config, out = RunConfig(group_size=2, seed=4), tmp_path / "run.jsonl"
    await rollout(lambda: Hidden({}), scripted(lambda *_: "done"), TASKS[:1], config=config, out=out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for line in lines:
        del line["settings"]["seeds of envs"]
    out.write_text(json.dumps(lines[0]) + "\n")
    done = await rollout(
        lambda: Hidden({}), scripted(lambda *_: "done"), TASKS[:1], config=config, out=out, resume=True
    )
    assert len(done) == 2
    assert "another seed for its env" in caplog.text
