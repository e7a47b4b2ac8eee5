"""Stale tokens that are withheld from training: what stays of an episode, and which episodes a queue loses without."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import random
from dataclasses import replace

import pytest

from tests.actors import echo, tasks
from tests.rollout.trajectories import played
from toolgym.envs import ToolEnv
from toolgym.rollout import RolloutQueue, RunConfig, Runner, SamplingParams, group_advantages, make_batch
from toolgym.rollout.advantages import token_rewards
from toolgym.rollout.engines.base import Engine, FinishReason, Generation
from toolgym.rollout.trajectory.distribution import SamplingDistribution
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Turn
from toolgym.rollout.trajectory.withholding import withhold, withhold_constrained
from toolgym.tools.errors import ConfigError


def member(name, *turns, reward=1.0):
    """An episode of a group: each turn is its tokens' versions, and one token of the env follows it."""
    ids, segments = itertools.count(10), []
    for versions in turns:
        segments += [Segment.policy([next(ids) for _ in versions], [-0.5] * len(versions), versions), Segment.env([1])]
    made = tuple(Turn("", "stop", 1, len(versions), observation_tokens=1, reward=reward / 4) for versions in turns)
    return replace(played([]), id=name, sequences=(TokenSequence([1, 2], tuple(segments)),), turns=made, reward=reward)


def stale(version):
    return version == "old"


def test_stale_tokens_are_masked_and_all_else_stays():
    [kept] = withhold([member("a", "oo", ["old", "old", "new"], "nn")], lambda version: version in ("o", "old"))
    [sequence] = kept.sequences
    assert sequence.response_ids.tolist() == [10, 11, 1, 12, 13, 14, 1, 15, 16, 1]
    assert sequence.response_mask.tolist() == [0, 0, 0, 0, 0, 1, 0, 1, 1, 0]
    assert sequence.weight_versions == [None] * 5 + ["new", None, "n", "n", None]
    assert [turn.generated_tokens for turn in kept.turns] == [0, 1, 2]
    assert (kept.reward, kept.usable, kept.policy_tokens) == (1.0, True, 3)
    batch = make_batch([kept], pad_token_id=0)
    assert batch.response_mask.tolist() == [sequence.response_mask.tolist()]
    assert float(batch.token_rewards.sum()) == 1.0
    for placement in ("turns", "outcome"):
        assert sum(map(sum, token_rewards(kept, placement))) == 1.0


def test_turns_under_a_grammar_are_masked_and_all_else_stays():
    free = member("a", "nn", "nnn", "n")
    constrained = {"grammar": ["json_schema", "{}"]}
    mixed = replace(free, turns=(free.turns[0], replace(free.turns[1], sampling=constrained), free.turns[2]))
    whole = replace(member("b", "nn", reward=3.0), sampling=constrained)
    [kept, gone, same] = withhold_constrained([mixed, whole, free])
    assert kept.sequences[0].response_ids.tolist() == free.sequences[0].response_ids.tolist()
    assert kept.sequences[0].response_mask.tolist() == [1, 1, 0, 0, 0, 0, 0, 1, 0]
    assert [turn.generated_tokens for turn in kept.turns] == [2, 0, 1]
    assert (kept.reward, kept.usable, gone.usable) == (1.0, True, False)
    assert [(peer.id, peer.reward) for peer in kept.peers] == [("b", 3.0)]
    assert same.sequences is free.sequences
    [row] = make_batch([kept], pad_token_id=0).distributions
    assert row == (SamplingDistribution(),)


def test_what_is_fresh_is_returned_itself():
    fresh = [member("a", "nn"), member("b", "n")]
    assert all(new is old for new, old in zip(withhold(fresh, stale), fresh, strict=True))


def test_a_reward_counts_among_those_of_its_own_role():
    pair = [replace(member(name, versions), group_id=name) for name, versions in (("a", ["old"]), ("b", "n"))]
    assert [kept.peers for kept in withhold(pair, stale)] == [(), ()]


def test_an_episode_without_a_fresh_token_trains_nothing_and_counts_in_its_group():
    group = [member("a", "nn", reward=0.0), member("b", ["old"], reward=1.0), member("c", ["old", "n"], reward=0.0)]
    kept = withhold(group, stale)
    assert [each.usable for each in kept] == [True, False, True]
    assert [each.reward for each in kept] == [0.0, 1.0, 0.0]
    whole, now = group_advantages(group), group_advantages(kept)
    assert now == [whole[0], None, whole[2]]
    assert now[0] < 0
    batch = make_batch(kept, pad_token_id=0)
    assert [dropped.id for dropped in batch.dropped] == ["b"]
    assert int(batch.response_mask.sum()) == 3


# ---------------------------------------------------------------------- a queue, and episodes of very unlike lengths

LONG, SHORT, RARE = 8, (1, 2), 0.1
"""Turns of a long episode and of the others, and the part of all episodes that are long."""

LONG_TURN, LEARNING = 5, 6
"""Units of the clock that each turn of a long episode takes, where others take one; and a training step."""


class Clock:
    """Time that goes on when nothing else does."""

    def __init__(self):
        self.now, self._waiting, self._numbers = 0, [], itertools.count()

    async def sleep(self, units):
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now + units, next(self._numbers), future))
        await future

    async def run(self):
        while True:
            await asyncio.sleep(0.001)  # what is to be done now is done: envs are made, episodes ask for their turns
            if self._waiting:
                self.now = self._waiting[0][0]
            while self._waiting and self._waiting[0][0] == self.now:
                future = heapq.heappop(self._waiting)[2]
                if not future.done():
                    future.set_result(None)


