"""`NamedSources`: the base of sources that are made of several others, and what they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

from toolgym.envs.tasks.row_fields import mapping
from toolgym.envs.tasks.sources import CountedTasks, TaskSource
from toolgym.envs.tasks.stored import TaskSubset
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, shorten


class NamedSources(TaskSource):
    """A source made of others by name; what it draws says in its `extra_info` which one it came from."""

    def __init__(
        self, argument: str, sources: Mapping[Any, TaskSource], *, each: str, names: str, types: tuple[type, ...]
    ) -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise ConfigError(f"{argument} must map each {each} to a TaskSource, got {shorten(repr(sources))}")
        for name, source in sources.items():
            if type(name) not in types or not isinstance(source, TaskSource):
                raise ConfigError(f"{argument} must map {names} to TaskSources, got {name!r}: {shorten(repr(source))}")
        self._sources = dict(sources)

    @abstractmethod
    def marked(self, task: Task, name: Any) -> Task:
        """Return a task of a source with its name, where a subclass keeps it."""

    @property
    def size(self) -> int | None:
        """The number of tasks of all sources together; None if one has no end."""
        sizes = [source.size for source in self._sources.values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def task(self, index: int) -> Task:
        """Return the task of a place in all sources, one behind the other."""
        if index < 0:
            raise IndexError(index)
        for name, source in self._sources.items():
            if source.size is None or index < source.size:
                return self.marked(source.task(index), name)
            index -= source.size
        raise IndexError(index)


def with_columns(task: Task, columns: Mapping[str, Any], **changes: Any) -> Task:
    """Return a task with these columns of `extra_info` besides its own, and with other `changes`."""
    row = task.row or task.to_row()
    extra = {**mapping("extra_info", row.get("extra_info")), **columns}
    return replace(task, row={**row, "extra_info": extra}, **changes)


def split_by_column(
    source: CountedTasks, column: str, types: type | tuple[type, ...], what: str
) -> dict[Hashable, TaskSubset]:
    """Return the tasks of each value of a column of `extra_info`, or of the row. Each task is read once, to find it.

    Raises `ConfigError` for a task whose value is not of `types`; `what` says what it must be."""
    places: dict[Hashable, list[int]] = {}
    for place, task in enumerate(source):
        value = task.extra_info.get(column, task.row.get(column))
        if not isinstance(value, types) or isinstance(value, bool):
            raise ConfigError(
                f"task {task.id!r} (number {place + 1}): extra_info.{column} must be {what}, got {value!r}"
            )
        places.setdefault(value, []).append(place)
    return {value: TaskSubset(source, places[value]) for value in places}
