"""Beginnings that rows of tokens have in common."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolgym.tools.errors import ConfigError

READ_BY_MODELS = ("routed_experts", "routing_weights")
"""Payloads that a model may be given back: if they differ, it computes something else from the same ids."""


def require_no_images(images: Sequence[object]) -> None:
    """Raise ConfigError if there are images: equal ids stand for different ones."""
    if images:
        raise ConfigError(
            "a tree shares tokens with equal ids, and the batch has images, which differ behind equal ids: use "
            "pack(batch) and count='packed'"
        )


def shared_prefixes(rows: Sequence[NDArray[np.int64]]) -> tuple[list[int], list[int]]:
    """The order in which rows with equal beginnings follow each other, and how much each shares with the one before
    it. The rows are int64 `[tokens]`, none below 0."""
    order = sorted(range(len(rows)), key=lambda row: rows[row].astype(">i8").tobytes())  # by bytes is by numbers then
    shared = [0]
    for last, row in itertools.pairwise(order):
        before, other = rows[last], rows[row]
        size = min(len(before), len(other))
        apart = np.flatnonzero(before[:size] != other[:size])
        shared.append(int(apart[0]) if len(apart) else size)
    return order, shared


def prefix_keys(
    ids: NDArray[np.int64], aligned: Mapping[str, NDArray[Any]], split_by: Sequence[str] | None = None
) -> NDArray[np.int64]:
    """Keys that decide which tokens are shared: int64 `[tokens]`, equal where the ids and the payloads named are."""
    names = [name for name in READ_BY_MODELS if name in aligned] if split_by is None else split_by
    if not names:
        return ids
    for name in names:
        if name not in aligned:
            raise ConfigError(f"the batch has no payload {name!r}; it has {', '.join(aligned) or 'none'}")
    columns = [ids[:, None], *(aligned[name].reshape(len(ids), -1) for name in names)]
    parts = [np.ascontiguousarray(column).view(np.uint8).reshape(len(ids), -1) for column in columns]
    joined = np.ascontiguousarray(np.hstack(parts))
    whole: NDArray[Any] = joined.view(np.dtype((np.void, joined.shape[1])))[:, 0]
    return np.unique(whole, return_inverse=True)[1].astype(np.int64)
