"""The golden set through SkyRL's `GeneratorOutput`."""

from __future__ import annotations

import sys
import types
from typing import NamedTuple

import pytest

from tests.rollout.adapters.golden import assert_golden, response_row
from toolgym.rollout.adapters.skyrl import to_generator_output

FILLER = 2


class TrajectoryID(NamedTuple):
    """SkyRL's, in shape."""

    instance_id: str
    repetition_id: int


@pytest.fixture(autouse=True)
def skyrl(monkeypatch):
    base = types.SimpleNamespace(TrajectoryID=TrajectoryID)
    monkeypatch.setitem(sys.modules, "skyrl.train.generators.base", base)


def rows_of(trajectories, step_wise):
    output = to_generator_output(trajectories, filler_id=FILLER, step_wise=step_wise)
    names = (
        "prompt_token_ids",
        "response_ids",
        "loss_masks",
        "rollout_logprobs",
        "rewards",
        "rollout_sample_support",
    )
    found = {(one.group_id, one.sample_index): [] for one in trajectories}
    for where, *row in zip(output["trajectory_ids"], *(output[name] for name in names), strict=True):
        found[where.instance_id, where.repetition_id].append(row)
    return found.values()


def read_row(prompt, response, mask, logprobs, rewards, support, reward, **more):
    kept = [[one for one in ids if one >= 0] for ids in support.tolist()]
    return response_row(prompt, response, mask, logprobs, reward, kept=kept, **more)


def test_the_golden_set_with_rewards_of_turns():
    def read(trajectories):
        return [[read_row(*row, sum(row[4]), earned=row[4]) for row in rows] for rows in rows_of(trajectories, False)]

    assert_golden(read, several_rows=False)


def test_the_golden_set_with_rows_of_steps():
    def read(trajectories):
        return [[read_row(*row, sum(rows[-1][4])) for row in rows] for rows in rows_of(trajectories, True)]

    assert_golden(read)
