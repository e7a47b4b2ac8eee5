"""The same seeds and the same replies of the engine give the same trajectories, whatever happens at the same time."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.actors import tasks
from tests.rollout.held_engine import Envs, config
from toolgym.rollout import GroupPlan, Runner
from toolgym.rollout.engines.base import FinishReason, Generation
from toolgym.rollout.runner import has_signal
from toolgym.tools import tool
from toolgym.tools.errors import EngineError

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "%s"}}\n</tool_call>'


@tool
async def look(at: str) -> str:
    """Look at something."""
    for _ in range(len(at)):
        await asyncio.sleep(0)
    return f"seen {at}"


@pytest.fixture
def seeded(scripted_engine, tokenizer):
    """An engine whose reply depends on prompt and seed alone, and whose speed depends on `clock` as well. It fails, and
    it aborts turns, by the seed too."""

    class Seeded(scripted_engine):
        def __init__(self, clock):
            super().__init__(tokenizer, None)
            self._clock = random.Random(clock)

        async def _generate(self, request):
            for _ in range(self._clock.randrange(12)):
                await asyncio.sleep(0)
            draws = random.Random(f"{len(request.prompt_ids)} {request.params.seed}")
            if draws.random() < 0.1:
                raise EngineError("the node is gone")
            text = CALL % ("x" * draws.randrange(9)) if draws.random() < 0.6 else f"#### {draws.randrange(2)}"
            ids, reason = [*tokenizer.encode(text), tokenizer.eos_token_id], FinishReason.STOP
            if draws.random() < 0.1:
                ids, reason = [], FinishReason.ABORT
            return Generation(tuple(ids), (-0.5,) * len(ids), reason, ("1",) * len(ids), 0, {})

    return Seeded


def said(trajectory):
    """A trajectory without its names and its clock."""
    written = trajectory.to_json()
    for name in ("id", "group_id", "started_at", "seconds"):
        del written[name]
    for turn in written["turns"]:
        for name in ("engine_seconds", "env_seconds"):
            del turn[name]
        for call in turn["tool_calls"]:
            del call["seconds"], call["id"]
    for message in written["messages"]:
        message.pop("tool_call_id", None)
        for call in message.get("tool_calls", ()):
            call.pop("id", None)
    return written


PLANS = {
    "every episode": None,
    "whole groups": GroupPlan(),
    "dynamic sampling": GroupPlan(groups=3, keep=has_signal),
    "more groups, in order": GroupPlan(groups=3, spare_groups=3, keep=has_signal, in_order=True),
    "more members, in order": GroupPlan(spare_members=2, in_order=True),
}
SHORTEST = ("every episode", "more groups, in order")


@pytest.mark.parametrize(
    "plan", [pytest.param(one, marks=() if one in SHORTEST else pytest.mark.long) for one in PLANS]
)
async def test_the_result_depends_on_no_clock_and_no_concurrency(seeded, plan, monkeypatch):
    from toolgym.rollout.episode import turn_sampling

    monkeypatch.setattr(turn_sampling, "RESUME_WAIT", (0.0, 0.0))
    results = []
    for clock, max_concurrent in ((0, 1), (1, 5), (2, 64)):
        run_config = config(group_size=4, max_concurrent=max_concurrent, refills=1)
        runner = Runner(Envs([look]), seeded(clock), config=run_config)
        done = await runner.run(tasks(*map(str, range(6))), plan=PLANS[plan])
        results.append([said(one) for one in done])
        assert max_concurrent == 1 or runner.counts.refills > 0
    first, *others = results
    assert len(first) >= 12
    assert len({one["score"] for one in first}) > 1
    assert all(other == first for other in others)
