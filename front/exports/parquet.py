"""Trajectories as a Parquet file with a type for each column, a row each."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from toolgym.exports.row_model import MessageRow, TrajectoryRow
from toolgym.exports.writing import Options, Tally, encodable
from toolgym.rollout.trajectory.summary import succeeded
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.lazy import missing_extra

try:
    import pyarrow
    import pyarrow.parquet
except ImportError as error:
    raise missing_extra("export", "A Parquet file", error) from error

ROWS, TOKENS = 512, 2_000_000
"""Trajectories, and tokens, after which a group of rows is written, so that memory stays bounded."""

_SCALARS = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
_ANYTHING = ("gts", "sampling", "metrics", "settings")
_TOKENS = {
    "prompt_ids": pyarrow.int32(), "response_ids": pyarrow.int32(), "response_mask": pyarrow.int8(),
    "logprobs": pyarrow.float64(), "weight_versions": pyarrow.string(),
}  # fmt: skip


def write(trajectories: Iterable[Trajectory], path: Path, options: Options, tally: Tally) -> None:
    rows: list[dict[str, Any]] = []
    tokens = 0
    with pyarrow.parquet.ParquetWriter(path, arrow_schema(), compression="zstd") as writer:
        for trajectory in trajectories:
            rows.append(_row(trajectory, tally))
            tokens += sum(len(sequence.prompt_ids) + sequence.response_tokens for sequence in trajectory.sequences)
            tally.written += 1
            if len(rows) >= ROWS or tokens >= TOKENS:
                writer.write_table(_table(rows))
                rows, tokens = [], 0
        writer.write_table(_table(rows))


def arrow_schema() -> pyarrow.Schema:
    """The columns of `TrajectoryRow`, `success` and `policy_tokens`; tokens by context, not by segment."""
    columns = {field.alias or name: _type(field.annotation) for name, field in TrajectoryRow.model_fields.items()}
    lists = [(name, pyarrow.list_(kind)) for name, kind in _TOKENS.items()]
    columns["sequences"] = pyarrow.list_(pyarrow.struct([*lists, ("start_reason", pyarrow.string())]))
    return pyarrow.schema({**columns, "success": pyarrow.bool_(), "policy_tokens": pyarrow.int64()}.items())


def _type(annotation: Any) -> pyarrow.DataType:
    """The type of a column. What may hold anything is a JSON text."""
    if get_origin(annotation) in (Union, types.UnionType):
        return _type(get_args(annotation)[0])  # or null, which any column may hold
    if get_origin(annotation) is list:
        return pyarrow.list_(_type(get_args(annotation)[0]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pyarrow.struct([(name, _type(field.annotation)) for name, field in annotation.model_fields.items()])
    return _SCALARS.get(annotation, pyarrow.string())


def _row(trajectory: Trajectory, tally: Tally) -> dict[str, Any]:
    row = trajectory.to_json()
    parts = [part for sequence in trajectory.sequences for part in sequence.segments]
    tally.lose("payloads of tokens", any(part.aligned for part in parts))
    known = set(MessageRow.model_fields)
    tally.lose("further keys of messages", any(set(message) - known for message in row["messages"]))
    for message in row["messages"]:
        if isinstance(message["content"], list):  # with images: a column has one type
            message["content"] = json.dumps(message["content"])
    for turn in row["turns"]:
        turn["sampling"] = json.dumps(turn.get("sampling", {}), ensure_ascii=False)
    texts = {name: json.dumps(row[name], ensure_ascii=False) for name in _ANYTHING}
    derived = {"success": succeeded(trajectory), "policy_tokens": trajectory.policy_tokens}
    missing = {"peers": [], "images": [], "level": ""}
    return {**missing, **row, **texts, **derived, "sequences": [*map(_context, trajectory.sequences)]}


def _context(sequence: TokenSequence) -> dict[str, Any]:
    return {name: getattr(sequence, name) for name in (*_TOKENS, "start_reason")}


def _table(rows: list[dict[str, Any]]) -> pyarrow.Table:
    try:
        return pyarrow.Table.from_pylist(rows, schema=arrow_schema())
    except UnicodeEncodeError:
        return pyarrow.Table.from_pylist(encodable(rows), schema=arrow_schema())
