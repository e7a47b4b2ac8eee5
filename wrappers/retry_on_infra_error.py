"""`RetryOnInfraError`: tries again what the infrastructure made fail."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import tenacity

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.types import Blame, EpisodeFailedError, ResetOptions, ResetResult
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import (
    ForkNotSupportedError,
    SandboxUnsupportedError,
    check_seconds,
    error_text,
    is_infrastructure,
    require_whole_number,
)
from toolgym.wrappers.base import Wrapper, with_metrics

T = TypeVar("T")

_log = logging.getLogger("toolgym.wrappers")


class RetryOnInfraError(Wrapper):
    """Repeats a `reset` that the infrastructure failed, with the task that it had drawn, and maybe a step.

    With `steps=True` the env is forked before each step (`ForkNotSupportedError` if it cannot be), and the fork takes
    the step again if the infrastructure failed one of its tool calls (`ToolCallRecord.infra_failure`) or the step
    itself. What a fork does not hold, such as a server's state, sees the call twice. The last attempt's result or error
    is given. Every retry is logged. The metrics of a step hold `infra_retries`, the retries of the episode so far.

    Args:
        attempts: how often a call is made at most.
        first_delay: most seconds before the second attempt, drawn evenly from 0 up; doubled before each further one.
        max_delay: the most seconds that this grows to.
        steps: whether steps are repeated; needs an env that can be forked.

    Example:
        >>> import toolgym
        >>> class Flaky(toolgym.wrappers.Wrapper):
        ...     failures = 2
        ...     async def reset(self, **kwargs):
        ...         self.failures -= 1
        ...         if self.failures >= 0:
        ...             raise ConnectionError("the sandbox server does not answer")
        ...         return await super().reset(**kwargs)
        >>> env = RetryOnInfraError(Flaky(toolgym.make("CodeInterpreter-v0")), first_delay=0.01)
        >>> env = toolgym.envs.GymnasiumEnv(env)
        >>> _ = env.reset()
        >>> env.step("Hello.")[4]["metrics"]["infra_retries"], env.close()
        (2, None)
    """

    def __init__(
        self,
        env: BaseEnv,
        *,
        attempts: int = 3,
        first_delay: float = 0.5,
        max_delay: float = 30.0,
        steps: bool = False,
    ) -> None:
        super().__init__(env)
        require_whole_number("attempts", attempts, at_least=1)
        check_seconds(first_delay=first_delay, max_delay=max_delay)
        self.attempts, self.first_delay, self.max_delay, self.steps = attempts, first_delay, max_delay, steps
        self._retries = 0

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        self._retries = 0
        task_before = self.env.task

        async def attempt() -> ResetResult:
            drawn = self.env.task
            if seed is not None or drawn is None or drawn is task_before or "task" in (options or {}):
                return await self.env.reset(seed=seed, options=options)
            return await self.env.reset(options={**(options or {}), "task": drawn})

        return await self._repeated(attempt)

    async def step(self, action: Action) -> StepResult:
        result = await (self._forked_step(action) if self.steps else self.env.step(action))
        return with_metrics(result, infra_retries=self._retries)

    async def _forked_step(self, action: Action) -> StepResult:
        spare: BaseEnv | None = None

        async def attempt() -> StepResult:
            nonlocal spare
            if spare is not None:  # the attempt before failed
                failed, self.env, spare = self.env, spare, None
                await shielded(_close(failed))
            spare = await self.env.fork()
            return await self.env.step(action)

        try:
            return await self._repeated(attempt)
        finally:
            if spare is not None:
                await shielded(_close(spare))

    async def _repeated(self, attempt: Callable[[], Awaitable[T]]) -> T:
        schedule = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.attempts),
            wait=tenacity.wait_random_exponential(multiplier=self.first_delay, max=self.max_delay),
            retry=tenacity.retry_if_exception(_may_pass) | tenacity.retry_if_result(_lost_a_call),
            before_sleep=self._note,
            retry_error_callback=_last_outcome,
        )
        return await schedule(attempt)

    def _note(self, state: tenacity.RetryCallState) -> None:
        self._retries += 1
        error = state.outcome.exception() if state.outcome is not None else None
        what = "a tool call's infrastructure failed" if error is None else error_text(error)
        _log.warning("%s: attempt %d of %d failed: %s", self, state.attempt_number, self.attempts, what)


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ForkNotSupportedError | SandboxUnsupportedError):
        return False
    if isinstance(error, EpisodeFailedError) and error.stop_reason.blame in (Blame.SANDBOX, Blame.ENGINE):
        return True
    return is_infrastructure(error)


def _lost_a_call(result: object) -> bool:
    return isinstance(result, StepResult) and any(call.infra_failure for call in result.info.get("tool_calls", ()))


def _last_outcome(state: tenacity.RetryCallState) -> Any:
    assert state.outcome is not None
    return state.outcome.result()


async def _close(env: BaseEnv) -> None:
    try:
        await env.close()
    except Exception as error:  # noqa: BLE001
        _log.warning("closing an env failed: %s", error_text(error))
