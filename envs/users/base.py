"""Simulated users: a `User` opens a `UserSession` for each episode; a `FunctionUser` replies by a function."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from toolgym.envs.tasks.task import Task
from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.concurrency.execution_pool import call_function
from toolgym.tools.errors import ConfigError, ForkNotSupportedError
from toolgym.tools.message import Message, mapped, visible_text
from toolgym.tools.parsers import ParsedTurn


def heard_message(message: Message | ParsedTurn) -> Message:
    """Return a message of a conversation as a user reads it: an assistant's without its thinking.

    Thinking is also removed if the prompt opened it, if it was never closed, and if it has a field of its own.
    """
    if isinstance(message, ParsedTurn):
        heard = message.message
        heard["content"] = message.visible_content
    else:
        heard = message.copy()
        if heard["role"] == "assistant":
            heard["content"] = mapped(heard["content"], visible_text)
    heard.pop("reasoning_content", None)
    return heard


@dataclass(frozen=True)
class UserReply:
    """The answer of a user to a turn.

    Attributes:
        text: what the policy reads next; None if the user says nothing more, which needs `done`.
        done: whether the conversation is over.
        reward: added to the reward of the policy's turn.
        metrics: numbers about the conversation so far, by name; kept in the trajectory as `user/NAME`.
    """

    text: str | None
    done: bool = False
    reward: float = 0.0
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str | None):
            raise ConfigError(f"the text of a user's reply must be a text or None, got {self.text!r}")
        if self.text is None and not self.done:
            raise ConfigError("a user who says nothing must be done: give a text, or done=True")

    @classmethod
    def of(cls, value: Any) -> UserReply:
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        if value is None:
            return cls(None, done=True)
        raise ConfigError(f"a user must return a UserReply, a text, or None for the end; got {value!r}")


class UserSession(AsyncCloseable):
    """A user in one episode."""

    @abstractmethod
    async def reply(self, messages: Sequence[Message]) -> UserReply:
        """Reply to the conversation, which ends with the policy's turn or with the task's messages.

        The messages are those of the policy's conversation, without the policy's thinking (`heard_message`).
        """

    @property
    def trace(self) -> list[Message]:
        """The conversation as the user sees it, with what the policy never reads; empty if it keeps none."""
        return []

    async def fork(self) -> UserSession:
        """Return an independent session in the same state. The default raises `ForkNotSupportedError`."""
        raise ForkNotSupportedError(f"{type(self).__name__} does not implement fork")

    async def close(self) -> None:
        """Free what the session holds. Called exactly once."""


class User(AsyncCloseable):
    """A simulated user. One object serves many episodes at once."""

    @abstractmethod
    async def open(self, task: Task, **interaction_kwargs: Any) -> UserSession:
        """Begin an episode with the row's `extra_info.interaction_kwargs`, without its `name`; the env closes it."""

    async def close(self) -> None:
        pass


UserFunction: TypeAlias = Callable[
    [Sequence[Message], Task], UserReply | str | Awaitable[UserReply | str | None] | None
]
"""From the conversation so far, without the policy's thinking, and the task to the user's reply; None ends the
conversation. It may be async; a plain function is called in a thread, unless `toolgym.tools.runs_inline` marks it."""


class FunctionUser(User):
    """A user whose replies a function gives (see `UserFunction`), which keeps no state: it reads the conversation.

    Example:
        >>> user = FunctionUser(lambda messages, task: None if "bye" in messages[-1]["content"] else "Go on.")
    """

    def __init__(self, function: UserFunction) -> None:
        if not callable(function):
            raise ConfigError(f"a user's function must be callable, got {function!r}")
        self.function = function

    async def open(self, task: Task, **interaction_kwargs: Any) -> UserSession:
        return _FunctionSession(self.function, task)


class _FunctionSession(UserSession):
    def __init__(self, function: UserFunction, task: Task) -> None:
        self._function, self._task = function, task

    async def reply(self, messages: Sequence[Message]) -> UserReply:
        return UserReply.of(await call_function(self._function, messages, self._task))

    async def fork(self) -> UserSession:
        return _FunctionSession(self._function, self._task)
