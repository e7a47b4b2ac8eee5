"""`pack_tree`: the rows of a batch as one tree of tokens, where each prefix that rows share stands once.

A token is shared with everything before it, where all ids are equal, since a model computes the same from the same ids.
All that a loss takes (mask, log-probabilities of the sampler, versions, rewards, advantages) stays with each row in
`Tree.packed`, and `Tree.nodes` leads from its tokens to the nodes. So any loss over `token_log_probs` is that over the
rows, and so is its gradient. The nodes stand in depth-first order, so a node's descendants follow it up to its end.
docs/batches.md shows the layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolgym.rollout.batch.batch import Batch, moved, temperature_at
from toolgym.rollout.batch.packing import Packed, log_probs_at, pack, reaches, require_tokens
from toolgym.rollout.batch.prefixes import prefix_keys, require_no_images, shared_prefixes


@dataclass(frozen=True)
class Tree:
    """The rows of a batch as a tree of tokens.

    Attributes:
        parents: int64 `[nodes]`, the node before each one; -1 for the first token of a row.
        position_ids: int64 `[nodes]`, each token's position in its rows.
        ends: int64 `[nodes]`, where the nodes below each one end.
        first: int64 `[nodes]`, the first place in `packed` of each node's token: payloads that a model reads are
            `packed.aligned[name][first]`.
        counts: int64 `[nodes]`, in how many rows the policy sampled each token.
        weights: float32 `[nodes]`, the sum of these rows' advantages at each token, for a loss that is linear in the
            log-probabilities; None if no advantages were given.
        nodes: int64 `[tokens]`, the node of each token in `packed`.
        packed: the rows, with all that a loss takes.
    """

    input_ids: Tensor
    parents: Tensor
    position_ids: Tensor
    ends: Tensor
    first: Tensor
    counts: Tensor
    weights: Tensor | None
    nodes: Tensor
    packed: Packed

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def attention_mask(self) -> Tensor:
        """bool `[nodes, nodes]`, which nodes (columns) each node (row) attends: itself and those on its way up.

        In the form of FlexAttention: `mask_mod = lambda b, h, i, j: (j <= i) & (i < ends[j])`.
        """
        return reaches(self.ends)

    def additive_mask(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """`[1, 1, nodes, nodes]`, 0 where a node attends and the dtype's least number elsewhere.

        Models of transformers add it to their attention (`attn_implementation` `sdpa` or `eager`).
        """
        hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=self.ends.device)
        return torch.where(self.attention_mask, torch.zeros_like(hidden), hidden)[None, None]

    def to(self, device: torch.device | str) -> Tree:
        return moved(self, device)

    def token_log_probs(self, logits: Tensor, *, temperature: float | Tensor | None = None) -> Tensor:
        """Return the log-probabilities of the tokens in `packed`, as `Packed.token_log_probs` does.

        Rows that share a node may have been sampled at different temperatures: each gets its own. Raises ConfigError if
        the `logits` are not `[nodes, vocabulary]`, or a temperature is not above 0.
        """
        require_tokens(logits, len(self), "logits")
        packed = self.packed
        trained = packed.response_mask > 0
        wanted = packed.temperatures if temperature is None else temperature
        values = torch.zeros(len(packed), dtype=torch.float32, device=logits.device)
        scales = wanted[trained].unique().tolist() if isinstance(wanted, Tensor) and wanted.dim() else [float(wanted)]
        for scale in scales:
            here = trained if len(scales) == 1 else trained & (wanted == scale)
            at = self.nodes[here].unique()
            each = log_probs_at(logits, self.input_ids, self.parents, at, temperature_at(scale, at))
            values = torch.where(here, each[self.nodes], values)
        return values


def pack_tree(batch: Batch, advantages: Tensor | None = None, *, split_by: Sequence[str] | None = None) -> Tree:
    """Put the rows of a batch into one tree, where each prefix that rows share stands once.

    The tree is made on the CPU and returned on the batch's device. Its attention takes memory with the square of its
    nodes: `batch.micro_batches(max_tokens=..., count="tree")` makes parts whose trees have at most that many.

    `split_by` are payloads in which tokens must be equal, too, to be shared: those that the model is given back. None
    is `routed_experts` if the batch has it. `advantages` are as in `pack`. Raises ConfigError as `pack` does, or if the
    batch has no such payload, or has images.
    """
    require_no_images(batch.images)
    device = batch.prompts.device
    packed = pack(batch.to("cpu"), None if advantages is None else advantages.to("cpu"))
    aligned = {name: value.numpy() for name, value in packed.aligned.items()}
    keys = prefix_keys(packed.input_ids.numpy(), aligned, split_by)
    starts = packed.cu_seqlens.tolist()
    rows = [keys[start:end] for start, end in itertools.pairwise(starts)]
    order, shared = shared_prefixes(rows)

    nodes = np.empty(len(keys), dtype=np.int64)
    parents, first, begins = [], [], [0]
    before = slice(0, 0)
    for row, kept in zip(order, shared, strict=True):
        here = slice(starts[row], starts[row + 1])
        split, start = here.start + kept, begins[-1]
        new = np.arange(start, start + here.stop - split)
        nodes[here.start : split] = nodes[before.start : before.start + kept]
        nodes[split : here.stop] = new
        parents.append(np.append(nodes[split - 1] if kept else -1, new[:-1])[: len(new)])
        first.append(np.arange(split, here.stop))
        begins.append(start + len(new))
        before = here
    places = np.concatenate(first)
    at, weights = torch.from_numpy(nodes), packed.advantages
    tree = Tree(
        input_ids=packed.input_ids[places],
        parents=torch.from_numpy(np.concatenate(parents)),
        position_ids=packed.position_ids[places],
        ends=torch.from_numpy(_ends([len(rows[row]) for row in order], shared, begins)),
        first=torch.from_numpy(places),
        counts=torch.zeros(len(places), dtype=torch.int64).index_add_(0, at, packed.response_mask),
        weights=None if weights is None else torch.zeros(len(places)).index_add_(0, at, weights),
        nodes=at,
        packed=packed,
    )
    return tree.to(device)


def _ends(lengths: Sequence[int], shared: Sequence[int], begins: Sequence[int]) -> NDArray[np.int64]:
    """The ends of the nodes below each node, int64 `[nodes]`; `begins` is the first node that is each row's own."""
    ends = np.empty(begins[-1], dtype=np.int64)
    open_ends = np.full(max(lengths), begins[-1])  # by depth: where a node of the present row ends
    for row in range(len(lengths) - 1, -1, -1):
        ends[begins[row] : begins[row + 1]] = open_ends[shared[row] : lengths[row]]
        open_ends[shared[row] :] = begins[row]  # below there, the row before is another branch
    return ends
