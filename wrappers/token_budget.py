"""`TokenBudget`: ends an episode after a number of tokens."""

from __future__ import annotations

from typing import Any

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.types import ResetOptions, ResetResult, StopReason
from toolgym.tools.errors import require_whole_number
from toolgym.wrappers.limit import Limit
from toolgym.wrappers.token_count import count_all, message_text, token_count, turn_text


class TokenBudget(Limit):
    """Ends an episode with `StopReason.BUDGET` once its turns and observations have so many tokens.

    The task's messages do not count, nor do the tokens that a chat template puts around messages: an env knows texts.
    `EpisodeLimits.max_response_tokens` of a rollout is exact. The turn that uses up the budget is taken as any other;
    then the env inside scores the episode, see `Limit`.

    Args:
        max_tokens: tokens of an episode behind the task's messages, at least 1.
        tokenizer: a tokenizer, or a function from a text to its number of tokens.

    Raises:
        ConfigError: `max_tokens` is no whole number of at least 1, or `tokenizer` is none.

    Example:
        >>> import asyncio, toolgym
        >>> async def main():
        ...     words = lambda text: len(text.split())
        ...     async with TokenBudget(toolgym.make("CodeInterpreter-v0"), 100, tokenizer=words) as env:
        ...         await env.reset(seed=0)
        ...         result = await env.step("<tool_call>" + "so many words " * 40 + "</tool_call>")
        ...         return result.truncated, str(result.stop_reason)
        >>> asyncio.run(main())
        (True, 'budget')
    """

    def __init__(self, env: BaseEnv, max_tokens: int, *, tokenizer: Any) -> None:
        super().__init__(env)
        require_whole_number("max_tokens", max_tokens, at_least=1)
        self.max_tokens = max_tokens
        self._count = token_count(tokenizer)
        self._used = 0

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        self._used = 0
        return await super().reset(seed=seed, options=options)

    async def limited_step(self, action: Action) -> StepResult:
        result = await self.env.step(action)
        if result.done:
            return result
        self._used += await count_all(self._count, [turn_text(action), *map(message_text, result.obs)])
        return result if self._used < self.max_tokens else await self.end(result, StopReason.BUDGET)
