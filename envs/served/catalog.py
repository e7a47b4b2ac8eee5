"""The envs that a server offers, each with its tasks and its tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolgym.envs.base import BaseEnv, require_growing_context
from toolgym.envs.registry import EnvSpec, spec
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, ToolgymError, UnknownNameError, error_text, nearest
from toolgym.tools.schema import ToolSchema

ANSWER_ARGUMENT = "answer"
"""Name of the answer tool's only argument."""

_ANSWER = (
    "Say this without calling a tool: your final answer, in the form that the task asks for, or your next message to "
    "the user. A final answer ends the episode."
)
_ANSWER_PARAMETERS = {
    "type": "object",
    "properties": {ANSWER_ARGUMENT: {"type": "string", "description": "What you say, as text."}},
    "required": [ANSWER_ARGUMENT],
}


@dataclass(frozen=True)
class TaskPlace:
    """The task of an episode, if the env has any, else its seed: the index.

    Clients see those columns of the task's row that `fields` names.
    """

    split: str
    index: int
    task: Task | None
    fields: tuple[str, ...] = ()

    @property
    def spec(self) -> dict[str, Any]:
        """Description of the task for clients. Its ground truth, and what is not in `fields`, stay here."""
        spec: dict[str, Any] = {}
        if self.task is not None:
            row = {**self.task.row, **self.task.extra_info}
            spec = {name: row.get(name) for name in self.fields}
            spec |= {"id": self.task.id, "source": self.task.source}
        return spec | {"split": self.split, "index": self.index}


@dataclass(frozen=True)
class ServedEnv:
    """One env that is offered, with the arguments that it is made with, and its task sources by split.

    A split without end has `endless` tasks. Clients see those columns of a task's row that `fields` names.
    """

    spec: EnvSpec
    kwargs: Mapping[str, Any]
    tools: list[ToolSchema]
    splits: Mapping[str, TaskSource]
    answer_tool: ToolSchema | None
    endless: int
    fields: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def split_names(self) -> list[str]:
        return list(self.splits) or ["train"]

    def with_answer(self, tools: list[ToolSchema]) -> list[ToolSchema]:
        """Return tools of the policy, and the answer tool."""
        return [*tools, *([self.answer_tool] if self.answer_tool is not None else [])]

    def make(self) -> BaseEnv:
        return self.spec.build({**self.spec.kwargs, **self.kwargs})

    def count(self, split: str) -> int:
        """Return how many tasks a split has. Raises UnknownNameError: there is no such split."""
        if split not in (names := self.split_names):
            raise UnknownNameError(
                f"{self.id!r} has no split {split!r}{nearest(split, names) or '.'} Splits: {', '.join(names)}"
            )
        source = self.splits.get(split)
        size = None if source is None else source.size
        return self.endless if size is None else size

    def place(self, split: str, index: int) -> TaskPlace:
        """Return a task of a split. Raises UnknownNameError: there is no such split, or no such place in it."""
        count = self.count(split)
        if not 0 <= index < count:
            raise UnknownNameError(f"the split {split!r} of {self.id!r} has the tasks 0 to {count - 1}, not {index}")
        source = self.splits.get(split)
        return TaskPlace(split, index, None if source is None else source.task(index), self.fields)

    def place_of_spec(self, spec: Mapping[str, Any]) -> TaskPlace:
        """Return the task that `TaskPlace.spec` describes. Raises ConfigError: that place has another task here."""
        split, index = spec.get("split"), spec.get("index")
        if not isinstance(split, str) or not isinstance(index, int) or isinstance(index, bool):
            raise ConfigError(f"a task of this server has a 'split' and an 'index', got {dict(spec)!r}")
        place = self.place(split, index)
        if "id" in spec and spec["id"] != place.spec.get("id"):
            raise ConfigError(
                f"task {index} of {split!r} is {place.spec.get('id')!r} here, not {spec['id']!r}: it was listed by a "
                "server with other tasks"
            )
        return place


class Catalog:
    """The envs that are offered, found by id in any case; the first is the default."""

    def __init__(self, envs: Iterable[ServedEnv]) -> None:
        self.envs = list(envs)
        if not self.envs:
            raise ConfigError("name at least one env to serve, such as CodeInterpreter-v0 (`toolgym envs` lists them)")
        self._by_name = {env.id.lower(): env for env in self.envs}
        if len(self._by_name) < len(self.envs):
            raise ConfigError(f"two of these envs have the same id: {', '.join(env.id for env in self.envs)}")

    def find(self, name: str) -> ServedEnv:
        served = self._by_name.get(name.lower())
        if served is None:
            known = [env.id for env in self.envs]
            raise UnknownNameError(
                f"this server has no env {name[:80]!r}{nearest(name, known) or '.'} Its envs: {', '.join(known)}"
            )
        return served


async def load_env(
    name: str, kwargs: Mapping[str, Any], *, answer_tool: str | None, endless: int, fields: tuple[str, ...] = ()
) -> ServedEnv:
    """Make an env once, and return it as one that can be offered. Raises ConfigError: it cannot be made."""
    try:
        env_spec = spec(name)
        env = env_spec.build({**env_spec.kwargs, **kwargs})
    except ToolgymError as error:
        raise ConfigError(f"env {name!r}: {error}") from error
    except Exception as error:
        raise ConfigError(f"env {name!r} cannot be made: {error_text(error)}") from error
    async with env:
        require_growing_context(env, "a client of a server of envs")
        tools, source = env.tool_schemas, getattr(env, "tasks", None)
    if any(tool.name == answer_tool for tool in tools):
        raise ConfigError(f"env {name!r} has a tool {answer_tool!r} of its own: set answer_tool to another name")
    splits = source.splits() if isinstance(source, TaskSource) else {}
    answer = None if answer_tool is None else ToolSchema(answer_tool, _ANSWER, _ANSWER_PARAMETERS)
    return ServedEnv(env_spec, kwargs, tools, splits, answer, endless, fields)


def listed(tools: Iterable[ToolSchema], schema_key: str = "input_schema") -> list[dict[str, Any]]:
    """Return tools as clients read them."""
    return [{"name": tool.name, "description": tool.description, schema_key: dict(tool.parameters)} for tool in tools]
