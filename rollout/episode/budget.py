from __future__ import annotations

from toolgym.rollout.engines.base import Engine
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.tokens.conversation import Conversation
from toolgym.tools.errors import ConfigError


class EpisodeBudget:
    """The tokens that the engine's context and the limits leave to an episode."""

    def __init__(self, engine: Engine, limits: EpisodeLimits) -> None:
        self._engine, self._limits = engine, limits

    @property
    def prompt(self) -> int:
        """Most tokens that the first prompt may have."""
        most = self._engine.context_length - 1
        return most if self._limits.max_prompt_tokens is None else min(most, self._limits.max_prompt_tokens)

    def longest(self, conversation: Conversation) -> int:
        """Most tokens that the present sequence, or the next one, may have, the prompt included."""
        longest = self._engine.context_length
        if self._limits.max_response_tokens is not None:
            longest = min(longest, conversation.first_prompt_tokens + self._limits.max_response_tokens)
        return longest

    def room(self, conversation: Conversation, tokens: int | None = None, response_tokens: int | None = None) -> int:
        """Tokens that the conversation's sequence may still take; or one of `tokens`, `response_tokens` of them behind
        its prompt."""
        room = self.longest(conversation) - (len(conversation.context) if tokens is None else tokens)
        if self._limits.max_response_tokens is not None:
            behind = conversation.response_tokens if response_tokens is None else response_tokens
            room = min(room, self._limits.max_response_tokens - behind)
        return room


def long_prompt_error(tokens: str, most: int) -> ConfigError:
    return ConfigError(
        f"the prompt has {tokens} tokens, more than the {most} allowed; it is not cut, "
        "because the policy would see another task: shorten the task, or raise max_prompt_tokens"
    )
