"""Fields of a row in verl's shape, as a file may hold them: as objects, as JSON texts, or united by Arrow."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.errors import ConfigError, shorten

ENV_COLUMN = "env_id"
"""Column of a row, or of its `extra_info`, with the id of the env that plays it."""

TASK_COLUMN = "toolgym_task"
"""Column of a data set that holds a whole task, as JSON of its row; a table cannot hold rows of different shapes."""


def verl_row(
    source: str, prompt: Any, ground_truth: Any, extra_info: Mapping[str, Any], **columns: Any
) -> dict[str, Any]:
    truth = {"style": "rule", "ground_truth": ground_truth}
    return {"data_source": source, "prompt": prompt, **columns, "reward_model": truth, "extra_info": dict(extra_info)}


def plain_row(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return a row with Python's own values, and whether the row is of an Arrow table, in which None fills gaps.

    pandas and polars read nested columns of a Parquet file as arrays and series, numbers as NumPy's, and what a row
    does not have as NaN, `NA` or `NaT`. pyarrow has scalars of its own. A row of plain values is returned as it is.

    pandas makes floats of whole numbers in a nested column in which some rows have nothing. In `extra_info`, which has
    the row's index and arguments of tools, such floats become whole numbers again.
    """
    if type(row) is dict and _is_plain(row):
        return row, False
    plain = _plain(row)
    if plain is row:
        return row, False
    if isinstance(plain.get("extra_info"), Mapping):
        plain = {**plain, "extra_info": _with_whole_numbers(plain["extra_info"])}
    return plain, True


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _with_whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return value


_ATOMS = frozenset({str, int, bool, type(None), bytes})


def _is_plain(value: Any) -> bool:
    """Whether a value is made of Python's own types; a quick look at most rows."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is float:
        return bool(value == value)
    if kind is dict:
        return all(type(inner) in _ATOMS or _is_plain(inner) for inner in value.values())
    if kind is list:
        return all(type(inner) in _ATOMS or _is_plain(inner) for inner in value)
    return False


def _plain(value: Any) -> Any:
    """Return a value made of Python's own types; the same object if it is made of them already."""
    kind = type(value)
    if kind in _ATOMS or kind is float:
        return value
    for name in _CONVERSIONS.get(kind.__module__.partition(".")[0], ()):
        convert = getattr(value, name, None)
        if callable(convert):
            return _plain(convert())
    if isinstance(value, Mapping):
        items = [(key, inner, None if _is_missing(inner) else _plain(inner)) for key, inner in value.items()]
        same = all(inner is plain for _, inner, plain in items)
        return value if same else {_key(key): plain for key, _, plain in items}
    if isinstance(value, list | tuple):
        plain_items = [_plain(item) for item in value]
        same = all(map(operator.is_, value, plain_items))
        return value if same else plain_items
    return value


_CONVERSIONS = {
    "numpy": ("tolist",),
    "pandas": ("tolist",),
    "polars": ("to_list",),
    "pyarrow": ("as_py", "to_pylist"),
    "torch": ("tolist",),
}
"""The methods that give values as Python's own, by the package that the value's type is from."""


def _key(key: Any) -> Any:
    return key.item() if type(key).__module__ == "numpy" else key


def _is_missing(value: Any) -> bool:
    """Whether a data frame's value stands for one that is missing: NaN, `NaT` or `NA`."""
    if isinstance(value, float):  # NumPy's too
        return value != value
    return type(value).__name__ in ("NAType", "NaTType")


def whole_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row that the column `toolgym_task` holds as JSON; the row itself if it has no such column."""
    stored = row.get(TASK_COLUMN)
    if stored is None:
        return row
    whole = stored
    if isinstance(stored, str):
        try:
            whole = json.loads(stored)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the column {TASK_COLUMN!r} must hold a task's row as JSON: {error}") from error
    if not isinstance(whole, Mapping):
        raise ConfigError(f"the column {TASK_COLUMN!r} must hold a task's row as JSON, got {shorten(repr(stored))}")
    return whole


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """A field that is an object, or a JSON text that holds one; empty if it is missing."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} is a text that is no JSON ({error}): {shorten(repr(value))}") from error
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be an object, or a JSON text that holds one, got {shorten(repr(value))}")
    return value


def messages_of(prompt: Sequence[Mapping[str, Any]], *, from_arrow: bool) -> list[dict[str, Any]]:
    """The messages of a row. Arguments of tool calls may be JSON texts, as OpenAI has them.

    A message `from_arrow` has the keys of all messages, and the arguments of each call those of all calls: None stands
    for what is missing, and is left out.
    """
    # Rows that were read in other ways than from a table have None for a missing key of a message as well.
    messages = [{key: value for key, value in message.items() if value is not None} for message in prompt]
    return [
        {**message, "tool_calls": [_call(call, place, from_arrow) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list | tuple)
        else message
        for place, message in enumerate(messages)
    ]


def _call(call: Any, place: int, from_arrow: bool) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = mapping(f"arguments of a call in prompt[{place}].tool_calls", arguments)
    elif from_arrow:
        arguments = _without_missing(arguments or {})
    call = {**call, "function": {**function, "arguments": arguments}}
    return {key: value for key, value in call.items() if value is not None} if from_arrow else call


def _without_missing(value: Any) -> Any:
    """A value without the keys of objects that are None, at any depth."""
    if isinstance(value, Mapping):
        return {key: _without_missing(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_missing(item) for item in value]
    return value


def tools_kwargs(value: Any, *, from_arrow: bool) -> dict[str, Mapping[str, Any]]:
    """`extra_info.tools_kwargs`: from each tool's name to its kwargs, of which any level may be a JSON text.

    A row `from_arrow` has the keys of all rows, None for those that it lacks. A tool would be called with arguments
    that it does not know, so None is left out at each level.
    """
    name = "extra_info.tools_kwargs"
    by_tool: dict[str, Mapping[str, Any]] = {}
    for tool, of_tool in mapping(name, value).items():
        if of_tool is None:
            continue
        kinds = {
            kind: kwargs if kwargs is None else mapping(f"{name}[{tool!r}][{kind!r}]", kwargs)
            for kind, kwargs in mapping(f"{name}[{tool!r}]", of_tool).items()
        }
        by_tool[tool] = _without_none(kinds) if from_arrow else kinds
    return by_tool


def _without_none(kinds: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    return {
        kind: {name: value for name, value in kwargs.items() if value is not None}
        for kind, kwargs in kinds.items()
        if kwargs is not None
    }
