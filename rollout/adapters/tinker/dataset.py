"""An env's tasks as tinker-cookbook's data set: groups of `ToolgymEnv`s, made where they are played."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.sources import TaskList
from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.tinker.contract import chz, types
from toolgym.rollout.adapters.tinker.env import ToolgymEnv, require_usable
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, require_whole_number

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class ToolgymGroupBuilder(types.EnvGroupBuilder):  # type: ignore[misc]  # tinker-cookbook may be missing
    """Makes the envs of one task's group, with the settings of `ToolgymDatasetBuilder`. Another process may get it."""

    env: str | Callable[[], BaseEnv]
    task: Task
    tokenizer: str
    group_size: int
    max_trajectory_tokens: int
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    config: RunConfig = field(default_factory=RunConfig)
    task_index: int = 0

    def __post_init__(self) -> None:
        self._envs: list[ToolgymEnv] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_envs": []}

    async def make_envs(self) -> list[ToolgymEnv]:
        """Make the envs of one group. Nothing starts before `initial_observation`."""
        factory = EnvFactory.of(self.env, self.env_kwargs or None)
        tokenizer = await in_thread(_tokenizer, self.tokenizer)
        envs = [
            ToolgymEnv(
                factory,
                self.task,
                tokenizer=tokenizer,
                max_trajectory_tokens=self.max_trajectory_tokens,
                config=self.config,
                task_index=self.task_index,
                sample_index=number,
            )
            for number in range(self.group_size)
        ]
        self._envs += envs
        return envs

    async def cleanup(self) -> None:
        """End the episodes that still play. tinker-cookbook calls it when the group is over, whatever happened."""
        envs, self._envs = self._envs, []
        await asyncio.gather(*(env.close() for env in envs))

    def logging_tags(self) -> list[str]:
        return [EnvFactory.of(self.env).env_id]


class ToolgymDataset(types.RLDataset):  # type: ignore[misc]  # tinker-cookbook may be missing
    """Group builders in batches; the last batch may be smaller."""

    def __init__(self, builders: Sequence[ToolgymGroupBuilder], batch_size: int) -> None:
        require_whole_number("batch_size", batch_size, at_least=1)
        self._builders, self._batch_size = list(builders), batch_size

    def get_batch(self, index: int) -> list[ToolgymGroupBuilder]:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        return self._builders[index * self._batch_size : (index + 1) * self._batch_size]

    def __len__(self) -> int:
        return -(-len(self._builders) // self._batch_size)


@chz.chz
class ToolgymDatasetBuilder(types.RLDatasetBuilder):  # type: ignore[misc]  # tinker-cookbook may be missing
    """The training set of an env, and a test set with other tasks: `dataset_builder` of tinker-cookbook's `Config`.

    Attributes:
        env: an env id, or a function of a module that makes an env.
        tokenizer: folder or hub name of the model's tokenizer.
        num_tasks: tasks of the training set.
        batch_size: tasks of one training step.
        group_size: episodes per task.
        max_trajectory_tokens: most tokens of prompt and response together. `max_tokens` of the `Config` bounds a turn.
        num_test_tasks: tasks of the test set, with one episode each; 0: there is no test set.
        tasks: the tasks, those of the test set last; None: drawn from the env's own.
        env_kwargs: for `toolgym.make`, when `env` is an id.
        config: see `ToolgymEnv`.
        seed: tasks and envs depend on it.

    Raises:
        UnknownNameError: no env has that id; names the nearest one.
        ConfigError: an argument is of the wrong kind, there are too few tasks, or the env has none of its own.
    """

    env: str | Callable[[], BaseEnv]
    tokenizer: str
    num_tasks: int
    batch_size: int
    group_size: int
    max_trajectory_tokens: int
    num_test_tasks: int = 0
    tasks: Sequence[Task] | None = None
    env_kwargs: Mapping[str, Any] = chz.field(default_factory=dict)
    config: RunConfig = chz.field(default_factory=RunConfig)
    seed: int = 0

    async def __call__(self) -> tuple[ToolgymDataset, ToolgymDataset | None]:
        for name, least in {"num_tasks": 1, "batch_size": 1, "group_size": 1, "num_test_tasks": 0, "seed": 0}.items():
            require_whole_number(name, getattr(self, name), at_least=least)
        require_usable(self.config, self.max_trajectory_tokens)
        config = self.config if self.config.seed is not None else replace(self.config, seed=self.seed)
        factory = EnvFactory.of(self.env, self.env_kwargs or None)
        source = await factory.tasks() if self.tasks is None else TaskList(self.tasks)
        count = self.num_tasks + self.num_test_tasks
        if source.size is not None and source.size < count:
            raise ConfigError(f"num_tasks and num_test_tasks are {count} together, and there are {source.size} tasks")
        drawn = list(self.tasks)[:count] if self.tasks is not None else source.take(count, seed=self.seed)

        def builders(tasks: Sequence[Task], group_size: int, first: int) -> list[ToolgymGroupBuilder]:
            return [
                ToolgymGroupBuilder(
                    env=self.env,
                    task=task,
                    tokenizer=self.tokenizer,
                    group_size=group_size,
                    max_trajectory_tokens=self.max_trajectory_tokens,
                    env_kwargs=self.env_kwargs,
                    config=config,
                    task_index=first + number,
                )
                for number, task in enumerate(tasks)
            ]

        train = ToolgymDataset(builders(drawn[: self.num_tasks], self.group_size, 0), self.batch_size)
        if not self.num_test_tasks:
            return train, None
        test = builders(drawn[self.num_tasks :], 1, self.num_tasks)
        return train, ToolgymDataset(test, self.batch_size)


@functools.cache
def _tokenizer(source: str) -> PreTrainedTokenizerBase:
    return load_tokenizer(source)
