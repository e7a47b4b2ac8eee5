"""`pack`: the rows of a batch one behind the other, without padding; docs/batches.md shows the layout.

Every value stands at the token that it belongs to, not at the one before it that predicts it; `token_log_probs` looks
there itself. `cu_seqlens` are as FlashAttention's functions have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from toolgym.rollout.batch.batch import Batch, chosen_log_probs, moved, temperature_at
from toolgym.rollout.batch.fields import FIELDS, Field, payload_padding
from toolgym.rollout.batch.row import RowImages, joined_inputs
from toolgym.tools.errors import ConfigError

PACKED: tuple[Field, ...] = tuple(
    item
    for item in FIELDS
    if item.place in ("tokens", "response", "policy") and item.name not in ("attention_mask", "responses")
)
"""The fields of a batch that a `Packed` has for each token: all but those of padding and parts."""

PADDINGS = {item.name: item.padding for item in PACKED if isinstance(item.padding, int)}


@dataclass(frozen=True)
class Packed:
    """The rows of a batch as one row of tokens. Values at the tokens are those of `Batch`, and its paddings elsewhere.

    Attributes:
        position_ids: int64 `[tokens]`, from 0 in each row.
        response_mask: int64 `[tokens]`, 1 on tokens that the policy sampled: where a loss is.
        row_ids: int64 `[tokens]`, the place in the batch of each token's row.
        cu_seqlens: int32 `[rows + 1]`, where each row begins, and the number of tokens.
        prompt_lengths: int64 `[rows]`, in tokens.
        widths: of prompt and response in the batch, in tokens.
        advantages: float32 `[tokens]`, on the policy's tokens; 0 elsewhere. None if none were given.
        aligned: payloads by name, `[tokens, ...]`.
        images: those of each row, as in `Batch`.
    """

    input_ids: Tensor
    position_ids: Tensor
    response_mask: Tensor
    rollout_log_probs: Tensor
    temperatures: Tensor
    weight_versions: Tensor
    token_rewards: Tensor
    row_ids: Tensor
    cu_seqlens: Tensor
    prompt_lengths: Tensor
    widths: tuple[int, int]
    advantages: Tensor | None = None
    aligned: Mapping[str, Tensor] = field(default_factory=dict)
    images: tuple[RowImages, ...] = ()

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def pixel_inputs(self) -> dict[str, Tensor]:
        """As `Batch.pixel_inputs`."""
        return joined_inputs(self.images)

    @property
    def max_seqlen(self) -> int:
        return int(self.cu_seqlens.diff().max())

    @property
    def parents(self) -> Tensor:
        """int64 `[tokens]`, the place of the token before each one; -1 for the first of a row."""
        before = torch.arange(-1, len(self) - 1, device=self.input_ids.device)
        return torch.where(self.position_ids == 0, -1, before)

    @property
    def attention_mask(self) -> Tensor:
        """bool `[tokens, tokens]`, which tokens (columns) each token (row) attends: those before it in its row.

        Attention that takes `cu_seqlens` needs none.
        """
        return reaches(self.cu_seqlens[1:].long()[self.row_ids])

    def to(self, device: torch.device | str) -> Packed:
        return moved(self, device)

    def token_log_probs(self, logits: Tensor, *, temperature: float | Tensor | None = None) -> Tensor:
        """Return the log-probabilities of the policy's tokens: float32 `[tokens]`, 0 elsewhere.

        They carry the gradient of the logits.

        Args:
            logits: `[tokens, vocabulary]`, of a model that was given `input_ids`.
            temperature: divides the logits: a number, or one for each token. Defaults to `temperatures`, the
                distribution of `rollout_log_probs`.

        Raises:
            ConfigError: the logits have another number of tokens, or a temperature is not above 0.
        """
        require_tokens(logits, len(self), "logits")
        at = (self.response_mask > 0).nonzero()[:, 0]
        scale = temperature_at(self.temperatures if temperature is None else temperature, at)
        return log_probs_at(logits, self.input_ids, self.parents, at, scale)

    def unpack(self, values: Tensor, *, padding: float = 0) -> Tensor:
        """Values of the tokens, `[tokens, ...]`, in the batch's layout: `[rows, prompt + response, ...]`.

        `packed.unpack(values)[:, packed.widths[0]:]` are those of the responses. Padding gets `padding`. Raises
        ConfigError for another number of tokens.
        """
        require_tokens(values, len(self), "values")
        padded = values.new_full((len(self.prompt_lengths), sum(self.widths), *values.shape[1:]), padding)
        padded[self.row_ids, self.widths[0] - self.prompt_lengths[self.row_ids] + self.position_ids] = values
        return padded


def pack(batch: Batch, advantages: Tensor | None = None) -> Packed:
    """Put the rows of a batch, or of a part of one, one behind the other, without padding.

    `advantages` are `[rows]`, one for all of the policy's tokens of a row (see `Batch.per_row`), or `[rows, response]`.
    Raises ConfigError if they have another shape, or one on a token of the policy's is not finite.
    """
    tokens = batch.attention_mask.bool()
    width, flat = batch.prompts.shape[1], batch.flattener()

    def of(item: Field) -> Tensor:
        value: Tensor = getattr(batch, item.name)
        return value[tokens] if item.place == "tokens" else flat(value, PADDINGS[item.name])

    lengths = tokens.sum(dim=1)
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    of_tokens = None if advantages is None else flat(_per_token(advantages, batch), 0)
    return Packed(
        **{item.name: of(item) for item in PACKED},
        row_ids=torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths),
        cu_seqlens=ends.to(torch.int32),
        prompt_lengths=tokens[:, :width].sum(dim=1),
        widths=(width, batch.responses.shape[1]),
        advantages=of_tokens,
        aligned={name: flat(value, payload_padding(value.dtype)) for name, value in batch.aligned.items()},
        images=batch.images,
    )


def reaches(ends: Tensor) -> Tensor:
    """bool `[tokens, tokens]`: whether a token (column) is another one (row) or before it on its way from the root.
    The descendants of a token stand between it and its place in `ends`."""
    at = torch.arange(len(ends), device=ends.device)
    return (at <= at[:, None]) & (at[:, None] < ends)


def log_probs_at(logits: Tensor, ids: Tensor, parents: Tensor, at: Tensor, scale: float | Tensor) -> Tensor:
    """Return the log-probabilities of the tokens `at` these places under the logits of their parents, divided by
    `scale`: float32 `[tokens]`, 0 at other places."""
    chosen = chosen_log_probs(logits[parents[at]], ids[at], scale)
    return torch.zeros(len(ids), dtype=torch.float32, device=logits.device).index_put((at,), chosen)


def _per_token(advantages: Tensor, batch: Batch) -> Tensor:
    values = advantages.to(batch.responses.device, torch.float32)
    if values.shape == batch.rewards.shape:
        values = values[:, None].expand(batch.responses.shape)
    if values.shape != batch.responses.shape:
        rows, response = batch.responses.shape
        raise ConfigError(f"advantages must be [{rows}] or [{rows}, {response}], got {list(advantages.shape)}")
    policy = batch.response_mask.bool()
    if not bool(values[policy].isfinite().all()):
        raise ConfigError("the advantages of the policy's tokens must be finite")
    return values.masked_fill(~policy, 0.0)


def require_tokens(values: Tensor, tokens: int, what: str) -> None:
    if values.dim() < 1 or len(values) != tokens:
        raise ConfigError(f"expected {what} of {tokens} tokens, [{tokens}, ...], got {list(values.shape)}")
