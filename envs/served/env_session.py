"""`EnvSession`: an env and its episode, with deadlines, for one client."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from toolgym.envs.base import Action, StepResult
from toolgym.envs.driven_episode import DrivenEpisode
from toolgym.envs.served.catalog import ANSWER_ARGUMENT, ServedEnv, TaskPlace
from toolgym.envs.served.session import DetachableSession
from toolgym.envs.types import EpisodeFailedError, ResetInfo, StopReason
from toolgym.tools.concurrency.deadline import shielded, with_deadline
from toolgym.tools.errors import ConfigError, EpisodeError
from toolgym.tools.message import Message, described
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import ToolCall, ToolSchema
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.session_table import SessionTable, new_name

MAX_WAITING = 32

CLOSE_DEADLINE = 10.0

RECORD_FIELDS = ("id", "name", "status", "reward", "seconds", "infra_failure")
"""Fields of a tool call's record that clients see."""

T = TypeVar("T")

_log = logging.getLogger("toolgym.envs.served")


class Timeouts(NamedTuple):
    """Wall seconds for a reset, for a step, and for waiting: for the calls before in the session, for permits."""

    reset: float
    step: float
    queue: float


@dataclass
class ServedEpisode:
    """An episode of a session. `place` is its task, if the client chose one; `info` is the env's own of `reset`."""

    id: str
    place: TaskPlace | None
    messages: list[Message]
    tools: list[ToolSchema]
    info: ResetInfo
    _driven: DrivenEpisode
    calls: int = 0

    @property
    def steps(self) -> int:
        return self._driven.steps

    @property
    def reward(self) -> float:
        return self._driven.reward

    @property
    def stop_reason(self) -> StopReason | None:
        return self._driven.stop_reason


class ToolTurn(NamedTuple):
    """A tool call as one turn. `result` is None for a call that could not be made into a turn, which costs none."""

    text: str
    is_error: bool
    result: StepResult | None


