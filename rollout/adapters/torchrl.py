"""A batch as the `TensorDict` that TorchRL's `GRPOLoss` takes, with `masking_strategy="rlhf"`.

The format is that of TorchRL 0.14.1 (`torchrl/objectives/llm/grpo.py`): whole sequences with mask, log-probability and
advantage at each token's own place, padded on the left: of ragged rows TorchRL would pad advantages on the right.
"""

from __future__ import annotations

import math

from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.batch.batch import Batch
from toolgym.rollout.trajectory.distribution import GRAMMAR_ADVICE
from toolgym.tools.errors import BatchError, ConfigError

with needs("torchrl", "A batch for TorchRL"):
    import torch
    from tensordict import TensorDict


def to_tensordict(batch: Batch, advantages: torch.Tensor) -> TensorDict:
    """Return a batch for a loss of `TransformersWrapper(..., input_mode="tokens", generate=False, pad_output=True)`.

    The `advantages`, float `[rows]` or `[rows, response]`, are for example those of `batch.per_row(trajectories,
    group_advantages(trajectories))`; parts of the batch (`Batch.select`) may go in later. Raises BatchError if they are
    of another shape, or one is not finite, and ConfigError if tokens were sampled at another temperature than 1, or
    under a grammar.

    Returns:
        `("tokens", "full")` int64, `("masks", "all_attention_mask")` and `("masks", "all_assistant_mask")` bool,
        `("log_probs", "full")` float32, all `[rows, tokens]`, and `"advantage"` float32 `[rows, tokens, 1]`.
        Log-probabilities and advantages are 0 except for what the policy sampled, where the assistant's mask is true.
    """
    if not isinstance(batch, Batch):
        raise ConfigError(f"expected a toolgym Batch, as make_batch(trajectories, ...) makes it, got {batch!r:.200}")
    if any(distribution.grammar is not None for row in batch.distributions for distribution in row):
        raise ConfigError(
            "the batch has turns that were sampled under a grammar, and TorchRL computes log-probabilities over all "
            f"tokens: {GRAMMAR_ADVICE}"
        )
    scales = batch.temperatures[batch.response_mask.bool()].unique().tolist()
    if any(not math.isclose(scale, 1.0, rel_tol=1e-6) for scale in scales):
        raise ConfigError(
            f"the batch was sampled at temperatures {[round(scale, 6) for scale in scales]}, and TorchRL's GRPOLoss "
            "computes log-probabilities at temperature 1, so its importance ratios would not begin at 1: sample at "
            "temperature 1"
        )
    if batch.images:
        raise BatchError("the batch has images, and TorchRL's GRPOLoss takes tokens alone: see docs/images.md")
    shapes = [(len(batch),), tuple(batch.responses.shape)]
    if not isinstance(advantages, torch.Tensor) or tuple(advantages.shape) not in shapes:
        raise BatchError(f"advantages must be a tensor {shapes[0]} or {shapes[1]}, got {advantages!r:.200}")
    wrong = (~advantages.isfinite()).nonzero()
    if len(wrong):
        row = int(wrong[0, 0])
        raise BatchError(f"field advantages: row {row}, {batch.ids[row]!r}, has one that is not finite")
    attended = batch.attention_mask.bool()
    lengths = attended.sum(dim=1, keepdim=True)
    width = int(lengths.max())
    places = torch.arange(width, device=lengths.device) >= width - lengths
    flat = batch.flattener()

    def left(values: torch.Tensor, padding: int = 0) -> torch.Tensor:
        padded = values.new_full(places.shape, padding)
        padded[places] = values
        return padded

    each = advantages if advantages.dim() == 2 else advantages[:, None].expand_as(batch.responses)
    return TensorDict(
        {
            "tokens": {"full": left(batch.input_ids[attended], batch.pad_token_id)},
            "masks": {
                "all_attention_mask": places,
                "all_assistant_mask": left(flat(batch.response_mask, 0)).bool(),
            },
            "log_probs": {"full": left(flat(batch.rollout_log_probs, 0))},
            "advantage": left(flat(each.float() * batch.response_mask, 0))[:, :, None],
        },
        batch_size=[len(batch)],
        device=lengths.device,
    )
