"""`EnginePlayer`: an engine as a player of a game."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from toolgym.envs.result_text import cut, cut_tokens
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.engines.base import Engine, SamplingParams, require_tokenizer
from toolgym.rollout.episode.context import encoded_apart
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.errors import ConfigError, check_seconds, error_text
from toolgym.tools.keywords import named_keywords
from toolgym.tools.message import system, user
from toolgym.tools.parsers.base import read_plain_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


CHARS_PER_TOKEN = 4
"""Characters of a long text that are kept for each token that fits, before its tokens are counted."""

NOTE_TOKENS = 40
"""Tokens that are kept free for the note in place of a cut."""


class EnginePlayer:
    """Answers each text with what an engine generates; an opponent for `toolgym.envs.wrap`, whose tokens are not kept.

    A text that is too long for the engine's context loses its middle: otherwise a policy that writes long texts could
    end its episodes as failures of the opponent.

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
        """Return the engine's answer to a text, without its thinking.

        Raises:
            EpisodeFailedError: the engine failed (`ENGINE_FAILED`), or did not answer in time (`ENGINE_TIMEOUT`).
        """
        try:
            return await with_deadline(self._answer(text), self._timeout)
        except DeadlineError as error:
            raise EpisodeFailedError(StopReason.ENGINE_TIMEOUT, f"an opponent's engine {error}") from error
        except Exception as error:
            message = f"an opponent's engine failed: {error_text(error)}"
            raise EpisodeFailedError(StopReason.ENGINE_FAILED, message) from error

    async def _answer(self, text: str) -> str:
        ids = await encoded_apart(partial(self._prompt_ids, text), [user(text)])
        stops = tuple(sorted({*self._sampling.stop_token_ids, *self._renderer.stop_token_ids}))
        most = min(self._engine.context_length - len(ids), self._sampling.max_new_tokens)
        params = replace(self._sampling, max_new_tokens=most, stop_token_ids=stops)
        generation = await self._engine.generate(ids, params, request_id=f"player-{uuid.uuid4().hex}")
        answer = self._renderer.text(generation.token_ids)
        return read_plain_turn(answer, starts_open=self._renderer.leaves_thinking_open(ids)).visible_content

    def _prompt_ids(self, text: str) -> Sequence[int]:
        """Return the token ids of a text, of which the middle is cut out if they do not fit the context."""
        longest = self._engine.context_length
        try:
            ids = self._renderer.prompt_ids([*self._before, user(text)], most=longest - 1)
        except TooManyTokensError:
            pass
        else:
            if len(ids) < longest:
                return ids

        def count(part: str) -> int:
            return len(self._renderer.prompt([*self._before, user(part)]))

        frame = count("")
        room = longest - frame - NOTE_TOKENS - min(self._sampling.max_new_tokens, longest // 4)
        if room < 1:
            raise ConfigError(f"an opponent's prompt has {frame} tokens without its text, and its context {longest}")
        fewer = cut(text, CHARS_PER_TOKEN * room, "middle")
        fitting = cut_tokens(fewer, room, "middle", lambda part: count(part) - frame)
        return self._renderer.prompt_ids([*self._before, user(fitting)])
