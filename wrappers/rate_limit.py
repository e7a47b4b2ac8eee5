"""`RateLimit`: bounds how many steps and resets run at once."""

from __future__ import annotations

from typing import Literal

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.types import ResetOptions, ResetResult
from toolgym.tools.concurrency.rate_limit import RateLimiter, global_limiter
from toolgym.tools.errors import ConfigError
from toolgym.wrappers.base import Wrapper


class RateLimit(Wrapper):
    """Lets only so many steps and resets run at once, of all envs that share the limit. The others wait their turn.

    While a call waits, deadlines around it stand still (those of a rollout's `env_timeout`, for example); `TimeLimit`'s
    does not. Changes nothing of what the env gives.

    Args:
        limit: how many run at once in this process, in all envs whose limit has the same name; or a shared limiter.
        name: the limit's name.
        of: what waits: `steps`, `resets`, or `both`.

    Raises:
        ConfigError: `limit` is no whole number of at least 1, another limit has that name, or `of` is something else.

    Example:
        >>> import asyncio, toolgym
        >>> async def play(env):
        ...     async with env:
        ...         await env.reset(seed=0)
        ...         return (await env.step("#### 1")).done
        >>> async def main():
        ...     envs = [RateLimit(toolgym.make("CodeInterpreter-v0"), 2, name="two") for _ in range(3)]
        ...     return await asyncio.gather(*map(play, envs))
        >>> asyncio.run(main())
        [True, True, True]
    """

    def __init__(
        self,
        env: BaseEnv,
        limit: int | RateLimiter,
        *,
        name: str = "toolgym.wrappers.RateLimit",
        of: Literal["steps", "resets", "both"] = "both",
    ) -> None:
        super().__init__(env)
        if of not in ("steps", "resets", "both"):
            raise ConfigError(f"of must be 'steps', 'resets' or 'both', got {of!r}")
        if not isinstance(name, str):
            raise ConfigError(f"the name of a limit is a text, got {name!r}")
        self.limiter = limit if isinstance(limit, RateLimiter) else global_limiter(name, limit)
        self.of = of

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        if self.of == "steps":
            return await self.env.reset(seed=seed, options=options)
        async with self.limiter.permit():
            return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Action) -> StepResult:
        if self.of == "resets":
            return await self.env.step(action)
        async with self.limiter.permit():
            return await self.env.step(action)
