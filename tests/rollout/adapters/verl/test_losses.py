"""verl's advantages and policy losses on our batch: what is trained, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rollout.adapters.golden import CASES, golden

pytest.importorskip("verl")

import torch
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_functional import log_probs_from_logits_response

from toolgym.rollout.adapters.verl import to_data_proto

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
