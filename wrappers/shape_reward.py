"""`ShapeReward`: replaces the reward of each step."""

from __future__ import annotations

import math
from collections.abc import Callable

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.types import StopReason
from toolgym.tools.errors import ConfigError
from toolgym.wrappers.base import Wrapper


class ShapeReward(Wrapper):
    """Replaces the reward of each step by what a function makes of the step: `shape`, from a result to a finite number.

    If a limit around it ends the episode, what that end adds is shaped as a step of its own.

    Example:
        >>> import toolgym
        >>> env = ShapeReward(toolgym.make("CodeInterpreter-v0"), lambda result: result.reward - 0.5)
        >>> env = toolgym.envs.GymnasiumEnv(env)
        >>> _ = env.reset(seed=0)
        >>> env.step("#### 1")[1], env.close()
        (-0.5, None)
    """

    def __init__(self, env: BaseEnv, shape: Callable[[StepResult], float]) -> None:
        super().__init__(env)
        if not callable(shape):
            raise ConfigError(f"shape must be a function from a step's result to its reward, got {shape!r}")
        self.shape = shape

    async def step(self, action: Action) -> StepResult:
        return self._shaped(await self.env.step(action))

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        return self._shaped(await self.env.truncate(reason, turn))

    def _shaped(self, result: StepResult) -> StepResult:
        reward: object = self.shape(result)
        try:
            shaped = float(reward)  # type: ignore[arg-type]  # what is no number is an error, as below
        except (TypeError, ValueError):
            shaped = math.nan
        if not math.isfinite(shaped):
            raise ConfigError(f"shape must return a finite number, {self.shape!r} returned {reward!r}")
        return result._replace(reward=shaped)
