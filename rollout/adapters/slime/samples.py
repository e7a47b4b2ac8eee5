"""Trajectories as slime's `Sample`s, and the checks that slime leaves out.

The format is that of `Sample` in `slime/utils/types.py` (August 2026): `tokens` is prompt and response, `loss_mask` and
`rollout_log_probs` belong to the response, 1 in the mask for what the policy sampled.
"""

from __future__ import annotations

import base64
import binascii
import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from toolgym.rollout.adapters.trainer_row import TrainerRow, check_values
from toolgym.rollout.adapters.versions import needs_sources
from toolgym.rollout.engines.base import Generation
from toolgym.rollout.engines.sglang.aligned import ROUTED_EXPERTS, SAMPLING_MASK, routing_weights
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.trajectory.context_routing import ContextRouting
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError, EngineError, require_whole_number
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    from slime.utils.types import Sample
    from transformers import PreTrainedTokenizerBase

ADDRESS = "github.com/THUDM/slime"
METADATA = "toolgym"
"""Key of `Sample.metadata` with what became of the episode."""

WEIGHTS = "rollout_routed_experts_weights"
"""Name of routing weights: of the field of a `Sample` that has one, else in its `train_metadata`."""


@named_keywords
def to_samples(
    trajectories: Iterable[Trajectory],
    *,
    tokenizer: PreTrainedTokenizerBase,
    first_group: int = 0,
    first_index: int = 0,
    processor: ImageProcessor | None = None,
    temperature: float | None = 1.0,
) -> list[list[list[Sample]]]:
    """Return the samples of whole groups, a list for each, as slime's `RolloutFnTrainOutput.samples` has them.

    Each trajectory is a list, of one sample or of several with one `rollout_id`: slime looks at the first element to
    see what the others are. One that is not usable keeps its place as a masked sample (`remove_sample`, status
    `ABORTED`, reward 0, which `post_process_rewards` keeps out of its group). Groups and trajectories are numbered from
    `first_group` and `first_index`. `temperature` is slime's `--rollout-temperature`, by which it divides logits. None
    does not check it, and a trajectory of another one raises ConfigError. The rollout's `processor` makes
    `multimodal_train_inputs` of images. Raises BatchError if there are images and no processor, or if a trajectory has
    routed experts, which are those of sampled tokens: slime replays the routing of every token, which only `generate`
    can ask for.
    """
    with needs_sources("slime", ADDRESS, "a sample of slime's"):
        from slime.utils.types import Sample
    require_whole_number("first_group", first_group, at_least=0)
    require_whole_number("first_index", first_index, at_least=0)
    groups: dict[str, list[list[Sample]]] = {}
    for number, trajectory in enumerate(require_trajectories(trajectories)):
        group = groups.setdefault(trajectory.group_id, [])
        index = first_group + list(groups).index(trajectory.group_id)
        base = Sample(
            group_index=index,
            index=first_index + number,
            prompt=_prompt(trajectory, tokenizer),
            label=trajectory.ground_truth,
        )
        group.append(fill(base, trajectory, tokenizer, processor=processor, temperature=temperature))
    return list(groups.values())


def fill(
    base: Sample,
    trajectory: Trajectory,
    tokenizer: PreTrainedTokenizerBase,
    payloads: Payloads | None = None,
    processor: ImageProcessor | None = None,
    *,
    temperature: float | None,
) -> list[Sample]:
    """Fill a sample with a trajectory: itself with the first sequence, copies of it with the others."""
    rows = TrainerRow.all_of(trajectory, "slime", several=True, temperature=temperature, processor=processor)
    samples = [base, *(copy.deepcopy(base) for _ in rows[1:])]
    for sample in samples:
        sample.metadata = {**(sample.metadata or {}), METADATA: _about(trajectory)}
        sample.remove_sample = not rows
        if len(samples) > 1 and sample.rollout_id is None:
            sample.rollout_id = sample.index
    for sample, row in zip(samples, rows or [TrainerRow.masked(trajectory, tokenizer.eos_token_id or 0)], strict=True):
        _fill_one(sample, row, tokenizer, payloads, processor)
    base.non_generation_time = trajectory.env_seconds
    check_samples(samples, siblings=True)
    return samples


def _fill_one(
    sample: Sample,
    row: TrainerRow,
    tokenizer: PreTrainedTokenizerBase,
    payloads: Payloads | None,
    processor: ImageProcessor | None,
) -> None:
    import torch

    trajectory, masked = row.trajectory, sample.remove_sample
    shape = None if payloads is None else payloads.routing_shape
    if shape is None and any(ROUTED_EXPERTS in segment.aligned for segment in row.sequence.policy_segments):
        raise BatchError(
            f"field rollout_routed_experts: trajectory {trajectory.id} has the routing of its sampled tokens, and "
            "slime replays that of every token: play with `generate` and --use-rollout-routing-replay"
        )
    if shape is not None and not masked:  # what the env put at the end has no routing, and nothing is learned there
        row = row.without_tail()
    sequence = row.sequence
    response = sequence.response_ids.tolist()
    sample.tokens = row.token_ids.tolist()
    sample.multimodal_train_inputs = row.pixel_inputs(processor) or None
    sample.response = "" if masked else str(tokenizer.decode(response, skip_special_tokens=False))
    sample.response_length = len(response)
    sample.loss_mask = sequence.response_mask.tolist()
    sample.rollout_log_probs = sequence.logprobs.tolist()
    sample.weight_versions = [name for segment in sequence.policy_segments for name, _ in segment.version_runs]
    sample.reward = 0.0 if masked else row.reward
    status = type(sample).Status
    ended = status.TRUNCATED if trajectory.stop_reason.truncated else status.COMPLETED
    sample.status = status.ABORTED if masked else ended
    sample.rollout_top_p_token_ids = sample.rollout_top_p_token_offsets = sample.rollout_routed_experts = None
    kept = top_p_of(sequence, payloads)
    if kept is not None:
        sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets = map(torch.from_numpy, kept)
    if shape is not None and masked:  # slime refuses rows of zeros
        sample.rollout_routed_experts = torch.arange(shape[1], dtype=torch.int32).repeat(1, shape[0], 1)
    elif payloads is not None and shape is not None:
        sample.rollout_routed_experts = torch.from_numpy(payloads.routing.rows(row.token_ids).copy())
    if payloads is not None and payloads.weighted:
        weights = torch.full(sample.rollout_routed_experts.shape, 1.0 / sample.rollout_routed_experts.shape[2])
        if not masked:
            weights = torch.from_numpy(payloads.weights.rows(row.token_ids).copy())
        if hasattr(sample, WEIGHTS):
            setattr(sample, WEIGHTS, weights)
        else:
            sample.train_metadata = {**(sample.train_metadata or {}), WEIGHTS: weights}


