"""Groups that a plan drops, and members that the infrastructure lost: others are played in their place."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.actors import tasks, until
from tests.rollout.held_engine import Envs, config, endless, held_engine, others
from toolgym.envs import TaskList
from toolgym.envs.types import Blame, EpisodeFailedError, StopReason
from toolgym.rollout import GroupPlan, RunConfig, Runner, make_batch, replay, rollout
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.recording import recorded
from toolgym.rollout.runner import has_signal
from toolgym.tools.errors import ConfigError, EngineError, EpisodeError


@pytest.fixture
def held(scripted_engine, tokenizer):
    return lambda script: held_engine(scripted_engine, tokenizer, script)


def every_third(asked, member):
    """Tasks of which each third one has a group with different rewards."""
    return f"#### {member if int(asked) % 3 == 2 else 1}"


# ---------------------------------------------------------------------- groups without a signal


@pytest.mark.parametrize("max_concurrent", [1, 3, 64])
async def test_groups_without_a_signal_are_replaced_until_there_are_enough(held, max_concurrent):
    drawn, engine = [], held(every_third)
    runner = Runner(Envs(), engine, config=config(group_size=2, max_concurrent=max_concurrent))
    done = await runner.run(endless(drawn), plan=GroupPlan(groups=3, keep=has_signal, max_groups=20))
    assert [one.task_id for one in done] == ["2", "2", "5", "5", "8", "8"]
    assert drawn == list(range(9))  # no more than were needed, whatever ended first
    counts = runner.counts
    assert (counts.groups_begun, counts.groups_kept, counts.groups_filtered, counts.episodes_dropped) == (9, 3, 6, 12)
    assert counts.to_dict()["run/groups_filtered"] == 6.0


async def test_the_budget_of_tasks_bounds_what_is_tried(held, caplog):
    drawn = []
    runner = Runner(Envs(), held(every_third), config=config(group_size=2))
    with caplog.at_level(logging.INFO, logger="toolgym.rollout"):
        done = await runner.run(endless(drawn), plan=GroupPlan(groups=3, keep=has_signal, max_groups=7))
    assert len(done) == 4
    assert len(drawn) == 7
    assert "has 2 of the 3 groups that it wanted: it tried 7 and dropped 5 of them" in caplog.text
    assert "groups begun: 7, groups kept: 2, groups filtered: 5, episodes dropped: 10" in caplog.text


async def test_a_function_of_ones_own_says_which_groups_are_kept(held):
    seen = []

    def by_hand(group):
        seen.append([one.sample_index for one in group])
        return sum(one.reward for one in group) > 1.0

    engine = held(lambda asked, member: f"#### {0.4 * int(asked)}")
    runner = Runner(Envs(), engine, config=config(group_size=2))
    groups = [group async for group in runner.stream_groups(tasks("0", "1", "2"), plan=GroupPlan(keep=by_hand))]
    assert [group[0].task_id for group in groups] == ["2"]
    assert seen == [[0, 1]] * 3


async def test_a_failed_member_gives_no_signal(held):
    engine = held(lambda asked, member: EngineError("gone") if member else "#### 1")
    runner = Runner(Envs(), engine, config=config(group_size=2))
    assert await runner.run(tasks("a"), plan=GroupPlan(keep=has_signal)) == []
    assert runner.counts.groups_filtered == 1


async def test_an_error_of_the_filter_ends_the_run(held):
    with pytest.raises(ZeroDivisionError):
        await Runner(Envs(), held(every_third), config=config()).run(tasks("0"), plan=GroupPlan(keep=lambda _: 1 / 0))
    assert others() == []


async def test_plans_that_could_keep_nothing_or_never_end_are_refused(held):
    runner = Runner(Envs(), held(every_third), config=config())
    with pytest.raises(ConfigError, match="a group of one has nothing to compare"):
        await runner.run(tasks("a"), plan=GroupPlan(keep=has_signal))
    with pytest.raises(ConfigError, match="would be drawn for ever: say with max_groups="):
        await runner.run(endless(), group_size=2, plan=GroupPlan(groups=2, keep=has_signal))


async def test_rollout_takes_tasks_without_an_end_where_a_plan_ends_the_run(held):
    done = await rollout(Envs(), held(every_third), endless(), config=config(), plan=GroupPlan(groups=3))
    assert [one.task_id for one in done] == ["0", "1", "2"]
    with pytest.raises(ConfigError, match="num_tasks goes with a source or a list of tasks"):
        await rollout(Envs(), held(every_third), endless(), num_tasks=3, config=config())


async def test_rollout_takes_a_plan_and_its_source_hears_of_every_group(held):
    source, heard = TaskList(tasks(*map(str, range(9)))), []
    source.observe = lambda task, rewards: heard.append((task.id, rewards))
    done = await rollout(
        Envs(),
        held(every_third),
        source,
        num_tasks=9,
        config=config(group_size=2, max_concurrent=2, seed=0),  # one group at a time, the first one without a signal
        plan=GroupPlan(groups=2, keep=has_signal),
    )
    assert len({one.task_id for one in done}) == 2
    assert {one.task_id for one in done} < {task for task, _ in heard}
    assert all(rewards == ([0.0, 1.0] if int(task) % 3 == 2 else [1.0, 1.0]) for task, rewards in heard)
    with pytest.raises(ConfigError, match="plan must be a GroupPlan"):
        await rollout(Envs(), held(every_third), source, num_tasks=9, plan={"groups": 2})


# ---------------------------------------------------------------------- members that were lost


def lost(times, *which):
    """These members fail so often, then answer."""
    failed = {}

    def script(asked, attempt):
        failed[asked] = failed.get(asked, 0) + 1
        return EngineError("the node is gone") if asked in which and failed[asked] <= times else "#### 1"

    return script


async def test_a_lost_member_is_played_again_and_its_group_is_whole(held, caplog):
    heard = []

    class Hears(EpisodeObserver):
        def ended(self, job, trajectory):
            heard.append((job.key, job.attempt, trajectory.failed))

    runner = Runner(
        Envs(), held(lost(2, "a")), observers=[Hears()], config=config(group_size=2, refills=2, max_concurrent=1)
    )
    done = await runner.run(tasks("a", "b"))
    assert [(one.task_id, one.sample_index, one.failed) for one in done] == [
        ("a", 0, False), ("a", 1, False), ("b", 0, False), ("b", 1, False),
    ]  # fmt: skip
    assert heard[:4] == [((0, 0), 0, True), ((0, 0), 1, True), ((0, 0), 2, False), ((0, 1), 0, False)]
    assert runner.counts.refills == 2
    assert "2 of 6 episodes failed with engine_failed" in caplog.text
    assert len(make_batch(done, pad_token_id=0).rewards) == 4


async def test_after_so_many_attempts_the_last_failure_is_the_record(held):
    runner = Runner(Envs(), held(lost(99, "a")), config=config(refills=3))
    [one, other] = await runner.run(tasks("a", "b"))
    assert (one.stop_reason, other.failed) == (StopReason.ENGINE_FAILED, False)
    assert runner.counts.refills == 3


async def test_an_env_that_cannot_be_made_is_tried_again(held):
    envs = Envs()
    calls = iter([envs, envs, OSError("no place"), envs])

    def make():
        made = next(calls)
        if isinstance(made, OSError):
            raise made
        return made()

    gate = asyncio.Event()
    engine = held(lambda asked, member: ("#### 1", gate))
    run = asyncio.create_task(Runner(make, engine, config=config(refills=1, group_size=3)).run(tasks("a")))
    await until(lambda: len(engine.running) == 3)
    gate.set()
    assert [one.failed for one in await run] == [False] * 3


@pytest.mark.parametrize("reason", [one for one in StopReason if one.failed])
async def test_only_what_the_infrastructure_broke_is_played_again(held, reason):
    played = []

    class Breaking(Envs):
        def __call__(self):
            made = super().__call__()
            made.reset = self._reset
            return made

        async def _reset(self, *, seed=None, options=None):
            played.append(seed)
            raise EpisodeFailedError(reason, "broken")

    [one] = await Runner(Breaking(), held(lambda *_: ""), config=config(refills=1)).run(tasks("a"))
    assert one.stop_reason is reason
    assert len(played) == (1 if reason.blame in (Blame.USER, Blame.POLICY) else 2)
    assert len(set(played)) == 1  # another attempt begins in the same state


async def test_attempts_have_seeds_of_their_own_and_the_first_keeps_its(held):
    def seeds(engine):
        return [params.seed for _, params in engine.seen.values()]

    plain, again = held(lost(0)), held(lost(1, "a"))
    await Runner(Envs(), plain, config=config(max_concurrent=1)).run(tasks("a", "b"))
    await Runner(Envs(), again, config=config(max_concurrent=1, refills=1)).run(tasks("a", "b"))
    assert seeds(again)[0] == seeds(plain)[0]
    assert seeds(again)[2] == seeds(plain)[1]
    assert len(set(seeds(again))) == 3


async def test_members_of_a_group_never_share_a_seed(held):
    engine = held(lost(2, "a", "c"))
    done = await Runner(Envs(), engine, config=config(group_size=16, refills=2)).run(tasks("a", "b", "c"))
    seeds = [turn.seed for one in done for turn in one.turns]
    assert len(seeds) == len(set(seeds)) == 48
    assert len({params.seed for _, params in engine.seen.values()}) == len(engine.seen)


async def test_members_that_share_a_seed_end_the_run(held, monkeypatch):
    from toolgym.rollout.episode import turn_sampling

    monkeypatch.setattr(turn_sampling, "derive_seed", lambda *_: 7)
    with pytest.raises(AssertionError, match="the group of task 0 share a sampling seed"):
        await Runner(Envs(), held(lost(0)), config=config(group_size=2)).run(tasks("a"))


async def test_a_lost_member_is_played_again_while_the_next_task_is_awaited(held):
    never = asyncio.Event()

    async def source():
        yield tasks("a")[0]
        await never.wait()

    stream = Runner(Envs(), held(lost(2, "a")), config=config(refills=2)).stream(source())
    async with asyncio.timeout(50):
        assert not (await anext(stream)).failed
    await stream.aclose()
    assert others() == []


async def test_a_recorded_run_with_lost_members_replays(scripted, tmp_path):
    def make():
        from toolgym.envs import ToolEnv

        return ToolEnv([], tasks("unused"))

    failures = iter([EngineError("gone"), EngineError("gone again")])
    engine = scripted(lambda *_: next(failures, "done"))
    runner = Runner(make, engine, config=config(refills=3, max_concurrent=1))
    with recorded(runner, tasks("a", "b"), tmp_path / "run.jsonl") as recording:
        done = await recording.run(tasks("a", "b"))
    assert [one.failed for one in done] == [False, False]
    again = await replay(tmp_path / "run.jsonl", tokenizer=engine.tokenizer, env=make)
    assert (again.compared, again.differences, again.misses) == (2, [], [])


def test_refills_are_a_number():
    with pytest.raises(ConfigError, match="refills must be a whole number"):
        RunConfig(refills=-1)


async def test_a_group_that_is_not_waited_for_cannot_branch(held):
    runner = Runner(Envs(), held(lost(0)), config=config(group_size=2))
    scheduler = runner.schedule(tasks("a"))
    job = await scheduler.next()
    branch = scheduler.branch(job)
    assert (branch.key, branch.group_id) == ((0, 2), job.group_id)
    planned = runner.schedule(tasks("a"), plan=GroupPlan())
    with pytest.raises(EpisodeError, match="does not wait for its group"):
        planned.branch(job)
