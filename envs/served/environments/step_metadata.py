"""`step_metadata`: what a step tells clients besides observation and reward, in every API."""

from __future__ import annotations

from typing import Any

from toolgym.envs.base import StepResult
from toolgym.envs.served.environments.session import EnvSession
from toolgym.envs.types import ToolCallRecord


def step_metadata(session: EnvSession, result: StepResult) -> dict[str, Any]:
    """Return what a step tells besides: `stop_reason`, what became of the calls, and the episode's reward so far.

    `trainable` and `in_group_statistics` are those of the `StopReason`; they come with the last step.
    """
    info, reason = result.info, result.stop_reason
    metadata: dict[str, Any] = {
        "step_reward": float(result.reward),
        "episode_reward": session.episode.reward if session.episode is not None else float(result.reward),
        "tool_calls": [_record(record) for record in info.get("tool_calls") or ()],
        "metrics": {name: value for name, value in (info.get("metrics") or {}).items() if _is_plain(value)},
    }
    if reason is not None:
        metadata |= {
            "stop_reason": reason.value,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "trainable": reason.trainable,
            "in_group_statistics": reason.in_group_statistics,
        }
    return metadata


def _record(record: ToolCallRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "status": record.status,
        "reward": record.reward,
        "seconds": record.seconds,
        "infra_failure": record.infra_failure,
    }


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str)
