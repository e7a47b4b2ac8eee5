"""`Task`: one row to solve."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolgym.envs.tasks.images import COLUMN, with_images
from toolgym.envs.tasks.row_fields import mapping, messages_of, plain_row, tools_kwargs, whole_row
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.message import Message, require_content

_ROLES = ("system", "user", "assistant", "tool")
LEVEL_COLUMN = "curriculum_level"
"""Column of `extra_info` with the level of a curriculum that a task was drawn from."""

LEVEL_COLUMNS = (LEVEL_COLUMN, "level", "difficulty")
"""Columns of `extra_info` that curricula and data sets keep a task's difficulty in."""

_KWARGS = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")


@dataclass(frozen=True)
class Task:
    """One row to solve.

    Attributes:
        messages: the conversation that the episode begins with, in order.
        ground_truth: what a scorer compares with: any JSON value; None if the env needs none.
        tools_kwargs: for each tool's name, any of `create_kwargs`, `execute_kwargs`, `calc_reward_kwargs` and
            `release_kwargs`, as in verl's data sets.
        source: where the row comes from (verl's `data_source`).
        id: unique in its source.
        row: the whole row that the task was read from; empty for a task that was not. Not compared.
        folder: the folder that paths of images in the row are relative to. Not compared.
    """

    messages: tuple[Message, ...]
    ground_truth: Any = None
    tools_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: str = ""
    id: str = ""
    row: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    folder: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.messages:
            raise ConfigError("a task needs at least one message")
        if not isinstance(self.messages, Sequence) or not all(
            isinstance(message, Mapping) for message in self.messages
        ):
            raise ConfigError(
                "a task's messages must be a tuple of {'role': ..., 'content': ...}, got "
                f"{shorten(repr(self.messages))}"
            )
        if not isinstance(self.tools_kwargs, Mapping):
            raise ConfigError(f"a task's tools_kwargs must map names of tools to arguments, got {self.tools_kwargs!r}")
        for place, message in enumerate(self.messages):
            if message.get("role") not in _ROLES or not isinstance(message.get("content"), str | list):
                raise ConfigError(
                    f"prompt[{place}], a task's message, needs a role out of {', '.join(_ROLES)} and a text content, "
                    f"got {shorten(repr(message))}"
                )
            require_content(message["content"])
            if not _are_calls(message.get("tool_calls", [])):
                raise ConfigError(
                    f"prompt[{place}].tool_calls must be a list of {{'id', 'type': 'function', 'function': {{'name', "
                    f"'arguments': {{...}}}}}}, got {shorten(repr(message))}"
                )
        for name, kwargs in self.tools_kwargs.items():
            if not isinstance(kwargs, Mapping) or not all(
                isinstance(kwargs.get(key), Mapping | None) for key in _KWARGS
            ):
                raise ConfigError(
                    f"a task's tools_kwargs[{name!r}] must map any of {', '.join(_KWARGS)} to named arguments, "
                    f"got {kwargs!r}"
                )

    @property
    def extra_info(self) -> Mapping[str, Any]:
        """`extra_info` of the row, where data sets keep their own columns."""
        return mapping("extra_info", self.row.get("extra_info"))

    @property
    def level(self) -> str:
        """The difficulty that its row names, in the first of `LEVEL_COLUMNS` in `extra_info` that holds a number or a
        text; empty if none does."""
        values = (self.extra_info.get(column) for column in LEVEL_COLUMNS)
        return next((str(value) for value in values if isinstance(value, int | float | str)), "")

    @classmethod
    def from_row(cls, row: Mapping[str, Any], *, id: str = "", from_arrow: bool = False, folder: str = "") -> Task:
        """Read a row in verl's shape.

        `prompt` (a list of messages) is required; `reward_model.ground_truth`, `data_source`, `extra_info.tools_kwargs`
        and `extra_info.index` are used if they are there. Everything else stays in `row`. `reward_model`, `extra_info`
        and `tools_kwargs` may be JSON texts. Of a row with a column `toolgym_task`, only that is read: a whole row as
        JSON. Images stand in the messages' contents, or in a column `images`, as `with_images` says.

        Args:
            row: the row, as a mapping of Python's values, or as pandas, polars, pyarrow and `datasets` give rows. It is
                kept, so do not change it afterwards.
            id: the task's id if the row has no `extra_info.index`.
            from_arrow: the row is one of an Arrow table (Parquet, `datasets`), in which None stands for what the row
                has not: arguments that are None are left out of `tools_kwargs` and of calls in the prompt.
            folder: the folder that paths of images are relative to.

        Raises:
            ConfigError: the row does not have that shape; names the field.
        """
        if not isinstance(row, Mapping):
            raise ConfigError(f"a task row must be a mapping, got {shorten(repr(row))}")
        row, is_of_frame = plain_row(row)
        stored, row = row, whole_row(row)
        from_arrow = (
            from_arrow or is_of_frame
        ) and row is stored  # the JSON of `toolgym_task` has no more than the row had
        prompt = row.get("prompt")
        if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not prompt:
            raise ConfigError(f"a task row needs 'prompt', a list of messages; got {prompt!r}")
        if not all(isinstance(message, Mapping) for message in prompt):
            raise ConfigError(f"'prompt' must be a list of messages {{'role', 'content'}}; got {prompt!r}")
        extra = mapping("extra_info", row.get("extra_info"))
        index = extra.get("index")
        return cls(
            messages=with_images(messages_of(prompt, from_arrow=from_arrow), row.get(COLUMN), folder),
            ground_truth=mapping("reward_model", row.get("reward_model")).get("ground_truth"),
            tools_kwargs=tools_kwargs(extra.get("tools_kwargs"), from_arrow=from_arrow),
            source=str(row.get("data_source") or ""),
            id=id if index is None else str(index),
            row=row,
            folder=folder,
        )

    def to_row(self) -> dict[str, Any]:
        """The task as a row in verl's shape; `from_row` reads it back equal.

        A task that was read from a row gives an equal row, with all keys and types, apart from what was changed since,
        as by `dataclasses.replace`. A row that has no `tools_kwargs` stands for a task without.
        """
        before = Task.from_row(self.row, id=self.id, folder=self.folder) if self.row else None
        row = copy.deepcopy(dict(self.row))
        if before is None:
            row["reward_model"] = {"style": "rule"}
        if before is None or (self.messages != before.messages and self.messages != _messages_from_arrow(self)):
            row["prompt"] = [dict(message) for message in self.messages]
            row.pop(COLUMN, None)  # the messages have them
        if before is None or not _same(self.ground_truth, before.ground_truth):
            model = mapping("reward_model", row.get("reward_model"))
            row["reward_model"] = {**model, "ground_truth": copy.deepcopy(self.ground_truth)}
        if before is None or self.source != before.source:
            row["data_source"] = self.source
        if before is None or self.id != before.id:
            row["extra_info"] = {**mapping("extra_info", row.get("extra_info")), "index": self.id}
        known = [{}] if before is None else [before.tools_kwargs, _read_from_arrow(self.row)]
        if self.tools_kwargs not in known:
            kwargs = {name: copy.deepcopy(dict(value)) for name, value in self.tools_kwargs.items()}
            row["extra_info"] = {**mapping("extra_info", row.get("extra_info")), "tools_kwargs": kwargs}
            if not kwargs:
                del row["extra_info"]["tools_kwargs"]  # a struct without fields cannot be written to Parquet
        return row

    def to_json_row(self) -> dict[str, Any]:
        """As `to_row`, but that images of a column stand in the messages: JSON has no bytes, and a path would be
        relative to another folder."""
        row = self.to_row()
        if row.get(COLUMN):
            row["prompt"] = [dict(message) for message in self.messages]
            del row[COLUMN]
        return row


def task_seed(task: Task) -> int:
    """Return a seed of 63 bits that depends on the task alone: its id, its source and its messages.

    It seeds the env for a caller that has neither a seed nor the id of a group, so that all episodes of a task begin in
    the same state.
    """
    text = repr((task.id, task.source, task.messages))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big") >> 1


def _messages_from_arrow(task: Task) -> tuple[Message, ...]:
    row = whole_row(task.row)
    return with_images(messages_of(row["prompt"], from_arrow=True), row.get(COLUMN), task.folder)


def _read_from_arrow(row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return tools_kwargs(mapping("extra_info", row.get("extra_info")).get("tools_kwargs"), from_arrow=True)


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal with their types: 1 is not 1.0 here, nor true."""
    if type(value) is not type(other):
        return False
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(_same(inner, other[key]) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(_same, value, other))
    return bool(value == other) or value is other


def _are_calls(calls: Any) -> bool:
    """Whether these are `tool_calls` as chat templates take them."""
    if not isinstance(calls, list):
        return False
    functions = [call.get("function") if isinstance(call, Mapping) else None for call in calls]
    return all(
        isinstance(function, Mapping)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), Mapping)
        for function in functions
    )
