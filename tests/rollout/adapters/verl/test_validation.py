"""verl's own validation metrics over our rows: what failed is in none of the rewards."""

from __future__ import annotations

import pytest

from tests.rollout.adapters.golden import BROKEN, policy, trajectory

pytest.importorskip("verl")

import numpy as np
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.v1 import trainer_base

from toolgym.rollout.adapters.verl.rows import reward_extra_info

REWARDS = (1.0, 0.0, 1.0, 0.0)
"""Of four prompts with one episode each; the last failed."""


def infos():
    rows = [
        reward_extra_info(trajectory(policy(10), reward=reward, number=number, **(BROKEN if number == 3 else {})))
        for number, reward in enumerate(REWARDS)
    ]
    return {"reward": list(REWARDS), **{name: [row[name] for row in rows] for name in rows[0]}}


def test_a_failed_episode_is_no_wrong_answer_in_v1():
    expected = {("sums", f"u{number}"): 1 for number in range(5)}  # of the fifth there is no row: `failed: drop`
    made = trainer_base.PPOTrainer._val_metrics_update(
        None, ["sums"] * 4, [f"u{number}" for number in range(4)], infos(), [2, 2, 2, 2], expected
    )
    assert made["val-core/sums/acc/mean@1"] == pytest.approx(2 / 3)
    assert made["val-aux/sums/reward/mean@1"] == pytest.approx(2 / 3)
    assert made["val-aux/sums/failed/mean@1"] == 0.25


def test_a_failed_episode_is_no_wrong_answer_in_v0():
    trainer = ray_trainer.RayPPOTrainer
    made = trainer._val_metrics_update(
        None, np.array(["sums"] * 4), [f"u{number}" for number in range(4)], infos(), [np.array([2, 2, 2, 2])]
    )
    assert made["val-core/sums/acc/mean@1"] == pytest.approx(2 / 3)
    assert made["val-aux/sums/reward/mean@1"] == pytest.approx(2 / 3)


def test_where_all_failed_there_is_no_number():
    made = ray_trainer.RayPPOTrainer._val_metrics_update(
        None, ["sums"], ["u"], {name: values[3:] for name, values in infos().items()}, []
    )
    assert not [name for name in made if "acc" in name or "reward" in name]


def test_rows_of_other_loops_stay_as_verl_counts_them():
    """verl fills up with None what a row lacks, and counts what has no `acc` as 0."""
    theirs = {name: [*values, None] for name, values in infos().items()}
    theirs["acc"][-1] = theirs["reward"][-1] = 1.0
    expected = {**{("sums", f"u{number}"): 1 for number in range(4)}, ("theirs", "v"): 2}
    sources, uids = ["sums"] * 4 + ["theirs"], ["u0", "u1", "u2", "u3", "v"]
    made = trainer_base.PPOTrainer._val_metrics_update(None, sources, uids, theirs, [], expected)
    assert made["val-core/sums/acc/mean@1"] == pytest.approx(2 / 3)
    assert made["val-core/theirs/acc/mean@2"] == 0.5
    plain = {"reward": [0.0, 1.0], "acc": [0.0, 1.0]}
    made = trainer_base.PPOTrainer._val_metrics_update(None, ["t"] * 2, ["u", "v"], plain, [], {("t", "u"): 1})
    assert made["val-core/t/acc/mean@1"] == 0.5
