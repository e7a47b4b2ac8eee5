"""Floor 4: engines, exact tokens, the runner, trajectories and batches."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolgym.rollout.batch import Batch, check_batch, load_batch, make_batch
    from toolgym.rollout.chat import Chat
    from toolgym.rollout.context import ContextPolicy, ContextState, CutToolResults, KeepToolResults, Summarize
    from toolgym.rollout.engines import (
        CassetteEngine,
        Engine,
        Generation,
        OpenAICompatible,
        PauseMode,
        RecordingEngine,
        SamplingParams,
        SGLangEngine,
        SGLangServer,
        TransformersEngine,
    )
    from toolgym.rollout.episode import Episode, EpisodeState
    from toolgym.rollout.recording import RecordingRunner
    from toolgym.rollout.replaying import Difference, Replay, replay
    from toolgym.rollout.rules import History, Limits, TruncatedTurn
    from toolgym.rollout.runner import RunConfig, Runner, rollout
    from toolgym.rollout.tiny import tiny_policy_path
    from toolgym.rollout.trajectory import Failure, Segment, TokenSequence, Trajectory, Turn
    from toolgym.rollout.trajectory_file import TrajectoryWriter, read_trajectories

_HOMES = {
    "Batch": "batch",
    "CassetteEngine": "engines",
    "Chat": "chat",
    "ContextPolicy": "context",
    "ContextState": "context",
    "CutToolResults": "context",
    "Difference": "replaying",
    "Engine": "engines",
    "Episode": "episode",
    "EpisodeState": "episode",
    "Failure": "trajectory",
    "Generation": "engines",
    "History": "rules",
    "KeepToolResults": "context",
    "Limits": "rules",
    "OpenAICompatible": "engines",
    "PauseMode": "engines",
    "RecordingEngine": "engines",
    "RecordingRunner": "recording",
    "Replay": "replaying",
    "RunConfig": "runner",
    "Runner": "runner",
    "SGLangEngine": "engines",
    "SGLangServer": "engines",
    "SamplingParams": "engines",
    "Segment": "trajectory",
    "Summarize": "context",
    "TokenSequence": "trajectory",
    "Trajectory": "trajectory",
    "TrajectoryWriter": "trajectory_file",
    "TransformersEngine": "engines",
    "TruncatedTurn": "rules",
    "Turn": "trajectory",
    "check_batch": "batch",
    "load_batch": "batch",
    "make_batch": "batch",
    "read_trajectories": "trajectory_file",
    "replay": "replaying",
    "rollout": "runner",
    "tiny_policy_path": "tiny",
}

__all__ = [
    "Batch",
    "CassetteEngine",
    "Chat",
    "ContextPolicy",
    "ContextState",
    "CutToolResults",
    "Difference",
    "Engine",
    "Episode",
    "EpisodeState",
    "Failure",
    "Generation",
    "History",
    "KeepToolResults",
    "Limits",
    "OpenAICompatible",
    "PauseMode",
    "RecordingEngine",
    "RecordingRunner",
    "Replay",
    "RunConfig",
    "Runner",
    "SGLangEngine",
    "SGLangServer",
    "SamplingParams",
    "Segment",
    "Summarize",
    "TokenSequence",
    "Trajectory",
    "TrajectoryWriter",
    "TransformersEngine",
    "TruncatedTurn",
    "Turn",
    "check_batch",
    "load_batch",
    "make_batch",
    "read_trajectories",
    "replay",
    "rollout",
    "tiny_policy_path",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
