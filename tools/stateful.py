"""`StatefulTool` and `ToolSession`: a tool whose state per episode is an object. See `examples/own_tool.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from typing import Any

from toolgym.tools.base import BaseTool, ToolResult, keywords_of
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, EpisodeError, ForkNotSupportedError, require_number
from toolgym.tools.schema import ToolSchema


class ToolSession(ABC):
    """State of a tool in one episode."""

    @abstractmethod
    async def execute(
        self, parameters: dict[str, Any], **execute_kwargs: Any
    ) -> ToolResult | str | tuple[str, float, dict[str, Any]]:
        """Carry out one call; see `BaseTool.execute`. Calls of one turn come at the same time."""

    async def reward(self, **calc_reward_kwargs: Any) -> float:
        """Return the contribution to the episode's reward, asked once when the episode ends. Default 0."""
        return 0.0

    @property
    def lost_to_sandbox(self) -> bool:
        """Whether the sandbox lost what the policy had done, so that missing files are not the policy's fault."""
        return False

    async def broken_by_programs(self) -> bool:
        """Return whether programs of the policy made the session unusable for whoever scores the episode.

        Called after a scorer or `reward` failed with a `SandboxError` or a deadline. If it returns True, the policy is
        to blame and scores 0; if False, the infrastructure is, and the episode fails. Default: False.
        """
        return False

    async def fork(self) -> ToolSession:
        """Return an independent session in the same state. By default it raises `ForkNotSupportedError`."""
        raise ForkNotSupportedError(f"{type(self).__name__} does not implement fork")

    async def close(self) -> None:
        """Free what the session holds. Called exactly once, possibly while `execute` runs. Default: nothing."""


class StatefulTool(BaseTool):
    """A tool with a `ToolSession` for each episode. Subclasses implement `open`."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        tool_schema: ToolSchema | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config, tool_schema)
        self._sessions: dict[str, ToolSession] = {}

    @abstractmethod
    async def open(self, **create_kwargs: Any) -> ToolSession:
        """Begin an episode, with the task's `tools_kwargs[name]["create_kwargs"]`.

        Name the arguments that the tool takes, as in `open(self, *, seed=0)`, or in `task_kwargs`: any other name is
        then a `ConfigError`. When it is cancelled, it frees what it has taken so far; after its return, the tool closes
        the session.
        """

    async def create(self, instance_id: str | None = None, **create_kwargs: Any) -> str:
        """Open a session. Raises `ConfigError` if the id is in use."""
        if instance_id in self._sessions:
            raise ConfigError(f"the tool {self.name!r} has an instance {instance_id!r} already; release that one first")
        if create_kwargs:
            self.check_task_kwargs({"create_kwargs": create_kwargs})
        return await self._keep(await self.open(**create_kwargs), instance_id)

    def _names_of(self, call: str) -> Collection[str] | None:
        if call in self.task_kwargs:
            return self.task_kwargs[call]
        if call == "create_kwargs" and type(self).create is StatefulTool.create:
            return keywords_of(self.open)
        if call == "release_kwargs" and type(self).release is StatefulTool.release:
            return ()
        return super()._names_of(call)

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        return ToolResult.of(await self.session_of(instance_id).execute(parameters, **execute_kwargs))

    async def calc_reward(self, instance_id: str, **calc_reward_kwargs: Any) -> float:
        session = self.session_of(instance_id)
        reward = await session.reward(**calc_reward_kwargs)
        return require_number(f"{type(session).__name__}.reward must return", reward)

    async def fork(self, instance_id: str) -> str:
        try:
            return await self._keep(await self.session_of(instance_id).fork(), None)
        except ForkNotSupportedError as error:
            raise ForkNotSupportedError(f"the tool {self.name!r} cannot be forked: {error}") from error

    async def release(self, instance_id: str, **release_kwargs: Any) -> None:
        """Close the session, to the end even if the caller is cancelled. A second release does nothing."""
        session = self._sessions.pop(instance_id, None)
        if session is not None:
            await shielded(session.close())

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, {}
        async with AsyncExitStack() as stack:  # all are closed, also when one raises
            for session in sessions.values():
                stack.push_async_callback(shielded, session.close())

    async def _keep(self, session: ToolSession, instance_id: str | None) -> str:
        instance = await super().create(instance_id)
        if instance in self._sessions:  # another `create` with this id was faster
            await shielded(session.close())
            raise ConfigError(f"the tool {self.name!r} has an instance {instance!r} already; release that one first")
        self._sessions[instance] = session
        return instance

    def session_of(self, instance_id: str) -> ToolSession:
        """Return an episode's session. Raises `EpisodeError` if it was not opened, or was released."""
        session = self._sessions.get(instance_id)
        if session is None:
            raise EpisodeError(f"the tool {self.name!r} has no instance {instance_id!r}; call `create` first")
        return session
