"""`HostedEpisode`, an episode that is open for its agent; `Episodes`, those of a gateway, open and ended."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from toolgym.envs.types import StopReason
from toolgym.rollout.capture.agent_call import AgentCall, CallRefusedError, Reply
from toolgym.rollout.capture.gateway.agent_headers import SubAgents
from toolgym.rollout.capture.gateway.captured_run import CapturedRun
from toolgym.rollout.capture.gateway.journal_folder import EndedSession
from toolgym.rollout.capture.journal import NotWrittenError, SavedSession, SessionJournal
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.capture.wires.memory import RequestMemory
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import Job
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, plain
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, EpisodeError, NoSessionError
from toolgym.tools.serving.session_table import SessionTable, TableSession, new_name

_log = logging.getLogger("toolgym.rollout.capture")

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


class EndedOtherwiseError(EpisodeError):
    """A session has ended already, and not as this request says: nothing was changed."""

    def __init__(self, episode: HostedEpisode) -> None:
        trajectory = episode.trajectory
        assert trajectory is not None
        reason = trajectory.stop_reason.value
        super().__init__(
            f"the session has ended already, with reward {trajectory.reward:g} and stop reason {reason!r}: this end "
            "was not recorded"
        )
        self.trajectory = trajectory


class HostedEpisode(TableSession):
    """An episode that is open for its agent, who shows its `key`. It has its `trajectory` once it ended, unless it was
    dropped. Its calls are answered in a `context`. Of a session that an earlier process opened, only the digest of the
    key is known."""

    context: contextvars.Context | None = None

    def __init__(
        self,
        name: str,
        capture: CaptureSession | None,
        episodes: Episodes,
        *,
        key: str = "",
        digest: str | None = None,
    ) -> None:
        super().__init__(name, patience=1.0, max_waiting=0)
        self.key, self.key_digest = key, _digest(key) if digest is None else bytes.fromhex(digest)
        self._capture = capture
        self.sub_agents, self.memory = SubAgents(), RequestMemory()
        self._episodes = episodes
        self.calls = self.answering = 0
        self.ended: EndedSession | None = None
        self.trajectory: Trajectory | None = None

    @property
    def capture(self) -> CaptureSession:
        if self._capture is None:
            raise CallRefusedError(410, "episode_ended", "the episode is over: begin another one")
        return self._capture

    @property
    def job(self) -> Job:
        return self.capture.job

    @property
    def is_over(self) -> bool:
        return self.ended is not None

    def is_shown_by(self, keys: Iterable[str]) -> bool:
        """Return whether one of these keys is the session's. Takes the same time for every key."""
        fits = [hmac.compare_digest(_digest(key), self.key_digest) for key in keys]
        return any(fits)

    def facts(self) -> dict[str, Any]:
        """Return what a journal needs to restore of this object."""
        return {"hosted_calls": self.calls, "sub_agents": dict(vars(self.sub_agents))}

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
        """End the episode at once, and write it; calls under way are aborted. With an `error` it failed, and has no
        reward. The same end again changes nothing.

        Raises EndedOtherwiseError if the episode ended in another way before. Raises NotWrittenError if the trajectory
        could not be written: then the episode is still open, and the end may be repeated.
        """
        ended = EndedSession(self.name, self.key_digest.hex(), reward, plain(metrics or {}), error, reason, drop)
        if self.ended is not None:
            if self.trajectory is not None and not drop and not self.ended.is_same_end(ended):
                raise EndedOtherwiseError(self)
            return
        failure = None
        if error is not None:
            reward, failure = 0.0, Failure(error, self.calls)
            reason = reason if reason.failed else StopReason.ENV_FAILED
        trajectory = self.capture.draft(reward, metrics, reason, failure)
        if drop:
            self._episodes.run.forget(ended)
            self._episodes.run.release(self.job)
        else:
            self.trajectory = self._episodes.run.write(trajectory, ended)
        self.ended = ended
        self.capture.close(trajectory)
        self._episodes.remember(self)

    async def close(self) -> None:
        if self.ended is None:
            self.end(reason=StopReason.ABORTED)

    async def delete(self) -> None:
        if self.ended is not None:
            return
        error = f"the agent made no call for {time.monotonic() - self.used:.0f} s, and no one finished the episode"
        try:
            self.end(reason=StopReason.EPISODE_TIMEOUT, error=error)
        except NotWrittenError:
            self._episodes.reopen(self)
            raise


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
                episode = HostedEpisode(name, self._begin(job, config, rules), self, key=key)
                self._open_journal(episode, named_by_key)
        except BaseException:
            self.run.release(job)
            raise
        if named_by_key:
            self._names[episode.key_digest] = name
        return self.table.add(episode)

    def _open_journal(self, episode: HostedEpisode, named_by_key: bool) -> None:
        journal = self.run.journal(episode.name)
        if journal is None:
            return
        names = {"name": episode.name, "key_sha256": episode.key_digest.hex(), "named_by_key": named_by_key}
        group = self.run.group_of(episode.job)
        journal.facts = episode.facts
        journal.open({**names, "group": group, **episode.capture.opening()})
        episode.capture.journal = journal

    async def restore(self) -> int:
        """Continue the sessions that an earlier process of this run left open, and remember those that ended. Returns
        the number of sessions that continue."""
        for ended, trajectory in self.run.ended_sessions(self._keep):
            episode = HostedEpisode(ended.name, None, self, digest=ended.key_sha256)
            episode.ended, episode.trajectory = ended, trajectory
            self._names[episode.key_digest] = ended.name
            self.remember(episode)
        restored = 0
        for journal in self.run.open_journals():
            try:
                saved = journal.read()
                if saved is None or self.known(saved.opening["name"]) is not None:
                    journal.remove()  # killed before the session had its key, or after its trajectory was written
                    continue
                await self._restore(journal, saved)
            except (CallRefusedError, ConfigError, KeyError, TypeError, ValueError) as error:
                _log.error("%s: the session cannot be continued, its file is left as it is: %s", journal.path, error)
                continue
            restored += 1
        return restored

    async def _restore(self, journal: SessionJournal, saved: SavedSession) -> None:
        opening = saved.opening
        job, config, rules = saved.job(), saved.config(), saved.rules()
        capture = self._begin(job, config, rules)
        capture.journal = journal
        await capture.restore(saved)
        episode = HostedEpisode(opening["name"], capture, self, digest=opening["key_sha256"])
        episode.calls = saved.state.get("hosted_calls", 0)
        vars(episode.sub_agents).update(saved.state.get("sub_agents", {}))
        journal.facts = episode.facts
        self.run.reserve(opening["group"], job)
        if opening["named_by_key"]:
            self._names[episode.key_digest] = episode.name
        self.table.add(episode)

    def host(self, capture: CaptureSession) -> HostedEpisode:
        """Let an agent speak to an episode that its caller ends. Its calls are the caller's: the limits of a run, for
        example, hold for them."""
        with self.table.room():
            key = f"sk-{secrets.token_urlsafe(24)}"
            episode = HostedEpisode(new_name(), capture, self, key=key)
        episode.context = contextvars.copy_context()
        self._names[episode.key_digest] = episode.name
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
        if episode is None or not (trusted or episode.is_shown_by(keys)):
            return None
        if episode.is_over:
            raise CallRefusedError(410, "episode_ended", "the episode is over: begin another one")
        return episode

    def reopen(self, episode: HostedEpisode) -> None:
        """Keep an idle session whose end could not be written: it ends when it has been idle for as long again."""
        episode.closed = False
        episode.touch()
        self.table.add(episode)

    async def end(self, name: str, *ending: Any, **options: Any) -> HostedEpisode:
        """End an episode, see `HostedEpisode.end`. Raises NoSessionError, and as `HostedEpisode.end` does."""
        episode = self.known(name)
        if episode is None:
            raise NoSessionError(name)
        episode.end(*ending, **options)
        await self.table.discard(name)
        return episode

    def remember(self, episode: HostedEpisode) -> None:
        self._ended[episode.name] = episode
        if len(self._ended) > self._keep:
            name, oldest = self._ended.popitem(last=False)
            if self._names.get(oldest.key_digest) == name:
                del self._names[oldest.key_digest]


def _digest(key: str) -> bytes:
    """The name that a key is looked up by: the time that it takes says nothing about the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
