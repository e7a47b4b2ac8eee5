"""`DataRecord`: one record of a data set, whose fields are checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolgym.tools.errors import ConfigError, ToolgymError, nearest, shorten


class UnusableRecordError(ToolgymError):
    """A record that its data set is known to have and that makes no task; says why."""


@dataclass(frozen=True)
class DataRecord:
    """One record, with its fields as the file has them."""

    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """A field that is a text. Raises ConfigError: it is missing, or something else."""
        value = self._required(name)
        if not isinstance(value, str):
            raise ConfigError(f"field {name!r} must be a text, got {shorten(repr(value), 60)}")
        return value

    def texts(self, name: str) -> list[str]:
        """A field that is a list of one text or more. Raises ConfigError: it is missing, or something else."""
        value = self._required(name)
        if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
            raise ConfigError(f"field {name!r} must be a list of texts, got {shorten(repr(value), 60)}")
        return value

    def first_of(self, *names: str) -> str:
        """The first of these names that the record has. Raises ConfigError: it has none of them."""
        for name in names:
            if self.fields.get(name) is not None:
                return name
        self._required(names[0])
        raise ConfigError(f"field {names[0]!r} is empty")

    def some(self, *names: str) -> dict[str, Any]:
        """Those of these fields that the record has, as they are."""
        return {name: self.fields[name] for name in names if self.fields.get(name) is not None}

    def _required(self, name: str) -> Any:
        if name not in self.fields:
            known = shorten(", ".join(map(str, self.fields)))
            raise ConfigError(f"there is no field {name!r}{nearest(name, self.fields) or '.'} Fields: {known}")
        return self.fields[name]


@dataclass(frozen=True)
class Prepared:
    """The parts of a task.

    Attributes:
        question: the user's message.
        ground_truth: what the env's scorer compares with.
        id: the record's own, where it has one.
        split: the record's own, where it says one.
        extra_info: further fields of the record.
        tools_kwargs: what the env's tools are made with.
        interaction_kwargs: what verl's interactions are made with.
    """

    question: str
    ground_truth: Any
    id: str | None = None
    split: str | None = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    tools_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    interaction_kwargs: Mapping[str, Any] = field(default_factory=dict)
