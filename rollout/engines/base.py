"""The contract of an engine: tokens in, tokens out. `examples/own_engine.py` is a complete one."""

from __future__ import annotations

import enum
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, final

import numpy as np

from toolgym.rollout.engines.scoring import ScoringRequest, TokenScores, check_scores, scoring_request
from toolgym.rollout.engines.stop_texts import decoder, stop_length
from toolgym.rollout.engines.tokenizer_probe import probe_ids, require_same_text
from toolgym.rollout.models.images import PlacedImage
from toolgym.rollout.models.token_ids import TokenIds
from toolgym.tools.errors import (
    ConfigError,
    EngineError,
    EngineUnsupportedError,
    MissingLogprobsError,
    require_whole_number,
)
from toolgym.tools.keywords import named_fields

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

WeightSource: TypeAlias = "str | Path | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]"
"""A folder that holds a checkpoint, or tensors by their names in the checkpoint."""


GRAMMARS = ("json_schema", "regex", "ebnf")
"""Kinds of grammars that a generation can be made to follow."""

ROUNDING = 0.01
"""Largest log-probability accepted: bfloat16 rounding gives up to 0.008 for a sure token. Such a value stays as it
came."""

GREEDY_BELOW = 1e-6
"""Temperatures below this are greedy, as in SGLang (`_SAMPLING_EPS` in its `sampling_params.py`)."""

_log = logging.getLogger("toolgym.rollout")


