"""verl's advantages and policy losses on our batch: what is trained, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rollout.adapters.golden import BROKEN, CASES, golden, policy, trajectory

pytest.importorskip("verl")

import torch
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_functional import log_probs_from_logits_response

from toolgym.rollout.adapters.verl import queue_rows, to_data_proto
from toolgym.tools.errors import ConfigError

SHAPE = {"prompt_length": 8, "response_length": 12}
SINGLE = [case for case in CASES if len(case.trajectory.sequences) < 2]
COUNTS = np.array([bool(case.rows) for case in SINGLE])


@pytest.fixture
def batch(tokenizer):
    made = to_data_proto(golden(), **SHAPE, pad_token_id=tokenizer.pad_token_id)
    made.batch["token_level_rewards"] = made.batch["rm_scores"]
    return made


def test_verl_s_advantage_takes_the_batch(batch):
    made = compute_advantage(batch, adv_estimator=core_algos.AdvantageEstimator.GRPO)
    advantages = made.batch["advantages"]
    assert torch.isfinite(advantages).all()
    assert torch.equal(advantages != 0, made.batch["response_mask"].bool() & (advantages != 0))
    good, bad = advantages[0, 0], advantages[1, 0]
    assert good > 0 > bad
    assert advantages[0, 3] == 0  # the tool's


def test_the_plugin_s_estimator_leaves_failed_episodes_out(batch):
    """Group 2 failed as a whole, and in group 1 one row has nothing to train: its mate is alone, with mean 0."""
    made = compute_advantage(batch, adv_estimator="toolgym_grpo", config={"norm_adv_by_std_in_grpo": True})
    advantages = made.batch["advantages"].clone()
    assert not advantages[~torch.from_numpy(COUNTS)].any()
    alone = made.select_idxs(np.flatnonzero(COUNTS))
    theirs = compute_advantage(alone, adv_estimator=core_algos.AdvantageEstimator.GRPO)
    assert torch.equal(advantages[torch.from_numpy(COUNTS)], theirs.batch["advantages"])


@pytest.mark.parametrize("normalised", [True, False])
def test_where_all_count_the_plugin_s_estimator_is_verl_s(batch, normalised):
    whole = batch.select_idxs(np.array([0, 1, 6, 7]))
    ours = compute_advantage(whole, adv_estimator="toolgym_grpo", config={"norm_adv_by_std_in_grpo": normalised})
    mine = ours.batch["advantages"].clone()
    theirs = compute_advantage(
        whole, adv_estimator=core_algos.AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=normalised
    )
    assert torch.equal(mine, theirs.batch["advantages"])
    assert mine.any()


def several(number, rows, reward, group, **changes):
    """An episode of several token sequences."""
    sequences = tuple(
        trajectory(policy(*range(10 + row, 13 + row)), prompt=(5, 6, 7 + row)).sequences[0] for row in range(rows)
    )
    given = {"sequences": sequences, "reward": reward, "group_id": group, "sample_index": number, **changes}
    return trajectory(policy(10), number=number, **given)


@pytest.mark.parametrize("normalised", [True, False])
def test_groups_are_made_of_episodes_however_many_sequences_they_have(normalised, tokenizer):
    """Two groups whose episodes have 1, 2 and 3 sequences, in an order of verl's, through the V1 trainer's function."""
    rewards = {"a": (1.0, 0.0, 0.5, 0.25), "b": (0.0, 1.0, 1.0, 0.0)}
    episodes = [
        several(number, 1 + number % 3, reward, group, **(BROKEN if (group, number) == ("b", 3) else {}))
        for group in rewards
        for number, reward in enumerate(rewards[group])
    ]
    rows = [row for one in episodes for row in queue_rows(one, response_length=3, pad_token_id=0, global_steps=1)]
    assert len(rows) == 14
    rows = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]
    stacked = {name: torch.stack([row.fields[name] for row in rows]) for name in ("response_mask", "rm_scores")}
    data = DataProto.from_dict(
        tensors={"token_level_rewards": stacked["rm_scores"], **stacked},
        non_tensors={"uid": np.array([row.key.split("_")[0] for row in rows], object)},
    )
    made = trainer_base.compute_advantage_for_multi_trajectories(
        data,
        batch_keys=[row.key for row in rows],
        adv_estimator="toolgym_grpo",
        num_repeat=4,
        config={"norm_adv_by_std_in_grpo": normalised},
    ).batch
    for number, row in enumerate(rows):
        group, session, _ = row.key.split("_")
        counted = torch.tensor(rewards[group][: 3 if group == "b" else 4])
        expected = float(rewards[group][int(session)] - counted.mean())
        if normalised:
            expected /= float(counted.std()) + 1e-6
        failed = (group, session) == ("b", "3")
        assert made["advantages"][number].tolist() == pytest.approx([0.0 if failed else expected] * 3)
    assert torch.equal(made["advantages"], made["returns"])


def test_where_none_failed_episodes_of_several_sequences_get_what_verl_s_grpo_gives(tokenizer):
    episodes = [several(number, 1 + number, reward, "a") for number, reward in enumerate((1.0, 0.0, 0.5))]
    rows = [row for one in episodes for row in queue_rows(one, response_length=3, pad_token_id=0, global_steps=1)]
    made = []
    for estimator in ("grpo", "toolgym_grpo"):
        stacked = {name: torch.stack([row.fields[name] for row in rows]) for name in ("response_mask", "rm_scores")}
        data = DataProto.from_dict(
            tensors={"token_level_rewards": stacked["rm_scores"], **stacked},
            non_tensors={"uid": np.array(["a"] * len(rows), object)},
        )
        keys = [row.key for row in rows]
        made.append(
            trainer_base.compute_advantage_for_multi_trajectories(
                data, batch_keys=keys, adv_estimator=estimator, config={}
            ).batch
        )
    assert torch.equal(made[0]["advantages"], made[1]["advantages"])


def test_a_padded_batch_refuses_several_sequences():
    with pytest.raises(ConfigError, match="t0 .*has 2 token sequences"):
        to_data_proto([several(0, 2, 1.0, "a")], **SHAPE, pad_token_id=0)


@pytest.mark.parametrize("loss", ["vanilla", "gspo", "sapo", "cispo", "gpg", "geo_mean", "dppo_tv"])
def test_the_gradient_is_exactly_zero_on_all_but_the_policy_s_tokens(loss, batch, verl_config, tokenizer):
    """From the logits of prompt and response, as verl's actor gets them, to verl's loss."""
    actor = omega_conf_to_dataclass(
        verl_config("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1").actor_rollout_ref.actor
    )
    generator = torch.Generator().manual_seed(0)
    ids, mask = batch.batch["input_ids"], batch.batch["response_mask"]
    logits = torch.randn(*ids.shape, len(tokenizer), generator=generator, requires_grad=True)
    log_prob = log_probs_from_logits_response(ids, logits, SHAPE["response_length"])
    old = log_prob.detach() + 0.01 * torch.randn(log_prob.shape, generator=generator)
    advantages = torch.randn(log_prob.shape, generator=generator).abs() + 0.5  # on every token, masked ones too
    value, _ = core_algos.get_policy_loss_fn(loss)(
        old_log_prob=old,
        log_prob=log_prob,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode="token-mean",
        config=actor,
    )
    value.backward()
    assert torch.isfinite(value)
    trained = torch.zeros(ids.shape, dtype=torch.bool)
    trained[:, -SHAPE["response_length"] - 1 : -1] = mask.bool()  # a token's logits stand one place before it
    gradient = logits.grad.abs().amax(dim=-1)
    assert trained.sum() == mask.sum() == sum(sum(row.mask) for case in SINGLE for row in case.rows)
    assert not gradient[~trained].any()
    assert gradient[trained].gt(0).all()
