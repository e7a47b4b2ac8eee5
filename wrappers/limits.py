"""`Limit` and the wrappers that end an episode: `TurnLimit`, `TokenBudget` and `TimeLimit`."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.failure import BROKEN_BY_POLICY, is_programs_time
from toolgym.envs.types import EpisodeFailedError, ResetOptions, ResetResult, StepInfo, StopReason
from toolgym.tools.concurrency.deadline import CANCEL_GRACE, with_deadline
from toolgym.tools.errors import EpisodeError, check_seconds, require_whole_number
from toolgym.wrappers.base import Wrapper
from toolgym.wrappers.token_count import count_all, message_text, token_count, turn_text

T = TypeVar("T")


class Limit(Wrapper):
    """May end an episode early: a subclass's `limited_step` calls `end`, which truncates the env inside."""

    _ended = False
    _used = 0  # of what is limited, in this episode

    @abstractmethod
    async def limited_step(self, action: Action) -> StepResult:
        """Take a step, and `end` the episode if it has reached the limit."""

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
        self._ended, self._used = False, 0
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


class TurnLimit(Limit):
    """Ends an episode with `StopReason.MAX_TURNS` after `max_turns` turns, the last of which is taken as any other.

    Example:
        >>> import toolgym
        >>> env = toolgym.envs.GymnasiumEnv(TurnLimit(toolgym.make("CodeInterpreter-v0"), max_turns=2))
        >>> _ = env.reset(seed=0)
        >>> [env.step("<tool_call>no JSON</tool_call>")[3] for _ in range(2)], env.close()
        ([False, True], None)
    """

    def __init__(self, env: BaseEnv, max_turns: int) -> None:
        super().__init__(env)
        require_whole_number("max_turns", max_turns, at_least=1)
        self.max_turns = max_turns

    async def limited_step(self, action: Action) -> StepResult:
        result = await self.env.step(action)
        self._used += 1
        if result.done or self._used < self.max_turns:
            return result
        return await self.end(result, StopReason.MAX_TURNS)


class TokenBudget(Limit):
    """Ends an episode with `StopReason.BUDGET` once its turns and observations have `max_tokens` tokens.

    The task's messages do not count, nor do the tokens that a chat template puts around messages.
    `tokenizer` is a tokenizer, or a function from a text to its number of tokens.

    Example:
        >>> import toolgym
        >>> env = toolgym.envs.GymnasiumEnv(TokenBudget(toolgym.make("CodeInterpreter-v0"), 100, tokenizer=len))
        >>> _ = env.reset(seed=0)
        >>> str(env.step("<tool_call>" + "so many words " * 40 + "</tool_call>")[4]["stop_reason"]), env.close()
        ('budget', None)
    """

    def __init__(self, env: BaseEnv, max_tokens: int, *, tokenizer: Any) -> None:
        super().__init__(env)
        require_whole_number("max_tokens", max_tokens, at_least=1)
        self.max_tokens = max_tokens
        self._count = token_count(tokenizer)

    async def limited_step(self, action: Action) -> StepResult:
        result = await self.env.step(action)
        if result.done:
            return result
        self._used += await count_all(self._count, [turn_text(action), *map(message_text, result.obs)])
        return result if self._used < self.max_tokens else await self.end(result, StopReason.BUDGET)


class TimeLimit(Limit):
    """Ends an episode with `StopReason.EPISODE_TIMEOUT` a number of wall seconds after its `reset` began.

    The step that is under way then is cancelled. That reason is a failure, so nothing is scored and no trainer learns
    from the episode. The policy's own time counts, and so does the wait for permits. If programs of the policy ran for
    most of the time, the reason is `StopReason.PROGRAM_TIME`: nothing is scored either, but the episode counts.

    Example:
        >>> import time, toolgym
        >>> env = toolgym.envs.GymnasiumEnv(TimeLimit(toolgym.make("CodeInterpreter-v0"), seconds=0.3))
        >>> _ = env.reset(), time.sleep(0.4)  # the policy thinks
        >>> str(env.step("#### 1")[4]["stop_reason"]), env.close()
        ('episode_timeout', None)
    """

    def __init__(self, env: BaseEnv, seconds: float) -> None:
        super().__init__(env)
        check_seconds(seconds=seconds)
        self.seconds = seconds
        self._deadline: float | None = None  # on the clock of `time.monotonic`; None before the first reset

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        self._deadline = time.monotonic() + self.seconds
        begin = super().reset
        try:
            return await self._in_time(lambda: begin(seed=seed, options=options), self._deadline)
        except _TimeUpError:
            raise EpisodeFailedError(
                StopReason.EPISODE_TIMEOUT, f"the episode did not begin within {self.seconds:g} seconds"
            ) from None

    async def limited_step(self, action: Action) -> StepResult:
        if self._deadline is None:
            return await self.env.step(action)  # which refuses it
        try:
            return await self._in_time(lambda: self.env.step(action), self._deadline)
        except _TimeUpError:
            is_policys = is_programs_time(self.env.program_seconds, self.seconds)
            result = await self.end(StepResult([], 0.0, False, {}), StopReason.EPISODE_TIMEOUT)
            if not is_policys:
                return result
            metrics = {**result.info.get("metrics", {}), f"score/{BROKEN_BY_POLICY}": 1.0}
            return result._replace(info={**result.info, "stop_reason": StopReason.PROGRAM_TIME, "metrics": metrics})

    async def _in_time(self, call: Callable[[], Coroutine[Any, Any, T]], deadline: float) -> T:
        """Await a call until the deadline. `_TimeUpError`: it was cancelled, or never made."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise _TimeUpError
        try:
            # The inner one leaves behind what ignores its cancellation. It stops while the call waits for a permit.
            async with asyncio.timeout(left) as timeout:
                return await with_deadline(call(), left + CANCEL_GRACE)
        except TimeoutError:
            if timeout.expired():
                raise _TimeUpError from None
            raise


class _TimeUpError(Exception):
    """The episode's time is up."""