def _about(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory.id,
        "env_id": trajectory.env_id,
        "task_id": trajectory.task_id,
        "stop_reason": trajectory.stop_reason.value,
        "usable": trajectory.usable,
        "turns": len(trajectory.turns),
        "tool_calls": len(trajectory.tool_calls),
        "error": trajectory.error.message if trajectory.error is not None else None,
    }


def _prompt(trajectory: Trajectory, tokenizer: PreTrainedTokenizerBase) -> str:
    ids = trajectory.sequences[0].prompt_ids.tolist() if trajectory.sequences else []
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def check_samples(samples: Sequence[Sample], *, siblings: bool = False) -> None:
    """Check samples that slime would take, and train on, or stop at only after the whole rollout.

    Those of one episode are `siblings` and must have one `rollout_id`. Raises BatchError, which names the field and the
    row, for whatever does not fit the tokens.
    """
    for row, sample in enumerate(samples):
        _check_tokens(sample, row)
        _check_payloads(sample, row)
    ids = {sample.rollout_id for sample in samples}
    if siblings and len(samples) > 1 and (None in ids or len(ids) > 1):
        raise BatchError(
            f"field rollout_id: the {len(samples)} samples of one episode must share one, got {sorted(map(str, ids))}; "
            "slime numbers samples by `index`"
        )


def _check_tokens(sample: Sample, row: int) -> None:
    length = sample.response_length
    if not 0 < length < len(sample.tokens):
        raise BatchError(f"response_length of row {row} is {length}, and tokens has {len(sample.tokens)} ids")
    if not all(isinstance(token, int) and token >= 0 for token in sample.tokens):
        raise BatchError(f"tokens of row {row} holds something else than token ids")
    mask, logprobs = ("loss_mask", sample.loss_mask), ("rollout_log_probs", sample.rollout_log_probs)
    check_values(row, f"{length} ids of the response", mask, logprobs)
    if not isinstance(sample.reward, float | int) or not math.isfinite(sample.reward):
        raise BatchError(f"reward of row {row} must be a finite number, got {sample.reward!r}")


def _check_payloads(sample: Sample, row: int) -> None:
    ids, offsets = sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets
    if (ids is None) != (offsets is None):
        raise BatchError(f"rollout_top_p_token_ids and rollout_top_p_token_offsets of row {row} go together")
    if ids is not None and (len(offsets) != sample.response_length + 1 or int(offsets[-1]) != len(ids)):
        raise BatchError(
            f"rollout_top_p_token_offsets of row {row} has {len(offsets)} values up to {int(offsets[-1])} for "
            f"{sample.response_length} ids of the response and {len(ids)} kept ones"
        )
    experts = sample.rollout_routed_experts
    if experts is not None and len(experts) != len(sample.tokens) - 1:
        raise BatchError(
            f"rollout_routed_experts of row {row} has {len(experts)} rows for {len(sample.tokens)} tokens; it must "
            "have one for each but the last"
        )
    weights = getattr(sample, WEIGHTS, (getattr(sample, "train_metadata", None) or {}).get(WEIGHTS))
    if weights is not None and (experts is None or tuple(weights.shape) != tuple(experts.shape)):
        shape = "none" if experts is None else list(experts.shape)
        raise BatchError(f"{WEIGHTS} of row {row} is {list(weights.shape)}, and rollout_routed_experts {shape}")


Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]

_TOP_P_IDS = ("top_p_token_ids", "top_p_kept_token_ids")
_TOP_P_OFFSETS = ("top_p_token_offsets", "top_p_kept_token_offsets")


@dataclass
class Payloads:
    """Payloads of one episode from slime's SGLang: routing (layers, experts per token) and, where it is `weighted`, its
    weights; the ids that top-p kept."""

    routing_shape: tuple[int, int] | None = None
    top_p: bool = False
    weighted: bool = False
    _kept: list[tuple[tuple[int, ...], Ints, Ints]] = field(default_factory=list)
    routing: ContextRouting = field(default_factory=ContextRouting)
    weights: ContextRouting = field(default_factory=ContextRouting)

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
            self.routing.add(prompt_ids, generation.token_ids, experts.reshape(shape))
            if self.weighted:
                self.weights.add(prompt_ids, generation.token_ids, routing_weights(meta, shape))

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
