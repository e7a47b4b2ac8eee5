"""The golden set through tinker-cookbook: its groups, and the `Datum`s that it makes of them itself."""

from __future__ import annotations

import pytest

from tests.rollout.adapters.golden import assert_golden, assert_grouped, whole_row

pytest.importorskip("tinker_cookbook", reason="tinker-cookbook is not installed")

from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages, trajectory_to_data

from toolgym.rollout.adapters.tinker import to_groups


def row_of(datum, reward):
    """A `Datum` has its targets one place behind its input, and so their masks and log-probabilities."""
    target, mask, logprobs = (
        datum.loss_fn_inputs[name].to_numpy().tolist() for name in ("target_tokens", "mask", "logprobs")
    )
    return whole_row(
        [datum.model_input.to_ints()[0], *target],
        [0, *map(int, mask)],
        [0.0, *logprobs],
        reward,
    )


def test_the_golden_set():
    def read(trajectories):
        rows = []
        for one in trajectories:
            groups = to_groups([one])
            data = trajectory_to_data(groups[0].trajectories_G[0], 1.0) if groups else []
            rows.append([row_of(datum, groups[0].get_total_rewards()[0]) for datum in data])
        return rows

    assert_golden(read)


def test_a_group_is_made_of_episodes():
    def read(trajectories):
        groups = to_groups(trajectories)
        data, _ = assemble_training_data(groups, compute_advantages(groups))
        rows = {
            int(one.sequences[0].response_ids[-1]): [] for one in trajectories
        }  # which no two episodes have in common
        for datum in data:
            mask, advantages = (datum.loss_fn_inputs[name].to_numpy() for name in ("mask", "advantages"))
            [advantage] = set(advantages[mask == 1].tolist())
            rows[int(datum.loss_fn_inputs["target_tokens"].to_numpy()[-1])].append(advantage)
        return list(rows.values())

    assert_grouped(read, deviation=False)
