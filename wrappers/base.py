"""`Wrapper`: an env around another, changing one thing; `Compose`: several as one; and `with_metrics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolgym.envs.base import Action, BaseEnv, StepResult
from toolgym.envs.entry_points import wrapped, wrapper_factories
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import ResetOptions, ResetResult, StopReason
from toolgym.tools.errors import ConfigError
from toolgym.tools.schema import ToolSchema
from toolgym.tools.views.html import View


class Wrapper(BaseEnv):
    """Passes everything on to the env inside, as well as attributes that it lacks; subclasses change one thing.

    Example:
        >>> import toolgym
        >>> class Halve(Wrapper):
        ...     async def step(self, action):
        ...         result = await super().step(action)
        ...         return result._replace(reward=result.reward / 2)
        >>> env = toolgym.envs.GymnasiumEnv(Halve(toolgym.make("CodeInterpreter-v0")))
        >>> _, info = env.reset(seed=0)
        >>> env.step(f"#### {info['task'].ground_truth}")[1], env.close()
        (0.5, None)
    """

    def __init__(self, env: BaseEnv) -> None:
        if not isinstance(env, BaseEnv):
            raise ConfigError(f"a {type(self).__name__} goes around a toolgym BaseEnv, got {env!r}")
        self.env = env

    @property
    def unwrapped(self) -> BaseEnv:
        return self.env.unwrapped if isinstance(self.env, Wrapper) else self.env

    @property
    def task(self) -> Task | None:  # type: ignore[override]  # the env's inside, which alone sets it
        return self.env.task

    @property
    def replaces_context(self) -> bool:  # type: ignore[override]  # the env's inside
        return self.env.replaces_context

    @property
    def keeps_deadlines(self) -> bool:  # type: ignore[override]  # the env's inside
        return self.env.keeps_deadlines

    @property
    def program_seconds(self) -> float:  # type: ignore[override]  # the env's inside
        return self.env.program_seconds

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        return self.env.tool_schemas

    def gold_actions(self) -> Sequence[Action] | None:
        return self.env.gold_actions()

    def hidden_texts(self) -> Sequence[str]:
        return self.env.hidden_texts()

    def render(self) -> View:
        return self.env.render()

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Action) -> StepResult:
        return await self.env.step(action)

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        return await self.env.truncate(reason, turn)

    async def close(self) -> None:
        await self.env.close()

    async def fork(self) -> BaseEnv:
        """Wrap a fork of the env inside; a subclass with attributes that change in place overrides this."""
        inside = await self.env.fork()
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.env = inside
        return twin

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.env, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self.env!r}>"


def with_metrics(result: StepResult, **metrics: Any) -> StepResult:
    """Return the result of a step with further metrics."""
    return result._replace(info={**result.info, "metrics": {**result.info.get("metrics", {}), **metrics}})


class Compose:
    """Puts wrappers, each as in `wrappers` of `toolgym.make`, around an env: `Compose(a, b)(env)` is `b(a(env))`.

    Example:
        >>> import toolgym
        >>> from functools import partial
        >>> from toolgym.wrappers import TruncateResults, TurnLimit
        >>> short = Compose(partial(TruncateResults, max_chars=1000), partial(TurnLimit, max_turns=4))
        >>> toolgym.make("CodeInterpreter-v0", wrappers=short)
        <TurnLimit<TruncateResults<CodeInterpreterEnv with code_interpreter; not reset>>>
    """

    def __init__(self, *wrappers: str | Mapping[str, Any] | Callable[[BaseEnv], BaseEnv]) -> None:
        self.wrappers = tuple(wrapper_factories(wrappers))

    def __call__(self, env: BaseEnv) -> BaseEnv:
        return wrapped(env, self.wrappers)

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.wrappers))})"
