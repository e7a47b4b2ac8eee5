"""What an engine generated, as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from toolgym.rollout.engines.base import FinishReason, Generation
from toolgym.rollout.trajectory.token_sequence import array_from_json, array_to_json


def generation_to_json(generation: Generation) -> dict[str, Any]:
    """A generation as JSON can hold it; `generation_from_json` reads it back equal."""
    versions = [[version, len(list(group))] for version, group in itertools.groupby(generation.weight_versions)]
    return {
        "token_ids": list(generation.token_ids),
        "logprobs": list(generation.logprobs),
        "finish_reason": generation.finish_reason.value,
        "weight_versions": versions,
        "cached_tokens": generation.cached_tokens,
        "aligned": {name: array_to_json(array) for name, array in generation.aligned.items()},
    }


def generation_from_json(reply: Mapping[str, Any]) -> Generation:
    """Read what `generation_to_json` made.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
        EngineError: the numbers of ids, log-probabilities and versions differ.
    """
    return Generation(
        token_ids=tuple(reply["token_ids"]),
        logprobs=tuple(reply["logprobs"]),
        finish_reason=FinishReason(reply["finish_reason"]),
        weight_versions=tuple(version for version, count in reply["weight_versions"] for _ in range(count)),
        cached_tokens=reply["cached_tokens"],
        aligned={name: array_from_json(array) for name, array in reply.get("aligned", {}).items()},
    )
