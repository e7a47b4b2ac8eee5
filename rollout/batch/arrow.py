"""Batches as rows of a data set: for the library `datasets`, and as Parquet files.

One row for each row of the batch, without padding. `FIELDS` names the columns, beside `id`, `group_id` and the payloads
as `aligned.NAME`; lists have one value for each token of the response. The tensors of a row's images are in `images`,
each with its name, dtype, shape and bytes.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolgym.rollout.batch.batch import Batch
from toolgym.rollout.batch.check import check_batch
from toolgym.rollout.batch.fields import FIELDS, aligned_field, payload_padding
from toolgym.rollout.batch.io import IMAGES, PREFIX, batch_of, metadata_of
from toolgym.rollout.batch.row import RowImages
from toolgym.rollout.trajectory.trajectory import Trajectory, plain
from toolgym.tools.errors import ConfigError, missing_file
from toolgym.tools.lazy import missing_package

if TYPE_CHECKING:
    import datasets
    import pyarrow

KEY = b"toolgym.batch"

_PLAIN = ("env_id", "task_id", "source", "role", "task_index", "sample_index", "training_step", "validate")


def _as_json(name: str) -> Callable[[Trajectory], str]:
    return lambda trajectory: json.dumps(plain(getattr(trajectory, name)), ensure_ascii=False)


TRAJECTORY_COLUMNS: Mapping[str, Callable[[Trajectory], Any]] = {
    **{name: operator.attrgetter(name) for name in _PLAIN},
    "stop_reason": operator.attrgetter("stop_reason.value"),
    **{name: _as_json(name) for name in ("messages", "tools", "ground_truth", "metrics")},
}
"""Columns that tell of each row's trajectory. Those that may be anything are JSON: a column has one type."""


def to_dataset(batch: Batch, trajectories: Sequence[Trajectory] | None = None) -> datasets.Dataset:
    """The rows of a batch as a `datasets.Dataset`, with `TRAJECTORY_COLUMNS` if its trajectories are given.

    Raises:
        MissingExtraError: the package `datasets` is not installed.
        BatchError: a row is of a trajectory that is not among those given.
        ConfigError: a payload has no values.
    """
    try:
        import datasets
    except ImportError as error:
        raise missing_package("datasets", "A batch as a data set", error) from error
    return datasets.Dataset(_table(batch, trajectories))