class Heavy(Engine):
    """Plays episodes of a unit or two of the clock, and some of forty."""

    vocab_size, context_length, weight_version = 10_000, 16_384, "0"

    def __init__(self, tokenizer, clock):
        self.tokenizer, self._clock, self._lengths = tokenizer, clock, {}
        call = f"<tool_call>\n{json.dumps({'name': 'echo', 'arguments': {'text': 'x'}})}\n</tool_call>"
        self._ids = {text: [*tokenizer.encode(text), tokenizer.eos_token_id] for text in (call, "yes", "no")}
        self._call = call

    async def _generate(self, request):
        episode, _, turn = request.request_id.rpartition("-")
        if episode not in self._lengths:
            rng = random.Random(request.params.seed)
            length = LONG if rng.random() < RARE else rng.randint(*SHORT)
            self._lengths[episode] = length, rng.choice(["yes", "no"])
        length, end = self._lengths[episode]
        await self._clock.sleep(LONG_TURN if length == LONG else 1)
        ids = self._ids[self._call if int(turn) < length - 1 else end]
        return Generation(tuple(ids), (-0.5,) * len(ids), FinishReason.STOP, (self.weight_version,) * len(ids))

    async def abort(self, request_id):
        pass

    async def pause(self, mode=None):
        pass

    async def resume(self):
        pass

    async def update_weights(self, source, *, version):
        self.weight_version = version


async def trained(tokenizer, *, steps=25, **options):
    """Train so many steps; return the figures of the episodes that the trainer got, and the queue's."""
    clock = Clock()
    engine = Heavy(tokenizer, clock)
    config = RunConfig(group_size=4, seed=2, sampling=SamplingParams(max_new_tokens=60), max_concurrent=200)
    env = lambda: ToolEnv([echo], tasks("unused"), scorer=lambda outcome: float(outcome.final_text == "yes"))  # noqa: E731
    runner, ticking = Runner(env, engine, config=config), asyncio.create_task(clock.run())
    episodes = []
    try:
        endless = (task for number in itertools.count() for task in tasks(str(number)))
        async with RolloutQueue(runner, endless, batch_size=4, **options) as queue:
            for step in range(steps):
                batch = await anext(queue)
                episodes += batch
                assert len(batch) == 16
                assert all(queue.staleness(each) <= queue.max_staleness for each in batch)
                await clock.sleep(LEARNING)
                await queue.update_weights({}, version=str(step + 1))
            figures = queue.metrics()
    finally:
        ticking.cancel()
    long = [each for each in episodes if len(each.turns) == LONG]
    tokens = sum(each.policy_tokens for each in episodes)
    return {
        "long": len(long) / len(episodes),
        "long, trained": sum(each.usable for each in long) / len(episodes),
        "long, of tokens": sum(each.policy_tokens for each in long) / tokens,
        "dropped": figures["queue/groups_dropped"],
        "withheld": figures["queue/tokens_withheld"],
        "time": clock.now,
    }


async def test_a_queue_that_withholds_drops_no_group_of_a_long_episode(tokenizer):
    figures = await trained(tokenizer, steps=8, max_staleness=1, stale="withhold")
    assert figures["dropped"] == 0
    assert figures["withheld"] > 0
    assert figures["long, trained"] == figures["long"] > 0


@pytest.mark.long
async def test_withholding_keeps_the_long_episodes_that_dropping_loses(tokenizer):
    runs = {
        "synchronous": await trained(tokenizer, max_staleness=0),
        "drop": await trained(tokenizer, max_staleness=2),
        "withhold": await trained(tokenizer, max_staleness=2, stale="withhold"),
    }
    for name, figures in runs.items():
        print(f"{name:12}", {what: round(float(value), 3) for what, value in figures.items()})
    synchronous, drop, withheld = runs.values()
    assert synchronous["long"] == pytest.approx(RARE, abs=0.04)
    assert (synchronous["dropped"], synchronous["withheld"]) == (0, 0)
    assert drop["long"] < synchronous["long"] / 3
    assert drop["dropped"] > 10
    assert withheld["dropped"] == 0
    assert withheld["withheld"] > 500
    assert withheld["long"] == pytest.approx(synchronous["long"], abs=0.04)
    assert withheld["long, trained"] == withheld["long"]  # the last turns are fresh
    assert withheld["time"] < 0.6 * synchronous["time"]


async def test_a_group_without_a_fresh_token_is_dropped_and_another_takes_its_place(tokenizer, caplog):
    runner = Runner(
        lambda: ToolEnv([], tasks("unused")),
        Heavy(tokenizer, clock := Clock()),
        config=RunConfig(seed=2, sampling=SamplingParams(max_new_tokens=60)),
    )
    ticking = asyncio.create_task(clock.run())
    async with RolloutQueue(runner, tasks(*"abcdef"), batch_size=1, max_staleness=1, stale="withhold") as queue:
        while queue.metrics()["queue/groups_ready"] < 2:
            await asyncio.sleep(0.001)
        for version in ("1", "2"):
            await queue.update_weights({}, version=version)
        assert queue.metrics()["queue/groups_dropped"] == 2
        [late] = await anext(queue)
        assert late.task_id in "cd"  # both began in the place of the two
        assert queue.staleness(late) == 0
    ticking.cancel()
    assert "because their newest tokens were more than 1 versions behind" in caplog.text


def test_what_becomes_of_stale_tokens_is_one_of_two(tokenizer):
    runner = Runner(lambda: ToolEnv([], tasks("unused")), Heavy(tokenizer, Clock()))
    with pytest.raises(ConfigError, match="stale must be 'drop' or 'withhold', got 'mask'"):
        RolloutQueue(runner, tasks("a"), batch_size=1, stale="mask")