class EnvSession(DetachableSession):
    """An env of one client. Its calls run one after the other.

    A reset or step that raises, overruns its deadline or is cancelled ends the episode and the env, which is in no
    known state. The next reset makes another one.

    Attributes:
        episode: the episode; None before the first reset.
    """

    def __init__(self, name: str, served: ServedEnv, timeouts: Timeouts, gate: Gate) -> None:
        super().__init__(name, patience=timeouts.queue, max_waiting=MAX_WAITING)
        self.served = served
        self.episode: ServedEpisode | None = None
        self._timeouts, self._gate = timeouts, gate
        self._driven: DrivenEpisode | None = None

    @property
    def tools(self) -> list[ToolSchema]:
        """The tools for clients that can only call tools: those of the policy, and the answer tool."""
        return self.served.with_answer(self.served.tools if self.episode is None else self.episode.tools)

    async def reset(
        self, *, seed: int | None = None, place: TaskPlace | None = None, episode_id: str | None = None
    ) -> ServedEpisode:
        """Begin an episode, of a new name unless `episode_id` is given; without a place the env draws a task.

        Raises EpisodeFailedError, BusyError (no slot, or too many calls wait) or NoSessionError (the session was
        closed).
        """
        return await self.in_turn(lambda: self._reset(seed, place, episode_id), goes_on=False)

    async def step(self, action: Action, *, calls: int = 0, timeout: float | None = None) -> StepResult:
        """Take one turn, in which `calls` calls have ids already, within `timeout` seconds and the server's limit.

        Raises EpisodeError if no episode is under way, and the errors of `reset`.
        """
        return await self.in_turn(lambda: self._step(action, calls, timeout), goes_on=False)

    async def truncate(self, reason: StopReason, action: Action | None = None) -> StepResult:
        """End the episode at a limit of its client's; see `BaseEnv.truncate`. Raises as `step` does."""
        return await self.in_turn(lambda: self._truncate(reason, action), goes_on=False)

    async def call_tool(self, name: str, arguments: dict[str, Any], *, timeout: float | None = None) -> ToolTurn:
        """Call one tool as a turn of its own; the answer tool says its text as a turn without calls."""
        return await self.in_turn(lambda: self._call_tool(name, arguments, timeout), goes_on=False)

    def metadata(self, result: StepResult) -> dict[str, Any]:
        """Return the figures of a step that clients get in each API besides observation and reward.

        `trainable` and `in_group_statistics` are those of the `StopReason`; they come with the last step.
        """
        info, reason = result.info, result.stop_reason
        metadata: dict[str, Any] = {
            "step_reward": float(result.reward),
            "episode_reward": self.episode.reward if self.episode is not None else float(result.reward),
            "tool_calls": [
                {name: getattr(record, name) for name in RECORD_FIELDS} for record in info.get("tool_calls") or ()
            ],
            "metrics": {
                name: value
                for name, value in (info.get("metrics") or {}).items()
                if isinstance(value, bool | int | float | str)
            },
        }
        if reason is not None:
            metadata |= {
                "stop_reason": reason.value,
                "terminated": result.terminated,
                "truncated": result.truncated,
                "trainable": reason.trainable,
                "in_group_statistics": reason.in_group_statistics,
            }
        return metadata

    async def close(self) -> None:
        await self.end_calls()
        await self._drop()

    # ------------------------------------------------------------------

    def _make(self) -> DrivenEpisode:
        try:
            env = self.served.make()
        except Exception as error:
            raise self._failed(StopReason.ENV_CREATE_FAILED, error) from error
        reset, step, queue = self._timeouts
        return DrivenEpisode(env, reset_timeout=reset, step_timeout=step, queue_timeout=queue)

    def _under_way(self) -> tuple[ServedEpisode, DrivenEpisode]:
        if self.episode is None:
            raise EpisodeError("no episode is under way; reset first")
        if self.episode.stop_reason is not None:
            raise EpisodeError(f"the episode is over ({self.episode.stop_reason}); reset to begin another")
        assert self._driven is not None
        return self.episode, self._driven

    async def _reset(self, seed: int | None, place: TaskPlace | None, episode_id: str | None) -> ServedEpisode:
        options: dict[str, Any] | None = None
        if place is not None and place.task is not None:
            options = {"task": place.task}
        elif place is not None and seed is None:
            seed = place.index
        async with self._gate.slot():
            self.episode = None
            if self._driven is None:
                self._driven = self._make()
            driven = self._driven
            messages, info = await self._run(driven, driven.reset(seed=seed, options=options))
            name = episode_id or str(uuid.uuid4())
            self.episode = ServedEpisode(name, place, messages, driven.env.tool_schemas, info, driven)
            return self.episode

    async def _step(self, action: Action, calls: int, timeout: float | None) -> StepResult:
        episode, driven = self._under_way()
        seconds = self._timeouts.step if timeout is None else min(timeout, self._timeouts.step)
        async with self._gate.slot():
            result = await self._run(driven, driven.step(action, timeout=seconds))
        episode.calls += calls
        return result

    async def _truncate(self, reason: StopReason, action: Action | None) -> StepResult:
        _, driven = self._under_way()
        async with self._gate.slot():
            return await self._run(driven, driven.truncate(reason, action))

    async def _call_tool(self, name: str, arguments: dict[str, Any], timeout: float | None) -> ToolTurn:
        episode, _ = self._under_way()
        answer = self.served.answer_tool
        if answer is not None and name == answer.name:
            if problems := answer.problems(arguments):
                return ToolTurn(f"Wrong arguments for tool {name!r}: " + " ".join(problems), True, None)
            text = arguments[ANSWER_ARGUMENT]
            return _tool_turn(await self._step(ParsedTurn(text, text, [], []), 0, timeout))
        call = ToolCall(f"call_{episode.calls}", name, arguments)
        return _tool_turn(await self._step(ParsedTurn("", "", [call], []), 1, timeout))

    async def _run(self, driven: DrivenEpisode, call: Coroutine[Any, Any, T]) -> T:
        """Await a call of the env. If it raises, the env is closed and the episode has failed."""
        try:
            return await call
        except BaseException as error:
            await shielded(self._drop())
            if not isinstance(error, Exception):
                raise
            raise self._failed(driven.stop_reason or StopReason.ENV_FAILED, error) from error

    def _failed(self, reason: StopReason, error: Exception) -> EpisodeFailedError:
        """Log an error, and return the one for the client, which names only the reason and the place in the log."""
        mark = uuid.uuid4().hex[:12]
        _log.error("error %s: an episode of %s ended with %s", mark, self.served.id, reason, exc_info=error)
        return EpisodeFailedError(
            reason,
            f"the episode failed ({reason}) and has no reward; the policy is not to blame. The server's log says more: "
            f"error {mark}",
            error,
        )

    async def _drop(self) -> None:
        driven, self._driven = self._driven, None
        if driven is None:
            return
        try:
            await with_deadline(driven.close(), CLOSE_DEADLINE)
        except Exception:  # noqa: BLE001  the client is to learn about its episode, not about this
            _log.exception("an env of %s could not be closed", self.served.id)


class EnvSessions(SessionTable[EnvSession]):
    """The open sessions of an env server. Their resets and steps hold a slot of the gate."""

    def __init__(self, limit: int, idle_timeout: float, timeouts: Timeouts, gate: Gate) -> None:
        super().__init__(limit, idle_timeout)
        self._timeouts, self._gate = timeouts, gate

    def open(self, served: ServedEnv, name: str | None = None) -> EnvSession:
        """Open a session, whose env is made at its first reset. Without a name it gets one that cannot be guessed.

        Raises BusyError if there are as many as there may be, ConfigError if the name is taken.
        """
        if name is not None and name in self:
            raise ConfigError("this session has an env already; delete it first")
        with self.room():
            return self.add(EnvSession(name or new_name(), served, self._timeouts, self._gate))

    def find(self, name: str) -> EnvSession:
        """Return the session of that name, and count that as use."""
        session = super().find(name)
        session.touch()
        return session


def _tool_turn(result: StepResult) -> ToolTurn:
    records = result.info.get("tool_calls") or ()
    text = "\n".join(described(message["content"]) for message in result.obs)
    if not text and result.done:
        text = f"The episode is over: {result.stop_reason}."
    return ToolTurn(text, any(record.status != "ok" for record in records), result)
