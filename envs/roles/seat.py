"""A `RolesEnv` as one ordinary env for each of its roles: a `Seat` waits for its role's turns at a `Table`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from toolgym.envs.failure import failing, finite_reward
from toolgym.envs.roles.base import RolesEnv, RolesStep, require_roles
from toolgym.envs.tasks.sources import task_of_reset
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import Continue, End, EpisodeFailedError, ResetOptions, ResetResult, StepInfo, StopReason
from toolgym.tools.concurrency.deadline import own_deadline, queueing, with_deadline
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.message import Message, user
from toolgym.tools.parsers import ParsedTurn

T = TypeVar("T")

_UNTOLD = (Task((user(""),)),)  # a seat gets its task with `reset`


class Table:
    """One episode of an env with roles: who is to speak, what each role has not read yet, and how it ended.

    A wait for the others has no deadline here: each role's episode has one, and tells the table when it ends.

    Args:
        env: begun and stepped here, one call at a time.
        timeout: wall seconds of each call of the env, unless it keeps deadlines itself.

    Attributes:
        over: whether no role speaks any more.
        stop_reason: why the episode is over, for roles that did not end by themselves.
        metrics: those that the env gave with its steps.
        waiting: from a role to a block in which it waits for the others; by default nothing hears of it.
    """

    def __init__(self, env: RolesEnv, timeout: float) -> None:
        self.env, self._timeout = env, timeout
        self.roles = require_roles(env)
        self.over = False
        self.stop_reason = StopReason.ROLE_CUT
        self.metrics: dict[str, Any] = {}
        self.waiting: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
        self._failure: str | None = None
        self._next: tuple[str, ...] = ()
        self._turns: dict[str, ParsedTurn] = {}
        self._unread: dict[str, list[Message]] = {role: [] for role in self.roles}
        self._rewards = dict.fromkeys(self.roles, 0.0)
        self._news, self._forfeits = asyncio.Event(), asyncio.Lock()

    async def begin(self, role: str, task: Task, seed: int | None) -> list[Message] | None:
        """Begin the episode, which the first role does for all, and wait for the role's first turn. Returns its prompt;
        None: the episode ended without it. Raises `EpisodeFailedError` if the env or another role failed."""
        if role == self.roles[0]:
            with failing(StopReason.RESET_FAILED, StopReason.ENV_TIMEOUT):
                self._take(self._checked("begin", await self._ask(self.env.begin(task, seed=seed))))
        return await self._turn_of(role)

    async def play(self, role: str, turn: ParsedTurn) -> list[Message] | None:
        """Take a role's turn, and wait for its next one, as `begin` does."""
        self._turns[role] = turn if self.env.hears_thinking else turn.without_thinking()
        if not self.over and self._turns.keys() >= {*self._next}:
            turns, self._turns = {name: self._turns[name] for name in self._next}, {}
            with failing(StopReason.ENV_FAILED, StopReason.ENV_TIMEOUT):
                self._take(self._checked("act", await self._ask(self.env.act(turns))))
        return await self._turn_of(role)

    async def forfeit(self, role: str, reason: StopReason) -> None:
        """Have the env say what the end of a role at a limit is worth, and end the episode."""
        with failing(StopReason.ENV_FAILED, StopReason.ENV_TIMEOUT):
            async with self._forfeits:  # of two roles at a limit, the first decides
                step = None if self.over else await self._ask(self.env.forfeit(role, reason))
            step = None if step is None else self._checked("forfeit", step)
            if step is not None and step.next:
                raise ConfigError(f"forfeit must end the episode: RolesStep(next=()), got next={step.next!r}")
            self._take(RolesStep((), info={"stop_reason": StopReason.ROLE_CUT}) if step is None else step)

    def leave(self, role: str, reason: StopReason, failure: str | None) -> None:
        """Hear that a role's episode has ended; if the others are still at it, theirs end, too."""
        if not self.over:
            if failure is not None:
                self.stop_reason, self._failure = reason, f"the role {role!r} failed: {failure}"
            self._close()

    def earned(self, role: str) -> float:
        """Return the rewards of a role since the last call."""
        reward, self._rewards[role] = self._rewards[role], 0.0
        return reward

    async def _turn_of(self, role: str) -> list[Message] | None:
        if self._must_wait(role):
            with queueing(), self.waiting(role):
                while self._must_wait(role):
                    await self._news.wait()
        if self._failure is not None:
            raise EpisodeFailedError(self.stop_reason, self._failure)
        if self.over:
            return None
        messages, self._unread[role] = self._unread[role], []
        return messages

    def _must_wait(self, role: str) -> bool:
        return not self.over and (role not in self._next or role in self._turns)

    async def _ask(self, call: Coroutine[Any, Any, T]) -> T:
        if self.env.keeps_deadlines:
            return await call
        with own_deadline():
            return await with_deadline(call, self._timeout)

    def _checked(self, method: str, step: Any) -> RolesStep:
        """Return what a method of the env returned. Raises `ConfigError` unless it is a usable `RolesStep`."""
        what = f"{type(self.env).__name__}.{method}"
        if not isinstance(step, RolesStep):
            raise ConfigError(
                f"{what} must return a RolesStep(next, obs, rewards, info), got {type(step).__name__}: "
                f"{shorten(repr(step))}"
            )
        speak = [step.next] if isinstance(step.next, str) else step.next
        if not isinstance(speak, Sequence) or not all(isinstance(role, str) for role in speak):
            raise ConfigError(f"{what}: next must be a role or several, or empty at the end, got {step.next!r}")
        for name, value in (("obs", step.obs), ("rewards", step.rewards), ("info", step.info)):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{what}: {name} must be a mapping, got {shorten(repr(value))}")
        for role, messages in step.obs.items():
            if not _are_messages(messages):
                raise ConfigError(
                    f"{what}: obs[{role!r}] must be a list of messages such as user('...'), got "
                    f"{shorten(repr(messages))}"
                )
        for role, reward in step.rewards.items():
            if not hasattr(reward, "__float__"):
                raise ConfigError(f"{what}: rewards[{role!r}] must be a number, got {shorten(repr(reward))}")
        return step

    def _take(self, step: RolesStep) -> None:
        if self.over:  # another role's episode ended meanwhile
            return
        speak = (step.next,) if isinstance(step.next, str) else tuple(step.next)
        unknown = {*speak, *step.obs, *step.rewards} - {*self.roles}
        if unknown:
            raise ConfigError(f"a RolesStep names the role {min(unknown)!r}; the roles are {', '.join(self.roles)}")
        for role, messages in step.obs.items():
            self._unread[role] += messages
        for role, reward in step.rewards.items():
            self._rewards[role] += finite_reward(reward)
        self.metrics |= step.info.get("metrics", {})
        silent = [role for role in speak if not self._unread[role]]
        if silent:
            raise ConfigError(f"the role {silent[0]!r} is to speak, and has nothing new to read: give it a message")
        self._next = speak
        if speak:
            self._tell()
        else:
            self.stop_reason = StopReason(step.info.get("stop_reason") or StopReason.ANSWERED)
            if self.stop_reason.failed:
                self._failure = f"the env ended the episode with {self.stop_reason.value}"
            self._close()

    def _close(self) -> None:
        self.over = True
        self._tell()

    def _tell(self) -> None:
        """Wake those that wait now; who waits later waits for the next news."""
        news, self._news = self._news, asyncio.Event()
        news.set()


