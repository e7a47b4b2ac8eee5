"""`EngineWrapper`: an engine around another, for what is to be done with each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolgym.rollout.engines.base import (
    Engine,
    EngineLoad,
    Generation,
    GenerationRequest,
    PauseMode,
    WeightSource,
)
from toolgym.rollout.engines.scoring import ScoringRequest, TokenScores

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class EngineWrapper(Engine):
    """Passes everything on to the engine inside. A subclass replaces what it changes, most often `_generate`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def vocab_size(self) -> int:
        return self.engine.vocab_size

    @property
    def context_length(self) -> int:
        return self.engine.context_length

    @property
    def takes_images(self) -> bool:
        return self.engine.takes_images

    @property
    def takes_grammars(self) -> bool:
        return self.engine.takes_grammars

    @property
    def stops_at_texts(self) -> bool:
        return self.engine.stops_at_texts

    @property
    def scores_tokens(self) -> bool:
        return self.engine.scores_tokens

    @property
    def weight_version(self) -> str:
        return self.engine.weight_version

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self.engine.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.engine.tokenizer = tokenizer

    async def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        await self.engine.check_tokenizer(tokenizer)

    async def start(self) -> None:
        await self.engine.start()

    async def _generate(self, request: GenerationRequest) -> Generation:
        return await self.engine._generate(request)  # it was checked, and so will be what comes back

    async def _score(self, request: ScoringRequest) -> TokenScores:
        return await self.engine._score(request)

    def _cut_at_stop(self, generation: Generation, texts: Sequence[str]) -> Generation:
        return self.engine._cut_at_stop(generation, texts)

    async def abort(self, request_id: str) -> None:
        await self.engine.abort(request_id)

    async def pause(self, mode: PauseMode = PauseMode.IN_PLACE) -> None:
        await self.engine.pause(mode)

    async def resume(self) -> None:
        await self.engine.resume()

    async def update_weights(self, source: WeightSource, *, version: str) -> None:
        await self.engine.update_weights(source, version=version)

    async def load(self) -> EngineLoad | None:
        return await self.engine.load()

    async def close(self) -> None:
        await self.engine.close()
