"""Each env of the library scores what its page says, for the known solution and for silence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import toolgym
from toolgym.envs.ids import OWN_ENVS
from toolgym.rollout import RunConfig, SamplingParams, open_engine, rollout
from toolgym.tools.message import assistant

DOCS = Path(__file__).parents[3] / "docs" / "envs"
SEEDS = range(4)

IDS = sorted(id for id in OWN_ENVS if "/" not in id)
"""The families, whose ids have a namespace, have tests of their own."""


@pytest.fixture(scope="module")
def scores() -> dict[str, tuple[float, float]]:
    """From each id to the scores that the table of `docs/envs/README.md` gives: gold and no-op."""
    text = (DOCS / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| \[`([^`]+)`\]\(([^)]+)\) \|.*\| (-?[\d.]+) \| (-?[\d.]+) \|$", text, re.MULTILINE)
    for id, page, gold, silence in rows:
        own = re.search(
            r"^\| Gold, no-op \| (-?[\d.]+), (-?[\d.]+) \|$", (DOCS / page).read_text("utf-8"), re.MULTILINE
        )
        assert own, f"docs/envs/{page} has no row 'Gold, no-op'"
        assert own.groups() == (gold, silence), f"docs/envs/{page} and README.md say different scores of {id}"
    return {id: (float(gold), float(silence)) for id, _, gold, silence in rows}


async def play(env, actions) -> float:
    """The reward of an episode that has begun; the last action is repeated until it is over."""
    total = 0.0
    for at in range(64):
        result = await env.step(actions[min(at, len(actions) - 1)])
        total += result.reward
        if result.done:
            assert not result.stop_reason.failed, result.stop_reason
            return total
    raise AssertionError("the episode has no end")


@pytest.mark.parametrize("id", IDS)
async def test_the_known_solution_and_silence_score_what_the_page_says(id, scores):
    gold, silence = [], []
    async with toolgym.make(id) as env:
        for seed in SEEDS:
            await env.reset(seed=seed)
            actions = env.gold_actions()
            assert actions, f"{id} knows no solution of its own tasks"
            gold.append(await play(env, actions))
            await env.reset(seed=seed)
            silence.append(await play(env, [assistant("")]))
    mean = tuple(round(sum(rewards) / len(rewards), 3) for rewards in (gold, silence))
    assert mean == scores[id]
    assert mean[0] > mean[1]


PLAYED = ("CodeInterpreter-v0", "GSM8K-v0", "SearchQA-v0")
"""What the tiny policy plays in `make test`. How the others differ, the gold scores show there."""


@pytest.mark.parametrize("id", [id if id in PLAYED else pytest.param(id, marks=pytest.mark.matrix) for id in IDS])
async def test_the_tiny_policy_plays_it(id):
    async with open_engine("tiny") as engine:
        config = RunConfig(group_size=2, seed=0, sampling=SamplingParams(max_new_tokens=48))
        trajectories = await rollout(id, engine, num_tasks=2, config=config)
    assert len(trajectories) == 4
    assert not [one.stop_reason for one in trajectories if one.stop_reason.failed]


def test_each_id_has_a_row(scores):
    assert sorted(scores) == IDS
