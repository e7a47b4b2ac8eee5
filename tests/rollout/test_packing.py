"""Packed rows, micro-batches and trees: layouts, round trips, and what a model computes on them."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from tests.rollout.trajectories import played
from toolgym.rollout.batch.batch import Batch, restore_rows
from toolgym.rollout.batch.check import check_batch
from toolgym.rollout.batch.fields import FIELDS
from toolgym.rollout.batch.make import make_batch
from toolgym.rollout.batch.packing import PACKED, Packed, pack
from toolgym.rollout.batch.tree import pack_tree
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.tools.errors import BatchError, ConfigError


def rows(*given, aligned=None):
    """A batch of rows `(prompt, segments)`, where segments alternate policy, env, policy, …, and log-probs differ."""
    made = []
    for number, (prompt, parts) in enumerate(given):
        segments = [
            Segment.policy(
                ids,
                [-0.1 * (number + 1) - 0.01 * n for n in range(len(ids))],
                [str(number)] * len(ids),
                aligned(number, ids) if aligned else None,
            )
            if index % 2 == 0
            else Segment.env(ids)
            for index, ids in enumerate(parts)
        ]
        one = played([[(1, 0.0)]], name=str(number), group=str(number % 2))
        made.append(
            dataclasses.replace(
                one, sequences=(TokenSequence(prompt, tuple(segments)),), turns=(), reward=float(number)
            )
        )
    return make_batch(made, pad_token_id=0)


TWO = (([1, 2, 3], [[4, 5], [6, 7], [8]]), ([9], [[4]]))


def test_the_layout_of_the_module_docstring():
    packed = pack(rows(*TWO), torch.tensor([2.0, -1.0]))
    assert packed.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 4]
    assert packed.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert packed.response_mask.tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 0, 1]
    assert packed.row_ids.tolist() == [0] * 8 + [1] * 2
    assert packed.cu_seqlens.tolist() == [0, 8, 10]
    assert packed.cu_seqlens.dtype == torch.int32
    assert packed.max_seqlen == 8
    assert packed.parents.tolist() == [-1, 0, 1, 2, 3, 4, 5, 6, -1, 8]
    assert packed.advantages.tolist() == [0, 0, 0, 2, 2, 0, 0, 2, 0, -1]
    assert packed.weight_versions.tolist() == [-1, -1, -1, 0, 0, -1, -1, 0, -1, 1]
    assert packed.rollout_log_probs.tolist() == pytest.approx([0, 0, 0, -0.1, -0.11, 0, 0, -0.1, 0, -0.2])
    assert packed.token_rewards.tolist() == [0] * 9 + [1]
    mask = packed.attention_mask
    assert torch.equal(mask[:8, :8], torch.ones(8, 8).tril().bool())
    assert not mask[8:, :8].any()
    assert pack(rows(*TWO)).advantages is None


def test_the_table_decides_what_is_packed():
    names = [item.name for item in dataclasses.fields(Packed)]
    assert [item.name for item in PACKED] == [name for name in [item.name for item in FIELDS] if name in names]
    per_token = {item.name for item in FIELDS if item.place in ("tokens", "response", "policy")}
    assert per_token - {item.name for item in PACKED} == {"attention_mask", "responses"}


def test_advantages_of_tokens_and_those_that_do_not_fit():
    batch = rows(*TWO)
    each = torch.arange(10.0).reshape(2, 5)
    assert pack(batch, each).advantages.tolist() == [0, 0, 0, 0, 1, 0, 0, 4, 0, 5]
    with pytest.raises(ConfigError, match=r"must be \[2\] or \[2, 5\], got \[3\]"):
        pack(batch, torch.zeros(3))
    with pytest.raises(ConfigError, match="must be finite"):
        pack(batch, torch.tensor([0.0, float("nan")]))
    each[:, 2] = float("nan")  # the env's and padding
    assert pack(batch, each).advantages.isfinite().all()
    with pytest.raises(ConfigError, match=r"expected logits of 10 tokens, \[10, ...\], got \[1, 10, 3\]"):
        pack(batch).token_log_probs(torch.zeros(1, 10, 3))
    with pytest.raises(ConfigError, match="expected values of 10 tokens"):
        pack(batch).unpack(torch.zeros(9))


ids = st.lists(st.integers(0, 2), min_size=1, max_size=4)
some_rows = st.lists(st.tuples(ids, st.lists(ids, min_size=1, max_size=3)), min_size=1, max_size=7)


def with_experts(number, token_ids):
    return {
        "routed_experts": np.array([[token % 2, 1] for token in token_ids], dtype=np.int16),
        "entropy": np.array(token_ids, dtype=np.float32),
    }


@given(some_rows)
def test_packing_loses_nothing(given_rows):
    batch = rows(*given_rows, aligned=with_experts)
    packed = pack(batch)
    assert torch.equal(packed.unpack(packed.input_ids, padding=batch.pad_token_id), batch.input_ids)
    assert torch.equal(packed.unpack(torch.ones_like(packed.input_ids)), batch.attention_mask)
    assert torch.equal(packed.unpack(packed.position_ids), batch.position_ids)
    prompt = packed.widths[0]
    for item in PACKED:
        if item.place != "tokens":
            back = packed.unpack(getattr(packed, item.name), padding=item.padding)[:, prompt:]
            assert torch.equal(back, getattr(batch, item.name)), item.name
    for name, padding in (("routed_experts", -1), ("entropy", 0)):
        back = packed.unpack(packed.aligned[name], padding=padding)[:, prompt:]
        assert torch.equal(back, batch.aligned[name]), name


@given(some_rows, st.sampled_from(["padded", "packed", "tree"]), st.integers(0, 40), st.integers(1, 7))
def test_micro_batches_hold_each_row_once_within_the_bound(given_rows, count, spare, min_parts):
    batch = rows(*given_rows)
    lengths = batch.attention_mask.sum(dim=1)
    bound, min_parts = int(lengths.max()) + spare, min(min_parts, len(batch))
    parts = batch.micro_batches(max_tokens=bound, count=count, min_parts=min_parts)
    assert torch.equal(torch.cat([part.rows for part in parts]).sort().values, torch.arange(len(batch)))
    assert len(parts) >= min_parts
    for part in parts:
        check_batch(part.batch)
        cost = {
            "padded": part.batch.input_ids.numel(),
            "packed": int(lengths[part.rows].sum()),
            "tree": len(pack_tree(part.batch)),
        }
        assert cost[count] <= bound
        assert torch.equal(part.batch.rewards, batch.rewards[part.rows])
        assert torch.equal(part.batch.group_ids, batch.group_ids[part.rows])
        assert part.batch.ids == tuple(batch.ids[row] for row in part.rows)
    assert torch.equal(restore_rows(parts, [part.batch.rewards for part in parts]), batch.rewards)
    log_probs = restore_rows(parts, [part.batch.rollout_log_probs for part in parts])
    assert torch.equal(log_probs, batch.rollout_log_probs)
    tokens = restore_rows(parts, [part.batch.responses for part in parts], padding=batch.pad_token_id)
    assert torch.equal(tokens, batch.responses)


def test_micro_batches_are_few_and_even():
    batch = rows(*[([1] * 2, [[n] * n]) for n in (6, 2, 6, 2, 6, 2, 6, 2)])  # 8 and 4 tokens
    packed = batch.micro_batches(max_tokens=12, count="packed")
    assert sorted(int(part.batch.attention_mask.sum()) for part in packed) == [12, 12, 12, 12]
    padded = batch.micro_batches(max_tokens=20, count="padded")
    assert [part.batch.input_ids.shape for part in padded] == [(2, 8), (2, 8), (4, 4)]
    assert [part.rows.tolist() for part in padded] == [[0, 2], [4, 6], [1, 3, 5, 7]]
    even = batch.micro_batches(max_tokens=47, count="packed")  # 48 tokens: as few as the bound allows, and even
    assert [int(part.batch.attention_mask.sum()) for part in even] == [24, 24]
    assert len(batch.micro_batches(max_tokens=1000, min_parts=3, count="tree")) == 3


def test_micro_batches_of_trees_keep_what_shares_a_prefix_together():
    batch = rows(*[([group] * 10, [[8, n]]) for n in range(1, 4) for group in (1, 2, 3)])
    parts = batch.micro_batches(max_tokens=14, count="tree")
    assert [part.rows.tolist() for part in parts] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_mistakes_with_micro_batches_are_told():
    batch = rows(*TWO)
    with pytest.raises(BatchError, match="row 0 has 8 tokens, more than max_tokens=7"):
        batch.micro_batches(max_tokens=7)
    with pytest.raises(ConfigError, match="count is one of padded, packed, tree, got 'rows'"):
        batch.micro_batches(max_tokens=9, count="rows")
    with pytest.raises(ConfigError, match="2 rows cannot make 3 parts"):
        batch.micro_batches(max_tokens=9, min_parts=3)
    with pytest.raises(ConfigError, match="max_tokens"):
        batch.micro_batches(max_tokens=0)
    parts = batch.micro_batches(max_tokens=9)
    with pytest.raises(ConfigError, match=r"values of \[1, 1\] rows, got \[2\]"):
        restore_rows(parts, [batch.rewards])
    for wrong in ([], [2], [-1], [0.5], [[0]], [True, False]):
        with pytest.raises(ConfigError, match="some of 2 rows"):
            batch.select(wrong)


def test_the_tree_of_the_module_docstring():
    batch = rows(([1, 2, 3], [[4, 5]]), ([1, 2, 3], [[6]]), ([1], [[7]]))
    tree = pack_tree(batch, torch.tensor([1.0, 2.0, 4.0]))
    assert tree.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 2, 0]
    assert tree.position_ids.tolist() == [0, 1, 2, 3, 4, 3, 1]
    assert tree.ends.tolist() == [7, 6, 6, 5, 5, 6, 7]
    assert tree.counts.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert tree.weights.tolist() == [0, 0, 0, 1, 1, 2, 4]
    assert tree.nodes.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 5, 0, 6]
    assert pack_tree(batch).weights is None


@given(some_rows)
def test_a_tree_is_the_rows_and_no_prefix_stands_twice(given_rows):
    batch = rows(*given_rows)
    tree, packed = pack_tree(batch, batch.rewards), pack(batch, batch.rewards)
    assert torch.equal(tree.input_ids[tree.nodes], packed.input_ids)
    assert torch.equal(tree.position_ids[tree.nodes], packed.position_ids)
    inside = packed.parents >= 0
    assert torch.equal(tree.parents[tree.nodes][inside], tree.nodes[packed.parents[inside]])
    assert (tree.parents[tree.nodes][~inside] == -1).all()
    whole = [(*prompt, *(one for part in parts for one in part)) for prompt, parts in given_rows]
    assert len(tree) == len({row[: n + 1] for row in whole for n in range(len(row))})
    reachable = torch.eye(len(tree), dtype=torch.bool)
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            reachable[node] |= reachable[parent]
    assert torch.equal(tree.attention_mask, reachable)
    assert int(tree.counts.sum()) == int(packed.response_mask.sum())
    assert torch.equal(tree.nodes[tree.first], torch.arange(len(tree)))
    weights = torch.zeros(len(tree)).index_add(0, tree.nodes, packed.advantages)
    assert torch.equal(tree.weights, weights)


def test_tokens_whose_experts_differ_are_not_shared():
    def routed(number, token_ids):
        return {"routed_experts": np.full((len(token_ids), 2), number // 2, dtype=np.int16)}

    batch = rows(*[([1, 2], [[3, 4]])] * 4, aligned=routed)
    tree = pack_tree(batch)
    assert tree.input_ids.tolist() == [1, 2, 3, 4, 3, 4]
    assert tree.counts.tolist() == [0, 0, 2, 2, 2, 2]
    assert tree.packed.aligned["routed_experts"][tree.first][:, 0].tolist() == [-1, -1, 0, 0, 1, 1]
    assert len(pack_tree(batch, split_by=())) == 4
    with pytest.raises(ConfigError, match="no payload 'experts'; it has routed_experts"):
        pack_tree(batch, split_by=["experts"])


def test_all_of_it_moves_to_a_device():
    batch = rows(*TWO, aligned=with_experts)
    for one in (batch, pack(batch, batch.rewards), pack_tree(batch, batch.rewards)):
        there = one.to("meta")
        held = [value for value in vars(there).values() if isinstance(value, torch.Tensor)]
        assert held
        assert all(value.device.type == "meta" for value in held)
    assert batch.to("meta").aligned["entropy"].device.type == "meta"
    assert pack_tree(batch).to("meta").packed.input_ids.device.type == "meta"
    assert isinstance(batch.to("meta"), Batch)
    assert torch.equal(batch.to("cpu").input_ids, batch.input_ids)


# ------------------------------------------------------------------ on a real model


@functools.cache
def policy():
    return AutoModelForCausalLM.from_pretrained(tiny_policy_path(), dtype=torch.float32).eval()


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of torch that spin while they wait for each other take ten times as long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def group():
    """Samples of one task, branches of one of them, and a sequence whose prompt another one's policy sampled."""
    generator = np.random.default_rng(0)
    prompt, turn, answer = (generator.integers(0, 500, size).tolist() for size in (40, 25, 12))
    other, tool = generator.integers(0, 500, 17).tolist(), generator.integers(0, 500, 9).tolist()
    return rows(
        (prompt, [turn, tool, answer]),
        (prompt, [turn, tool, other]),
        (prompt, [turn[:10] + other]),
        ([*prompt, *turn, *tool], [other]),  # what the others' policy sampled is this one's prompt
        (prompt, [turn, tool, answer]),  # the same once more, with other log-probs and another advantage
        (other, [answer]),
    )


