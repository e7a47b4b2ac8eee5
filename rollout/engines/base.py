"""The contract of an engine: tokens in, tokens out."""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from toolgym.tools.errors import ConfigError, EngineError


class FinishReason(enum.StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """A stop token was sampled; it is the last of `token_ids`."""
    LENGTH = "length"
    """`max_new_tokens` was reached."""
    ABORT = "abort"
    """`abort` was called; what was generated until then is kept."""


class PauseMode(enum.StrEnum):
    """What `pause` does with the requests in flight."""

    IN_PLACE = "in_place"
    """They keep their ids, and their keys and values; they go on after `resume`, under whatever weights are then
    loaded."""
    RETRACT = "retract"
    """They keep their ids and give up their keys and values, which are computed anew (under the new weights) when
    they go on after `resume`."""
    ABORT = "abort"
    """They end at once with `FinishReason.ABORT` and what they have; the caller sends prompt and partial again."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ConfigError(f"a pause mode must be one of {', '.join(map(repr, map(str, cls)))}, got {value!r}")


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one turn.

    Attributes:
        max_new_tokens: most tokens to generate; always explicit, no engine default applies.
        temperature: 0 is greedy.
        top_p: keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        top_k: keep the k most probable tokens; -1 keeps all.
        min_p: drop tokens less probable than this share of the most probable one's; 0 keeps all.
        stop_token_ids: generation ends after any of these; the stop token is part of the result.
        seed: makes the request reproducible where the engine can; None draws afresh.

    Raises:
        ConfigError: a value is out of range.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(self.max_new_tokens >= 1, "max_new_tokens", "at least 1", self.max_new_tokens)
        _require(0 <= self.temperature < math.inf, "temperature", "at least 0 and finite", self.temperature)
        _require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        _require(self.top_k == -1 or self.top_k >= 1, "top_k", "-1 or at least 1", self.top_k)
        _require(0 <= self.min_p <= 1, "min_p", "between 0 and 1", self.min_p)


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {expected}, got {value!r}")


@dataclass(frozen=True)
class Generation:
    """What an engine generated for one request.

    Attributes:
        token_ids: the sampled ids, in order, a matched stop token included.
        logprobs: natural-log probability of each sampled id, under the temperature-scaled distribution before
            top-p, top-k and min-p (under the unscaled one when the temperature is 0). Same length as `token_ids`.
        finish_reason: why it ended.
        weight_versions: the version of the weights that sampled each id. Same length as `token_ids`.
        cached_tokens: prompt tokens whose keys and values the engine already had.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weight_versions: tuple[str, ...]
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.logprobs) == len(self.weight_versions):
            raise EngineError(
                f"an engine returned {len(self.token_ids)} ids, {len(self.logprobs)} logprobs and "
                f"{len(self.weight_versions)} weight versions; there must be one of each per id"
            )


class Engine(ABC):
    """Generates tokens. Serves many requests at once.

    `start` before the first request and `close` after the last, or use it as an async context manager.
    """

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of token ids; every id of a prompt must be below it."""

    @property
    @abstractmethod
    def context_length(self) -> int:
        """Most tokens of prompt and generation together."""

    @property
    @abstractmethod
    def weight_version(self) -> str:
        """Version of the weights that the next token will be sampled with."""

    async def start(self) -> None:
        """Get ready. Raises EngineUnavailableError when the engine cannot be reached."""

    @abstractmethod
    async def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        affinity: str | None = None,
    ) -> Generation:
        """Generate one turn. Cancelling the call aborts the request.

        Args:
            prompt_ids: the whole context, in order; not empty.
            params: how to sample.
            request_id: unique among running requests.
            affinity: requests that share it share a growing context (the turns of one trajectory): an engine with
                several replicas sends them to the same one, for its prefix cache.

        Raises:
            ConfigError: an id is outside the vocabulary, the prompt is empty, or prompt and `max_new_tokens` do not
                fit `context_length`.
            EngineError: the engine failed.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End a request early; its `generate` returns what it has with `FinishReason.ABORT`. Unknown ids are fine."""

    @abstractmethod
    async def pause(self, mode: PauseMode = PauseMode.IN_PLACE) -> None:
        """Stop sampling until `resume`; new requests wait. What becomes of those in flight is the mode's."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on after `pause`."""

    @abstractmethod
    async def close(self) -> None:
        """Abort what runs and free everything. Closing twice is fine."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def check_request(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        """Refuse a request that an engine must never see (an unknown id can kill a server).

        Raises:
            ConfigError: see `generate`.
        """
        if not prompt_ids:
            raise ConfigError("a prompt must have at least one token")
        low, high = min(prompt_ids), max(prompt_ids)
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise ConfigError(f"token id {wrong} is outside the vocabulary of {self.vocab_size} ids")
        total = len(prompt_ids) + params.max_new_tokens
        if total > self.context_length:
            raise ConfigError(
                f"{len(prompt_ids)} prompt tokens and max_new_tokens={params.max_new_tokens} make {total}, "
                f"more than the context of {self.context_length} tokens"
            )
