"""Payloads that slime replays in training: the experts that a router chose, and the ids that top-p kept.

slime's formats (`slime/utils/types.py`, August 2026): `rollout_routed_experts` int32 `[tokens - 1, layers, experts per
token]`, a row for each token of prompt and response but the last; `rollout_top_p_token_ids` int32 `[kept]` and
`rollout_top_p_token_offsets` int32 `[response + 1]`, between two of which are the ids kept for a response token.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from toolgym.rollout.engines.base import Generation
from toolgym.rollout.engines.sglang.aligned import SAMPLING_MASK
from toolgym.rollout.trajectory.context_routing import ContextRouting
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.tools.errors import BatchError, EngineError

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]

_TOP_P_IDS = ("top_p_token_ids", "top_p_kept_token_ids")
_TOP_P_OFFSETS = ("top_p_token_offsets", "top_p_kept_token_offsets")


@dataclass
class Payloads:
    """Payloads that slime's SGLang sent beside the tokens of one episode.

    Attributes:
        routing_shape: layers, and experts per token; None if routing is not replayed.
        top_p: whether the ids that top-p kept are wanted.
    """

    routing_shape: tuple[int, int] | None = None
    top_p: bool = False
    _kept: list[tuple[tuple[int, ...], Ints, Ints]] = field(default_factory=list)
    _routing: ContextRouting = field(default_factory=ContextRouting)

    def add(self, prompt_ids: Sequence[int], generation: Generation, meta: Mapping[str, Any]) -> None:
        """Read the payloads of one answer; raises EngineError if one is missing, or does not fit the tokens."""
        count = len(generation.token_ids)
        if not count:
            return
        if self.top_p:
            ids, offsets = _int32(meta, _TOP_P_IDS), _int32(meta, _TOP_P_OFFSETS)
            whole = len(offsets) == count + 1 and offsets[0] == 0 and offsets[-1] == len(ids)
            if not whole or (np.diff(offsets) < 1).any():
                raise EngineError(f"{_TOP_P_OFFSETS[0]} of SGLang do not fit {count} tokens and {len(ids)} kept ids")
            self._kept.append((generation.token_ids, ids, offsets))
        if self.routing_shape is not None:
            experts = _int32(meta, ("routed_experts",))
            shape = (len(prompt_ids) + count - 1, *self.routing_shape)
            if experts.size != np.prod(shape):
                raise EngineError(
                    f"SGLang's routed_experts hold {experts.size} numbers, where {list(shape)} are needed"
                )
            self._routing.add(prompt_ids, generation.token_ids, experts.reshape(shape))

    def routed_experts(self, whole_ids: Ints) -> Ints:
        """Return the experts of a sequence that ends with a sampled token, `[tokens - 1, layers, experts]`."""
        return self._routing.rows(whole_ids)

    def kept(self, segment: Segment) -> tuple[Ints, Ints]:
        """Return the kept ids of the next sampled segment, and their offsets `[tokens + 1]`."""
        ids = tuple(segment.token_ids.tolist())
        for place, (sampled, kept, offsets) in enumerate(self._kept):
            if sampled == ids:
                del self._kept[place]
                return kept, offsets
        raise BatchError(f"field rollout_top_p_token_ids: no answer of SGLang has the {len(ids)} tokens of a turn")


def top_p_of(sequence: TokenSequence, payloads: Payloads | None) -> tuple[Ints, Ints] | None:
    """Return the ids that top-p kept for each token of a response, and their offsets; None if they are not known.

    Without payloads of the episode the sequence's `sampling_mask` says them.
    """
    live = payloads is not None and payloads.top_p
    masks = [SAMPLING_MASK in segment.aligned for segment in sequence.policy_segments]
    if not live and not any(masks):
        return None
    if not live and not all(masks):
        raise BatchError(f"field rollout_top_p_token_ids: {masks.count(False)} turns have no {SAMPLING_MASK!r}")
    parts, counts = [], [0]
    for segment in sequence.segments:
        if not (segment.is_policy and len(segment)):
            counts += [0] * len(segment)
            continue
        if live:
            assert payloads is not None
            ids, offsets = payloads.kept(segment)
            counts += np.diff(offsets).tolist()
        else:
            mask = segment.aligned[SAMPLING_MASK]
            ids = mask[mask >= 0]
            counts += (mask >= 0).sum(axis=1).tolist()
        parts.append(ids.astype(np.int32))
    return np.concatenate([np.zeros(0, np.int32), *parts]), np.cumsum(counts).astype(np.int32)


def _int32(meta: Mapping[str, Any], names: tuple[str, ...]) -> Ints:
    """Read a payload as slime's SGLang sends it: the base64 of little-endian int32, or a list."""
    value = next((meta[name] for name in names if meta.get(name) is not None), None)
    if value is None:
        raise EngineError(f"SGLang sent no {names[0]}: it must be slime's own, started by slime")
    try:
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), "<i4").astype(np.int32)
        return np.asarray(value, dtype=np.int32).reshape(-1)
    except (binascii.Error, OverflowError, TypeError, ValueError) as error:
        raise EngineError(f"SGLang's {names[0]} must be int32 numbers: {error}") from error
