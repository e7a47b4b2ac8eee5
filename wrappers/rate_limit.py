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
        name: the limit's name; another limit with it is a `ConfigError`.
        of: what waits: `steps`, `resets`, or `both`.

    Example:
        >>> import toolgym
        >>> wrap = lambda env: RateLimit(env, 2, name="two at once")
        >>> envs = toolgym.envs.ToolVectorEnv([lambda: wrap(toolgym.make("CodeInterpreter-v0"))] * 3)
        >>> _ = envs.reset(seed=0)
        >>> envs.step(["#### 1"] * 3)[2].tolist(), envs.close()
        ([True, True, True], None)
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
