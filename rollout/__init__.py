"""Floor 4: engines, exact tokens, the runner, trajectories and batches."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolgym.rollout.batch import Batch, check_batch, load_batch, make_batch
    from toolgym.rollout.chat import Chat
    from toolgym.rollout.engines import Engine, Generation, SamplingParams, SGLangServer, TransformersEngine
    from toolgym.rollout.episode import Episode, EpisodeState, Limits
    from toolgym.rollout.runner import RunConfig, Runner, rollout
    from toolgym.rollout.tiny import tiny_policy_path
    from toolgym.rollout.trajectory import Failure, Segment, Trajectory, TrajectoryWriter, Turn, read_trajectories

_HOMES = {
    "Batch": "batch",
    "Chat": "chat",
    "Engine": "engines",
    "Episode": "episode",
    "EpisodeState": "episode",
    "Failure": "trajectory",
    "Generation": "engines",
    "Limits": "episode",
    "RunConfig": "runner",
    "Runner": "runner",
    "SGLangServer": "engines",
    "SamplingParams": "engines",
    "Segment": "trajectory",
    "Trajectory": "trajectory",
    "TrajectoryWriter": "trajectory",
    "TransformersEngine": "engines",
    "Turn": "trajectory",
    "check_batch": "batch",
    "load_batch": "batch",
    "make_batch": "batch",
    "read_trajectories": "trajectory",
    "rollout": "runner",
    "tiny_policy_path": "tiny",
}

__all__ = [
    "Batch",
    "Chat",
    "Engine",
    "Episode",
    "EpisodeState",
    "Failure",
    "Generation",
    "Limits",
    "RunConfig",
    "Runner",
    "SGLangServer",
    "SamplingParams",
    "Segment",
    "Trajectory",
    "TrajectoryWriter",
    "TransformersEngine",
    "Turn",
    "check_batch",
    "load_batch",
    "make_batch",
    "read_trajectories",
    "rollout",
    "tiny_policy_path",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
