"""`HostedEpisode`, an episode that is open for its agent; `Episodes`, those of a gateway, open and ended."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from toolgym.envs.types import StopReason
from toolgym.rollout.capture.agent_call import AgentCall, CallRefusedError, Reply
from toolgym.rollout.capture.gateway.agent_headers import SubAgents, shows
from toolgym.rollout.capture.gateway.captured_run import CapturedRun
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import Job
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, plain
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, NoSessionError
from toolgym.tools.serving.session_table import SessionTable, TableSession, new_name

WHOLE = 64
"""Ended episodes whose trajectories are kept whole, for callers that ask for them again."""


Begin = Callable[[Job, EpisodeConfig, CaptureRules], CaptureSession]
"""Begins the capture of an episode in its place of the run."""


@dataclass(frozen=True)
class Ending:
    """The end of an episode: its reward, or the reason why there is none. `dropped`: nothing is kept of it."""

    reward: float = 0.0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    stop_reason: StopReason = StopReason.ANSWERED
    message: str = ""
    dropped: bool = False

    @classmethod
    def told(cls, reward: float, metrics: Mapping[str, Any] | None, error: str | None) -> Self:
        """The end that the caller tells: with an `error`, the agent or its machine broke, and there is no reward."""
        if error is not None:
            return cls(0.0, metrics or {}, StopReason.ENV_FAILED, error)
        return cls(reward, metrics or {})


class Answering:
    """An answer on its way. An agent that did not get it has not seen it: then it is not `delivered`."""

    def __init__(self, answer: Coroutine[Any, Any, Reply]) -> None:
        self._task = asyncio.create_task(answer)
        self.delivered = False

    async def reply(self, seconds: float | None = None) -> Reply | None:
        """Wait for the answer; None if it is not there after so many seconds. Raises CallRefusedError."""
        await asyncio.wait({self._task}, timeout=seconds)
        return self._task.result() if self._task.done() else None

    async def end(self) -> Reply | None:
        """Abort the call if it is not answered. Returns an answer that was not delivered."""
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        lost = not self.delivered and not self._task.cancelled() and self._task.exception() is None
        return self._task.result() if lost else None


class HostedEpisode(TableSession):
    """An episode that is open for its agent, who shows its `key`. `trajectory` is there once it ended, unless it was
    dropped; `on_end` hears of that."""

    def __init__(
        self,
        name: str,
        key: str,
        capture: CaptureSession,
        job: Job,
        run: CapturedRun,
        on_end: Callable[[HostedEpisode], None],
    ) -> None:
        super().__init__(name, patience=1.0, max_waiting=0)
        self.key, self.job, self.capture, self.opened_at = key, job, capture, time.time()
        self.sub_agents = SubAgents()
        self._run, self._on_end = run, on_end
        self._calls = self._answering = 0
        self._is_over = False
        self.trajectory: Trajectory | None = None

    @contextlib.asynccontextmanager
    async def answering(self, call: AgentCall) -> AsyncIterator[Answering]:
        """Answer a call, beside others. At the end of the block it is aborted if it is not answered."""
        answering = Answering(self.capture.answer(call))
        self._calls += 1
        self._answering += 1
        try:
            yield answering
        finally:
            self._answering -= 1
            lost = await shielded(answering.end())
            if lost is not None:
                self.capture.undelivered(lost.id)

    def place(self) -> dict[str, Any]:
        """Its place in the run, and whether its agent is at work."""
        return {
            "id": self.name,
            "group_id": self.job.group_id,
            "task_index": self.job.key.task_index,
            "sample_index": self.job.key.sample_index,
            "opened_at": self.opened_at,
            "idle_seconds": 0.0 if self.busy else time.monotonic() - self.used,
            "calls": self._calls,
            "answering": self._answering,
        }

    def end(self, ending: Ending) -> None:
        """End the episode at once, and write it; calls under way are aborted. The first end holds. Raises ConfigError
        if the trajectory could not be written."""
        if self._is_over:
            return
        self._is_over = True
        error = Failure(ending.message, self._calls) if ending.stop_reason.failed else None
        trajectory = self.capture.finish(ending.reward, ending.metrics, ending.stop_reason, error)
        try:
            if ending.dropped:
                self._run.release(self.job)
            else:
                self.trajectory = self._run.placed(trajectory)
                self._run.write(self.trajectory)
        finally:
            self._on_end(self)

    async def close(self) -> None:
        self.end(Ending(stop_reason=StopReason.ABORTED))

    async def delete(self) -> None:
        seconds = time.monotonic() - self.used
        text = f"the agent made no call for {seconds:.0f} s, and no one finished the episode"
        self.end(Ending(stop_reason=StopReason.EPISODE_TIMEOUT, message=text))


@dataclass(frozen=True)
class Ended:
    """An episode that ended: its agent's key, its trajectory's figures, None if it was dropped, and for the last
    `WHOLE` the trajectory."""

    key: str
    summary: Mapping[str, Any] | None
    trajectory: Trajectory | None


class Episodes:
    """The episodes of a gateway. `begin` makes what captures one; of those that ended `keep` are remembered."""

    def __init__(
        self,
        run: CapturedRun,
        begin: Begin,
        *,
        limit: int,
        idle_timeout: float,
        keep: int,
    ) -> None:
        self.table: SessionTable[HostedEpisode] = SessionTable(limit, idle_timeout)
        self._run, self._begin, self._keep = run, begin, keep
        self._ended: OrderedDict[str, Ended] = OrderedDict()
        self._whole: deque[str] = deque()
        self._names: dict[bytes, str] = {}

    def open(
        self,
        job: Job,
        config: EpisodeConfig,
        rules: CaptureRules,
        *,
        name: str | None = None,
        key: str | None = None,
    ) -> HostedEpisode:
        """Open an episode under a new name. Raises ConfigError if the name was used before, and BusyError."""
        named_by_key = name is None or key is None  # else others may show the same key
        name, key = name or new_name(), key or f"sk-{secrets.token_urlsafe(24)}"
        try:
            if name in self.table or name in self._ended:
                raise ConfigError(f"session {name!r} was opened before: give each episode a name of its own")
            with self.table.room():
                capture = self._begin(job, config, rules)
                episode = HostedEpisode(name, key, capture, job, self._run, self._remember)
        except BaseException:
            self._run.release(job)
            raise
        if named_by_key:
            self._names[_digest(key)] = name
        return self.table.add(episode)

    def name_of(self, keys: Iterable[str]) -> str | None:
        """The name of the episode that one of these keys belongs to, open or ended."""
        return next((name for key in keys if (name := self._names.get(_digest(key))) is not None), None)

    def find(self, name: str, keys: Iterable[str], *, trusted: bool = False) -> HostedEpisode | None:
        """Return an open episode to a client that shows its key, or is trusted. Others learn nothing: they get None, as
        for a name that does not exist. Raises CallRefusedError for an episode that ended."""
        episode = self.table.find(name) if name in self.table else None
        known = episode or self._ended.get(name)
        if not shows(keys, known.key if known is not None else None) and not (trusted and known is not None):
            return None
        if episode is None:
            raise CallRefusedError(410, "episode_ended", "the episode is over: begin another one")
        return episode

    def exists(self, name: str) -> bool:
        return name in self.table or name in self._ended

    async def end(self, name: str, ending: Ending) -> Ended:
        """End an episode. Asked again, it answers the same. Raises NoSessionError, and ConfigError if the trajectory
        could not be written."""
        if name in self.table:
            try:
                self.table.find(name).end(ending)
                past = self._ended[name]
            finally:
                await self.table.discard(name)
            return past
        if name not in self._ended:
            raise NoSessionError(name)
        return self._ended[name]

    def _remember(self, episode: HostedEpisode) -> None:
        trajectory = episode.trajectory
        summary = None if trajectory is None else figures_of(trajectory)
        self._ended[episode.name] = Ended(episode.key, summary, trajectory)
        self._whole.append(episode.name)
        if len(self._whole) > WHOLE and (old := self._ended.get(name := self._whole.popleft())) is not None:
            self._ended[name] = replace(old, trajectory=None)
        if len(self._ended) > self._keep:
            name, oldest = self._ended.popitem(last=False)
            if self._names.get(_digest(oldest.key)) == name:
                del self._names[_digest(oldest.key)]


def figures_of(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "id": trajectory.id,
        "group_id": trajectory.group_id,
        "task_index": trajectory.task_index,
        "sample_index": trajectory.sample_index,
        "reward": trajectory.reward,
        "stop_reason": trajectory.stop_reason.value,
        "error": None if trajectory.error is None else trajectory.error.message,
        "trainable": trajectory.trainable,
        "turns": len(trajectory.turns),
        "policy_tokens": trajectory.policy_tokens,
        "sequences": [sequence.start_reason for sequence in trajectory.sequences],
        "metrics": plain(trajectory.metrics),
    }


def _digest(key: str) -> bytes:
    """The name that a key is looked up by: the time that it takes says nothing about the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