def to_parquet(batch: Batch, path: str | Path, trajectories: Sequence[Trajectory] | None = None) -> None:
    """Write the rows of a batch, and what belongs to the whole, to a Parquet file, as `to_dataset` does. Raises
    ConfigError also if the file cannot be written."""
    pyarrow = _pyarrow()
    widths = {"prompt": batch.prompts.shape[1], "response": batch.responses.shape[1]}
    whole = {**metadata_of(batch), "widths": widths}
    table = _table(batch, trajectories).replace_schema_metadata({KEY: json.dumps(whole)})
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(table, str(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"cannot write the batch to {str(path)!r}: {error}") from error


def from_parquet(path: str | Path) -> Batch:
    """Read a batch that `to_parquet` wrote, and check it, as `load_batch` does."""
    pyarrow, path = _pyarrow(), Path(path)
    if not path.exists():
        raise missing_file("batch", path)
    try:
        table = pyarrow.parquet.read_table(str(path))
        whole = json.loads((table.schema.metadata or {})[KEY])
        batch = batch_of(whole, _tensors(table, whole))
    except (OSError, pyarrow.ArrowException, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} is not a batch of toolgym: {type(error).__name__}: {error}") from error
    check_batch(batch)
    return batch


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", "A batch as a Parquet file", error) from error
    return pyarrow


def _table(batch: Batch, trajectories: Sequence[Trajectory] | None) -> pyarrow.Table:
    pyarrow, batch = _pyarrow(), batch.to("cpu")
    width = batch.prompts.shape[1]
    tokens = batch.attention_mask.numpy().astype(bool)
    columns: dict[str, Any] = {
        "id": pyarrow.array(batch.ids),
        "group_id": pyarrow.array([batch.groups[number] for number in batch.group_ids.tolist()]),
    }
    payloads = [aligned_field(name, value.numpy().dtype, 0) for name, value in batch.aligned.items()]
    tensors = batch.tensors()
    for item in (*FIELDS, *payloads):
        if item.column is not None:
            value = tensors[item.name].numpy()
            mask = tokens[:, :width] if item.place == "prompt" else tokens[:, width:]
            if 0 in value.shape[2:]:
                raise ConfigError(
                    f"{item.name} has no values, {list(value.shape)}; make the batch without it (aligned=)"
                )
            columns[item.column] = pyarrow.array(value) if item.place == "row" else _lists(value, mask)
    if batch.images:
        columns["images"] = pyarrow.array([_images_column(row) for row in batch.images])
    if trajectories is not None:
        owners = [trajectories[index] for index in batch.owners(trajectories)]
        columns |= {name: pyarrow.array(map(of, owners)) for name, of in TRAJECTORY_COLUMNS.items()}
    return pyarrow.table(columns)


def _images_column(images: RowImages) -> list[dict[str, Any]]:
    arrays = {name: value.numpy() for name, value in images.inputs.items()}
    return [
        {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "data": array.tobytes()}
        for name, array in arrays.items()
    ]


def _lists(values: NDArray[Any], mask: NDArray[np.bool_]) -> Any:
    pyarrow = _pyarrow()
    tokens = values[mask]
    flat = pyarrow.array(tokens.reshape(-1))
    for size in reversed(tokens.shape[1:]):
        flat = pyarrow.FixedSizeListArray.from_arrays(flat, size)
    offsets = np.concatenate([[0], mask.sum(axis=1).cumsum()]).astype(np.int32)
    return pyarrow.ListArray.from_arrays(offsets, flat)


def _tensors(table: pyarrow.Table, whole: Mapping[str, Any]) -> dict[str, Tensor]:
    """The batch's tensors from the columns: those that have none follow from the others."""
    prompts, responses = _lengths(table, "prompt_ids"), _lengths(table, "response_ids")
    widths, pad = whole["widths"], whole["pad_token_id"]
    attended = np.arange(widths["prompt"]) >= widths["prompt"] - prompts[:, None]
    answered = np.arange(widths["response"]) < responses[:, None]
    tensors: dict[str, NDArray[Any]] = {}
    for item in FIELDS:
        if item.column is None:
            continue
        values = _flat(table[item.column])
        if item.place == "row":
            tensors[item.name] = values
        else:
            padding = pad if item.padding == "pad_token_id" else item.padding
            tensors[item.name] = _padded(values, attended if item.place == "prompt" else answered, padding)
    for name in table.column_names:
        if name.startswith(PREFIX):
            values = _flat(table[name])
            tensors[name] = _padded(values, answered, payload_padding(torch.from_numpy(values).dtype))
    for row, parts in enumerate(table["images"].to_pylist() if "images" in table.column_names else ()):
        for part in parts:
            array = np.frombuffer(part["data"], dtype=part["dtype"]).reshape(part["shape"])
            tensors[f"{IMAGES}{row}.{part['name']}"] = array.copy()
    tokens = np.hstack([attended, answered]).astype(np.int64)
    tensors["attention_mask"] = tokens
    tensors["position_ids"] = (tokens.cumsum(axis=1) - 1) * tokens
    tensors["input_ids"] = np.hstack([tensors["prompts"], tensors["responses"]])
    return {name: torch.from_numpy(value) for name, value in tensors.items()}


def _padded(values: NDArray[Any], mask: NDArray[np.bool_], padding: Any) -> NDArray[Any]:
    padded = np.full((*mask.shape, *values.shape[1:]), padding, dtype=values.dtype)
    padded[mask] = values
    return padded


def _lengths(table: pyarrow.Table, name: str) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = table[name].combine_chunks().value_lengths().to_numpy().astype(np.int64)
    return lengths


def _flat(column: Any) -> NDArray[Any]:
    pyarrow = _pyarrow()
    values = column.combine_chunks()
    shape: list[int] = []
    while pyarrow.types.is_list(values.type) or pyarrow.types.is_fixed_size_list(values.type):
        if pyarrow.types.is_fixed_size_list(values.type):
            shape.append(values.type.list_size)
        values = values.flatten()
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array.reshape(-1, *shape).copy()
