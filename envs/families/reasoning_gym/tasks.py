"""`ReasoningGymTasks`: the entries of one of reasoning-gym's generators as tasks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from toolgym.envs.families.reasoning_gym.generator import Generator, dataset
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import system, user

SYSTEM_PROMPT = "Solve the problem. End with your final answer, and nothing else, between <answer> and </answer>."

KEY = "reasoning_gym"
"""The key of a task's `extra_info` that says which entry of which generator the task is."""


class ReasoningGymTasks(TaskSource):
    """The entries of a generator as tasks, each made when it is drawn.

        tasks = ReasoningGymTasks("gcd", seed=1, level=2)
        tasks.task(0).messages[-1]["content"], tasks.task(0).ground_truth

    The same arguments give the same tasks. Five generators also depend on Python's own hash of texts, which differs
    between processes unless `PYTHONHASHSEED` is set: isomorphic_strings, knight_swap, polynomial_multiplication,
    ransom_note and word_ladder.

    Args:
        name: the generator's name in reasoning-gym.
        seed: what all tasks depend on.
        size: how many tasks there are.
        level: of the generator's curriculum, from 0 to `levels - 1`; or a level for some of its attributes by name.
            None: the generator's own defaults.
        config: further options of the generator, by name.

    Raises:
        UnknownNameError: there is no such generator, option or attribute; names the nearest one.
        ConfigError: the generator refuses an argument.
        MissingExtraError: reasoning-gym is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        seed: int = 0,
        size: int = 10_000,
        level: int | Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.generator = Generator.of(name, seed, size, level, config)
        dataset(self.generator)  # what it refuses is an error here, and not in the first episode

    @property
    def size(self) -> int:
        """The number of tasks."""
        return self.generator.size

    @property
    def levels(self) -> int:
        """The number of levels of the generator's curriculum; 0 if it has none."""
        return self.generator.levels

    def sample(self, rng: random.Random) -> Task:
        return self.task(rng.randrange(self.size))

    def task(self, index: int) -> Task:
        if not 0 <= index < self.size:
            raise IndexError(index)
        entry = self.generator.entry(index)
        place = {**self.generator.to_json(), "index": index}
        extra = {"index": f"{self.generator.name}-{self.generator.seed}-{index}", KEY: place}
        prompt = [dict(system(SYSTEM_PROMPT)), dict(user(entry["question"]))]
        return Task.from_row(verl_row(f"reasoning_gym/{self.generator.name}", prompt, entry["answer"], extra))


def entry_of(task: Task) -> tuple[Generator, dict[str, Any]]:
    """The generator of a task, and the entry that it was made of.

    Raises:
        ConfigError: the task is of no generator, or the entry is another one in this process.
    """
    place = task.extra_info.get(KEY)
    if not isinstance(place, Mapping) or not isinstance(place.get("index"), int):
        raise ConfigError(
            f"task {task.id!r} is none of `ReasoningGymTasks`: its extra_info[{KEY!r}] must say which entry of which "
            f"generator it is, got {place!r}"
        )
    generator = Generator.from_json(place)
    if not 0 <= place["index"] < generator.size:
        raise ConfigError(f"the generator of task {task.id!r} has {generator.size} entries, got index {place['index']}")
    entry = generator.entry(place["index"])
    if task.messages[-1]["content"] != entry["question"]:
        raise ConfigError(
            f"the generator {generator.name!r} gives another question than task {task.id!r} has: the row was changed, "
            "comes from another version of reasoning-gym, or the generator depends on PYTHONHASHSEED, which must then "
            "be set to the same number in every process"
        )
    return generator, entry
