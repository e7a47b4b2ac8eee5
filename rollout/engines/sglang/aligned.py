"""Payloads that SGLang returns beside each sampled token, as arrays for `Generation.aligned`; see docs/engines.md.

Sources: SGLang 0.5.23, `GenerateReqInput` in `managers/io_struct.py`, `_maybe_collect_routed_experts` in
`managers/scheduler_components/batch_result_processor.py`, `sampling/sampling_mask.py`, and what servers were seen to
send. No release sends routing weights: their flag is that of the proposal sgl-project/sglang#23999, float32 beside the
ids, and the names of the request's and the answer's field follow from it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from toolgym.rollout.engines.base import GenerationRequest, SamplingParams
from toolgym.rollout.engines.sglang.messages import ServerInfo
from toolgym.tools.errors import ConfigError, EngineError, nearest, shorten

ROUTED_EXPERTS, SAMPLING_MASK, ROUTING_WEIGHTS = "routed_experts", "sampling_mask", "routing_weights"
NAMES = (ROUTED_EXPERTS, SAMPLING_MASK, ROUTING_WEIGHTS)
WEIGHTS_FIELD, RETURN_WEIGHTS = "routed_expert_weights", "return_routed_expert_weights"
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ConfigError(f"aligned must be a sequence of names, got the text {names!r}: write ({names!r},)")
    for name in names:
        if name not in NAMES:
            raise ConfigError(
                f"aligned takes {' and '.join(map(repr, NAMES))}, got {name!r}{nearest(str(name), NAMES)}"
            )
    if ROUTING_WEIGHTS in names and ROUTED_EXPERTS not in names:
        raise ConfigError("routing_weights belong to experts: add 'routed_experts' to aligned")
    return tuple(names)


def check_server(names: Sequence[str], info: ServerInfo) -> None:
    if ROUTED_EXPERTS not in names:
        return
    if info.returns_routed_experts is False:
        raise ConfigError(
            "these servers do not return routed experts: start them with --enable-return-routed-experts, or leave "
            "'routed_experts' out of aligned"
        )
    if ROUTING_WEIGHTS in names and info.returns_routing_weights is False:
        raise ConfigError(
            "these servers do not return routing weights, which SGLang's releases cannot: start one that can with "
            "--enable-return-routed-expert-weights, or leave 'routing_weights' out of aligned"
        )
    if info.routing_shape is None:
        raise ConfigError(
            f"how many layers and experts per token {info.model_path!r} has is not known: its config.json is not on "
            "this machine, or it is no mixture of experts. Pass SGLangServer(..., routing_shape=(layers, experts "
            "per token))"
        )


def check_params(names: Sequence[str], params: SamplingParams) -> None:
    if SAMPLING_MASK in names and params.temperature > 0 and params.top_k == -1:
        raise ConfigError("SGLang returns a sampling mask only where top_k is finite: set top_k, for example to 64")


def payload_fields(names: Sequence[str], prompt_tokens: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if ROUTED_EXPERTS in names:
        fields |= {"return_routed_experts": True, "routed_experts_start_len": prompt_tokens - 1}
    if ROUTING_WEIGHTS in names:
        fields[RETURN_WEIGHTS] = True
    if SAMPLING_MASK in names:
        fields["return_sampling_mask"] = True
    return fields


def read_payloads(
    names: Sequence[str],
    meta: Mapping[str, Any],
    token_ids: Sequence[int],
    request: GenerationRequest,
    info: ServerInfo,
) -> dict[str, np.ndarray[Any, Any]]:
    payloads: dict[str, np.ndarray[Any, Any]] = {}
    if ROUTED_EXPERTS in names:
        assert info.routing_shape is not None
        rows = _routed_experts(meta, len(token_ids), len(request.prompt_ids), info.routing_shape)
        payloads[ROUTED_EXPERTS] = rows[len(rows) - len(token_ids) :]
        if ROUTING_WEIGHTS in names:
            payloads[ROUTING_WEIGHTS] = routing_weights(meta, rows.shape)[len(rows) - len(token_ids) :]
    if SAMPLING_MASK in names:
        payloads[SAMPLING_MASK] = _sampling_mask(meta, token_ids, request.params, info.vocab_size)
    return payloads


def _routed_experts(meta: Mapping[str, Any], count: int, prompt_tokens: int, shape: tuple[int, int]) -> Ints:
    if not count:
        return np.zeros((0, *shape), np.int32)
    text = meta.get(ROUTED_EXPERTS)
    if not isinstance(text, str):
        raise EngineError(
            f"SGLang sent no routed_experts for {count} tokens: it must run with --enable-return-routed-experts"
        )
    try:
        flat = np.frombuffer(base64.b64decode(text, validate=True), "<i4").astype(np.int32)
        rows = flat.reshape(-1, *shape)
    except (binascii.Error, ValueError) as error:
        raise EngineError(
            f"SGLang's routed_experts must be int32 of {shape[0]} layers and {shape[1]} experts per token: {error}"
        ) from error
    if len(rows) not in (count, prompt_tokens - 1 + count):  # the second from a server that sends the prompt's too
        raise EngineError(
            f"SGLang's routed_experts have {len(rows)} rows where {count} tokens were sampled behind {prompt_tokens}"
        )
    return rows


def routing_weights(meta: Mapping[str, Any], shape: Sequence[int]) -> Floats:
    """Return the weights of routed experts of some shape, float32 as the server gave them; the slots are the ids'.

    Raises EngineError if there are none, or not as many, or one that is no weight. Two bytes each could be float16 or
    bfloat16, so they are refused, too.
    """
    if not np.prod(shape):
        return np.zeros(shape, np.float32)
    text = meta.get(WEIGHTS_FIELD)
    if not isinstance(text, str):
        raise EngineError(
            f"SGLang sent no {WEIGHTS_FIELD}: it must run with --enable-return-routed-expert-weights, which its "
            "releases do not have"
        )
    try:
        weights = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32).reshape(shape)
    except (binascii.Error, ValueError) as error:
        raise EngineError(
            f"SGLang's {WEIGHTS_FIELD} must be float32 {list(shape)}, as the experts are: {error}"
        ) from error
    if not np.isfinite(weights).all() or weights.min() < 0:
        raise EngineError(f"SGLang's {WEIGHTS_FIELD} must be finite and 0 or more")
    return weights


def _sampling_mask(meta: Mapping[str, Any], token_ids: Sequence[int], params: SamplingParams, vocab_size: int) -> Ints:
    kept = meta.get("output_token_sampling_mask")
    if not token_ids and not kept:
        kept = []
    if not isinstance(kept, list) or len(kept) != len(token_ids):
        raise EngineError(f"SGLang must send one sampling mask per token ({len(token_ids)}), got {shorten(kept)}")
    least = params.top_k if params.temperature > 0 else 1
    mask = np.full((len(kept), max([least, *map(len, kept)])), -1, np.int32)
    for row, ids in zip(mask, kept, strict=True):
        row[: len(ids)] = ids
    if not (mask == np.asarray(token_ids, np.int32).reshape(-1, 1)).any(axis=1).all():
        raise EngineError("a sampled token is not in SGLang's sampling mask")
    if mask.size and (mask.min() < -1 or mask.max() >= vocab_size):
        raise EngineError(f"SGLang's sampling mask holds an id outside the vocabulary of {vocab_size} ids")
    return mask
