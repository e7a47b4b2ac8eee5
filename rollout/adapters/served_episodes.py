"""The episodes of one env, for trainers that own the turns and keep no tokens."""

from __future__ import annotations

import asyncio
from typing import Any

from toolgym.envs.served.catalog import ServedEnv, TaskPlace, load_env
from toolgym.envs.served.env_session import EnvSession, EnvSessions, Timeouts
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.serving.admission import Gate


class ServedEpisodes:
    """Begins episodes of an env, each in a session of its own; `settings` has the fields of either trainer's."""

    def __init__(self, settings: Any, *, queue_timeout: float) -> None:
        self._env, self._env_kwargs = settings.env, dict(settings.env_kwargs)
        timeouts = Timeouts(settings.reset_timeout, settings.step_timeout, queue_timeout)
        gate = Gate(settings.max_concurrent, settings.max_sessions, queue_timeout)
        self.sessions = EnvSessions(settings.max_sessions, settings.idle_timeout, timeouts, gate)
        self._opening = asyncio.Lock()
        self._served: ServedEnv | None = None

    async def served(self) -> ServedEnv:
        """Return the env, which the first call makes; raises ConfigError if it cannot be made."""
        async with self._opening:
            if self._served is None:
                self._served = await load_env(self._env, self._env_kwargs, answer_tool=None, endless=1)
                self.sessions.start()
            return self._served

    async def begin(self, task: Task, name: str | None = None) -> EnvSession:
        """Begin the episode of a task, whose messages the trainer has rendered already, in a session, named or not.

        Raises BusyError for too many sessions, EpisodeFailedError if the env failed (a named session stays), and
        ConfigError if it begins with other messages than the task's.
        """
        served = await self.served()
        session = self.sessions.open(served, name)
        try:
            state = await session.reset(place=TaskPlace("train", 0, task))
            if state.messages != list(task.messages):
                raise ConfigError(
                    f"{served.id} begins with other messages than its task's, which the trainer shows: "
                    f"{shorten(repr(state.messages))} instead of {shorten(repr(list(task.messages)))}"
                )
        except BaseException as error:  # cancelled too
            if name is None or not isinstance(error, EpisodeFailedError):
                await self.sessions.discard(session.name)
            raise
        return session
