"""`HostedEpisode`, an episode that is open for its agent; `Episodes`, those of a gateway, open and ended."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from toolgym.envs.types import StopReason
from toolgym.rollout.capture.agent_call import AgentCall, CallRefusedError, Reply
from toolgym.rollout.capture.gateway.agent_headers import SubAgents, shows
from toolgym.rollout.capture.gateway.captured_run import CapturedRun
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.capture.wires.memory import RequestMemory
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import Job
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, NoSessionError
from toolgym.tools.serving.session_table import SessionTable, TableSession, new_name

Begin = Callable[[Job, EpisodeConfig, CaptureRules], CaptureSession]
"""Begins the capture of an episode in its place of the run."""


class Answering:
    """An answer on its way. An agent that did not get it has not seen it: then it is not `delivered`."""

    def __init__(self, episode: HostedEpisode, call: AgentCall) -> None:
        context = None if episode.context is None else episode.context.copy()
        self._task = asyncio.create_task(episode.capture.answer(call), context=context)
        self._episode = episode
        self.delivered = False

    async def reply(self, seconds: float | None = None) -> Reply | None:
        """Wait for the answer; None if it is not there after so many seconds. Raises CallRefusedError."""
        if seconds is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=seconds)
            if not self._task.done():
                return None
        return await self._task

    async def end(self) -> None:
        """Abort the call if it is not answered."""
        self._episode.answering -= 1
        if not self._task.done():
            self._task.cancel()
            await shielded(asyncio.wait({self._task}))
        if not self.delivered and not self._task.cancelled() and self._task.exception() is None:
            self._episode.capture.undelivered(self._task.result().id)


class HostedEpisode(TableSession):
    """An episode that is open for its agent, who shows its `key`. It has its `trajectory` once it ended, unless it was
    dropped. Its calls are answered in a `context`."""

    context: contextvars.Context | None = None

    def __init__(self, name: str, key: str, capture: CaptureSession, job: Job, episodes: Episodes) -> None:
        super().__init__(name, patience=1.0, max_waiting=0)
        self.key, self.capture, self.job = key, capture, job
        self.sub_agents, self.memory = SubAgents(), RequestMemory()
        self._episodes = episodes
        self.calls = self.answering = 0
        self.is_over = False
        self.trajectory: Trajectory | None = None

    def begin(self, call: AgentCall) -> Answering:
        """Answer a call, beside others. The caller ends it."""
        self.calls += 1
        self.answering += 1
        return Answering(self, call)

    def place(self) -> dict[str, Any]:
        task_index, sample_index = self.job.key
        return {"group_id": self.job.group_id, "task_index": task_index, "sample_index": sample_index}

    def state(self) -> dict[str, Any]:
        """Its place in the run, and whether its agent is at work."""
        idle = 0.0 if self.busy else time.monotonic() - self.used
        work = {"calls": self.calls, "answering": self.answering, "idle_seconds": idle}
        return {"id": self.name, **self.place(), **work}

    def end(
        self,
        reward: float = 0.0,
        metrics: Mapping[str, Any] | None = None,
        *,
        reason: StopReason = StopReason.ANSWERED,
        error: str | None = None,
        drop: bool = False,
    ) -> None:
        """End the episode at once, and write it; calls under way are aborted. The first end holds. With an `error` it
        failed, and has no reward. Raises ConfigError if the trajectory could not be written."""
        if self.is_over:
            return
        self.is_over = True
        failure = None
        if error is not None:
            reward, failure = 0.0, Failure(error, self.calls)
            reason = reason if reason.failed else StopReason.ENV_FAILED
        trajectory = self.capture.finish(reward, metrics, reason, failure)
        self._episodes.remember(self)
        if drop:
            self._episodes.run.release(self.job)
        else:
            self.trajectory = self._episodes.run.write(trajectory, self.name)

    async def close(self) -> None:
        self.end(reason=StopReason.ABORTED)

    async def delete(self) -> None:
        error = f"the agent made no call for {time.monotonic() - self.used:.0f} s, and no one finished the episode"
        self.end(reason=StopReason.EPISODE_TIMEOUT, error=error)


class Episodes:
    """The episodes of a gateway. `begin` makes what captures one; of those that ended `keep` are remembered."""

    def __init__(self, run: CapturedRun, begin: Begin, *, limit: int, idle_timeout: float, keep: int) -> None:
        self.table: SessionTable[HostedEpisode] = SessionTable(limit, idle_timeout)
        self.run, self._begin, self._keep = run, begin, keep
        self._ended: OrderedDict[str, HostedEpisode] = OrderedDict()
        self._names: dict[bytes, str] = {}

    def open(
        self, job: Job, config: EpisodeConfig, rules: CaptureRules, *, name: str | None = None, key: str | None = None
    ) -> HostedEpisode:
        """Open an episode under a new name. Raises ConfigError if the name was used before, and BusyError."""
        named_by_key = name is None or key is None  # else others may show the same key
        name, key = name or new_name(), key or f"sk-{secrets.token_urlsafe(24)}"
        try:
            if self.known(name) is not None:
                raise ConfigError(f"session {name!r} was opened before: give each episode a name of its own")
            with self.table.room():
                episode = HostedEpisode(name, key, self._begin(job, config, rules), job, self)
        except BaseException:
            self.run.release(job)
            raise
        if named_by_key:
            self._names[_digest(key)] = name
        return self.table.add(episode)

    def host(self, capture: CaptureSession) -> HostedEpisode:
        """Let an agent speak to an episode that its caller ends. Its calls are the caller's: the limits of a run, for
        example, hold for them."""
        with self.table.room():
            episode = HostedEpisode(new_name(), f"sk-{secrets.token_urlsafe(24)}", capture, capture.job, self)
        episode.context = contextvars.copy_context()
        self._names[_digest(episode.key)] = episode.name
        return self.table.add(episode)

    def known(self, name: str) -> HostedEpisode | None:
        """The episode of that name, open or ended."""
        return self.table.find(name) if name in self.table else self._ended.get(name)

    def name_of(self, keys: Iterable[str]) -> str | None:
        """The name of the episode that one of these keys belongs to, open or ended."""
        return next((name for key in keys if (name := self._names.get(_digest(key))) is not None), None)

    def find(self, name: str, keys: Iterable[str], *, trusted: bool = False) -> HostedEpisode | None:
        """Return an open episode to a client that shows its key, or is trusted. Others learn nothing: they get None, as
        for a name that does not exist. Raises CallRefusedError for an episode that ended."""
        episode = self.known(name)
        if not shows(keys, None if episode is None else episode.key) and not (trusted and episode):
            return None
        if episode is not None and episode.is_over:
            raise CallRefusedError(410, "episode_ended", "the episode is over: begin another one")
        return episode

    async def end(self, name: str, *ending: Any, **options: Any) -> HostedEpisode:
        """End an episode, see `HostedEpisode.end`. Raises NoSessionError, and ConfigError if the trajectory could not
        be written."""
        episode = self.known(name)
        if episode is None:
            raise NoSessionError(name)
        try:
            episode.end(*ending, **options)
        finally:
            await self.table.discard(name)
        return episode

    def remember(self, episode: HostedEpisode) -> None:
        self._ended[episode.name] = episode
        if len(self._ended) > self._keep:
            name, oldest = self._ended.popitem(last=False)
            if self._names.get(_digest(oldest.key)) == name:
                del self._names[_digest(oldest.key)]


def _digest(key: str) -> bytes:
    """The name that a key is looked up by: the time that it takes says nothing about the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
