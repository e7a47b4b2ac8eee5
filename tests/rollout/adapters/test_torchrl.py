"""A batch in TorchRL's own `GRPOLoss`: log-probabilities, loss and gradients of a real model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.rollout.adapters.page import program
from toolgym.envs.types import StopReason
from toolgym.rollout import Trajectory, make_batch, tiny_policy_path
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.tools.errors import BatchError, ConfigError, MissingExtraError

pytest.importorskip("torchrl", reason="TorchRL is not installed")

from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import CISPOLoss, GRPOLoss
from transformers import AutoModelForCausalLM

from toolgym.rollout.adapters.torchrl import to_tensordict


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(str(tiny_policy_path()), dtype=torch.float32).eval()


def log_probs(model, ids):
    """The model's log-probability of each id but the first."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist()


def trajectory(name, model, prompt, *parts, reward):
    """Parts alternate between the policy's ids and the env's; log-probabilities are the model's own."""
    ids = [*prompt, *(one for part in parts for one in part)]
    told, at, segments = log_probs(model, ids), len(prompt), []
    for number, part in enumerate(parts):
        logprobs = told[at - 1 : at - 1 + len(part)]
        segments.append(Segment.env(part) if number % 2 else Segment.policy(part, logprobs, ["3"] * len(part)))
        at += len(part)
    return Trajectory(
        id=name, env_id="e", task_id="t", source="", group_id="g", task_index=0, sample_index=0, messages=(), tools=(),
        sequences=(TokenSequence(np.array(prompt), tuple(segments)),), reward=reward, stop_reason=StopReason.ANSWERED,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trajectories(model):
    long = trajectory("long", model, [5, 6, 7, 8], [9, 10], [11, 12, 13], [14, 15, 16], reward=1.0)
    return [long, trajectory("short", model, [5, 6], [20, 21], [22], [23], reward=0.0)]


@pytest.fixture(scope="module")
def batch(trajectories):
    return make_batch(trajectories, pad_token_id=0)


ADVANTAGES = torch.tensor([1.0, -0.5])


def test_the_layout(batch):
    made = to_tensordict(batch, ADVANTAGES)
    assert made.batch_size == (2,)
    assert made["tokens", "full"].tolist() == [
        [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
        [0] * 6 + [5, 6, 20, 21, 22, 23],
    ]
    assert made["masks", "all_attention_mask"].int().tolist() == [[1] * 12, [0] * 6 + [1] * 6]
    policy = [[0] * 4 + [1, 1, 0, 0, 0, 1, 1, 1], [0] * 8 + [1, 1, 0, 1]]
    assert made["masks", "all_assistant_mask"].int().tolist() == policy
    assert ((made["log_probs", "full"] != 0).int()).tolist() == policy
    assert (made["advantage"][:, :, 0] / ADVANTAGES[:, None]).int().abs().tolist() == policy
    each = torch.arange(batch.responses.numel()).reshape(batch.responses.shape)
    told = to_tensordict(batch, each)["advantage"][0, 4:, 0].tolist()
    assert told == [0, 1, 0, 0, 0, 5, 6, 7]


@pytest.mark.parametrize("kind", [GRPOLoss, CISPOLoss])
def test_loss_and_gradient(model, batch, tokenizer, kind):
    seen = []

    def keep(module, given, made):
        made.logits.retain_grad()
        seen.append(made.logits)

    handle = model.register_forward_hook(keep)
    actor = TransformersWrapper(model, tokenizer=tokenizer, input_mode="tokens", generate=False, pad_output=True)
    try:
        loss = kind(actor, masking_strategy="rlhf", entropy_bonus=False)(to_tensordict(batch, ADVANTAGES))
    finally:
        handle.remove()
    # what was sampled by these very weights has a ratio of 1 for each token
    assert float(loss.kl_approx.abs()) < 1e-5
    assert float(loss.ESS) == pytest.approx(1.0, abs=1e-4)
    assert loss.loss_objective.item() == pytest.approx(-(5 * 1.0 + 3 * -0.5) / 8, abs=1e-5)
    loss.loss_objective.sum().backward()
    [made] = seen
    moved = made.grad.abs().sum(-1)
    predicts = torch.zeros_like(moved, dtype=torch.bool)
    predicts[:, :-1] = to_tensordict(batch, ADVANTAGES)["masks", "all_assistant_mask"][:, 1:]
    assert (moved[~predicts] == 0).all()
    assert (moved[predicts] > 0).all()
    model.zero_grad()


@pytest.mark.parametrize("temperature", [0.6, 1.4])
def test_its_loss_is_at_temperature_1_so_other_temperatures_are_refused(
    model, batch, trajectories, tokenizer, temperature
):
    actor = TransformersWrapper(model, tokenizer=tokenizer, input_mode="tokens", generate=False, pad_output=True)
    scaled = to_tensordict(batch, ADVANTAGES)
    with torch.no_grad():
        logits = model(scaled["tokens", "full"], attention_mask=scaled["masks", "all_attention_mask"].long()).logits
    each = (logits[:, :-1] / temperature).log_softmax(-1).gather(2, scaled["tokens", "full"][:, 1:, None])[:, :, 0]
    sampled = scaled["masks", "all_assistant_mask"][:, 1:]
    scaled["log_probs", "full"][:, 1:][sampled] = each[sampled]  # what a sampler at this temperature would give
    loss = GRPOLoss(actor, masking_strategy="rlhf", entropy_bonus=False)(scaled)
    assert float(loss.kl_approx.abs()) > 0.01
    sampled_so = [dataclasses.replace(one, sampling={"temperature": temperature}) for one in trajectories]
    with pytest.raises(ConfigError, match="TorchRL's GRPOLoss computes log-probabilities at temperature 1"):
        to_tensordict(make_batch(sampled_so, pad_token_id=0), ADVANTAGES)


def test_a_training_step_with_the_entropy_bonus(batch, tokenizer):
    policy = AutoModelForCausalLM.from_pretrained(str(tiny_policy_path()), dtype=torch.float32).eval()
    actor = TransformersWrapper(policy, tokenizer=tokenizer, input_mode="tokens", generate=False, pad_output=True)
    loss = GRPOLoss(actor, masking_strategy="rlhf", clip_epsilon=(0.2, 0.28))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
    given = to_tensordict(batch, ADVANTAGES)
    before = log_probs(policy, given["tokens", "full"][0].tolist())
    told = loss(given)
    (told.loss_objective + told.loss_entropy).sum().backward()
    optimizer.step()
    after = log_probs(policy, given["tokens", "full"][0].tolist())
    sampled = batch.response_mask[0].bool().tolist()
    better = [new - old for new, old, one in zip(after[3:], before[3:], sampled, strict=True) if one]
    assert sum(better) > 0


def test_the_program_of_the_page(model, trajectories, tokenizer):
    exec(program("TorchRL"), names := {"model": model, "trajectories": trajectories, "tokenizer": tokenizer})
    assert names["loss"].loss_objective.isfinite()


def test_refused(batch):
    with pytest.raises(ConfigError, match="expected a toolgym Batch"):
        to_tensordict([batch], ADVANTAGES)
    with pytest.raises(BatchError, match=r"advantages must be a tensor \(2,\) or \(2, 8\)"):
        to_tensordict(batch, ADVANTAGES[:1])
    with pytest.raises(BatchError, match="field advantages: row 1, 'short'"):
        to_tensordict(batch, torch.tensor([0.0, float("nan")]))


def test_without_torchrl(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tensordict", None)
    monkeypatch.delitem(sys.modules, "toolgym.rollout.adapters.torchrl")
    with pytest.raises(MissingExtraError, match="needs the package 'torchrl"):
        import toolgym.rollout.adapters.torchrl  # noqa: F401
