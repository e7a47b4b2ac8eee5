"""`RolesEnv`: an env that several policies, or one in several roles, play together: a game, a debate, self-play."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StepInfo, StopReason
from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError
from toolgym.tools.function import ToolFunction, as_tool
from toolgym.tools.message import Message
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import ToolSchema

_NAME = re.compile(r"[A-Za-z0-9]+([.-][A-Za-z0-9]+)*")


class RolesStep(NamedTuple):
    """The state of play after a step.

    Attributes:
        next: the role that speaks next, or several that speak at the same time; empty: the episode is over.
        obs: *new* messages by role. A role reads them when it speaks next; the first ones are its whole prompt.
        rewards: rewards of this step by role; 0 for a role that is left out.
        info: `stop_reason` at the end (`ANSWERED` if it is left out), and `metrics`, which each role's trajectory gets.
    """

    next: str | Sequence[str]
    obs: Mapping[str, Sequence[Message]] = {}
    rewards: Mapping[str, float] = {}
    info: StepInfo = {}  # noqa: RUF012  nothing changes it


class RolesEnv(BaseEnv):
    """One episode at a time, played by several roles, each with a conversation and rewards of its own.

    A `Runner` plays it, and so do `rollout` and a `RolloutQueue`: each role is an ordinary episode, with its own
    engine, tokens and trajectory. `reset` and `step`, which know one policy, raise `ConfigError`.

    Attributes:
        roles: the names, of letters, digits, dots and hyphens; the first is that of which a task source hears rewards.
        tools: tools by role. A role's calls are run before the others see anything: `act` gets a turn without calls.
            They are shared by the episodes of this env, and `close` is the place to close them.
        max_turns: most turns of one role in an episode, those with calls included.
        hears_thinking: whether `act` gets the roles' thinking. False (the default): the turns that it gets, and what it
            makes of them for other roles, hold none.
        tasks: the env's own source of tasks, if it has one.
    """

    roles: Sequence[str] = ()
    tools: Mapping[str, Sequence[BaseTool | ToolFunction[..., Any]]] = {}
    max_turns: int = 64
    hears_thinking: bool = False

    @abstractmethod
    async def begin(self, task: Task, *, seed: int | None) -> RolesStep:
        """Begin an episode, ending the one before. The same task and seed give the same episode."""

    @abstractmethod
    async def act(self, turns: Mapping[str, ParsedTurn]) -> RolesStep:
        """Take the turns of the roles that were to speak: of all of them together, in the order of `RolesStep.next`.

        Turns come without tool calls and without thinking, see `hears_thinking`. What a policy does wrong is answered
        or costs reward; what is raised fails the episode of every role.
        """

    async def forfeit(self, role: str, reason: StopReason) -> RolesStep | None:
        """Return the last step of an episode that a limit ends for a role, as when its turn got too long: with an empty
        `next`, and rewards by role. None (the default): no reward, and the others end with `ROLE_CUT`, outside of
        their groups' statistics."""
        return None

    async def close(self) -> None:
        """Free what the env holds; by default nothing. Closing twice is fine."""

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        """The schemas of all roles' tools."""
        tools = [as_tool(tool) for role in self.roles for tool in self.tools.get(role, ())]
        return [tool.tool_schema for tool in {tool.name: tool for tool in tools}.values()]

    async def reset(self, **_: Any) -> Any:
        raise ConfigError(f"{type(self).__name__} has several roles: give it to a Runner, a RolloutQueue or rollout")

    async def step(self, action: Any) -> Any:
        return await self.reset()


def require_roles(env: RolesEnv) -> tuple[str, ...]:
    """Return the roles of an env. Raises `ConfigError` if they, or the roles of its tools, are not usable."""
    roles: object = env.roles
    names = tuple(roles) if isinstance(roles, Sequence) and not isinstance(roles, str) else ()
    if not names or len({*names}) != len(names) or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
        raise ConfigError(
            f"{type(env).__name__}.roles must be different names of letters, digits, dots and hyphens, got {roles!r}"
        )
    if unknown := sorted({*env.tools} - {*names}):
        raise ConfigError(f"{type(env).__name__}.tools names the role {unknown[0]!r}; the roles are {', '.join(names)}")
    return names
