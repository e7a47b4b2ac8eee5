"""Runs that begin more than they need, and what becomes of the rest: dropped, kept as far as it got, carried over."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
from dataclasses import replace

import pytest

from tests.actors import tasks, until
from tests.rollout.held_engine import PARTIAL, Envs, config, endless, held_engine, others
from toolgym.envs import ToolEnv
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, GroupPlan, Runner, group_advantages, make_batch, rollout
from toolgym.rollout.advantages.advantages import FORMS
from toolgym.rollout.trajectory.trajectory import Peer, Trajectory
from toolgym.tools import tool
from toolgym.tools.errors import ConfigError

SLOW = "one two three four five six seven #### 1"


@pytest.fixture
def held(scripted_engine, tokenizer):
    return lambda script: held_engine(scripted_engine, tokenizer, script)


def members(group):
    return [(one.task_id, one.sample_index, one.stop_reason) for one in group]


def slow(*which):
    """Hold the first turns of these members, such as ("a", 1), at a gate."""
    gate = asyncio.Event()
    return gate, lambda asked, member: (SLOW, gate) if (asked, member) in which else "#### 1"


ANSWERED, STRAGGLER = StopReason.ANSWERED, StopReason.STRAGGLER


# ---------------------------------------------------------------------- the n-th member of a group


async def test_of_more_members_the_first_are_kept_and_the_rest_is_aborted(held):
    _, script = slow(("a", 0), ("a", 3))
    engine, envs = held(script), Envs()
    runner = Runner(envs, engine, config=config(group_size=8))
    [group] = [group async for group in runner.stream_groups(tasks("a"), plan=GroupPlan(spare_members=2))]
    assert members(group) == [("a", n, ANSWERED) for n in (1, 2, 4, 5, 6, 7, 8, 9)]
    assert len(engine.aborted) == 2
    assert runner.counts.episodes_dropped == runner.counts.episodes_cut == 2
    assert envs.all_closed
    assert others() == []


async def test_members_that_failed_are_not_among_the_first_and_fill_a_group_that_has_too_few(held):
    engine = held(lambda asked, member: OSError("gone") if member in (0, 2) else "#### 1")
    runner = Runner(Envs(), engine, config=config(group_size=2, max_concurrent=1))
    assert [one.sample_index for one in await runner.run(tasks("a"), plan=GroupPlan(spare_members=2))] == [1, 3]
    engine = held(lambda asked, member: "#### 1" if member == 3 else OSError("gone"))
    done = await Runner(Envs(), engine, config=config(group_size=2)).run(tasks("a"), plan=GroupPlan(spare_members=2))
    assert [(one.sample_index, one.failed) for one in done] == [(0, True), (3, False)]


async def test_stragglers_that_are_kept_are_whole_up_to_where_they_got(held):
    _, script = slow(("a", 1))
    engine = held(script)
    runner = Runner(Envs(), engine, config=config(group_size=2))
    run = asyncio.create_task(runner.run(tasks("a"), plan=GroupPlan(spare_members=1, stragglers="keep")))
    done = await run
    assert members(done) == [("a", 0, ANSWERED), ("a", 1, STRAGGLER), ("a", 2, ANSWERED)]
    assert done[1].policy_tokens == PARTIAL
    assert (done[1].trainable, done[1].in_group_statistics) == (True, False)
    assert len(make_batch(done, pad_token_id=0).rewards) == 3
    assert runner.counts.episodes_dropped == 0


async def test_a_tool_that_works_for_a_straggler_is_cancelled(held):
    hanging, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        hanging.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    call = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
    engine = held(lambda asked, member: call if member == 0 else ("#### 1", hanging))
    runner = Runner(Envs([wait]), engine, config=config(group_size=2))
    async with asyncio.timeout(50):
        done = await runner.run(tasks("a"), plan=GroupPlan(spare_members=1))
    assert [one.sample_index for one in done] == [1, 2]
    assert cancelled.is_set()
    assert others() == []


# ---------------------------------------------------------------------- the k-th group


@pytest.mark.parametrize("stragglers", ["drop", "keep"])
async def test_a_run_ends_with_the_first_groups_that_are_whole(held, stragglers):
    _, script = slow(("0", 1), ("2", 0), ("2", 1))
    engine, envs, drawn = held(script), Envs(), []
    runner = Runner(envs, engine, config=config(group_size=2))
    plan = GroupPlan(groups=3, spare_groups=2, stragglers=stragglers)
    groups = [group async for group in runner.stream_groups(endless(drawn), plan=plan)]
    whole = [group for group in groups if all(one.stop_reason is ANSWERED for one in group)]
    assert {group[0].task_id for group in whole} <= {"1", "3", "4", "5"}
    assert len(whole) == 3
    assert len(drawn) <= 6
    rest = sorted(members(group) for group in groups if group not in whole)
    if stragglers == "drop":
        assert rest == []
        assert runner.counts.groups_cut >= 2
    else:
        assert rest[0] == [("0", 0, ANSWERED), ("0", 1, STRAGGLER)]
        assert rest[1] == [("2", 0, STRAGGLER), ("2", 1, STRAGGLER)]
    assert envs.all_closed
    assert others() == []


async def test_a_run_that_wants_a_number_of_groups_begins_no_more_than_it_needs(held):
    drawn = []
    runner = Runner(Envs(), held(lambda *_: "#### 1"), config=config(group_size=2))
    done = await runner.run(endless(drawn), plan=GroupPlan(groups=5))
    assert [one.task_id for one in done] == ["0", "0", "1", "1", "2", "2", "3", "3", "4", "4"]
    assert drawn == [0, 1, 2, 3, 4]


async def test_stragglers_that_ignore_their_end_are_left_behind_in_time(scripted_engine, tokenizer, held, monkeypatch):
    from toolgym.rollout.episode import turn_sampling
    from toolgym.tools.concurrency import deadline

    monkeypatch.setattr(turn_sampling, "ABORT_GRACE", 0.1)
    monkeypatch.setattr(deadline, "CANCEL_GRACE", 0.1)
    free = asyncio.Event()

    class Deaf(scripted_engine):
        async def _generate(self, request):
            if len(self.seen) == 0:
                self.seen["first"] = None
                while not free.is_set():
                    try:
                        await free.wait()
                    except asyncio.CancelledError:
                        continue
            return await super()._generate(request)

    runner = Runner(Envs(), Deaf(tokenizer, lambda *_: "#### 1"), config=config(group_size=2))
    async with asyncio.timeout(50):
        done = await runner.run(tasks("a"), plan=GroupPlan(spare_members=1))
    assert [one.sample_index for one in done] == [1, 2]
    free.set()
    await until(lambda: others() == [])


# ---------------------------------------------------------------------- carried over to the next call


async def test_a_carried_episode_goes_on_in_mid_turn_with_its_tools_and_newer_weights(held):
    opened, holding, others_may_end = itertools.count(), asyncio.Event(), asyncio.Event()

    @tool
    async def number() -> str:
        """Give a number."""
        return str(next(opened))

    call = "<tool_call>\n" + json.dumps({"name": "number", "arguments": {}}) + "\n</tool_call>"
    turns = {}

    def script(asked, member):
        if asked != "slow":
            return "#### 1", others_may_end
        turns[member] = turns.get(member, 0) + 1
        return call if turns[member] == 1 else (SLOW, holding)

    engine, envs = held(script), Envs([number])
    async with Runner(envs, engine, config=config(group_size=2)) as runner:
        plan = GroupPlan(groups=2, spare_groups=1, stragglers="carry")
        run = asyncio.create_task(runner.run(tasks("slow", "a", "b"), plan=plan))
        await until(lambda: turns == {0: 2, 1: 2} and len(engine.running) == 6)
        others_may_end.set()
        first = await run
        assert sorted({one.task_id for one in first}) == ["a", "b"]
        assert runner.counts.groups_carried == 1
        assert engine.running == {}
        await until(lambda: others() == [])
        assert len(envs.made) - len(envs.closed) == 2  # the carried ones' are theirs
        engine.version = "8"
        holding.set()
        second = await runner.run(tasks("c"), plan=GroupPlan(groups=2))
        second.sort(key=lambda each: (each.task_id != "slow", each.sample_index))  # either group may end first
        assert [(one.task_id, one.sample_index) for one in second] == [("slow", 0), ("slow", 1), ("c", 0), ("c", 1)]
    for one in second[:2]:
        assert [len(turn.tool_calls) for turn in one.turns] == [1, 0]
        assert one.turns[1].resumes == 1
        assert one.messages[-1]["content"] == SLOW
        versions = [version for version in one.weight_versions if version is not None]
        assert versions[-PARTIAL - 1 :].count("8") > 0
        assert versions[: -len(engine.tokenizer.encode(SLOW))].count("8") == 0
        assert one.reward == 1.0
    assert next(opened) == 2  # no tool was called twice
    assert envs.all_closed
    assert others() == []


async def test_members_that_had_ended_or_not_begun_are_carried_with_their_group(held):
    gate, script = slow(("a", 1))
    engine = held(script)
    async with Runner(Envs(), engine, config=config(group_size=4, max_concurrent=2)) as runner:
        # One place holds the straggler, the other plays "a" to its third member, then the groups behind it.
        first = await runner.run(tasks("a", "b"), plan=GroupPlan(groups=1, spare_groups=1, stragglers="carry"))
        assert [one.task_id for one in first] == ["b"] * 4
        gate.set()
        [group] = [group async for group in runner.stream_groups([])]
        assert members(group) == [("a", n, ANSWERED) for n in range(4)]
        assert len({one.group_id for one in group}) == 1
        assert len({one.turns[0].seed for one in group}) == 4
        assert await runner.run([]) == []


async def test_members_beyond_those_of_a_group_come_later_as_a_group_of_their_own(held):
    gate, script = slow(("a", 0))
    engine = held(script)
    async with Runner(Envs(), engine, config=config(group_size=2)) as runner:
        plan = GroupPlan(spare_members=1, stragglers="carry")
        first = await runner.run(tasks("a"), plan=plan)
        assert [one.sample_index for one in first] == [1, 2]
        gate.set()
        [late] = [group async for group in runner.stream_groups([], plan=plan)]
        assert members(late) == [("a", 0, ANSWERED)]
        assert late[0].group_id == first[0].group_id
        assert late[0].peers == tuple(Peer(one.id, one.reward) for one in first)
        assert Trajectory.from_json(json.loads(json.dumps(late[0].to_json()))) == late[0]
        assert "peers" not in first[0].to_json()


@pytest.mark.parametrize("form", FORMS)
async def test_a_late_member_is_compared_with_the_group_that_was_whole_without_it(held, form):
    gate, script = slow(("a", 0))

    def answers(asked, member):
        return "#### 2" if member > 1 else script(asked, member)

    def env():
        return ToolEnv([], tasks("a"), scorer=lambda outcome: float(outcome.final_text.endswith("#### 1")))

    async with Runner(env, held(answers), config=config(group_size=3)) as runner:
        plan = GroupPlan(spare_members=1, stragglers="carry")
        first = await runner.run(tasks("a"), plan=plan)
        gate.set()
        late = await runner.run([], plan=plan)
    assert [one.reward for one in [*first, *late]] == [1.0, 0.0, 0.0, 1.0]
    together = group_advantages([*first, *late], form=form)  # where it comes in the same call
    assert group_advantages(late, form=form) == together[-1:]
    assert together[-1] > 0
    rewards = [replace(one, peers=()) for one in [*first, *late]]
    assert group_advantages(rewards, form=form) == together  # no reward enters twice
    alone = group_advantages(late, form=form, per=lambda one: one.id)
    assert alone == [0.0]  # another grouping knows nothing of it


async def test_a_call_that_validates_leaves_carried_episodes_of_training_alone(held):
    gate, script = slow(("a", 0))
    async with Runner(Envs(), held(script), config=config()) as runner:
        plan = GroupPlan(groups=1, spare_groups=1, stragglers="carry")
        assert [one.task_id for one in await runner.run(tasks("a", "b"), plan=plan)] == ["b"]
        runner.config = config(validate=True)
        assert [one.task_id for one in await runner.run(tasks("v"))] == ["v"]
        runner.config = config(training_step=1)
        gate.set()
        done = await runner.run(tasks("c"))
        assert {(one.task_id, one.training_step) for one in done} == {("a", 0), ("c", 1)}


async def test_what_is_carried_and_never_gone_on_with_is_freed_by_close(held):
    _, script = slow(("a", 0))
    envs = Envs()
    runner = Runner(envs, held(script), config=config())
    await runner.run(tasks("a", "b"), plan=GroupPlan(groups=1, spare_groups=1, stragglers="carry"))
    assert not envs.all_closed
    await runner.close()
    await runner.close()
    assert envs.all_closed
    assert await runner.run([]) == []


async def test_a_runner_that_is_left_with_carried_episodes_says_so(held, caplog):
    _, script = slow(("a", 0), ("b", 0))
    runner = Runner(Envs(), held(script), config=config())
    await runner.run(tasks("a", "b", "c"), plan=GroupPlan(groups=1, spare_groups=2, stragglers="carry"))

    def leave():
        nonlocal runner
        del runner  # its episodes refer to it, so that Python finds it in its own time: maybe at once
        gc.collect()

    with pytest.warns(ResourceWarning, match="2 episodes that a Runner carried over were left"):
        leave()
    assert "use `async with Runner(...)`, or `await runner.close()`" in caplog.text


async def test_a_stream_that_is_closed_early_keeps_what_it_had_not_gone_on_with(held):
    gate, script = slow(("a", 0), ("b", 0))
    envs = Envs()
    async with Runner(envs, held(script), config=config(max_concurrent=1)) as runner:
        runner.config = config(max_concurrent=4)
        await runner.run(tasks("a", "b", "c"), plan=GroupPlan(groups=1, spare_groups=2, stragglers="carry"))
        runner.config = config(max_concurrent=1)
        stream = runner.stream(tasks("d"))
        going_on = asyncio.create_task(anext(stream))
        await until(lambda: len(runner.engine.running) == 1)  # of "a"; "b" has no place
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)
        await stream.aclose()
        gate.set()
        assert [one.task_id for one in await runner.run([])] == ["b"]
    assert envs.all_closed
    assert others() == []


async def test_rollout_cannot_carry_anything_over(held):
    with pytest.raises(ConfigError, match="`rollout` makes a runner for one call"):
        await rollout(Envs(), held(lambda *_: ""), tasks("a"), plan=GroupPlan(stragglers="carry"))


# ---------------------------------------------------------------------- what depends on no clock


@pytest.mark.parametrize("last", [0, 1, 2, 3])
async def test_in_order_the_members_are_the_first_by_sample_whichever_ends_first(held, last):
    gate, script = slow(("a", last), ("b", last))
    engine = held(script)
    runner = Runner(Envs(), engine, config=config(group_size=2))
    plan = GroupPlan(groups=1, spare_groups=1, spare_members=2, in_order=True)
    run = asyncio.create_task(runner.run(tasks("a", "b"), plan=plan))
    if last < 2:
        await until(lambda: len(engine.running) == 2 and len(engine.seen) == 6)
        assert not run.done()
        gate.set()
    assert [(one.task_id, one.sample_index) for one in await run] == [("a", 0), ("a", 1)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"groups": 0}, "groups must be a whole number"),
        ({"spare_members": -1}, "spare_members must be a whole number"),
        ({"spare_groups": 2}, "say how many with groups="),
        ({"stragglers": "kept"}, "stragglers must be one of 'drop', 'keep', 'carry', got 'kept'"),
        ({"keep": 3}, "keep must be a function"),
        ({"groups": 4, "max_groups": 3}, "max_groups=3 are fewer than the 4 groups"),
        ({"in_order": True, "stragglers": "keep"}, "in_order goes with stragglers='drop' alone, got 'keep'"),
        ({"in_order": 1}, "in_order must be True or False"),
        ({"group": 3}, "did you mean 'groups'"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_at_once(arguments, said):
    with pytest.raises(ConfigError, match=said):
        GroupPlan(**arguments)


async def test_a_run_with_fewer_groups_than_wanted_says_so(held, caplog):
    runner = Runner(Envs(), held(lambda *_: "#### 1"), config=config())
    with caplog.at_level(logging.WARNING):
        assert len(await runner.run(tasks("a", "b"), plan=GroupPlan(groups=3))) == 2
    assert "has 2 of the 3 groups that it wanted: it tried 2 and dropped 0" in caplog.text


@pytest.mark.long
async def test_a_carried_episode_finds_the_variables_of_its_interpreter(held):
    """With the real sandbox: what a program left before the run ended is there in the next call."""
    others_may_end, holding, turns = asyncio.Event(), asyncio.Event(), itertools.count()

    def run(code):
        return (
            "<tool_call>\n" + json.dumps({"name": "code_interpreter", "arguments": {"code": code}}) + "\n</tool_call>"
        )

    def script(asked, member):
        if asked != "slow":
            return "#### 1", others_may_end
        turn = next(turns) - len(engine.aborted)  # an aborted request is asked for again
        return [run("x = 41"), (run("print(x + 1)"), holding), "#### 42"][turn]

    engine = held(script)
    async with Runner("CodeInterpreter-v0", engine, config=config(limits=EpisodeLimits(env_timeout=30.0))) as runner:
        plan = GroupPlan(groups=1, spare_groups=1, stragglers="carry")
        step = asyncio.create_task(runner.run(tasks("slow", "a"), plan=plan))
        await until(lambda: len(engine.running) == 2 and next(iter(engine.asked["slow"])) + "-1" in engine.running)
        others_may_end.set()
        assert [one.task_id for one in await step] == ["a"]
        holding.set()
        [carried] = await runner.run([])
    assert [record.text.strip() for record in carried.tool_calls][-1] == "42"
    assert carried.turns[1].resumes == 1
    assert carried.stop_reason is ANSWERED
