"""`ToolgymTaskset`: the tasks of an env, or of a file, as verifiers' tasks.

The contract is that of verifiers 0.4.0 (`verifiers/v1/taskset.py`, `task.py`, `utils/loaders.py`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from toolgym.envs.tasks.loading import load_tasks
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest

with needs("verifiers", "A taskset for verifiers"):
    import verifiers.v1 as vf

REWARD = "toolgym_reward"
"""Key of a trace's `info` under which the harness leaves the env's reward."""

_LOADING = 600.0
"""Seconds that the making of an env, to ask it for its tasks, may take."""


class ToolgymTasksetConfig(vf.TasksetConfig):
    """The TOML table `[env.taskset]` with `id = "toolgym-v1"`."""

    env: str = ""
    """The env's id, such as `CodeInterpreter-v0`; `module:Id` imports the module first."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """For `toolgym.make`."""
    file: Path | None = None
    """Tasks in a file that `toolgym.envs.load_tasks` reads; None: those that the env itself draws from."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Which column of the file holds what, where its rows are not in verl's shape; see `load_tasks`."""
    split: str = "train"
    """Which of the tasks' splits."""


class ToolgymData(vf.TaskData):
    """One task, as it goes to the env server."""

    env: str
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    row: dict[str, Any]
    """The task as a row in verl's shape, whole."""

    @classmethod
    def of(cls, task: Task, env: str, env_kwargs: Mapping[str, Any] | None = None) -> ToolgymData:
        prompt = [typed_message(message) for message in task.messages]
        return cls(id=task.id or None, prompt=prompt, env=env, env_kwargs=dict(env_kwargs or {}), row=task.to_row())

    def task(self) -> Task:
        """Return the task, under the system prompt that verifiers may have set."""
        messages = list(self.row["prompt"])
        if self.system_prompt is not None:
            messages = [message for message in messages if message["role"] != "system"]
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return Task.from_row({**self.row, "prompt": messages}, id=self.id or "")


class ToolgymTask(vf.Task[ToolgymData, vf.State, vf.TaskConfig]):
    """A task whose reward is the env's."""

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """Return the env's reward; raises ConfigError without one, so that verifiers drops the episode."""
        reward = trace.info.get(REWARD)
        if reward is None:
            raise ConfigError(
                "the episode has no reward: a deadline of verifiers broke it off, or it was not played by the harness "
                "'toolgym-v1', which alone plays these tasks"
            )
        return float(reward)


class ToolgymTaskset(vf.Taskset[ToolgymTask, ToolgymTasksetConfig]):
    """The tasks of an env, in a fixed order; without end if the env makes its tasks itself."""

    @property
    def INFINITE(self) -> bool:
        return self._source.size is None

    def load(self) -> Iterator[ToolgymTask]:
        """Yield the tasks; raises ConfigError or UnknownNameError if there is no such env, file or split."""
        size = self._source.size
        for index in itertools.count() if size is None else range(size):
            task = self._source.task(index)
            yield ToolgymTask(ToolgymData.of(task, self.config.env, self.config.env_kwargs), self.config.task)

    @cached_property
    def _source(self) -> TaskSource:
        config = self.config
        if not config.env:
            raise ConfigError('which env? Write env = "CodeInterpreter-v0" into [env.taskset]')
        factory = EnvFactory.of(config.env, config.env_kwargs)
        source = _own_tasks(factory) if config.file is None else load_tasks(config.file, columns=config.columns or None)
        splits = source.splits()
        if config.split not in splits:
            raise UnknownNameError(
                f"{config.env!r} has no split {config.split!r}{nearest(config.split, splits) or '.'} "
                f"Splits: {', '.join(splits)}"
            )
        return splits[config.split]


def _own_tasks(factory: EnvFactory) -> TaskSource:
    bridge = EventLoopThread(name="toolgym-verifiers")  # an event loop may run here already
    try:
        return bridge.run(factory.tasks(), _LOADING)
    finally:
        bridge.close()


def typed_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as verifiers types it: each call flat, its arguments as JSON text."""
    typed = {**message}
    if "tool_calls" in message:
        typed["tool_calls"] = [
            {
                "id": call["id"],
                "name": call["function"]["name"],
                "arguments": json.dumps(call["function"]["arguments"]),
            }
            for call in message["tool_calls"]
        ]
    return typed
