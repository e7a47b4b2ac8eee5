"""Where tasks come from."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, missing_file


class TaskSource(ABC):
    """Where an env draws its tasks from."""

    @abstractmethod
    def sample(self, rng: random.Random) -> Task:
        """Draw one task; the same state of `rng` gives the same task."""

    def take(self, count: int, *, seed: int = 0) -> list[Task]:
        """Draw `count` tasks; the same seed gives the same tasks."""
        rng = random.Random(seed)
        return [self.sample(rng) for _ in range(count)]


class TaskList(TaskSource):
    """Tasks from a list; `take` goes through it in order and around, `sample` draws at random."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        if not tasks:
            raise ConfigError("a list of tasks must not be empty")
        self.tasks = tuple(tasks)

    def sample(self, rng: random.Random) -> Task:
        return rng.choice(self.tasks)

    def take(self, count: int, *, seed: int = 0) -> list[Task]:
        return [self.tasks[number % len(self.tasks)] for number in range(count)]


def load_tasks(path: str | Path) -> TaskList:
    """Read a JSON Lines file with one row in verl's shape per line.

    Raises:
        UnknownNameError: the file does not exist; names the nearest one.
        ConfigError: a line is not valid; names the line.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise missing_file("task file", path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the task file {str(path)!r}: {error}") from error
    tasks = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ConfigError(f"expected a JSON object, got {type(row).__name__}")
            tasks.append(Task.from_row(row, id=str(number)))
        except json.JSONDecodeError as error:
            got = line.strip()[:60]
            raise ConfigError(f"{path}, line {number}: expected a JSON object, got {got!r}: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
    if not tasks:
        raise ConfigError(f"the task file {str(path)!r} holds no tasks")
    return TaskList(tasks)
