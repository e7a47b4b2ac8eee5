"""`TurnLimit`: ends an episode after a number of turns."""

from __future__ import annotations

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.types import ResetOptions, ResetResult, StopReason
from toolgym.tools.errors import require_whole_number
from toolgym.wrappers.limit import Limit


class TurnLimit(Limit):
    """Ends an episode with `StopReason.MAX_TURNS` after so many turns, unless it has ended by itself.

    The last turn is taken as any other: its tool calls are run, and their rewards count. Then the env inside scores the
    episode; see `Limit`.

    Args:
        max_turns: turns of an episode, at least 1.

    Raises:
        ConfigError: `max_turns` is no whole number of at least 1.

    Example:
        >>> import asyncio, toolgym
        >>> async def main():
        ...     async with TurnLimit(toolgym.make("CodeInterpreter-v0"), max_turns=2) as env:
        ...         await env.reset(seed=0)
        ...         results = [await env.step("<tool_call>no JSON</tool_call>") for _ in range(2)]
        ...         return [str(result.stop_reason) for result in results]
        >>> asyncio.run(main())
        ['None', 'max_turns']
    """

    def __init__(self, env: BaseEnv, max_turns: int) -> None:
        super().__init__(env)
        require_whole_number("max_turns", max_turns, at_least=1)
        self.max_turns = max_turns
        self._taken = 0

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        self._taken = 0
        return await super().reset(seed=seed, options=options)

    async def limited_step(self, action: Action) -> StepResult:
        result = await self.env.step(action)
        self._taken += 1
        if result.done or self._taken < self.max_turns:
            return result
        return await self.end(result, StopReason.MAX_TURNS)
