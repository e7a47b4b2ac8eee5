"""Each request of a run has a seed of its own, and another step or another seed of the run gives others."""

from __future__ import annotations

import hashlib
import json
import random

from toolgym.envs import ArithmeticTasks, ToolEnv
from toolgym.rollout import RunConfig, Runner, SamplingParams
from toolgym.rollout.engines.base import FinishReason, Generation
from toolgym.tools import tool


@tool
async def look(place: int) -> str:
    """Look there.

    Args:
        place: where.
    """
    return f"found {place * 7}"


def engine_of(scripted_engine, tokenizer):
    class Seeded(scripted_engine):
        """Samples by the seed and the prompt alone."""

        async def _generate(self, request):
            drawn = random.Random(hashlib.sha256(repr((request.prompt_ids, request.params.seed)).encode()).digest())
            text = f"#### {drawn.randrange(100)}"
            if drawn.random() < 0.7:
                call = {"name": "look", "arguments": {"place": drawn.randrange(1000)}}
                text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
            ids = (*tokenizer.encode(text), tokenizer.eos_token_id)
            logprobs = tuple(-drawn.random() for _ in ids)
            return Generation(ids, logprobs, FinishReason.STOP, ("1",) * len(ids))

    return Seeded(tokenizer, None)


async def test_no_two_members_are_alike_and_another_step_changes_every_seed(scripted_engine, tokenizer):
    async def play(**kwargs):
        given = {"seed": 5, "group_size": 4, "sampling": SamplingParams(max_new_tokens=100), **kwargs}
        tasks = ArithmeticTasks().take(6, seed=1)
        runner = Runner(
            lambda: ToolEnv([look], tasks, max_turns=4),
            engine_of(scripted_engine, tokenizer),
            config=RunConfig(**given),
        )
        return await runner.run(tasks)

    def seeds(run):
        return [turn.seed for one in run for turn in one.turns]

    played = await play()
    assert not any(one.failed for one in played)
    assert {len(one.turns) for one in played} >= {1, 4}
    assert len({str([turn.text for turn in one.turns]) for one in played}) == 24
    assert len(set(seeds(played))) == len(seeds(played))
    for other in ({"training_step": 1}, {"seed": 6}):
        assert set(seeds(await play(**other))).isdisjoint(seeds(played))
