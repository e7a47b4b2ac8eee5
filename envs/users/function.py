"""`FunctionUser`: a function replies."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from toolgym.envs.tasks.task import Task
from toolgym.envs.users.base import User, UserReply, UserSession
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message

UserFunction: TypeAlias = Callable[
    [Sequence[Message], Task], UserReply | str | Awaitable[UserReply | str | None] | None
]
"""From the conversation so far and the task to the user's reply; None ends the conversation. It may be async."""


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
        answer = self._function(messages, self._task)
        return UserReply.of(await answer if inspect.isawaitable(answer) else answer)

    async def fork(self) -> UserSession:
        return _FunctionSession(self._function, self._task)
