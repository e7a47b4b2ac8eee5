"""`Task`: one row to solve, and where tasks come from."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.message import Message

_ROLES = ("system", "user", "assistant", "tool")
_KWARGS = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")


@dataclass(frozen=True)
class Task:
    """One row to solve.

    Attributes:
        messages: the conversation that the episode begins with, in order.
        ground_truth: what a scorer compares with; None where the env needs none.
        tools_kwargs: for each tool's name, any of `create_kwargs`, `execute_kwargs`, `calc_reward_kwargs` and
            `release_kwargs`, as in verl's data sets.
        source: where the row comes from (verl's `data_source`).
        id: unique in its source.
    """

    messages: tuple[Message, ...]
    ground_truth: str | None = None
    tools_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        if not self.messages:
            raise ConfigError("a task needs at least one message")
        for message in self.messages:
            if message.get("role") not in _ROLES or not isinstance(message.get("content"), str):
                raise ConfigError(
                    f"a task's message needs a role out of {', '.join(_ROLES)} and a text content, got {message!r}"
                )
            if not _are_calls(message.get("tool_calls", [])):
                raise ConfigError(
                    "tool_calls of a task's message must be a list of {'id', 'type': 'function', 'function': {'name', "
                    f"'arguments': {{...}}}}}}, got {message!r}"
                )
        for name, kwargs in self.tools_kwargs.items():
            if not isinstance(kwargs, Mapping) or not all(
                isinstance(kwargs.get(key), Mapping | None) for key in _KWARGS
            ):
                raise ConfigError(
                    f"a task's tools_kwargs[{name!r}] must map any of {', '.join(_KWARGS)} to named arguments, "
                    f"got {kwargs!r}"
                )

    @classmethod
    def from_row(cls, row: Mapping[str, Any], *, id: str = "") -> Task:
        """Read a row in verl's shape.

        `prompt` (a list of messages) is required; `reward_model.ground_truth`, `data_source`,
        `extra_info.tools_kwargs` and `extra_info.index` are used where present.

        Raises:
            ConfigError: the row does not have that shape.
        """
        prompt = row.get("prompt")
        if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not prompt:
            raise ConfigError(f"a task row needs 'prompt', a list of messages; got {prompt!r}")
        if not all(isinstance(message, Mapping) for message in prompt):
            raise ConfigError(f"'prompt' must be a list of messages {{'role', 'content'}}; got {prompt!r}")
        extra = _mapping("extra_info", row.get("extra_info"))
        truth = _mapping("reward_model", row.get("reward_model")).get("ground_truth")
        kwargs = _mapping("extra_info.tools_kwargs", extra.get("tools_kwargs"))
        return cls(
            messages=tuple(cast(Message, dict(message)) for message in prompt),
            ground_truth=None if truth is None else str(truth),
            # Arrow fills tools that a row does not use with None when it unites rows.
            tools_kwargs={name: value for name, value in kwargs.items() if value is not None},
            source=str(row.get("data_source") or ""),
            id=str(extra.get("index", id)),
        )

    def to_row(self) -> dict[str, Any]:
        """The row in verl's shape; `from_row` reads it back."""
        return {
            "prompt": [dict(message) for message in self.messages],
            "reward_model": {"style": "rule", "ground_truth": self.ground_truth},
            "data_source": self.source,
            "extra_info": {
                "index": self.id,
                "tools_kwargs": {k: dict(v) for k, v in self.tools_kwargs.items()},
            },
        }


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name!r} of a task row must be an object, got {value!r}")
    return value


def _are_calls(calls: Any) -> bool:
    """Whether these are `tool_calls` as chat templates take them."""
    if not isinstance(calls, list):
        return False
    functions = [one.get("function") if isinstance(one, Mapping) else None for one in calls]
    return all(
        isinstance(one, Mapping) and isinstance(one.get("name"), str) and isinstance(one.get("arguments"), Mapping)
        for one in functions
    )


class TaskSource(ABC):
    """Where an env draws its tasks from."""

    @abstractmethod
    def sample(self, rng: random.Random) -> Task:
        """Draw one task; the same state of `rng` gives the same task."""

    def take(self, count: int, *, seed: int = 0) -> list[Task]:
        """Draw `count` tasks, reproducibly."""
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
    """Read a JSON Lines file with one verl-shaped row a line.

    Raises:
        UnknownNameError: there is no such file; names the nearest one.
        ConfigError: a line is not valid; names the line.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        siblings = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UnknownNameError(f"no task file at {str(path)!r}{nearest(path.name, siblings)}") from None
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
