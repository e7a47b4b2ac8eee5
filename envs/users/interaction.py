"""`InteractionUser`: a user written for verl's former interactions (`verl.interactions.base`, until verl 0.8)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from toolgym.envs.tasks.task import Task
from toolgym.envs.users.base import User, UserReply, UserSession
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message

_METHODS = ("start_interaction", "generate_response", "finalize_interaction")


class InteractionUser(User):
    """A user over an object with the methods of verl's `BaseInteraction`; verl itself need not be installed.

    `generate_response` gives `(should_terminate, text, score, metrics)`: the score is the reward of the policy's turn.
    `finalize_interaction` is called once for each `start_interaction`, also after an error.
    """

    def __init__(self, interaction: Any) -> None:
        missing = [name for name in _METHODS if not callable(getattr(interaction, name, None))]
        if missing:
            raise ConfigError(
                f"an interaction has the methods {', '.join(_METHODS)}; {interaction!r} lacks {missing[0]}"
            )
        self.interaction = interaction

    async def open(self, task: Task, **interaction_kwargs: Any) -> UserSession:
        id = await self.interaction.start_interaction(os.urandom(16).hex(), **interaction_kwargs)
        return _InteractionSession(self.interaction, id, interaction_kwargs)


class _InteractionSession(UserSession):
    def __init__(self, interaction: Any, instance_id: str, kwargs: dict[str, Any]) -> None:
        self._interaction, self._instance_id, self._kwargs = interaction, instance_id, kwargs

    async def reply(self, messages: Sequence[Message]) -> UserReply:
        answer = await self._interaction.generate_response(
            self._instance_id, [dict(message) for message in messages], **self._kwargs
        )
        if not isinstance(answer, tuple) or len(answer) != 4:
            raise ConfigError(f"generate_response must return (should_terminate, text, score, metrics), got {answer!r}")
        done, text, score, metrics = answer
        return UserReply(text, bool(done), float(score or 0.0), dict(metrics or {}))

    async def close(self) -> None:
        await self._interaction.finalize_interaction(self._instance_id, **self._kwargs)
