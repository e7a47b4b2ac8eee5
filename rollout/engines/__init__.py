"""Engines: tokens in, tokens out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.engines.base import Engine as Engine
    from toolgym.rollout.engines.base import EngineLoad as EngineLoad
    from toolgym.rollout.engines.base import FinishReason as FinishReason
    from toolgym.rollout.engines.base import Generation as Generation
    from toolgym.rollout.engines.base import GenerationRequest as GenerationRequest
    from toolgym.rollout.engines.base import PauseMode as PauseMode
    from toolgym.rollout.engines.base import SamplingParams as SamplingParams
    from toolgym.rollout.engines.base import WeightSource as WeightSource
    from toolgym.rollout.engines.callable import CallableEngine as CallableEngine
    from toolgym.rollout.engines.embedded.transformers import TransformersEngine as TransformersEngine
    from toolgym.rollout.engines.open import open_engine as open_engine
    from toolgym.rollout.engines.openai.engine import OpenAICompatible as OpenAICompatible
    from toolgym.rollout.engines.scoring import ScoringRequest as ScoringRequest
    from toolgym.rollout.engines.scoring import TokenScores as TokenScores
    from toolgym.rollout.engines.sglang.client import SGLangClient as SGLangClient
    from toolgym.rollout.engines.sglang.http_transport import HttpOptions as HttpOptions
    from toolgym.rollout.engines.sglang.in_process import SGLangEngine as SGLangEngine
    from toolgym.rollout.engines.sglang.server import SGLangServer as SGLangServer
else:
    __getattr__, __dir__ = lazy_names(__name__)
