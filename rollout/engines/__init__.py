"""Engines: tokens in, tokens out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolgym.rollout.engines.base import Engine, FinishReason, Generation, PauseMode, SamplingParams
    from toolgym.rollout.engines.cassette import CassetteEngine, RecordingEngine
    from toolgym.rollout.engines.openai_compatible import OpenAICompatible
    from toolgym.rollout.engines.sglang import SGLangServer
    from toolgym.rollout.engines.sglang_engine import SGLangEngine
    from toolgym.rollout.engines.transformers import TransformersEngine

_HOMES = {
    "CassetteEngine": "cassette",
    "Engine": "base",
    "FinishReason": "base",
    "Generation": "base",
    "OpenAICompatible": "openai_compatible",
    "PauseMode": "base",
    "RecordingEngine": "cassette",
    "SGLangEngine": "sglang_engine",
    "SGLangServer": "sglang",
    "SamplingParams": "base",
    "TransformersEngine": "transformers",
}

__all__ = [
    "CassetteEngine",
    "Engine",
    "FinishReason",
    "Generation",
    "OpenAICompatible",
    "PauseMode",
    "RecordingEngine",
    "SGLangEngine",
    "SGLangServer",
    "SamplingParams",
    "TransformersEngine",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
