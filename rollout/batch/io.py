"""Batches on disk: one safetensors file each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from toolgym.rollout.advantages.reward_placement import PLACEMENTS
from toolgym.rollout.batch.batch import Batch, Dropped
from toolgym.rollout.batch.check import check_batch
from toolgym.rollout.batch.fields import FIELDS
from toolgym.rollout.batch.row import RowImages
from toolgym.rollout.trajectory.distribution import SamplingDistribution
from toolgym.tools.errors import ConfigError, missing_file, shorten

FORMAT_VERSION = 4
"""Version of the file that `save_batch` writes, and the only one that is read."""

PREFIX = "aligned."
"""Begins the names of the tensors of payloads."""

IMAGES = "images."
"""Begins the names of the tensors of images; the number of a row and the name of the model's argument follow."""


def save_batch(batch: Batch, path: str | Path) -> None:
    """Write a batch to a safetensors file; `load_batch` reads it back.

    The tensors have the names of `Batch.tensors`; everything else is in the file's metadata, as JSON. Raises
    ConfigError if it is no batch, or the file cannot be written.
    """
    if not isinstance(batch, Batch):
        raise ConfigError(f"expected a Batch, as `make_batch` returns it, got {shorten(repr(batch))}")
    tensors = batch.tensors()
    for row in {row for row, _ in metadata_of(batch)["images"]}:
        tensors |= {f"{IMAGES}{row}.{name}": value for name, value in batch.images[row].inputs.items()}
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(path), {name: json.dumps(value) for name, value in metadata_of(batch).items()})
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write the batch to {str(path)!r}: {error}") from error


def metadata_of(batch: Batch) -> dict[str, Any]:
    """All of a batch but its tensors. `images` has for each row the first one with the same pixel inputs, as the rows
    of a group have, and the number of its image tokens."""
    first: dict[int, int] = {}
    return {
        "format_version": FORMAT_VERSION,
        "pad_token_id": batch.pad_token_id,
        "ids": batch.ids,
        "groups": batch.groups,
        "dropped": [[entry.id, entry.reason] for entry in batch.dropped],
        "version_numbers": dict(batch.version_numbers),
        "reward_placement": batch.reward_placement,
        "images": [[first.setdefault(id(row.inputs), at), row.tokens] for at, row in enumerate(batch.images)],
        "image_token_id": batch.image_token_id,
        "distributions": [[dataclasses.asdict(each) for each in row] for row in batch.distributions],
    }


def load_batch(path: str | Path) -> Batch:
    """Read a batch that `save_batch` wrote, and check it.

    Raises:
        UnknownNameError: the file does not exist; names the nearest one.
        ConfigError: the file is not a batch.
        BatchError: an invariant does not hold.
    """
    path = Path(path)
    if not path.exists():
        raise missing_file("batch", path)
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        batch = batch_of(metadata, tensors)
    except (OSError, SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} is not a batch of toolgym: {type(error).__name__}: {error}") from error
    check_batch(batch)
    return batch


def batch_of(metadata: dict[str, Any], tensors: dict[str, Tensor]) -> Batch:
    """The batch with this metadata and these tensors, unchecked. Raises KeyError, TypeError or ValueError if they
    make none."""
    version = metadata.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(f"expected format version {FORMAT_VERSION}, got {version!r}")
    fields = {item.name: tensors.pop(item.name) for item in FIELDS}
    aligned = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
    inputs: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(IMAGES):
            row, _, argument = name.removeprefix(IMAGES).partition(".")
            inputs.setdefault(int(row), {})[argument] = value
    unknown = [name for name in tensors if not name.startswith((PREFIX, IMAGES))]
    if unknown:
        raise ValueError(f"unknown tensors {', '.join(unknown)}")
    if metadata["reward_placement"] not in PLACEMENTS:
        raise ValueError(f"unknown reward placement {metadata['reward_placement']!r}")
    return Batch(
        **fields,
        pad_token_id=int(metadata["pad_token_id"]),
        ids=tuple(metadata["ids"]),
        groups=tuple(metadata["groups"]),
        dropped=tuple(Dropped(*entry) for entry in metadata["dropped"]),
        version_numbers={str(name): int(number) for name, number in metadata["version_numbers"].items()},
        aligned=aligned,
        reward_placement=metadata["reward_placement"],
        images=tuple(RowImages(inputs.setdefault(row, {}), tokens) for row, tokens in metadata.get("images", ())),
        image_token_id=metadata.get("image_token_id"),
        distributions=tuple(tuple(SamplingDistribution(**each) for each in row) for row in metadata["distributions"]),
    )