ADVANTAGES = torch.tensor([1.0, -0.5, 0.7, -1.2, 0.3, 0.9])


def loss(log_probs, sampled, advantages, mask):
    """GRPO's, clipped: not linear, so sharing must keep each row's own ratio."""
    ratio = ((log_probs - sampled) * mask).clamp(-5, 5).exp()
    return -(torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) * mask).sum() / mask.sum()


def gradients(value):
    model = policy()
    model.zero_grad()
    value.backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def unpacked(batch):
    inputs = {"attention_mask": batch.attention_mask, "position_ids": batch.position_ids}
    logits = policy()(batch.input_ids, **inputs).logits[:, batch.prompts.shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(2, batch.responses[..., None])[..., 0] * batch.response_mask


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("form", ["packed", "tree"])
def test_a_model_gives_the_log_probs_and_gradients_of_the_unpacked_rows(group, form, attention):
    policy().set_attn_implementation(attention)
    expected = unpacked(group)
    # samples of this model but for some noise, so that ratios lie on both sides of the clipping
    noise = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)) * 0.3
    batch = dataclasses.replace(group, rollout_log_probs=(expected.detach() - 0.2 * noise.abs()) * group.response_mask)
    one = pack(batch, ADVANTAGES) if form == "packed" else pack_tree(batch, ADVANTAGES)
    packed = one if form == "packed" else one.packed
    if form == "tree":
        assert len(one) < 0.5 * len(packed)
        mask = one.additive_mask()
    else:
        mask = torch.zeros(len(one), len(one)).masked_fill(~one.attention_mask, torch.finfo().min)[None, None]
    logits = policy()(one.input_ids[None], attention_mask=mask, position_ids=one.position_ids[None]).logits[0]
    found = one.token_log_probs(logits)
    in_rows = packed.unpack(found)[:, packed.widths[0] :]
    assert (in_rows - expected).abs().max() < 1e-4
    assert found[packed.response_mask == 0].abs().max() == 0

    wanted = loss(expected, batch.rollout_log_probs, ADVANTAGES[:, None], batch.response_mask)
    got = loss(found, packed.rollout_log_probs, packed.advantages, packed.response_mask)
    assert torch.isclose(got, wanted, atol=1e-5)
    theirs, ours = gradients(wanted), gradients(got)
    assert theirs.norm() > 1e-2
    assert (ours - theirs).norm() < 1e-3 * theirs.norm()


def test_a_linear_loss_needs_the_nodes_alone(group):
    tree = pack_tree(group, ADVANTAGES)
    logits = policy()(
        tree.input_ids[None], attention_mask=tree.additive_mask(), position_ids=tree.position_ids[None]
    ).logits[0]
    nodes = logits.log_softmax(-1)[tree.parents.clamp(min=0)].gather(1, tree.input_ids[:, None])[:, 0]
    rows_loss = (tree.token_log_probs(logits) * tree.packed.advantages).sum()
    assert torch.isclose((nodes * tree.weights).sum(), rows_loss, rtol=1e-4)


def test_the_temperature_of_the_sampling(group):
    packed = pack(group)
    logits = torch.randn(len(packed), 600, generator=torch.Generator().manual_seed(0))
    at = int(packed.response_mask.nonzero()[0])
    wanted = (logits[at - 1] / 0.7).log_softmax(-1)[packed.input_ids[at]]
    assert torch.isclose(packed.token_log_probs(logits, temperature=0.7)[at], wanted)
