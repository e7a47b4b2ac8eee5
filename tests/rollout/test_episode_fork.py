"""Forks of live episodes: what a branch shares with its parent, what is its own, and what a failing fork leaves."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

from toolgym.envs import StopReason, Task, ToolEnv
from toolgym.rollout import EpisodeLimits, RunConfig, SamplingParams
from toolgym.rollout.episode import turn_sampling
from toolgym.rollout.episode.episode import Episode
from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools import StatefulTool, ToolSchema, ToolSession
from toolgym.tools.concurrency import deadline
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import EpisodeError, ForkNotSupportedError

CALL = '<tool_call>\n{"name": "add", "arguments": {"by": 1}}\n</tool_call>'
TASK = Task(({"role": "user", "content": "q"},), id="q")


class Tally(ToolSession):
    """Adds up; `tool.stop` is what happens when it is forked."""

    def __init__(self, tool, total=0):
        self.tool, self.total, self.closed = tool, total, 0
        tool.opened.append(self)

    async def execute(self, parameters, **execute_kwargs):
        self.total += parameters["by"]
        return str(self.total)

    async def reward(self, **calc_reward_kwargs):
        return float(self.total)

    async def fork(self):
        self.tool.forking.set()
        if self.tool.stop == "raise":
            return await super().fork()
        if self.tool.stop == "hang":
            await asyncio.Event().wait()
        if self.tool.stop == "late":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.sleep(0.05)
        if self.tool.stop == "gate":
            await self.tool.gate.wait()
        return Tally(self.tool, self.total)

    async def close(self):
        self.closed += 1


class TallyTool(StatefulTool):
    def __init__(self, stop=""):
        parameters = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
        super().__init__({}, ToolSchema("add", "", parameters))
        self.stop, self.opened, self.forking, self.gate = stop, [], asyncio.Event(), asyncio.Event()

    async def open(self, **create_kwargs):
        return Tally(self)


def job(sample_index):
    return Job(TASK, EpisodeKey(0, sample_index), "group", 5)


@pytest.fixture(scope="module")
def renderers(tokenizer):
    """What makes renderers, one for all episodes with the same tools."""
    made = {}

    def renderer(schemas):
        key = tuple(schema.canonical_json for schema in schemas)
        if key not in made:
            made[key] = ChatRenderer(tokenizer, schemas, {}, parser=None)
        return made[key]

    return renderer


@pytest.fixture
def stand(scripted, renderers):
    """Returns an episode that calls the tool `calls` times, its engine and its tool."""

    def make(stop="", calls=3, **config):
        def script(prompt, request_id):
            return CALL if prompt.count("<tool_response>") < calls else "done"

        engine, tally = scripted(script), TallyTool(stop)
        config = RunConfig(sampling=SamplingParams(max_new_tokens=100), **config)
        return Episode(job(0), config, ToolEnv([tally], [TASK]), engine, renderers), engine, tally

    return make


def at(turn, forked):
    """What forks an episode before a turn."""

    async def between_turns(episode):
        if len(episode.turns) == turn and episode.job.parent is None:
            forked.append(await episode.fork(job(1)))

    return between_turns


async def test_a_branch_shares_the_past_and_has_a_future_of_its_own(stand):
    episode, engine, tally = stand()
    forked = []
    one = await episode.run(between_turns=at(2, forked))
    engine.script = lambda prompt, request_id: "done"
    other = await forked[0].run()
    assert (one.parent, one.branch_turn, other.parent, other.branch_turn) == (None, None, one.id, 2)
    assert (one.sample_index, other.sample_index, one.group_id, other.group_id) == (0, 1, "group", "group")
    assert [len(one.turns), len(other.turns)] == [4, 3]
    assert other.turns[:2] == one.turns[:2]
    assert (one.reward, other.reward) == (3.0, 2.0)
    assert [session.closed for session in tally.opened] == [1, 1]

    # The ids so far are the same arrays, and what was sent behind them is each one's own.
    shared = len(other.segments) - 1
    assert np.shares_memory(one.prompt_ids, other.prompt_ids)
    assert shared == 4
    assert all(left is right for left, right in zip(one.segments, other.segments[:shared], strict=False))
    request = f"{other.id}-2"
    prefix = [*other.prompt_ids, *(token for part in other.segments[:shared] for token in part.token_ids)]
    assert engine.seen[request][0] == prefix == engine.seen[f"{one.id}-2"][0]
    assert tuple(other.segments[-1].token_ids) == engine.given[request].token_ids
    assert [name for name in engine.seen if name.startswith(other.id)] == [request]
    assert engine.affinities[request] == one.id  # where its prefix is cached
    seeds = [turn.seed for turn in (*one.turns, other.turns[2])]
    assert len(set(seeds)) == 5
    assert other.started_at == one.started_at
    assert other.seconds > 0
    await forked[0].env.close()
    await episode.env.close()


async def test_a_branch_of_a_branch_and_two_branches_of_a_turn_have_seeds_of_their_own(stand):
    episode, _, _ = stand()
    made = []

    async def between_turns(one):
        if len(made) < 4 and len(one.turns) in (1, 2):
            made.extend([await one.fork(job(len(made) + 1)), await one.fork(job(len(made) + 2))])

    done = [await episode.run(between_turns=between_turns)]
    while len(done) <= len(made):
        done.append(await made[len(done) - 1].run(between_turns=between_turns))
    first = {one.id: one for one in done}
    assert [one.branch_turn for one in done] == [None, 1, 1, 2, 2]
    assert {first[one.parent].id for one in done[1:3]} == {done[0].id}
    own = [turn.seed for one in done for turn in one.turns[one.branch_turn or 0 :]]
    assert len(own) == len(set(own))
    assert [one.reward for one in done] == [3.0] * 5
    for one in made:
        await one.env.close()
    await episode.env.close()


async def test_seeds_of_a_branch_do_not_depend_on_its_number_in_the_group(stand):
    seeds = []
    for number in (1, 7):
        episode, _, _ = stand(calls=1)
        forked = []

        async def between_turns(one, number=number, forked=forked):
            forked.append(await one.fork(job(number)))

        await episode.run(between_turns=between_turns)
        seeds.append([turn.seed for turn in (await forked[0].run()).turns])
        await forked[0].env.close()
        await episode.env.close()
    assert seeds[0] == seeds[1]


async def test_a_branch_of_several_sequences_shares_those_that_are_over(stand):
    class Forgetful(ToolEnv):
        replaces_context = True

        async def step(self, action):
            result = await super().step(action)
            if self.turns == 1:
                result.info["context"] = [{"role": "user", "content": "anew"}]
            return result

    episode, engine, tally = stand()
    engine.script = lambda prompt, request_id: "done" if "<tool_response>" in prompt and "anew" in prompt else CALL
    episode.env = Forgetful([tally], [TASK])
    forked = []
    one = await episode.run(between_turns=at(1, forked))
    other = await forked[0].run()
    assert [len(one.sequences), len(other.sequences)] == [2, 2]
    assert np.shares_memory(one.sequences[0].prompt_ids, other.sequences[0].prompt_ids)
    assert one.sequences[0].segments == other.sequences[0].segments
    assert np.shares_memory(one.sequences[1].prompt_ids, other.sequences[1].prompt_ids)
    await forked[0].env.close()
    await episode.env.close()


@pytest.mark.parametrize(
    ("stop", "error"), [("raise", ForkNotSupportedError), ("hang", DeadlineError), ("late", DeadlineError)]
)
async def test_a_fork_that_fails_leaves_the_episode_as_it_was(stand, stop, error):
    raised = []

    async def between_turns(one):
        if len(one.turns) == 1:
            with pytest.raises(error) as caught:
                await one.fork(job(1))
            raised.append(caught.value)

    for seconds in (0.2, 10.0):  # a busy machine may need the first for a step
        episode, _, tally = stand(stop, limits=EpisodeLimits(env_timeout=seconds))
        one = await episode.run(between_turns=between_turns)
        if one.stop_reason is not StopReason.ENV_TIMEOUT:
            break
        raised.clear()
        await episode.env.close()
    assert (one.stop_reason, one.reward, len(raised)) == (StopReason.ANSWERED, 3.0, 1)
    async with asyncio.timeout(50):
        while any(not session.closed for session in tally.opened):
            await asyncio.sleep(0.01)
    assert [session.closed for session in tally.opened] == ([1, 1] if stop == "late" else [1])
    await episode.env.close()


async def test_a_fork_whose_place_is_refused_is_closed(stand):
    episode, _, tally = stand()

    def refuse():
        raise EpisodeError("the group is closed")

    async def between_turns(one):
        with pytest.raises(EpisodeError, match="the group is closed"):
            await one.fork(refuse)

    one = await episode.run(between_turns=between_turns)
    assert (one.stop_reason, [session.closed for session in tally.opened]) == (StopReason.ANSWERED, [1, 1, 1, 1])
    await episode.env.close()


@pytest.mark.parametrize("stop", ["cancel", "cut", "suspend late"])
async def test_what_ends_an_episode_while_it_is_forked_leaves_no_env_behind(stand, stop, monkeypatch):
    monkeypatch.setattr(deadline, "CANCEL_GRACE", 0.2)
    episode, _, tally = stand("late")
    forked = []
    running = asyncio.create_task(episode.run(between_turns=at(1, forked)))
    async with asyncio.timeout(50):
        await tally.forking.wait()
        if stop == "cancel":
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            episode.cut() if stop == "cut" else episode.suspend(grace=0.02)
            one = await running
            assert (one.stop_reason, len(one.turns)) == (StopReason.STRAGGLER, 1)
        await episode.env.close()
        while any(not session.closed for session in tally.opened):
            await asyncio.sleep(0.01)
    assert (forked, [session.closed for session in tally.opened]) == ([], [1, 1])


async def test_a_suspension_waits_for_a_fork(stand):
    episode, _, tally = stand("gate")
    forked = []
    running = asyncio.create_task(episode.run(between_turns=at(1, forked)))
    async with asyncio.timeout(50):
        await tally.forking.wait()
        episode.suspend(grace=60)
        tally.gate.set()
        assert await running is None
    assert len(forked) == 1
    assert await forked[0].run() is None
    done = [await one.run() for one in (episode, *forked)]
    assert [one.reward for one in done] == [3.0, 3.0]
    await forked[0].env.close()
    await episode.env.close()


@pytest.mark.parametrize("ticks", range(8))
async def test_a_cut_in_the_moment_that_a_fork_is_made_leaves_no_branch_that_was_not_cut(stand, ticks):
    episode, _, tally = stand("gate")
    forked = []
    running = asyncio.create_task(episode.run(between_turns=at(1, forked)))
    async with asyncio.timeout(50):
        await tally.forking.wait()
        tally.gate.set()
        for _ in range(ticks):
            await asyncio.sleep(0)
        made_before = len(forked)
        episode.cut()
        one = await running
    assert len(forked) == made_before
    assert one.stop_reason in (StopReason.STRAGGLER, StopReason.ANSWERED)
    for env in (episode.env, *(branch.env for branch in forked)):
        await env.close()
    assert [session.closed for session in tally.opened] == [1] * len(tally.opened)


async def test_an_episode_is_forked_between_two_turns_alone(stand, monkeypatch):
    monkeypatch.setattr(turn_sampling, "ABORT_GRACE", 0.0)
    asked = []

    class Listener(EpisodeObserver):
        def waits(self, job, phase, what=""):
            asked.append(phase)
            if phase in (Phase.ENV, Phase.CONTEXT):
                refused.append(asyncio.ensure_future(episode.fork(job)))
            if phase is Phase.ENGINE and asked.count(phase) == 2:
                episode.suspend()

    refused = []
    episode, engine, _ = stand(calls=1)
    episode._observers = (Listener(),)
    with pytest.raises(EpisodeError, match="between two turns"):
        await episode.fork(job(1))
    assert await episode.run() is None
    with pytest.raises(EpisodeError, match="between two turns"):
        await episode.fork(job(1))
    one = await episode.run()
    assert one.stop_reason is StopReason.ANSWERED
    with pytest.raises(EpisodeError, match="between two turns"):
        await episode.fork(job(1))
    for task in refused:
        with pytest.raises(EpisodeError, match="between two turns"):
            await task
    assert len(refused) == 3
    await episode.env.close()
    assert engine.seen


async def test_an_episode_that_goes_on_while_it_is_forked_has_no_branch_there(stand):
    episode, _, tally = stand("gate")

    async def stop(one):
        if len(one.turns) == 1:
            one.suspend()

    assert await episode.run(between_turns=stop) is None
    forking = asyncio.create_task(episode.fork(job(1)))
    async with asyncio.timeout(50):
        await tally.forking.wait()
    await episode.run()
    tally.gate.set()
    with pytest.raises(EpisodeError, match="went on"):
        await forking
    assert [session.closed for session in tally.opened] == [1, 1]
    await episode.env.close()


async def test_what_the_caller_does_wrong_between_turns_is_the_callers(stand):
    episode, _, _ = stand()

    async def wrong(one):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        await episode.run(between_turns=wrong)
    await episode.env.close()
