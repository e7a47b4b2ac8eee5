"""`ShapeReward` and `FormatPenalty`: other rewards of steps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from toolgym.envs.actions import action_message
from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.types import ResetOptions, ResetResult, StopReason
from toolgym.tools.concurrency.execution_pool import call_function, runs_inline
from toolgym.tools.confined.costly_checks import matches
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message, text_of
from toolgym.wrappers.base import Wrapper, with_metrics


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
        return await self._shaped(await self.env.step(action))

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        return await self._shaped(await self.env.truncate(reason, turn))

    async def _shaped(self, result: StepResult) -> StepResult:
        reward: object = await call_function(self.shape, result)
        try:
            shaped = float(reward)  # type: ignore[arg-type]  # what is no number is an error, as below
        except (TypeError, ValueError):
            shaped = math.nan
        if not math.isfinite(shaped):
            raise ConfigError(f"shape must return a finite number, {self.shape!r} returned {reward!r}")
        return result._replace(reward=shaped)


class FormatPenalty(Wrapper):
    """Takes a penalty off the reward of each turn that does not have a form.

    The metrics of a step hold `bad_format`, the turns without it so far, and `reward/format`, what they cost so far.

    Args:
        form: a regular expression that is searched for in the content of each turn's message (`.` matches line ends
            too), in another process: a text that takes longer than a second of CPU time does not have the form. Or a
            function from that message to whether it has the form.
        penalty: what a turn without the form costs, at least 0.

    Example:
        >>> import toolgym
        >>> env = toolgym.envs.GymnasiumEnv(FormatPenalty(toolgym.make("CodeInterpreter-v0"), "####", penalty=0.5))
        >>> _ = env.reset(seed=0)
        >>> env.step("It is many.")[1], env.close()
        (-0.5, None)
    """

    def __init__(self, env: BaseEnv, form: str | Callable[[Message], object], penalty: float = 1.0) -> None:
        super().__init__(env)
        if isinstance(form, str):
            try:
                re.compile(form, re.DOTALL)
            except re.error as error:
                raise ConfigError(f"form is not a regular expression: {error}: {form!r}") from error
            self._has_form: Callable[[Message], object] = runs_inline(
                lambda message: matches(form, text_of(message["content"]), flags=re.DOTALL)
            )
        elif callable(form):
            self._has_form = form
        else:
            raise ConfigError(f"form must be a regular expression or a function of a turn's message, got {form!r}")
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty < math.inf:
            raise ConfigError(f"penalty must be a number of at least 0, got {penalty!r}")
        self.penalty = float(penalty)
        self._bad = 0

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        self._bad = 0
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Action) -> StepResult:
        return await self._judged(action, await self.env.step(action))

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        result = await self.env.truncate(reason, turn)
        return self._counted(result) if turn is None or reason.failed else await self._judged(turn, result)

    async def _judged(self, action: Action, result: StepResult) -> StepResult:
        has_form = bool(await call_function(self._has_form, result.info.get("message") or action_message(action)))
        self._bad += not has_form
        return self._counted(result if has_form else result._replace(reward=result.reward - self.penalty))

    def _counted(self, result: StepResult) -> StepResult:
        cost = -self.penalty * self._bad if self._bad else 0.0
        return with_metrics(result, **{"bad_format": self._bad, "reward/format": cost})
