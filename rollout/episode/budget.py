from __future__ import annotations

from toolgym.rollout.engines.base import Engine
from toolgym.rollout.limits import EpisodeLimits
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

    def longest(self, first_prompt_tokens: int) -> int:
        """Most tokens of a sequence, prompt included, if the episode's first prompt has `first_prompt_tokens`."""
        longest = self._engine.context_length
        if self._limits.max_response_tokens is not None:
            longest = min(longest, first_prompt_tokens + self._limits.max_response_tokens)
        return longest

    def room(self, first_prompt_tokens: int, tokens: int, response_tokens: int) -> int:
        """Return how many more tokens a sequence of `tokens` may take, of which `response_tokens` behind its prompt."""
        room = self.longest(first_prompt_tokens) - tokens
        if self._limits.max_response_tokens is not None:
            room = min(room, self._limits.max_response_tokens - response_tokens)
        return room


def long_prompt_error(tokens: str, most: int) -> ConfigError:
    return ConfigError(
        f"the prompt has {tokens} tokens, more than the {most} allowed; it is not cut, "
        "because the policy would see another task: shorten the task, or raise max_prompt_tokens"
    )
