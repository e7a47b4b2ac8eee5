"""Temperatures and truncation of trajectories, from the sampler to the loss."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.rollout.trajectories import played
from toolgym.rollout import RunConfig, SamplingParams, load_tokenizer, rollout, tiny_policy_path
from toolgym.rollout.batch.arrow import from_parquet, to_parquet
from toolgym.rollout.batch.batch import Batch
from toolgym.rollout.batch.check import check_batch
from toolgym.rollout.batch.io import load_batch, save_batch
from toolgym.rollout.batch.make import make_batch
from toolgym.rollout.batch.packing import pack
from toolgym.rollout.batch.tree import pack_tree
from toolgym.rollout.engines import TransformersEngine
from toolgym.rollout.trajectory.distribution import SamplingDistribution, sampling_of
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn
from toolgym.tools.errors import BatchError, ConfigError

VOCABULARY = 40
LOGITS = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 2
"""A model for which only the token before matters: `LOGITS[ids]`."""


def logprobs(ids, before, temperature):
    """Log-probabilities of ids, each sampled after the one before it."""
    path = torch.tensor([before, *ids])
    each = (LOGITS[path[:-1]].double() / temperature).log_softmax(-1)
    return each.gather(1, path[1:, None])[:, 0].numpy()


def sampled(temperatures, name="t", **sampling):
    """A trajectory of a turn for each temperature; the first is that of the whole trajectory."""
    random = np.random.default_rng(sum(map(ord, name)))
    segments, turns, before = [], [], 2
    for temperature in temperatures:
        ids = random.integers(3, VOCABULARY, 4).tolist()
        scale = temperature or 1.0
        segments += [Segment.policy(ids, logprobs(ids, before, scale), ["0"] * 4), Segment.env([1])]
        changed = {} if temperature == temperatures[0] else {"temperature": temperature}
        turns.append(Turn("", "stop", 0, 4, reward=0.0, sampling=changed))
        before = 1
    return dataclasses.replace(
        played([[(1, 0.0)]], name=name),
        sequences=(TokenSequence([1, 2], tuple(segments)),),
        turns=tuple(turns),
        sampling={"temperature": temperatures[0], **sampling},
    )


def worst_ratios(batch: Batch, **further):
    """How far the importance ratios of a padded, packed and tree batch are from 1 before any update."""
    packed, tree = pack(batch), pack_tree(batch)
    each = [
        (batch.token_log_probs(LOGITS[batch.input_ids], **further), batch),
        (packed.token_log_probs(LOGITS[packed.input_ids], **further), packed),
        (tree.token_log_probs(LOGITS[tree.input_ids], **further), tree.packed),
    ]
    return [
        float((((values - layout.rollout_log_probs) * layout.response_mask).exp() - 1).abs().max())
        for values, layout in each
    ]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4, 0.0])
def test_importance_ratios_begin_at_one(temperature):
    batch = make_batch([sampled([temperature], "a"), sampled([temperature] * 3, "b")], pad_token_id=0)
    assert max(worst_ratios(batch)) < 1e-4
    if temperature in (0.6, 1.4):
        assert min(worst_ratios(batch, temperature=1.0)) > 0.1


def test_importance_ratios_of_mixed_temperatures_begin_at_one():
    trajectories = [sampled([0.6], "a"), sampled([1.4], "b"), sampled([1.0, 0.6, 1.4], "c"), sampled([0.6, 1.4], "a")]
    trajectories[-1] = dataclasses.replace(trajectories[-1], id="shares nodes of a")
    batch = make_batch(trajectories, pad_token_id=0, mixed_distributions=True)
    assert max(worst_ratios(batch)) < 1e-4
    assert len(pack_tree(batch)) < len(pack(batch))


def test_rows_that_share_a_node_keep_their_own_temperature():
    cold = sampled([0.6], "a")
    hot = dataclasses.replace(cold, id="b", sampling={"temperature": 1.4})
    ids = cold.sequence.policy_segments[0].token_ids.tolist()
    hot = dataclasses.replace(
        hot, sequences=(TokenSequence([1, 2], (Segment.policy(ids, logprobs(ids, 2, 1.4), ["0"] * 4),)),)
    )
    batch = make_batch([cold, hot], pad_token_id=0, mixed_distributions=True)
    assert max(worst_ratios(batch)) < 1e-4


def test_token_log_probs_of_a_tree_have_the_gradient_of_the_rows():
    batch = make_batch([sampled([0.6, 1.4], "a"), sampled([1.4], "b")], pad_token_id=0, mixed_distributions=True)
    gradients = []
    for layout in (batch, pack(batch), pack_tree(batch)):
        logits = LOGITS.clone().requires_grad_()
        layout.token_log_probs(logits[layout.input_ids]).sum().backward()
        gradients.append(logits.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-5)
    assert torch.allclose(gradients[0], gradients[2], atol=1e-5)


def test_logits_of_the_responses_alone_are_enough():
    batch = make_batch([sampled([0.6], "a"), sampled([0.6, 0.6], "b")], pad_token_id=0)
    logits = LOGITS[batch.input_ids]
    kept = logits[:, -batch.responses.shape[1] - 1 :]
    assert torch.equal(batch.token_log_probs(kept), batch.token_log_probs(logits))
    with pytest.raises(ConfigError, match="expected logits of"):
        batch.token_log_probs(logits[:, 2:])


@pytest.mark.parametrize("temperature", [0, -1, float("nan"), float("inf")])
def test_a_temperature_that_cannot_divide_is_refused(temperature):
    batch = make_batch([sampled([0.6], "a")], pad_token_id=0)
    for layout in (batch, pack(batch), pack_tree(batch)):
        with pytest.raises(ConfigError, match="temperature must be above 0"):
            layout.token_log_probs(LOGITS[layout.input_ids], temperature=temperature)


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        ({"temperature": 0.6}, {"temperature": 1.4}, "1 rows at temperature 0.6; 1 rows at temperature 1.4"),
        ({"top_p": 0.9}, {}, "1 rows at temperature 1, top_p 0.9; 1 rows at temperature 1"),
        ({"top_k": 20, "min_p": 0.1}, {}, "top_k 20, min_p 0.1"),
        ({"grammar": ["regex", "a+"]}, {}, "grammar regex"),
        ({"temperature": 0}, {}, "temperature 0"),
    ],
)
def test_make_batch_refuses_to_mix_distributions(first, second, shown):
    pair = [dataclasses.replace(played([[(2, 0.0)]], name=str(n)), sampling=s) for n, s in enumerate((first, second))]
    with pytest.raises(ConfigError, match="got 2") as error:
        make_batch(pair, pad_token_id=0)
    assert shown in str(error.value)
    batch = make_batch(pair, pad_token_id=0, mixed_distributions=True)
    assert batch.distributions == ((SamplingDistribution.of(first),), (SamplingDistribution.of(second),))


def test_a_batch_under_a_grammar_needs_a_loss_without_ratios():
    constrained = dataclasses.replace(played([[(2, 0.0)]]), sampling={"grammar": ["regex", "a+"]})
    with pytest.raises(ConfigError, match=r"under a grammar \(temperature 1, grammar regex\).*withhold_constrained"):
        make_batch([constrained], pad_token_id=0)
    batch = make_batch([constrained], pad_token_id=0, mixed_distributions=True)
    assert batch.distributions == ((SamplingDistribution(grammar="regex"),),)


def test_other_sampling_parameters_do_not_divide_a_batch():
    pair = [
        dataclasses.replace(
            played([[(2, 0.0)]], name=str(n)), sampling={"seed": n, "max_new_tokens": 9 + n, "stop": []}
        )
        for n in range(2)
    ]
    assert make_batch(pair, pad_token_id=0).distributions == ((SamplingDistribution(),),) * 2


def test_distributions_go_through_files_and_parts(tmp_path):
    trajectories = [sampled([0.6], "a", top_p=0.9), sampled([1.4, 0.6], "b"), sampled([0.0], "c")]
    batch = make_batch(trajectories, pad_token_id=0, mixed_distributions=True)
    save_batch(batch, tmp_path / "batch.safetensors")
    to_parquet(batch, tmp_path / "batch.parquet")
    for loaded in (load_batch(tmp_path / "batch.safetensors"), from_parquet(tmp_path / "batch.parquet")):
        assert loaded.distributions == batch.distributions
        assert torch.equal(loaded.temperatures, batch.temperatures)
        check_batch(loaded, trajectories)
    part = batch.select([1, 2])
    assert part.distributions == batch.distributions[1:]
    assert part.temperatures[0, [0, 4, 5]].tolist() == pytest.approx([1.4, 1.0, 0.6])
    assert set(part.temperatures[1].tolist()) == {1.0}


def test_the_checker_finds_wrong_temperatures():
    trajectory = sampled([0.6], "a")
    batch = make_batch([trajectory], pad_token_id=0)
    zero = dataclasses.replace(batch, temperatures=torch.zeros_like(batch.temperatures))
    with pytest.raises(BatchError, match="temperatures are above 0"):
        check_batch(zero)
    other = dataclasses.replace(trajectory, sampling={"temperature": 0.7})
    with pytest.raises(BatchError, match="distributions, temperatures differ"):
        check_batch(batch, [other])
    with pytest.raises(BatchError, match="need their distributions"):
        check_batch(dataclasses.replace(batch, distributions=()))


def test_a_turn_with_its_own_sampling_is_read_back():
    trajectory = sampled([1.4, 0.6], "a")
    again = Trajectory.from_json(json.loads(json.dumps(trajectory.to_json())))
    assert [turn.sampling for turn in again.turns] == [{}, {"temperature": 0.6}]
    assert sampling_of(again)[0].distributions == (SamplingDistribution(1.4), SamplingDistribution(0.6))
    assert "sampling" not in trajectory.to_json()["turns"][0]


def test_turns_of_other_tokens_have_no_known_temperature():
    trajectory = sampled([1.4, 0.6], "a")
    fewer = (*trajectory.turns[:1], dataclasses.replace(trajectory.turns[1], generated_tokens=3))
    with pytest.raises(BatchError, match="the temperature of a token is not known"):
        sampling_of(dataclasses.replace(trajectory, turns=fewer))


@pytest.mark.parametrize(
    ("sampling", "truncated", "scale"),
    [
        ({}, False, 1.0),
        ({"temperature": 0.6}, False, 0.6),
        ({"temperature": 0.0}, True, 1.0),
        ({"top_p": 0.9}, True, 1.0),
        ({"top_k": 1}, True, 1.0),
        ({"min_p": 0.1}, True, 1.0),
        ({"grammar": ["regex", "a"]}, True, 1.0),
    ],
)
def test_a_distribution_says_whether_tokens_were_left_out(sampling, truncated, scale):
    distribution = SamplingDistribution.of(sampling)
    assert (distribution.truncated, distribution.scale) == (truncated, scale)


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
async def test_importance_ratios_of_real_episodes_begin_at_one(temperature):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy_path(), dtype=torch.float32)
    config = RunConfig(group_size=4, seed=1, sampling=SamplingParams(max_new_tokens=48, temperature=temperature))
    async with TransformersEngine(model) as engine:
        engine.tokenizer = load_tokenizer(tiny_policy_path())
        trajectories = await rollout("CodeInterpreter-v0", engine, num_tasks=3, config=config)
    batch = make_batch(trajectories, pad_token_id=0)
    tree = pack_tree(batch)
    with torch.no_grad():
        options = {"attention_mask": batch.attention_mask, "position_ids": batch.position_ids}
        padded = batch.token_log_probs(model(batch.input_ids, **options).logits)
        options = {"attention_mask": tree.additive_mask(), "position_ids": tree.position_ids[None]}
        shared = tree.token_log_probs(model(tree.input_ids[None], **options).logits[0])
    for values, layout in ((padded, batch), (shared, tree.packed)):
        ratios = ((values - layout.rollout_log_probs) * layout.response_mask).exp()
        assert float((ratios - 1).abs().max()) < 1e-4
