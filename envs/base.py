"""The contract of an env: one episode at a time behind `reset`, `step` and `close`.

>>> import asyncio, toolgym
>>> async def main(policy):
...     async with toolgym.make("CodeInterpreter-v0") as env:
...         obs, info = await env.reset(seed=0)  # every message so far
...         while True:
...             result = await env.step(policy(obs))  # an `Action`: a parsed turn, an assistant message, or text
...             obs = result.obs  # only the new messages
...             if result.done:
...                 return result.stop_reason
>>> print(asyncio.run(main(lambda obs: "#### 42")))
answered
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from toolgym.envs.tasks.task import Task
from toolgym.envs.types import ResetOptions, ResetResult, StepInfo, StopReason
from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.errors import ConfigError, ForkNotSupportedError
from toolgym.tools.message import Message
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import ToolSchema
from toolgym.tools.views.conversation import conversation_html
from toolgym.tools.views.env import rendered
from toolgym.tools.views.html import View, drawn_by, page

Action = ParsedTurn | Message | str
"""One turn of the policy: parsed by the parser of its model, as an assistant message, or as text."""


class StepResult(NamedTuple):
    """The result of one step.

    Attributes:
        obs: the *new* messages: results of tools, a user's reply, or nothing once the episode is over.
        reward: reward of this step.
        done: whether the episode is over.
        info: see `StepInfo`; every key may be left out.
    """

    obs: list[Message]
    reward: float
    done: bool
    info: StepInfo

    @property
    def stop_reason(self) -> StopReason | None:
        """None while the episode goes on. `ValueError` if the env gave no `StopReason`."""
        return StopReason(self.info.get("stop_reason") or StopReason.ANSWERED) if self.done else None

    @property
    def terminated(self) -> bool:
        return self.done and not self.truncated

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut before its own end."""
        reason = self.stop_reason
        return reason is not None and reason.truncated

    def _repr_html_(self) -> str:
        reason = f", done: {self.stop_reason}" if self.done else ""
        return page(f"step, reward {self.reward:g}{reason}", conversation_html(self.obs, where="step.obs"))


class BaseEnv(AsyncCloseable):
    """One episode at a time. Not safe for concurrent calls; make one env per concurrent episode.

    Attributes:
        task: the task of the episode; None before the first `reset`, and in an env that has none.
        replaces_context: whether a step may give `StepInfo.context`, which begins the policy's context anew; a caller
            that can only add to a conversation refuses such an env with `require_growing_context`.
        keeps_deadlines: whether the env itself bounds the time of all that it awaits, so that its caller need not.
        program_seconds: wall seconds that programs of the policy have run in the episode, as far as the env knows,
            without waits for permits. If they ran for most of the time until a deadline passed, the policy is to blame.
    """

    task: Task | None = None
    replaces_context: bool = False
    keeps_deadlines: bool = False
    program_seconds: float = 0.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        try:
            inspect.signature(cls.truncate).bind(cls, StopReason.LENGTH, None)
        except TypeError as error:
            raise ConfigError(f"{cls.__qualname__}.truncate must take (reason, turn=None): {error}") from None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    _repr_html_ = drawn_by("toolgym.tools.views.env:env_html")

    def render(self) -> View:
        """Return the conversation of the episode so far as text, which a notebook shows richly; an env may override it.
        By default it is the env's attribute `messages`, and a `ConfigError` if the env keeps none."""
        return rendered(self)

    @abstractmethod
    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        """Begin an episode, ending the one before. Returns all messages so far, and a `ResetInfo`.

        Args:
            seed: makes this episode and those after it reproducible. All members of a group get the same seed. If
                None, the env continues from its present state.
            options: `task` (a `Task`) chooses the task instead of drawing one.

        Raises:
            ConfigError: the seed is no whole number of at least 0, or an option is not usable.
            EpisodeFailedError: the episode cannot begin; names the failure.
        """

    @abstractmethod
    async def step(self, action: Action) -> StepResult:
        """Take one turn of the policy.

        Args:
            action: a runner always passes a `ParsedTurn`; other callers may pass the text, without its end-of-turn
                token, or an assistant message.

        Raises:
            EpisodeError: no episode is under way.
            EpisodeFailedError: the episode cannot go on; names the failure.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the episode and free everything. Closing twice is fine."""

    async def truncate(self, reason: StopReason, turn: Action | None = None) -> StepResult:
        """End the episode at a limit or a failure of the caller's, and score it. Raises as `step`.

        `turn` is what the policy wrote since the last step, which the limit cut; its calls are not run. The result has
        what the end adds to the rewards and metrics of the steps: by default nothing.
        """
        return StepResult([], 0.0, True, {"stop_reason": reason})

    async def fork(self) -> BaseEnv:
        """Return an independent env in the same state, which the caller closes as well.

        Raises:
            ForkNotSupportedError: the env, or one of its tools, cannot be forked; names it.
            EpisodeError: no episode is under way.
        """
        raise ForkNotSupportedError(f"{type(self).__name__} cannot be forked: it does not implement fork")

    def gold_actions(self) -> Sequence[Action] | None:
        """The actions that solve the task that was reset to, for `toolgym.testing.check_env`; None: the env knows none.

        Calls of tools stand in assistant messages, since each model writes them as text in its own way.
        """
        return None

    def hidden_texts(self) -> Sequence[str]:
        """Texts, such as hidden tests, that `check_env` must not find where the policy reads, besides ground truth."""
        return ()

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        return []


def require_growing_context(env: BaseEnv, caller: str) -> None:
    """Raise `ConfigError` if a caller that only adds to its conversation cannot play the env."""
    if env.replaces_context:
        raise ConfigError(
            f"{caller} only adds to a conversation, but {env!r} may begin the context anew (StepInfo.context): leave "
            "out the wrapper that does (Compact), or play the env with rollout, run_episode or endpoint.run"
        )
