"""A batch of sequences that a causal language model decodes together, one token per step.

Sequences come and go between steps (iteration-level batching). Rows are left-padded to one length, so that every row's
next token lies in the last column. Covered is every causal LM of transformers whose layers all keep plain keys and
values (full or sliding-window attention); recurrent state (Mamba, linear attention), encoder-decoder models, and
sharing the prefill of equal prompts are not.
"""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.engines.embedded.sampling import SamplingColumns, sample
from toolgym.tools.errors import ConfigError, EngineError
from toolgym.tools.lazy import missing_extra

try:
    import torch
    from torch import nn
    from transformers.cache_utils import Cache, DynamicLayer
except ImportError as error:
    raise missing_extra("rollout", "The embedded engine", error) from error

HEADROOM = 64
"""Columns allocated beyond those in use, so that a step writes its keys and values in place."""


@dataclass(eq=False, slots=True)
class DecodingRow:
    """`images` are the arguments of a model for the prompt's images, and the id that stands for a part of one. `decode`
    turns ids into text, for a row with stop texts."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    source: random.Random
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[str] = field(default_factory=list)
    forbidden_ids: Sequence[int] = ()
    images: tuple[Mapping[str, torch.Tensor], int] | None = None
    decode: Callable[[Sequence[int]], str] | None = None
    stop_token_ids: frozenset[int] = field(init=False)
    at_stop_text: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.stop_token_ids = frozenset(self.params.stop_token_ids)

    def append(self, token_id: int, logprob: float, weight_version: str) -> None:
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.weight_versions.append(weight_version)
        if self.params.stop and self.decode is not None:
            # A character has at most 4 bytes, and a token at least a byte; a few more, for one that was begun before.
            reach = 4 * max(map(len, self.params.stop)) + 4
            text = self.decode(self.token_ids[-reach:])
            self.at_stop_text = any(stop in text for stop in self.params.stop)

    @property
    def context_ids(self) -> list[int]:
        return [*self.prompt_ids, *self.token_ids]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.token_ids)

    @property
    def stopped(self) -> bool:
        return self.at_stop_text or (bool(self.token_ids) and self.token_ids[-1] in self.stop_token_ids)

    @property
    def done(self) -> bool:
        return self.stopped or len(self.token_ids) >= self.params.max_new_tokens


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values `[batch, heads, seq, head_dim]` in buffers with room for the next tokens.
    transformers' own `DynamicLayer` concatenates, which copies the whole cache at every step."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.set(key_states, value_states)
            return self.keys, self.values
        begin = self.keys.shape[2]
        end = begin + key_states.shape[2]
        if end > self.key_buffer.shape[2]:
            self.set(self.keys, self.values, room=end - begin + HEADROOM)
        self.key_buffer[:, :, begin:end] = key_states
        self.value_buffer[:, :, begin:end] = value_states
        self._show(end)
        return self.keys, self.values

    def set(self, keys: torch.Tensor, values: torch.Tensor, *, room: int = HEADROOM) -> None:
        pad = (0, 0, 0, room)
        self.key_buffer = nn.functional.pad(keys, pad)
        self.value_buffer = nn.functional.pad(values, pad)
        self._show(keys.shape[2])

    def _show(self, length: int) -> None:
        self.keys = self.key_buffer[:, :, :length]
        self.values = self.value_buffer[:, :, :length]


def _new_cache() -> Cache:
    # Without a config, sliding-window layers keep all keys too; the model's mask applies the window.
    return Cache(layer_class_to_replicate=GrowingLayer)


class DecodingBatch:
    """The rows being decoded and their keys and values. Belongs to one thread."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.rows: list[DecodingRow] = []
        self._model = model
        self._device = device
        self._cache = _new_cache()
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=device)
        self._lengths = torch.zeros(0, dtype=torch.long, device=device)
        self._shifts = torch.zeros(0, dtype=torch.long, device=device)  # of positions behind images
        self._last_ids = torch.zeros(0, 1, dtype=torch.long, device=device)
        self._columns: SamplingColumns | None = None
        parameters = inspect.signature(model.forward).parameters
        # transformers 5.24 renamed the argument, and warns of the old name.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._keep_last = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._type_names = [name for name in ("mm_token_type_ids", "token_type_ids") if name in parameters]

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: Sequence[DecodingRow], weight_version: str) -> None:
        """Prefill `rows` as one batch, sample the next token of each, and let them join. A row that has sampled
        before (it was taken out and comes back) is prefilled with what it sampled. A row with images comes alone: its
        model finds the positions of its tokens, which is not for padded rows."""
        width = max(row.length for row in rows)
        ids = torch.tensor([[0] * (width - row.length) + row.context_ids for row in rows])
        lengths = torch.tensor([row.length for row in rows])
        mask = (torch.arange(width)[None] >= width - lengths[:, None]).long()
        ids, lengths, mask = ids.to(self._device), lengths.to(self._device), mask.to(self._device)
        cache = _new_cache()
        images = rows[0].images
        if images is None:
            logits = self._forward(ids, mask, (mask.cumsum(1) - 1).clamp(min=0), cache)
            shifts = torch.zeros_like(lengths)
        else:
            logits, shifts = self._see(ids, mask, images, cache)
        columns = SamplingColumns.of([row.params for row in rows], self._device)
        last_ids = self._extend(rows, logits, columns, weight_version)
        if self.rows:
            self._merge(cache, mask)
            self._lengths = torch.cat([self._lengths, lengths])
            self._shifts = torch.cat([self._shifts, shifts])
            self._last_ids = torch.cat([self._last_ids, last_ids])
        else:
            self._cache, self._mask, self._lengths, self._last_ids = cache, mask, lengths, last_ids
            self._shifts = shifts
        self.rows.extend(rows)
        self._columns = None

    def step(self, weight_version: str) -> None:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self.rows), 1)], dim=1)
        positions = (self._lengths + self._shifts)[:, None]
        logits = self._forward(self._last_ids, self._mask, positions, self._cache)
        self._lengths += 1
        if self._columns is None:
            self._columns = SamplingColumns.of([row.params for row in self.rows], self._device)
        self._last_ids = self._extend(self.rows, logits, self._columns, weight_version)

    def keep(self, indices: Sequence[int]) -> None:
        """Let all rows but those at `indices` leave; drop the left padding that no remaining row needs."""
        if len(indices) == len(self.rows):
            return
        self.rows = [self.rows[index] for index in indices]
        self._columns = None
        if not self.rows:
            self._cache = _new_cache()
            return
        kept = torch.tensor(indices, device=self._device)
        self._lengths, self._last_ids = self._lengths[kept], self._last_ids[kept]
        self._shifts = self._shifts[kept]
        unused = self._mask.shape[1] - int(self._lengths.max())
        self._mask = self._mask[kept, unused:]
        for layer in self._cache.layers:
            layer.set(layer.keys[kept, :, unused:], layer.values[kept, :, unused:])

    def clear(self) -> None:
        self.keep([])

    def _extend(
        self, rows: Sequence[DecodingRow], logits: torch.Tensor, columns: SamplingColumns, weight_version: str
    ) -> torch.Tensor:
        for at, row in enumerate(rows):
            if row.forbidden_ids:
                logits[at, list(row.forbidden_ids)] = -torch.inf
        uniforms = torch.tensor([row.source.random() for row in rows], dtype=torch.float64).to(self._device)
        token_ids, logprobs = sample(logits, columns, uniforms)
        for row, token_id, logprob in zip(rows, token_ids.tolist(), logprobs.tolist(), strict=True):
            if logprob != logprob:
                raise EngineError("the model computed NaN: its weights or its input are broken")
            row.append(token_id, logprob, weight_version)
        return token_ids[:, None]

    def _merge(self, cache: Cache, mask: torch.Tensor) -> None:
        width = max(self._mask.shape[1], mask.shape[1])

        def joined(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            heads, size = old.shape[1], old.shape[3]
            both = old.new_zeros(old.shape[0] + new.shape[0], heads, width, size)
            both[: old.shape[0], :, width - old.shape[2] :] = old
            both[old.shape[0] :, :, width - new.shape[2] :] = new
            return both

        for old, new in zip(self._cache.layers, cache.layers, strict=True):
            old.set(joined(old.keys, new.keys), joined(old.values, new.values))
        pads = [nn.functional.pad(part, (width - part.shape[1], 0)) for part in (self._mask, mask)]
        self._mask = torch.cat(pads)

    def _see(
        self, ids: torch.Tensor, mask: torch.Tensor, images: tuple[Mapping[str, torch.Tensor], int], cache: Cache
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prefill one row with images. Returns its logits, and how far the position of the next token is from the
        row's length, as models that give an image fewer positions than tokens keep it."""
        types = (ids == images[1]).long()
        arguments = {name: value.to(self._device) for name, value in images[0].items()}
        keepers = [part for part in self._model.modules() if hasattr(part, "rope_deltas")]
        kept = [part.rope_deltas for part in keepers]  # a learner's, who may share the module
        try:
            logits = self._forward(ids, mask, None, cache, **arguments, **dict.fromkeys(self._type_names, types))
            shifts = [part.rope_deltas.reshape(-1) for part in keepers if part.rope_deltas is not None]
        finally:
            for part, deltas in zip(keepers, kept, strict=True):
                part.rope_deltas = deltas
        return logits, shifts[0].to(self._device) if shifts else ids.new_zeros(1)

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor | None, cache: Cache, **further: Any
    ) -> torch.Tensor:
        with evaluating(self._model):
            output = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **{self._cache_name: cache},
                **self._keep_last,
                **further,
            )
        logits: torch.Tensor = output.logits[:, -1]
        return logits


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a forward pass in evaluation mode and without gradients, whatever mode the module is in.

    A learner may share the module: its dropout and gradient checkpointing must not touch the rollout.
    """
    training = [part for part in model.modules() if part.training] if model.training else []
    for part in training:
        part.training = False
    try:
        with torch.no_grad():  # not inference_mode: buffers that a forward pass makes must stay fit for a learner
            yield
    finally:
        for part in training:
            part.training = True


def score_tokens(
    model: nn.Module, device: torch.device, token_ids: Sequence[int], start: int, temperature: float
) -> list[float]:
    """Return the natural-log probability of each of `token_ids[start:]`, of logits divided by the temperature. Raises
    EngineError if the model computes NaN."""
    ids = torch.tensor([token_ids], device=device)
    count = len(token_ids) - start
    keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
    further = {"logits_to_keep": count + 1} if keeps else {}
    with evaluating(model):
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **further).logits[0]
        scaled = logits[-count - 1 : -1].float() / temperature
        values = scaled.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
    if bool(values.isnan().any()):
        raise EngineError("the model computed NaN: its weights or its input are broken")
    scores: list[float] = values.tolist()
    return scores


def check_model(model: nn.Module, device: torch.device) -> None:
    """Make sure that batched, left-padded, cached decoding gives what the plain forward pass gives."""
    prompts = ((0, 1, 2), (1,))
    greedy = SamplingParams(max_new_tokens=2, temperature=0)
    rows = [DecodingRow(prompt, greedy, _Zero()) for prompt in prompts]
    batch = DecodingBatch(model, device)
    name = type(model).__name__
    try:
        batch.add(rows, "")
        batch.step("")
        for row in rows:
            ids = torch.tensor([(*row.prompt_ids, row.token_ids[0])], device=device)
            positions = torch.arange(ids.shape[1], device=device)[None]
            logits = batch._forward(ids, torch.ones_like(ids), positions, _new_cache())[0]
            logprob = logits.float().log_softmax(-1)[row.token_ids[1]].item()
            tolerance = 1e-3 if logits.dtype in (torch.float32, torch.float64) else 0.25
            if not abs(logprob - row.logprobs[1]) <= tolerance:
                raise ConfigError(
                    f"{name} gives another logprob in a padded, cached batch ({row.logprobs[1]:.4f}) than alone "
                    f"({logprob:.4f}): it keeps state that the embedded engine does not know. Serve it with SGLang"
                )
    except (TypeError, AttributeError, ValueError, NotImplementedError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{name} cannot be served by the embedded engine, which needs a causal LM of transformers with a "
            f"key-value cache: {type(error).__name__}: {error}"
        ) from error


class _Zero(random.Random):
    def random(self) -> float:
        return 0.0
