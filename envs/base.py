"""The contract of an env: one episode at a time behind `reset`, `step` and `close`.

env = toolgym.make("CodeInterpreter-v0")
obs, info = await env.reset(seed=0)             # every message so far
while True:
    result = await env.step(policy(obs))        # text, or an assistant message
    obs = result.obs                            # only the new messages
    if result.done:
        break
await env.close()
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from toolgym.tools.errors import ForkNotSupportedError
from toolgym.tools.message import Message
from toolgym.tools.schema import ToolSchema

Info = dict[str, Any]


class StopReason(enum.StrEnum):
    """Why an episode ended. The first three come from the env, the others from whoever drives it."""

    ANSWERED = "answered"
    """The policy gave a turn without tool calls: its answer. Terminated."""
    MAX_TURNS = "max_turns"
    """The policy used up its turns. Truncated."""
    TOO_MANY_BAD_CALLS = "too_many_bad_calls"
    """As many malformed tool calls as the env's `BadCallPolicy` stops after. Terminated."""
    LENGTH = "length"
    """A turn reached `max_new_tokens` before its end-of-turn token. Truncated."""
    BUDGET = "budget"
    """No tokens were left for another turn. Truncated."""
    TIMEOUT = "timeout"
    """The episode's deadline passed. Truncated."""
    ABORTED = "aborted"
    """The engine was told to abort the turn, or the run was stopped. Truncated."""
    ERROR = "error"
    """The engine or the env failed; the trajectory's `error` says how."""


class StepResult(NamedTuple):
    """What one step gave.

    Attributes:
        obs: the *new* messages: answers of tools, or nothing once the episode is over.
        reward: reward of this step.
        done: whether the episode is over; step no further.
        info: `terminated` (bool), `truncated` (bool), `stop_reason` (`StopReason` or None), `message` (the action as
            an assistant message), `tool_calls` (a list of `ToolCallRecord`) and `metrics` (dict).
    """

    obs: list[Message]
    reward: float
    done: bool
    info: Info

    @property
    def terminated(self) -> bool:
        """The episode reached its own end."""
        return bool(self.info.get("terminated"))

    @property
    def truncated(self) -> bool:
        """The episode was cut by a limit."""
        return bool(self.info.get("truncated"))


class BaseEnv(ABC):
    """One episode at a time. Not safe for concurrent calls; make one env per concurrent episode."""

    @abstractmethod
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], Info]:
        """Begin an episode, ending the one before.

        Args:
            seed: makes this episode and those after it reproducible. None goes on from where the env is.
            options: `task` (a `Task`) chooses the task instead of drawing one.

        Returns:
            All messages so far, and an info with `task` and `tools` (schemas in the OpenAI shape).
        """

    @abstractmethod
    async def step(self, action: str | Message) -> StepResult:
        """Take one turn of the policy.

        Args:
            action: the turn's text as generated, without its end-of-turn token, or an assistant message.

        Raises:
            EpisodeError: called before `reset`, or after the episode ended.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the episode and free everything. Closing twice is fine."""

    async def fork(self) -> BaseEnv:
        """Return an independent env in the same state, where the tools can be forked.

        Raises:
            ForkNotSupportedError: they cannot.
        """
        raise ForkNotSupportedError(f"{type(self).__name__} cannot be forked: its tools do not support it")

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        """The tools that the policy may call, in the order in which it is told of them."""
        return []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
