"""`Limit`: the base of the wrappers that may end an episode."""

from __future__ import annotations

from abc import abstractmethod

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.types import ResetOptions, ResetResult, StepInfo, StopReason
from toolgym.tools.errors import EpisodeError
from toolgym.wrappers.base import Wrapper


class Limit(Wrapper):
    """May end an episode early. A subclass writes `limited_step`, which calls `end`.

    The env inside is then asked to `truncate`: a `ToolEnv` scores the episode as if its own `max_turns` were used up,
    and releases its tools.
    """

    _ended = False

    @abstractmethod
    async def limited_step(self, action: Action) -> StepResult:
        """Take a step of an episode that is under way, and `end` it if it has reached the limit."""

    async def end(self, result: StepResult, reason: StopReason) -> StepResult:
        """End the episode with the result of its last step, without the observations: the policy reads nothing more."""
        self._ended = True
        last = await self.env.truncate(reason)
        metrics = {**result.info.get("metrics", {}), **last.info.get("metrics", {})}
        info: StepInfo = {**result.info, **last.info, "metrics": metrics}
        info.pop("context", None)
        return StepResult([], result.reward + last.reward, True, info)

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        begun = await self.env.reset(seed=seed, options=options)
        self._ended = False
        return begun

    async def step(self, action: Action) -> StepResult:
        if self._ended:
            raise EpisodeError("step was called after the episode ended; call `await env.reset()` to begin another")
        result = await self.limited_step(action)
        self._ended = result.done
        return result

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        self._ended = True
        return await self.env.truncate(reason, turn)

    async def fork(self) -> BaseEnv:
        if self._ended:
            raise EpisodeError("fork needs an episode under way; call `await env.reset()` first")
        return await super().fork()

    async def close(self) -> None:
        self._ended = True
        await self.env.close()
