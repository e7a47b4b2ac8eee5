"""Sampling one token per row of a batch, each row with its own parameters.

Every row is sampled by inverting its cumulative distribution at one uniform number from the row's own generator. So a
row's token depends on its own logits, parameters and number only, never on its company in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolgym.rollout.engines.base import GREEDY_BELOW, SamplingParams
from toolgym.tools.lazy import missing_extra

try:
    import torch
except ImportError as error:
    raise missing_extra("rollout", "The embedded engine", error) from error


@dataclass(frozen=True)
class SamplingColumns:
    """The sampling parameters of a batch, one entry per row. `temperature` is `[batch, 1]`, and 1 for greedy rows.
    `truncated` are the rows that top-p, top-k or min-p narrow down; these three are `[truncated rows, 1]`.
    `any_greedy` and `all_greedy` are known without asking the device."""

    temperature: torch.Tensor
    greedy: torch.Tensor
    truncated: torch.Tensor
    top_p: torch.Tensor
    top_k: torch.Tensor
    min_p: torch.Tensor
    any_greedy: bool
    all_greedy: bool

    @classmethod
    def of(cls, rows: Sequence[SamplingParams], device: torch.device) -> SamplingColumns:
        greedy = [row.temperature < GREEDY_BELOW for row in rows]
        narrow = [
            index
            for index, row in enumerate(rows)
            if not greedy[index] and (row.top_p < 1 or row.top_k != -1 or row.min_p > 0)
        ]

        def column(values: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        return cls(
            temperature=column(
                [1.0 if cold else row.temperature for cold, row in zip(greedy, rows, strict=True)], torch.float32
            ),
            greedy=torch.tensor(greedy, dtype=torch.bool, device=device),
            truncated=torch.tensor(narrow, dtype=torch.long, device=device),
            top_p=column([rows[index].top_p for index in narrow], torch.float64),
            top_k=column([2**31 if rows[index].top_k == -1 else rows[index].top_k for index in narrow], torch.long),
            min_p=column([rows[index].min_p for index in narrow], torch.float64),
            any_greedy=any(greedy),
            all_greedy=all(greedy),
        )


def sample(logits: torch.Tensor, columns: SamplingColumns, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row: ids, int64 `[batch]`, and their natural-log probabilities, float32 `[batch]`. Top-p,
    top-k and min-p each look at the temperature-scaled distribution over the whole vocabulary, and a token must pass
    all three ("joint", as SGLang's default sampler does). The most probable token always passes. Log-probabilities
    are those before truncation; NaN in `logits` `[batch, vocab]` gives a NaN. `uniforms` are float64 `[batch]` in
    [0, 1)."""
    scores = logits.float()
    # Subtracting the maximum first keeps a small temperature from overflowing to infinity minus infinity.
    logprobs = ((scores - scores.amax(-1, keepdim=True)) / columns.temperature).log_softmax(-1)
    if columns.all_greedy:
        token_ids = scores.argmax(-1)
    else:
        probs = logprobs.double().exp()
        token_ids = _invert(probs, uniforms)
        if columns.truncated.numel():
            rows = columns.truncated
            token_ids[rows] = _sample_truncated(probs[rows], columns, uniforms[rows])
        if columns.any_greedy:
            token_ids = torch.where(columns.greedy, scores.argmax(-1), token_ids)
    return token_ids, logprobs.gather(1, token_ids[:, None])[:, 0]


def _sample_truncated(probs: torch.Tensor, columns: SamplingColumns, uniforms: torch.Tensor) -> torch.Tensor:
    # Stable, so that equally probable tokens keep the order of their ids whatever the batch.
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)[None]
    kept = rank < columns.top_k
    kept &= ordered.cumsum(-1) - ordered < columns.top_p
    kept &= ordered >= columns.min_p * ordered[:, :1]
    kept[:, 0] = True
    place = _invert(ordered.masked_fill(~kept, 0.0), uniforms)
    return order.gather(1, place[:, None])[:, 0]


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the first index whose cumulative weight exceeds the uniform share of the total; float64 in, int64 out."""
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    # Rounding must not lift the threshold to the total: past the end lie only tokens of no weight.
    threshold = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]
    return index.clamp(max=weights.shape[-1] - 1)
