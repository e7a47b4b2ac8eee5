"""Trajectories in JSON of earlier versions, as the present one has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from toolgym.envs.types import StopReason
from toolgym.rollout.trajectory.token_sequence import version_runs

_KINDS = {
    "env_create": StopReason.ENV_CREATE_FAILED,
    "reset": StopReason.RESET_FAILED,
    "prompt": StopReason.PROMPT_REFUSED,
    "engine": StopReason.ENGINE_FAILED,
    "engine_timeout": StopReason.ENGINE_TIMEOUT,
    "env": StopReason.ENV_FAILED,
    "env_timeout": StopReason.ENV_TIMEOUT,
    "context": StopReason.CONTEXT_FAILED,
    "context_timeout": StopReason.CONTEXT_TIMEOUT,
    "episode_timeout": StopReason.EPISODE_TIMEOUT,
}
"""From the `kind` that an error has in files of versions 1 and 2."""


def with_calls(message: Any, change: Callable[[Any], Any]) -> Any:
    """A message with the arguments of its calls changed; what has no calls stays as it is."""
    if not isinstance(message, Mapping) or not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": change(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _unquoted(stored: str | list[int], whole: str) -> str:
    if isinstance(stored, str):
        return stored
    start, end = stored
    if not 0 <= start < end <= len(whole):
        raise ValueError(f"no text at {stored!r} in input and output, which have {len(whole)} characters")
    return whole[start:end]


def upgraded(value: Mapping[str, Any], run: str) -> dict[str, Any]:
    """JSON of version 1 to 3 as version 4 has it."""
    data = dict(value) if value["format_version"] == 3 else _upgraded_to_3(value, run)
    whole = data["input"] + data["output"]
    data["messages"] = [with_calls(message, _text) for message in data["messages"]]
    data["tools"] = [_text(tool) for tool in data["tools"]]
    data["turns"] = [
        {
            **turn,
            "text": _unquoted(turn["text"], whole),
            "tool_calls": [
                {
                    **call,
                    "text": _unquoted(call["text"], whole),
                    "arguments": None if call["arguments"] is None else _text(call["arguments"]),
                    "metrics": _text(call["metrics"]),
                }
                for call in turn["tool_calls"]
            ],
        }
        for turn in data["turns"]
    ]
    data["sequences"] = [
        {
            **sequence,
            "segments": [
                {
                    **segment,
                    "version_runs": [
                        {"version": version, "tokens": count} for version, count in segment["version_runs"]
                    ],
                    "aligned": [{"name": name, **array} for name, array in segment["aligned"].items()],
                }
                for segment in sequence["segments"]
            ],
        }
        for sequence in data["sequences"]
    ]
    return data


def _upgraded_to_3(value: Mapping[str, Any], run: str) -> dict[str, Any]:
    """JSON of version 1 or 2 as version 3 has it."""
    data = dict(value)
    if data["format_version"] == 1:
        only = {"prompt_ids": data.pop("prompt_ids"), "segments": data.pop("segments"), "cause": "start"}
        data["sequences"] = [only] if only["prompt_ids"] else []
    data["task_index"], data["sample_index"] = data.pop("group_id"), data.pop("sample")
    data["group_id"] = f"{run}-{data['task_index']}"
    data["sequences"] = [
        {
            "prompt_ids": sequence["prompt_ids"],
            "segments": [
                {**segment, "version_runs": version_runs(segment["weight_versions"]), "aligned": {}}
                for segment in sequence["segments"]
            ],
            "start_reason": sequence["cause"],
        }
        for sequence in data["sequences"]
    ]
    if data["error"] is not None:  # its kind says which failure it was
        data["error"] = dict(data["error"])
        data["stop_reason"] = _KINDS[data["error"].pop("kind")]
    return data
