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
    """One record. A field that is missing, or is something else than asked for, is a `ConfigError`."""

    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        value = self._required(name)
        if not isinstance(value, str):
            raise ConfigError(f"field {name!r} must be a text, got {shorten(repr(value), 60)}")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._required(name)
        if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
            raise ConfigError(f"field {name!r} must be a list of texts, got {shorten(repr(value), 60)}")
        return value

    def first_of(self, *names: str) -> str:
        """The first of these names that the record has."""
        for name in names:
            if self.fields.get(name) is not None:
                return name
        self._required(names[0])
        raise ConfigError(f"field {names[0]!r} is empty")

    def some(self, *names: str) -> dict[str, Any]:
        """Those of these fields that the record has."""
        return {name: self.fields[name] for name in names if self.fields.get(name) is not None}

    def _required(self, name: str) -> Any:
        if name not in self.fields:
            known = shorten(", ".join(map(str, self.fields)))
            raise ConfigError(f"there is no field {name!r}{nearest(name, self.fields) or '.'} Fields: {known}")
        return self.fields[name]


@dataclass(frozen=True)
class Prepared:
    """The parts of a task; `id` and `split` are the record's own, if it has them."""

    question: str
    ground_truth: Any
    id: str | None = None
    split: str | None = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    tools_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    interaction_kwargs: Mapping[str, Any] = field(default_factory=dict)
