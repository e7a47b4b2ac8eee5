"""`EnginePlayer`: an engine as a player of a game."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.engines.base import Engine, SamplingParams, require_tokenizer
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.errors import ConfigError, check_seconds, error_text
from toolgym.tools.keywords import named_keywords
from toolgym.tools.message import system, user
from toolgym.tools.parsers.base import read_plain_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class EnginePlayer:
    """Answers each text with what an engine generates; an opponent for `toolgym.envs.wrap`, whose tokens are not kept.

    Args:
        engine: started; it stays the caller's to close.
        sampling: how to sample; the template's stop tokens are added.
        system_prompt: comes before each text.
        tokenizer: of the model that the engine serves; None: the engine's.
        template_kwargs: further variables for the chat template.
        timeout: wall seconds for one answer.

    Raises:
        ConfigError: an argument is of the wrong kind, or neither the engine nor the caller has a tokenizer.
    """

    @named_keywords
    def __init__(
        self,
        engine: Engine,
        *,
        sampling: SamplingParams = SamplingParams(max_new_tokens=512),  # noqa: B008  it is frozen
        system_prompt: str | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        timeout: float = 120.0,
    ) -> None:
        if not isinstance(engine, Engine):
            raise ConfigError(f"engine must be an Engine, got {engine!r}")
        check_seconds(timeout=timeout)
        self._engine, self._sampling, self._timeout = engine, sampling, timeout
        self._before = [] if system_prompt is None else [system(system_prompt)]
        self._renderer = ChatRenderer(require_tokenizer(tokenizer, engine), [], template_kwargs or {})

    async def __call__(self, text: str) -> str:
        """Return the engine's answer to a text, without its thinking. Raises `EpisodeFailedError` if the engine failed
        (`ENGINE_FAILED`), also since the text does not fit its context, or did not answer in time (`ENGINE_TIMEOUT`).
        """
        try:
            return await with_deadline(self._answer(text), self._timeout)
        except DeadlineError as error:
            raise EpisodeFailedError(StopReason.ENGINE_TIMEOUT, f"an opponent's engine {error}") from error
        except Exception as error:
            message = f"an opponent's engine failed: {error_text(error)}"
            raise EpisodeFailedError(StopReason.ENGINE_FAILED, message) from error

    async def _answer(self, text: str) -> str:
        ids = self._renderer.prompt_ids([*self._before, user(text)])
        longest = self._engine.context_length
        if len(ids) >= longest:
            raise ConfigError(f"what the opponent reads has {len(ids)} tokens, and its engine's context {longest}")
        stops = tuple(sorted({*self._sampling.stop_token_ids, *self._renderer.stop_token_ids}))
        most = min(longest - len(ids), self._sampling.max_new_tokens)
        params = replace(self._sampling, max_new_tokens=most, stop_token_ids=stops)
        generation = await self._engine.generate(ids, params, request_id=f"player-{uuid.uuid4().hex}")
        answer = self._renderer.text(generation.token_ids)
        return read_plain_turn(answer, starts_open=self._renderer.leaves_thinking_open(ids)).visible_content