def _are_messages(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return all(isinstance(message, Mapping) and {"role", "content"} <= message.keys() for message in value)


class Seat(ToolEnv):
    """One role of a `RolesEnv` as an env: `reset` waits for the role's first turn, and a `step` without calls hands the
    turn over and waits for the next one. Calls of the role's tools are run here."""

    keeps_deadlines = True

    def __init__(self, table: Table, role: str) -> None:
        super().__init__(table.env.tools.get(role, ()), _UNTOLD, max_turns=table.env.max_turns)
        self.role, self._table, self._waited = role, table, 0.0

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        task = task_of_reset(seed, options)
        if task is None:
            raise ConfigError("an env with roles has no task of its own to draw: give options={'task': Task(...)}")
        messages = await self._table.begin(self.role, task, seed)
        if messages is None:
            raise EpisodeFailedError(StopReason.ROLE_CUT, f"the episode ended before the first turn of {self.role!r}")
        kwargs = {name: values for name, values in task.tools_kwargs.items() if name in self.tools}
        task = replace(task, messages=tuple(messages), tools_kwargs=kwargs)
        return await super().reset(seed=seed, options={"task": task})

    async def respond(self, turn: ParsedTurn) -> Continue | End:
        began = time.monotonic()
        messages = await self._table.play(self.role, turn)
        self._waited = time.monotonic() - began
        reward = self._table.earned(self.role)
        return End(self._table.stop_reason, reward) if messages is None else Continue(messages, reward)

    async def _end(self, reason: StopReason, *answer: Any, reward: float = 0.0, **details: Any) -> Any:
        if not self._table.over:
            await self._table.forfeit(self.role, reason)
            reward += self._table.earned(self.role)
        return await super()._end(reason, *answer, reward=reward, **details)

    async def _deadline(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        return await with_deadline(coroutine, seconds, queue=math.inf)  # the episode's own deadline ends the wait

    def _info(self, reason: StopReason | None, *details: Any) -> StepInfo:
        info = super()._info(reason, *details)
        info["metrics"] |= self._table.metrics
        info["wait_seconds"], self._waited = self._waited, 0.0
        return info


def seats(env: RolesEnv, timeout: float) -> tuple[Table, Sequence[Seat]]:
    """Return a table for one episode of the env, and a seat for each role, in their order."""
    table = Table(env, timeout)
    return table, [Seat(table, role) for role in table.roles]
