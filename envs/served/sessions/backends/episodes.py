"""`EnvBackend`: any env as a session server's backend, so that trainers which speak this protocol can drive it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.driven_episode import DrivenEpisode
from toolgym.envs.registry import make, registered, spec
from toolgym.envs.served.sessions.backends.base import ActionReply, Instance, SessionBackend
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, EpisodeError, UnknownNameError
from toolgym.tools.message import Message, described


class DivergedError(EpisodeError):
    """An episode that was played again is not the same: its env, or a tool, is not deterministic."""


class EnvBackend(SessionBackend):
    """A backend whose instances are episodes. `docs/sessions.md` has its rules.

    The state of an episode is its actions. To continue in another process, the episode is played again; an observation
    that differs then is an error of the infrastructure (`DivergedError`).

    Args:
        envs: arguments of the envs by id, or a list of ids. Only they are offered. None: all ids, without arguments.
    """

    def __init__(self, envs: Mapping[str, Mapping[str, Any]] | Sequence[str] | None = None) -> None:
        if isinstance(envs, str) or not isinstance(envs, Mapping | Sequence | None):
            raise ConfigError(f"envs must be a list of ids, or map ids to arguments, got {envs!r}")
        self._offered = dict(envs) if isinstance(envs, Mapping) else {id: {} for id in envs or ()}
        for id in self._offered:
            spec(id)
        self._tasks: dict[str, dict[str, Task]] = {}

    async def open(self, instance_hash: str, state: bytes | None = None) -> Instance:
        id, _, what = instance_hash.rpartition(":")
        offered = self._offered or registered()
        if id not in offered:
            raise UnknownNameError(
                f"expected ENV_ID:TASK_ID or ENV_ID:SEED with one of the envs {', '.join(sorted(offered))}, "
                f"got {instance_hash!r}"
            )
        env = make(id, **self._offered.get(id, {}))
        episode = DrivenEpisode(env, reset_timeout=math.inf, step_timeout=math.inf)  # the server has deadlines
        try:
            task = self._tasks_of(id, env).get(what)
            if task is not None:
                obs, _ = await episode.reset(seed=0, options={"task": task})
            elif what.isascii() and what.isdecimal():
                obs, _ = await episode.reset(seed=int(what))
            else:
                raise UnknownNameError(f"the env {id} has no task {what!r}, and that is no seed either")
            instance = _Episode(episode, obs)
            if state is not None:
                await instance.replay(json.loads(state))
            return instance
        except BaseException:  # cancelled or not, the env is closed
            await shielded(episode.close())
            raise

    def _tasks_of(self, id: str, env: BaseEnv) -> dict[str, Task]:
        """Return an env's tasks by id; none if they are generated without end."""
        if id not in self._tasks:
            source = getattr(env, "tasks", None)
            size = source.size if isinstance(source, TaskSource) else None
            tasks = [source.task(place) for place in range(size)] if source is not None and size is not None else []
            self._tasks[id] = {task.id: task for task in tasks}
        return self._tasks[id]


class _Episode(Instance):
    def __init__(self, episode: DrivenEpisode, obs: Sequence[Message]) -> None:
        self._episode = episode
        self.greeting = _text(obs)
        self._turns: list[tuple[str, str]] = []

    async def process_action(self, content: str) -> ActionReply:
        if self._episode.over:
            return ActionReply(f"[The episode is over: {self._episode.stop_reason}]", True)
        result = await self._episode.step(content)
        text = _text(result.obs)
        self._turns.append((content, _digest(text)))
        return ActionReply(text, result.done)

    async def replay(self, turns: Sequence[tuple[str, str]]) -> None:
        for number, (content, digest) in enumerate(turns, 1):
            reply = await self.process_action(content)
            if _digest(reply.content) != digest:
                raise DivergedError(f"turn {number} of {len(turns)} was answered differently when played again")

    async def state(self) -> bytes:
        return json.dumps(self._turns).encode()

    async def compute_reward(self) -> Mapping[str, Any]:
        episode = self._episode
        if not episode.over:
            self.spent = True
            await episode.truncate(StopReason.BUDGET)
        reason = None if self.spent else episode.stop_reason
        return {"reward": episode.reward, "done": reason is not None, "stop_reason": reason and reason.value}

    async def close(self) -> None:
        await self._episode.close()


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(described(message["content"]) for message in messages)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
