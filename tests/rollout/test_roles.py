"""Episodes with several roles: each role is an episode of its own, with its context, engine, reward and trajectory."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time

import pytest

from toolgym.envs import RolesEnv, RolesStep, StopReason, Task, TaskList
from toolgym.envs.library.nim import RULES, NimEnv, nim_task
from toolgym.rollout import (
    EnvFactory,
    EpisodeLimits,
    GroupPlan,
    RolePlan,
    RolloutQueue,
    RunConfig,
    RunFailedError,
    RunMetrics,
    Runner,
    SamplingParams,
    group_advantages,
    make_batch,
    read_trajectories,
    replay,
    rollout,
    summarize,
)
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.recording import recorded
from toolgym.rollout.recording.cassette import Cassette
from toolgym.rollout.runner import Branching, Scheduler, at_turns, has_signal
from toolgym.rollout.runner.scheduling.open_group import OpenGroup
from toolgym.tools import tool
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import user

CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 4}}\n</tool_call>'


def left(prompt):
    return int(re.findall(r"(\d+) left", prompt)[-1])


def perfect(prompt, _):
    return str(left(prompt) % 4 or 1)


def drawn(prompt, request_id):
    """A legal move by chance, the same for the same prompt."""
    return str(random.Random(prompt).randint(1, min(3, left(prompt))))


def config(**kwargs):
    return RunConfig(**{"seed": 1, "sampling": SamplingParams(max_new_tokens=40), **kwargs})


def shown(trajectory):
    return [message["content"] for message in trajectory.messages]


@tool
def double(number: int) -> str:
    """Double a number.

    Args:
        number: the number.
    """
    return str(2 * number)


class Talk(RolesEnv):
    """Each role says something, `rounds` times; what is said goes to the next role."""

    roles = ("asker", "solver")
    rounds = 1

    async def begin(self, task, *, seed):
        self.log = [f"task {task.id}"]
        return self.ask(0)

    def ask(self, place):
        role = self.roles[place % 2]
        return RolesStep(role, {role: [user(self.log[-1])]})

    async def act(self, turns):
        self.log += [turn.content for turn in turns.values()]
        if len(self.log) > 2 * self.rounds:
            return RolesStep((), rewards={"asker": 0.25, "solver": float("right" in self.log[-1])})
        return self.ask(len(self.log) - 1)


def talk(count=1):
    return [Task((user("?"),), id=str(number)) for number in range(count)]


def by_role(trajectories):
    return {trajectory.role: trajectory for trajectory in trajectories}


# ---------------------------------------------------------------------- self-play


async def test_each_role_has_its_own_conversation_reward_trajectory_and_group(scripted, exact):
    engine = scripted(perfect)
    first, second = await rollout(NimEnv, engine, [nim_task(6)], config=config())
    assert (first.role, first.reward, shown(first)) == ("first", 1.0, [RULES, "6 left", "2", "3 left", "3"])
    assert (second.role, second.reward, shown(second)) == ("second", -1.0, [RULES, "4 left", "1"])
    for trajectory in (first, second):
        exact(engine, trajectory)
        assert (trajectory.stop_reason, trajectory.task_index, trajectory.sample_index) == ("answered", 0, 0)
    assert first.group_id.removesuffix("/first") == second.group_id.removesuffix("/second")
    assert [turn.reward for turn in first.turns] == [0.0, 1.0]


async def test_rewards_of_two_roles_are_never_compared(scripted):
    trajectories = await rollout(NimEnv, scripted(drawn), [nim_task(7)] * 3, config=config(group_size=4))
    assert [(one.task_index, one.role, one.sample_index) for one in trajectories] == [
        (task, role, sample) for task in range(3) for role in NimEnv.roles for sample in range(4)
    ]
    advantages = group_advantages(trajectories)
    for task in range(3):
        for role in NimEnv.roles:
            group = [n for n, one in enumerate(trajectories) if (one.task_index, one.role) == (task, role)]
            assert sum(advantages[n] for n in group) == pytest.approx(0.0, abs=1e-6)
    batch = make_batch(trajectories, pad_token_id=503)
    roles = [{one.role for one in trajectories if one.group_id == group} for group in batch.groups]
    assert [len(group) for group in roles] == [1] * 6
    assert summarize(trajectories)["groups"] == 6.0


async def test_what_runs_beside_an_episode_changes_nothing(scripted):
    async def played(most):
        done = await rollout(
            NimEnv, scripted(drawn), num_tasks=4, config=config(group_size=3, max_concurrent=most, seed=3)
        )
        return [(one.role, shown(one), one.reward, [turn.seed for turn in one.turns]) for one in done]

    alone = await played(1)
    assert alone == await played(32)
    seeds = [seed for _, _, _, seeds in alone for seed in seeds]
    assert len({*seeds}) == len(seeds), "no two turns share a seed, whosever they are"


async def test_observers_and_metrics_hear_of_each_role(scripted):
    metrics = RunMetrics()
    runner = Runner(NimEnv, scripted(perfect), observers=[metrics], config=config(group_size=2))
    await runner.run([nim_task(6)])
    figures = metrics.metrics()
    assert figures["rollout/episodes/finished"] == 4.0
    assert figures["rollout/engine/prefix_drift"] == 0.0


async def test_a_task_source_hears_the_rewards_of_the_first_role(scripted):
    source, heard = TaskList([nim_task(6)]), []
    source.observe = lambda task, rewards: heard.append(rewards)
    await rollout(NimEnv, scripted(perfect), source, num_tasks=1, config=config(group_size=2))
    assert heard == [[1.0, 1.0]]


async def test_roles_may_speak_at_the_same_time(scripted):
    class Bids(Talk):
        async def begin(self, task, *, seed):
            return RolesStep(self.roles, {role: [user(f"bid, {role}")] for role in self.roles})

        async def act(self, turns):
            assert [*turns] == ["asker", "solver"]
            bids = {role: float(turn.content) for role, turn in turns.items()}
            return RolesStep((), rewards={max(bids, key=bids.get): 1.0})

    async def slow(request):
        await asyncio.sleep(0.05 if "asker" in engine.tokenizer.decode(request.prompt_ids) else 0.0)
        return await generate(request)

    engine = scripted(lambda prompt, _: "7" if "bid, solver" in prompt else "3")
    generate, engine._generate = engine._generate, slow
    done = by_role(await rollout(Bids, engine, talk(), config=config()))
    assert (done["asker"].reward, done["solver"].reward) == (0.0, 1.0)


async def test_a_role_has_tools_of_its_own_whose_calls_no_other_sees(scripted):
    class WithTool(Talk):
        tools = {"solver": [double]}  # noqa: RUF012

    def script(prompt, _):
        if "double" not in prompt:
            return "what is 4 + 4"
        return "right: 8" if "<tool_response>" in prompt else CALL

    done = by_role(await rollout(WithTool, scripted(script), talk(), config=config()))
    assert (done["asker"].tools, len(done["asker"].turns)) == ((), 1)
    assert [record.text for record in done["solver"].tool_calls] == ["8"]
    assert done["solver"].reward == 1.0


async def test_act_gets_turns_without_thinking_unless_the_env_hears_it(scripted):
    class Hears(Talk):
        hears_thinking = True

    heard = {}
    for env in (Talk, Hears):
        done = await rollout(env, scripted(lambda *_: "<think>a secret</think>hello"), [nim_task(5)], config=config())
        heard[env] = shown(next(one for one in done if one.role == "solver"))[0]
    assert "hello" in heard[Talk]
    assert "hello" in heard[Hears]
    assert "secret" not in heard[Talk]
    assert "secret" in heard[Hears]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"next": "asker"}, r"Odd\.act must return a RolesStep\(next, obs, rewards, info\), got dict"),
        (None, r"Odd\.act must return a RolesStep.*got NoneType"),
        (RolesStep(3), "next must be a role or several"),
        (RolesStep("solver", {"solver": "hello"}), r"obs\['solver'\] must be a list of messages"),
        (RolesStep("solver", [user("hello")]), "obs must be a mapping"),
        (RolesStep((), rewards={"solver": "much"}), r"rewards\['solver'\] must be a number"),
    ],
)
async def test_a_wrong_return_of_a_method_is_named(scripted, step, text):
    class Odd(Talk):
        async def act(self, turns):
            return step

    done = await Runner(Odd, scripted(lambda *_: "hello"), config=config()).run([nim_task(5)])
    assert {one.stop_reason for one in done} == {StopReason.ENV_FAILED}
    assert re.search(text, done[0].error.message)


# ---------------------------------------------------------------------- who plays a role


async def test_a_frozen_opponent_has_another_engine_and_no_trajectory(scripted):
    learner, opponent, metrics = scripted(perfect), scripted(drawn), RunMetrics()
    plan = RolePlan(engine=opponent, sampling=SamplingParams(max_new_tokens=9, temperature=0.5), train=False)
    env = EnvFactory.of(NimEnv, roles={"second": plan})
    runner = Runner(env, learner, observers=[metrics], config=config(group_size=2))
    done = await runner.run([nim_task(7)])
    assert [(one.role, one.sample_index) for one in done] == [("first", 0), ("first", 1)]
    assert {params.temperature for _, params in opponent.seen.values()} == {0.5}
    assert len(learner.seen) == sum(len(one.turns) for one in done)
    assert metrics.metrics()["rollout/episodes/finished"] == 2.0


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ({"third": RolePlan()}, "there is no role 'third' to plan for; the env's roles are first, second"),
        ({"first": RolePlan(train=False), "second": RolePlan(train=False)}, "no role is trained"),
        ({"first": "tiny"}, "roles must map names to RolePlans"),
    ],
)
async def test_plans_that_do_not_fit_say_so(scripted, roles, text):
    with pytest.raises(ConfigError, match=text):
        await rollout(EnvFactory.of(NimEnv, roles=roles), scripted(perfect), [nim_task(6)])


async def test_what_knows_one_role_refuses(scripted, tmp_path):
    class Single(Scheduler):
        async def next(self):
            return OpenGroup(nim_task(5), 0, "g-0", 1, 1).begin()

        def finished(self, job, trajectory):
            return (trajectory,)

    engine = scripted(perfect)
    with pytest.raises(ConfigError, match="a Single takes one trajectory of a job"):
        await Runner(NimEnv, engine).run(Single())
    with pytest.raises(ConfigError, match="cannot branch"):
        await rollout(NimEnv, engine, [nim_task(5)], config=config(branching=Branching(at_turns(1))))
    with pytest.raises(ConfigError, match="roles go with a RolesEnv"):
        await rollout(EnvFactory.of("SingleTurn-v0", roles={"first": RolePlan()}), engine, talk())
    with pytest.raises(ConfigError, match="NimEnv has several roles: give it to a Runner"):
        await NimEnv().reset()
    from toolgym.rollout import RunOutput

    out = RunOutput(trajectories=tmp_path / "t.jsonl", record=tmp_path / "r.jsonl")
    with pytest.raises(ConfigError, match="leave out the RolePlans"):
        await rollout(EnvFactory.of(NimEnv, roles={"first": RolePlan()}), engine, [nim_task(5)], out=out)

    class WithTools(Talk):
        tools = {"solver": [double]}  # noqa: RUF012

    with pytest.raises(ConfigError, match="cannot be recorded, for its roles have tools"):
        await rollout(WithTools, engine, talk(), out=out)


# ---------------------------------------------------------------------- ends that are not the game's


async def test_a_failing_engine_fails_every_role_and_names_the_one(scripted):
    engine = scripted(lambda prompt, _: RuntimeError("gone") if "said" in prompt else "said")
    with pytest.raises(RunFailedError, match="all 2 episodes"):
        await rollout(Talk, engine, talk(), config=config())
    asker, solver = await Runner(Talk, engine, config=config()).run(talk())
    assert {asker.stop_reason, solver.stop_reason} == {StopReason.ENGINE_FAILED}
    assert "the role 'solver' failed" in asker.error.message
    assert "the role" not in solver.error.message


async def test_an_opponent_whose_engine_fails_is_played_again_with_the_others(scripted):
    asked = []

    def broken_once(prompt, _):
        asked.append(prompt)
        return RuntimeError("gone") if len(asked) == 1 else "right"

    runner = Runner(
        EnvFactory.of(Talk, roles={"solver": RolePlan(engine=scripted(broken_once), train=False)}),
        scripted(lambda *_: "said"),
        config=config(refills=1),
    )
    [done] = await runner.run(talk())
    assert (done.role, done.reward, done.failed, runner.counts.refills) == ("asker", 0.25, False, 1)


async def test_a_limit_of_one_role_leaves_the_others_without_a_reward_unless_the_env_gives_some(scripted):
    class Judged(Talk):
        async def forfeit(self, role, reason):
            return RolesStep((), rewards={role: -1.0, "asker": 1.0}, info={"metrics": {"by": reason.value}})

    engine = scripted(lambda prompt, _: ("too long", FinishReason.LENGTH) if "said" in prompt else "said")
    done = by_role(await rollout(Talk, engine, talk(), config=config()))
    assert (done["solver"].stop_reason, done["asker"].stop_reason) == ("length", "role_cut")
    assert (done["asker"].trainable, done["asker"].usable) == (True, False)
    done = by_role(await rollout(Judged, engine, talk(), config=config()))
    assert [(done[role].reward, done[role].stop_reason.value) for role in Talk.roles] == [
        (1.0, "answered"),
        (-1.0, "length"),
    ]
    assert done["asker"].metrics["by"] == "length"
    assert done["asker"].usable


async def test_a_role_whose_turn_never_came_has_no_tokens_and_counts_in_no_group(scripted):
    done = by_role(await rollout(NimEnv, scripted(lambda *_: "all of them"), [nim_task(6)], config=config()))
    assert (done["first"].reward, done["second"].stop_reason) == (-1.0, StopReason.ROLE_CUT)
    assert (done["second"].failed, done["second"].usable, done["second"].policy_tokens) == (False, False, 0)


@pytest.mark.parametrize("kind", ["raises", "hangs", "names no role", "gives nothing to read"])
async def test_an_env_that_breaks_fails_every_role_and_nothing_hangs(scripted, kind):
    class Broken(Talk):
        async def act(self, turns):
            if kind == "raises":
                raise ValueError("broken")
            if kind == "hangs":
                await asyncio.sleep(60)
            return RolesStep("judge" if kind == "names no role" else "solver")

    runner = Runner(Broken, scripted(lambda *_: "x"), config=config(limits=EpisodeLimits(env_timeout=0.2)))
    began = time.monotonic()
    done = await runner.run(talk())
    assert time.monotonic() - began < 5
    expected = StopReason.ENV_TIMEOUT if kind == "hangs" else StopReason.ENV_FAILED
    assert [one.stop_reason for one in done] == [expected] * 2


async def test_waiting_for_another_role_is_no_time_of_the_env_or_of_the_turn(scripted):
    async def slow(request):
        if "said" in engine.tokenizer.decode(request.prompt_ids):
            await asyncio.sleep(0.5)
        return await generate(request)

    engine = scripted(lambda *_: "said")
    generate, engine._generate = engine._generate, slow
    limits = EpisodeLimits(turn_timeout=0.3, env_timeout=0.3)
    plans = {"solver": RolePlan(limits=EpisodeLimits())}
    done = by_role(await rollout(EnvFactory.of(Talk, roles=plans), engine, talk(), config=config(limits=limits)))
    assert done["asker"].stop_reason == "answered"
    assert done["asker"].seconds > 0.5
    assert done["asker"].env_seconds < 0.25


async def test_waiting_for_another_role_is_a_state_of_its_own(scripted):
    class Phases(EpisodeObserver):
        def __init__(self):
            self.heard = {role: [] for role in Talk.roles}

        def waits(self, job, phase, what=""):
            self.heard[job.role].append(phase.value)
            if (job.role, phase) == ("solver", Phase.ENGINE):
                self.meanwhile = metrics.running

    metrics, phases = RunMetrics(), Phases()
    await Runner(Talk, scripted(lambda *_: "said"), observers=[metrics, phases], config=config()).run(talk())
    assert phases.heard == {
        "asker": ["reset", "engine", "env", "other_role", "env"],
        "solver": ["reset", "other_role", "reset", "engine", "env"],
    }
    assert phases.meanwhile == {Phase.OTHER_ROLE: 1, Phase.ENGINE: 1}


async def test_the_deadline_of_an_episode_ends_both_and_frees_what_waits(scripted):
    engine = scripted(lambda prompt, _: 30 if "said" in prompt else "said")
    limits = EpisodeLimits(episode_timeout=0.3, score_grace=0.0)
    done = await Runner(Talk, engine, config=config(limits=limits)).run(talk(3))
    assert {one.stop_reason for one in done} == {StopReason.EPISODE_TIMEOUT}
    running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert running == []


async def test_a_consumer_that_leaves_ends_both_roles(scripted):
    runner = Runner(Talk, scripted(lambda prompt, _: 30 if "task 1" not in prompt else "said"), config=config())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await runner.run(talk(2))
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


# ---------------------------------------------------------------------- groups, queues, files


async def test_groups_are_whole_with_every_role_of_every_member(scripted):
    runner = Runner(NimEnv, scripted(drawn), config=config(group_size=3))
    tasks = [nim_task(pile) for pile in (5, 8, 9)]
    groups = [group async for group in runner.stream_groups(tasks)]
    assert (
        sorted([(one.sample_index, one.role) for one in group] for group in groups)
        == [[(sample, role) for sample in range(3) for role in NimEnv.roles]] * 3
    )
    assert all(len({one.task_index for one in group}) == 1 for group in groups)


def test_a_signal_is_a_difference_within_a_role():
    class Done:
        usable = True

        def __init__(self, role, reward):
            self.role, self.reward = role, reward

    same = [Done("first", 1.0), Done("second", -1.0)] * 2
    assert not has_signal(same)
    assert has_signal([*same, Done("second", 0.0)])


@pytest.mark.parametrize("stragglers", ["drop", "keep", pytest.param("carry", marks=pytest.mark.long)])
async def test_stragglers_are_cut_with_all_their_roles(scripted, stragglers):
    engine = scripted(lambda prompt, _: 30 if "task 1" in prompt else "right")
    async with Runner(Talk, engine, config=config()) as runner:
        began = time.monotonic()
        plan = GroupPlan(groups=1, spare_groups=1, stragglers=stragglers)
        done = await runner.run(talk(2), plan=plan)
        assert time.monotonic() - began < 8
    kept = [(one.task_index, one.role, one.stop_reason.value) for one in done]
    assert kept[:2] == [(0, "asker", "answered"), (0, "solver", "answered")]
    assert {reason for _, _, reason in kept[2:]} <= {"straggler"}
    assert len(kept) == (4 if stragglers == "keep" else 2)


async def test_a_queue_gives_batches_with_every_role(scripted):
    runner = Runner(NimEnv, scripted(drawn), config=config(group_size=2))
    async with RolloutQueue(runner, [nim_task(9)] * 4, batch_size=2, max_staleness=3) as queue:
        batches = [batch async for batch in queue]
    assert [[(one.role, one.sample_index) for one in batch] for batch in batches] == [
        [(role, sample) for sample in range(2) for role in NimEnv.roles] * 2
    ] * 2


async def test_a_recorded_run_is_replayed_equal_role_by_role(scripted, tmp_path, tokenizer):
    path, tasks = tmp_path / "recording.jsonl", [nim_task(pile) for pile in (5, 6, 7)]

    def script(prompt, request_id):
        return RuntimeError("gone") if "7 left" in prompt else drawn(prompt, request_id)

    with recorded(Runner(NimEnv, scripted(script), config=config(group_size=2)), tasks, path) as runner:
        done = await runner.run(tasks)
    cassette = Cassette.load(path)
    assert cassette.ended
    again = await replay(cassette, tokenizer, env=NimEnv)
    assert (again.compared, again.differences, again.misses) == (len(done), [], [])
    assert [(one.role, shown(one), one.stop_reason) for one in again.trajectories] == [
        (one.role, shown(one), one.stop_reason) for one in done
    ]
    text = path.read_text()
    lines = [line for line in text.splitlines() if '"kind":"trajectory"' not in line or '"role":"first"' in line]
    path.write_text("\n".join(lines).replace('"reward":1.0', '"reward":0.5') + "\n")
    again = await replay(Cassette.load(path, allow_edited=True), tokenizer, env=NimEnv)
    assert (again.compared, len(again.unfinished)) == (6, 6)
    assert {one.role for one in again.differences} == {"first"}
    assert "sample 0, role first: " in str(again.differences[0])


@pytest.mark.parametrize("lines", [0, 1, 4, 5, 7])
async def test_a_run_is_resumed_at_whole_episodes(scripted, tmp_path, lines):
    path, tasks = tmp_path / "run.jsonl", [nim_task(pile) for pile in (5, 6)]
    whole = await rollout(NimEnv, scripted(drawn), tasks, config=config(group_size=2), out=path)
    written = path.read_text().splitlines(keepends=True)
    path.write_text("".join(written[:lines]))
    engine = scripted(drawn)
    done = await rollout(NimEnv, engine, tasks, config=config(group_size=2), out=path, resume=True)
    assert [(one.role, one.task_index, one.sample_index, shown(one)) for one in done] == [
        (one.role, one.task_index, one.sample_index, shown(one)) for one in whole
    ]
    kept = {json.loads(line)["id"] for line in written[: lines - lines % 2]}
    there = list(read_trajectories(path))
    assert len(there) == len({(one.role, one.task_index, one.sample_index) for one in there}) == 8
    assert kept == {one.id for one in there} & {json.loads(line)["id"] for line in written}


async def test_an_env_that_cannot_be_made_is_a_failure_of_each_role(scripted):
    envs = []

    def make():
        envs.append(NimEnv())
        if len(envs) > 1:
            raise OSError("no more")
        return envs[0]

    done = await Runner(make, scripted(lambda *_: 0.1), config=config(group_size=2)).run([nim_task(5)])
    assert [(one.role, one.stop_reason.value) for one in done if one.stop_reason == "env_create_failed"] == [
        ("first", "env_create_failed"),
        ("second", "env_create_failed"),
    ]