class FinishReason(enum.StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """A stop token was sampled, or a token that completes a stop text; it is the last of `token_ids`."""
    LENGTH = "length"
    """`max_new_tokens` was reached."""
    ABORT = "abort"
    """`abort` was called; what was generated so far is kept."""


class PauseMode(enum.StrEnum):
    """Effect of `pause` on the requests in flight."""

    IN_PLACE = "in_place"
    """They keep their ids, keys and values, and go on after `resume` under the weights of that moment."""
    RETRACT = "retract"
    """They keep their ids; their keys and values are computed again after `resume`, under the weights of that
    moment."""
    ABORT = "abort"
    """They end at once with `FinishReason.ABORT` and what they have; the caller may send prompt and partial again."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ConfigError(f"a pause mode must be one of {', '.join(map(repr, map(str, cls)))}, got {value!r}")


@named_fields
@dataclass(frozen=True)
class SamplingParams:
    """Sampling of one turn. Raises ConfigError for a value that is of the wrong kind or out of range.

    Attributes:
        max_new_tokens: most tokens to generate; no engine default applies.
        temperature: 0 is greedy.
        top_p: keep the most probable tokens up to this total probability; 1 keeps all.
        top_k: keep the k most probable tokens; -1 keeps all.
        min_p: drop tokens less probable than this share of the most probable one; 0 keeps all.
        stop_token_ids: generation ends after any of these, which is then part of the result.
        stop: generation ends after the token that completes any of these texts. All of its tokens are part of the
            result, so the text may be followed by further characters of the last one.
        grammar: what the generation must follow: its kind, `json_schema`, `regex` or `ebnf`, and its text. The
            log-probabilities are then of the distribution without the tokens that the grammar forbids. None for no
            grammar; only engines that say `takes_grammars` take one.
        seed: makes the request reproducible if the engine can; None draws afresh.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    grammar: tuple[str, str] | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the parameters that `dataclasses.asdict` wrote into JSON, before there was `stop` too."""
        ids, stop, grammar = values["stop_token_ids"], values.get("stop", ()), values.get("grammar")
        grammar = None if grammar is None else tuple(grammar)
        return cls(**{**values, "stop_token_ids": tuple(ids), "stop": tuple(stop), "grammar": grammar})

    def __post_init__(self) -> None:
        require_whole_number("max_new_tokens", self.max_new_tokens, at_least=1)
        require_whole_number("top_k", self.top_k, at_least=-1)
        for name in ("temperature", "top_p", "min_p"):
            _require(isinstance(getattr(self, name), int | float), name, "a number", getattr(self, name))
        _require(self.seed is None or isinstance(self.seed, int), "seed", "a whole number or None", self.seed)
        ids = self.stop_token_ids
        are_ids = isinstance(ids, Sequence) and all(isinstance(token_id, int) for token_id in ids)
        _require(are_ids, "stop_token_ids", "a tuple of token ids", ids)
        texts = self.stop
        are_texts = isinstance(texts, tuple) and all(isinstance(text, str) and text for text in texts)
        _require(are_texts, "stop", "a tuple of texts that are not empty", texts)
        grammar = self.grammar
        is_grammar = isinstance(grammar, tuple) and len(grammar) == 2 and grammar[0] in GRAMMARS
        _require(grammar is None or is_grammar, "grammar", f"None or (kind, text), kind out of {GRAMMARS}", grammar)
        _require(0 <= self.temperature < math.inf, "temperature", "at least 0 and finite", self.temperature)
        _require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        _require(self.top_k == -1 or self.top_k >= 1, "top_k", "-1 or at least 1", self.top_k)
        _require(0 <= self.min_p <= 1, "min_p", "between 0 and 1", self.min_p)


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {expected}, got {value!r}")


@dataclass(frozen=True)
class GenerationRequest:
    """One turn to generate, checked: every id is in the vocabulary, and prompt and `max_new_tokens` fit the context.

    Requests with the same `affinity` are turns of one trajectory, whose context grows. An engine with several replicas
    sends them to the same one, for its prefix cache. Of `forbidden_ids` none may be sampled.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    request_id: str
    affinity: str | None = None
    images: tuple[PlacedImage, ...] = ()
    forbidden_ids: tuple[int, ...] = ()

    @property
    def image_hashes(self) -> list[str]:
        return [image.sha256 for image in self.images]


@dataclass(frozen=True)
class Generation:
    """The answer of an engine to one request. Raises EngineError if lengths differ.

    Attributes:
        token_ids: the sampled ids, a matched stop token included.
        logprobs: natural-log probability of each id, under the temperature-scaled distribution before top-p, top-k and
            min-p (under the unscaled one at temperature 0). Finite, and at most `ROUNDING`.
        finish_reason: why it ended.
        weight_versions: the version of the weights that sampled each id.
        cached_tokens: prompt tokens whose keys and values the engine already had.
        aligned: further payloads by name, arrays with one row for each id, such as those that `SGLangServer` documents.
            Two generations are compared without them.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weight_versions: tuple[str, ...]
    cached_tokens: int = 0
    aligned: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict, compare=False)

    @cached_property
    def ids(self) -> TokenIds:
        """`token_ids`, checked once; its `array` is int32 `[tokens]`. Raises ConfigError if an id is no whole
        number."""
        return TokenIds(self.token_ids)

    @cached_property
    def logprob_array(self) -> np.ndarray[Any, Any]:
        """`logprobs` as an array `[tokens]`: float64, or another dtype if they are no floats. Raises ValueError if
        there is none."""
        array = np.array(self.logprobs)
        array.flags.writeable = False  # a segment of these tokens needs no view of it, then
        return array

    def stopped_at(self, length: int) -> Self:
        """Return the first `length` tokens, as if a stop text had ended the generation there."""
        return replace(
            self,
            token_ids=self.token_ids[:length],
            logprobs=self.logprobs[:length],
            weight_versions=self.weight_versions[:length],
            finish_reason=FinishReason.STOP,
            aligned={name: array[:length] for name, array in self.aligned.items()},
        )

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.logprobs) == len(self.weight_versions):
            text = (
                f"an engine returned {len(self.token_ids)} ids, {len(self.logprobs)} logprobs and "
                f"{len(self.weight_versions)} weight versions; there must be one of each per id"
            )
            missing = len(self.logprobs) < len(self.token_ids)
            raise MissingLogprobsError(text, len(self.token_ids)) if missing else EngineError(text)
        for name, array in self.aligned.items():
            shape = getattr(array, "shape", None)
            if not shape or shape[0] != len(self.token_ids):
                raise EngineError(
                    f"an engine returned {len(self.token_ids)} ids and {name!r} "
                    f"{'of shape ' + str(list(shape)) if shape is not None else 'that is no array'}; there must be "
                    "one row per id"
                )


@dataclass(frozen=True)
class EngineLoad:
    """Load of an engine under the requests of all callers, all replicas together.

    Attributes:
        kv_cache_use: share of the memory for keys and values that running requests take, 0 to 1; of the fullest
            replica.
        running: requests that are generated now.
        queued: requests that wait inside of the engine.
        max_running: most requests that it generates at once; None if it does not say.
    """

    kv_cache_use: float
    running: int
    queued: int
    max_running: int | None = None

    @classmethod
    def of_replicas(cls, loads: Sequence[EngineLoad]) -> EngineLoad:
        most = [load.max_running for load in loads if load.max_running is not None]
        return cls(
            kv_cache_use=max(load.kv_cache_use for load in loads),
            running=sum(load.running for load in loads),
            queued=sum(load.queued for load in loads),
            max_running=sum(most) if len(most) == len(loads) else None,
        )


class Engine(ABC):
    """Generates tokens. Serves many requests at once.

    `start` before the first request and `close` after the last, or use it as an async context manager. An engine that
    knows its sizes, version or tokenizer only once it has started raises EngineError before.

    A subclass writes `vocab_size`, `context_length` and `_generate`. It replaces other methods if it can do what they
    promise; only `generate`, which checks each request and answer, is final.
    """

    _tokenizer: PreTrainedTokenizerBase | None = None
    _agreed: PreTrainedTokenizerBase | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "generate" in vars(cls):
            raise ConfigError(
                f"{cls.__name__} replaces Engine.generate, which checks every request and answer: write "
                "`async def _generate(self, request: GenerationRequest) -> Generation` instead"
            )

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of token ids; every id of a prompt must be below it."""

    @property
    @abstractmethod
    def context_length(self) -> int:
        """Most tokens of prompt and generation together."""

    @property
    def takes_images(self) -> bool:
        """Whether it computes on the images of a request too; one that does not refuses them."""
        return False

    @property
    def takes_grammars(self) -> bool:
        """Whether it can sample under `SamplingParams.grammar`."""
        return False

    @property
    def scores_tokens(self) -> bool:
        """Whether it has `score_tokens`."""
        return type(self)._score is not Engine._score

    @property
    def stops_at_texts(self) -> bool:
        """Whether it follows `SamplingParams.stop`. Any engine that knows its tokenizer does: what it samples after a
        stop text is cut off. An engine that stops by itself saves these tokens, and overrides this with True."""
        try:
            return self.tokenizer is not None
        except ConfigError:
            return False

    @property
    def weight_version(self) -> str:
        """Version of the weights that the next token will be sampled with; "0" if they never change."""
        return "0"

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer of the engine's model, loaded at the first use; None if the engine does not know where one
        is. Raises ConfigError if the model's folder holds no tokenizer."""
        if self._tokenizer is None and (source := self._tokenizer_source()) is not None:
            from toolgym.rollout.models.tokenizer import load_tokenizer  # needs transformers

            self._tokenizer = load_tokenizer(source)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._tokenizer = tokenizer

    def _tokenizer_source(self) -> str | Path | None:
        """Folder or hub name of the tokenizer; None if the engine does not know it."""
        return None

    async def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Refuse a tokenizer that is not the model's, if the engine can tell. Runners ask before the first episode.
        Raises ConfigError if ids mean another text to the engine's own tokenizer."""
        if tokenizer is self._agreed:
            return
        try:
            texts = await self._detokenize(ids := probe_ids(tokenizer))
        except (ConfigError, EngineError) as error:
            _log.info("the server does not tell its tokenizer, so this one was not compared: %s", error)
            texts = {}
        for server, text in texts.items():
            require_same_text(tokenizer, ids, text, server)
        self._agreed = tokenizer

    async def _detokenize(self, token_ids: list[int]) -> dict[str, str]:
        """The text of ids by each server's tokenizer, special tokens included; empty if no server can tell."""
        return {}

    async def start(self) -> None:
        """Get ready. Starting twice is fine.

        Raises:
            EngineUnavailableError: the engine cannot be reached.
            EngineError: it was closed, or failed to start.
            ConfigError: the model or an argument is not usable.
        """

    @final
    async def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        affinity: str | None = None,
        images: Sequence[PlacedImage] = (),
        forbidden_ids: Sequence[int] = (),
    ) -> Generation:
        """Generate one turn, and check it. Cancelling the call aborts the request.

        Args:
            prompt_ids: the whole context; not empty. `TokenIds` are not checked again.
            params: how to sample.
            request_id: unique among running requests.
            affinity: see `GenerationRequest`.
            images: the images whose ids are in the prompt, in order.
            forbidden_ids: ids that must not be sampled, such as those that stand for images: the distribution is that
                without them.

        Raises:
            ConfigError: an id is outside the vocabulary, the prompt is empty, prompt and `max_new_tokens` do not fit
                `context_length`, a request with this id is running, or the engine takes no images.
            EngineError: the engine failed, was not started, was closed, or answered with garbage.
        """
        ids = prompt_ids if isinstance(prompt_ids, TokenIds) else TokenIds(prompt_ids)
        self._check_request(ids, params)
        if images and not self.takes_images:
            raise ConfigError(f"{type(self).__name__} takes no images, and the context has {len(images)}")
        if params.grammar is not None and not self.takes_grammars:
            raise ConfigError(f"{type(self).__name__} samples without a grammar: leave `grammar` out")
        if params.stop and not self.stops_at_texts:
            raise ConfigError(
                f"{type(self).__name__} knows no tokenizer, so it cannot stop at the texts {list(params.stop)}: "
                "set its `tokenizer`, or leave `stop` out"
            )
        request = GenerationRequest(ids.as_tuple(), params, request_id, affinity, tuple(images), tuple(forbidden_ids))
        generation = await self._generate(request)
        self._check_generation(generation, request)
        return self._cut_at_stop(generation, params.stop) if params.stop else generation

    @abstractmethod
    async def _generate(self, request: GenerationRequest) -> Generation:
        """Generate one turn of a checked request. Cancelling the call must abort it.

        Raises:
            ConfigError: the request asks for something that this engine cannot do, or its id is running.
            EngineError: the engine failed, was not started, or was closed.
        """

    @final
    async def score_tokens(
        self, token_ids: Sequence[int], *, start: int, request_id: str, temperature: float = 1.0
    ) -> TokenScores:
        """Compute the log-probabilities of given tokens, without sampling any.

        For log-probabilities of another policy (a teacher, a reference model), or of the policy's newer weights.

        Args:
            token_ids: the whole context, with the tokens that are scored at its end.
            start: place of the first token that is scored. At least 1, because the first token follows nothing.
            request_id: unique among running requests.
            temperature: divides the logits. SGLang scores at 1 only.

        Returns:
            A log-probability for each of `token_ids[start:]`, and the version of the weights.

        Raises:
            ConfigError: an id is outside the vocabulary, the tokens do not fit `context_length`, or an argument is out
                of range.
            EngineUnsupportedError: this engine cannot score tokens, or not at this temperature.
            EngineError: the engine failed, was not started, was closed, or answered with garbage.
        """
        ids = token_ids if isinstance(token_ids, TokenIds) else TokenIds(token_ids)
        request = scoring_request(ids, start, request_id, temperature)
        name = type(self).__name__
        if not self.scores_tokens:
            raise EngineUnsupportedError(
                f"{name} cannot compute the log-probabilities of given tokens: use SGLangServer, SGLangEngine or "
                "TransformersEngine"
            )
        self._require_in_vocabulary(ids)
        if len(ids) > self.context_length:
            raise ConfigError(f"{len(ids)} tokens are more than the context of {self.context_length} tokens")
        scores = await self._score(request)
        check_scores(name, scores, len(ids) - start, ROUNDING)
        return scores

    async def _score(self, request: ScoringRequest) -> TokenScores:
        """Score the tokens of a checked request. Engines that can override it.

        Raises:
            EngineUnsupportedError: the engine cannot do it.
            EngineError: the engine failed, was not started, or was closed.
        """
        raise EngineUnsupportedError(f"{type(self).__name__} cannot compute the log-probabilities of given tokens")

    async def abort(self, request_id: str) -> None:
        """End a request early; its `generate` returns what it has with `FinishReason.ABORT`. Unknown ids are fine.

        Raises EngineError if this engine cannot, or does not answer, as all control calls do.
        """
        raise EngineError(f"{type(self).__name__} cannot abort a request: cancel its `generate` instead")

    async def pause(self, mode: PauseMode = PauseMode.IN_PLACE) -> None:
        """Stop sampling until `resume`; new requests wait. The mode says what becomes of those in flight. Raises
        ConfigError if this engine cannot pause in this mode."""
        raise EngineError(f"{type(self).__name__} cannot pause")

    async def resume(self) -> None:
        """Go on after `pause`."""
        raise EngineError(f"{type(self).__name__} cannot pause, so there is nothing to resume")

    async def update_weights(self, source: WeightSource, *, version: str) -> None:
        """Load new weights of the same architecture. Tokens sampled from here on carry `version`, which is not empty.

        Requests in flight go on, as `pause` decides. A folder must be visible to the engine's machine. Raises
        ConfigError if the source or the version is not usable.
        """
        raise EngineError(f"{type(self).__name__} cannot change its weights")

    async def load(self) -> EngineLoad | None:
        """Return the load of the engine now; None if it cannot tell. The runner asks once a second."""
        return None

    async def close(self) -> None:
        """Abort what runs and free everything. Closing twice is fine."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _cut_at_stop(self, generation: Generation, texts: Sequence[str]) -> Generation:
        """Leave out what was sampled after a stop text. An engine that stops by itself need not load its tokenizer."""
        by_itself = type(self).stops_at_texts is not Engine.stops_at_texts
        tokenizer = self._tokenizer if by_itself else self.tokenizer
        length = None if tokenizer is None else stop_length(generation.token_ids, texts, decoder(tokenizer))
        return generation if length is None else generation.stopped_at(length)

    def _check_request(self, prompt_ids: TokenIds, params: SamplingParams) -> None:
        if not prompt_ids:
            raise ConfigError("a prompt must have at least one token")
        self._require_in_vocabulary(prompt_ids)
        total = len(prompt_ids) + params.max_new_tokens
        if total > self.context_length:
            raise ConfigError(
                f"{len(prompt_ids)} prompt tokens and max_new_tokens={params.max_new_tokens} make {total}, "
                f"more than the context of {self.context_length} tokens"
            )

    def _require_in_vocabulary(self, ids: TokenIds) -> None:
        low, high = ids.least, ids.greatest
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise ConfigError(f"token id {wrong} is outside the vocabulary of {self.vocab_size} ids")

    def _check_generation(self, generation: Generation, request: GenerationRequest) -> None:
        name = type(self).__name__
        if not isinstance(generation, Generation):
            raise EngineError(f"{name}._generate must return a Generation, got {type(generation).__name__}")
        ids, most = generation.token_ids, request.params.max_new_tokens
        if len(ids) > most:
            raise EngineError(f"{name} gave {len(ids)} tokens for max_new_tokens={most}")
        try:
            low, high = generation.ids.least, generation.ids.greatest
        except ConfigError as error:
            raise EngineError(f"{name} gave a token id that is no integer") from error
        if ids and not 0 <= low <= high < self.vocab_size:
            wrong = low if low < 0 else high
            raise EngineError(f"{name} gave the token id {wrong}, outside its vocabulary of {self.vocab_size} ids")
        if request.forbidden_ids and (sampled := sorted(set(request.forbidden_ids) & set(ids))):
            raise EngineError(
                f"{name} sampled the token id {sampled[0]}, which stands for images alone: no trainer takes that, so "
                "leave GenerationRequest.forbidden_ids out of the sampling"
            )
        if not _are_finite(generation):
            raise EngineError(f"{name} gave a log-probability that is not a finite number (NaN in the model?)")
        if ids and (greatest := generation.logprob_array.max()) > ROUNDING:
            raise EngineError(f"{name} gave the log-probability {greatest:g}: a probability's logarithm is at most 0")
        if not isinstance(generation.finish_reason, FinishReason):
            raise EngineError(f"{name} must end with a FinishReason, got {generation.finish_reason!r}")
        if generation.finish_reason is FinishReason.STOP and not ids:
            raise EngineError(f"{name} says that a stop token ended the turn, but gave no token")


def _are_finite(generation: Generation) -> bool:
    try:
        array = generation.logprob_array
    except ValueError:
        return False
    return not array.size or (array.ndim == 1 and array.dtype.kind in "fiu" and bool(np.isfinite(array).all()))


def checked_version(version: object) -> str:
    if not isinstance(version, str) or not version:
        raise ConfigError(f"version must be a string that is not empty, got {version!r}")
    return version


def require_tokenizer(tokenizer: PreTrainedTokenizerBase | None, engine: Engine) -> PreTrainedTokenizerBase:
    """The caller's tokenizer, or else the engine's."""
    tokenizer = engine.tokenizer if tokenizer is None else tokenizer
    if tokenizer is None:
        raise ConfigError(
            f"this {type(engine).__name__} knows no tokenizer: give the model's with tokenizer=load_tokenizer(...)"
        )
    if not callable(getattr(tokenizer, "apply_chat_template", None)):
        raise ConfigError(f"tokenizer must be a Hugging Face tokenizer (`load_tokenizer` loads one), got {tokenizer!r}")
    return tokenizer
