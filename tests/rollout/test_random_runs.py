"""Runs by random plans, with random faults and early ends: nothing is lost, nothing comes twice, nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import aclosing

import pytest

from tests.actors import tasks
from tests.rollout.held_engine import Envs, config, others
from toolgym.rollout import GroupPlan, Runner, SamplingParams
from toolgym.rollout.engines.base import FinishReason, Generation
from toolgym.rollout.episode import turn_sampling
from toolgym.rollout.runner import has_signal
from toolgym.rollout.runner.branching import Branching, at_turns
from toolgym.tools import tool
from toolgym.tools.errors import EngineError

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "%s"}}\n</tool_call>'
TASKS, CALLS = 12, 8


@tool
async def look(at: str) -> str:
    """Look at something."""
    for _ in range(len(at)):
        await asyncio.sleep(0)
    return "seen"


@pytest.fixture
def faulty(scripted_engine, tokenizer):
    """An engine of random speed that fails now and then, and can abort a request."""

    class Faulty(scripted_engine):
        def __init__(self, draws):
            super().__init__(tokenizer, None)
            self._draws, self._aborted = draws, {}

        async def _generate(self, request):
            aborted = self._aborted[request.request_id] = asyncio.Event()
            for _ in range(self._draws.choice([0, 1, 5, 30, 200])):
                if aborted.is_set():
                    return Generation((5,), (-0.5,), FinishReason.ABORT, ("1",), 0, {})
                await asyncio.sleep(0)
            drawn = self._draws.random()
            if drawn < 0.08:
                raise EngineError("the node is gone")
            text = CALL % ("x" * self._draws.randrange(30)) if drawn < 0.5 else f"#### {self._draws.randrange(2)}"
            ids = [*tokenizer.encode(text), tokenizer.eos_token_id][: request.params.max_new_tokens]
            return Generation(tuple(ids), (-0.5,) * len(ids), FinishReason.STOP, ("1",) * len(ids), 0, {})

        async def abort(self, request_id):
            if request_id in self._aborted:
                self._aborted[request_id].set()

    return Faulty


class Queue:
    """Tasks that come one by one, through several calls."""

    def __init__(self, draws):
        self._draws, self._waiting = draws, tasks(*map(str, range(TASKS)))

    def __aiter__(self):
        return self

    async def __anext__(self):
        for _ in range(self._draws.randrange(10)):
            await asyncio.sleep(0)
        if not self._waiting:
            raise StopAsyncIteration
        return self._waiting.pop(0)


def random_plan(draws, group_size):
    stragglers = draws.choice(["drop", "keep", "carry"])
    groups = draws.choice([None, 2, 3])
    return GroupPlan(
        groups=groups,
        spare_groups=draws.choice([0, 2]) if groups else 0,
        spare_members=draws.choice([0, 0, 1, 2]),
        stragglers=stragglers,
        keep=draws.choice([None, None, has_signal]) if group_size > 1 else None,
        max_groups=6,
        in_order=stragglers == "drop" and draws.random() < 0.4,
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30))
async def test_nothing_is_lost_nothing_comes_twice_and_nothing_is_left(faulty, seed, monkeypatch):
    monkeypatch.setattr(turn_sampling, "RESUME_WAIT", (0.0, 0.0))
    draws, envs, given = random.Random(seed), Envs([look]), []
    size = draws.choice([1, 2, 4])
    plan, dropped, closed_early = random_plan(draws, size), 0, False
    run_config = config(
        group_size=size,
        refills=draws.choice([0, 1, 3]),
        branching=draws.choice([None, None, Branching(at_turns(1), max_branches=2)]),
        max_concurrent=draws.choice([1, 2, 5, 64]),
        sampling=SamplingParams(max_new_tokens=60),
    )
    source = Queue(draws) if draws.random() < 0.5 else iter(tasks(*map(str, range(TASKS))))
    async with asyncio.timeout(300), Runner(envs, faulty(draws), config=run_config) as runner:
        for call in range(CALLS):
            ends_behind = draws.randrange(4) if draws.random() < 0.1 and call < CALLS - 1 else None
            async with aclosing(runner.stream_groups(source, plan=plan if call < CALLS - 1 else None)) as stream:
                count = 0
                async for group in stream:
                    given.append(group)
                    count += 1
                    for _ in range(draws.randrange(3)):
                        await asyncio.sleep(0)
                    if ends_behind is not None and count > ends_behind:
                        closed_early = True
                        break
            assert others() == []
            dropped += runner.counts.episodes_dropped
    assert envs.all_closed
    members = Counter((one.group_id, one.sample_index) for group in given for one in group)
    assert set(members.values()) <= {1}
    for group in given:
        assert len({one.group_id for one in group}) == 1
        assert [one.sample_index for one in group] == sorted(one.sample_index for one in group)
    if plan.stragglers == "carry" and plan.keep is None and not closed_early:
        assert len({one.task_id for group in given for one in group}) == TASKS
        if plan.spare_members == 0 and run_config.branching is None:
            assert (len(members), dropped) == (TASKS * size, 0)
