"""Tensors made from trajectories, and the check of their invariants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names, missing_extra

try:
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise missing_extra("rollout", "A batch of tensors", error) from error

if TYPE_CHECKING:
    from toolgym.rollout.batch.arrow import from_parquet as from_parquet
    from toolgym.rollout.batch.arrow import to_dataset as to_dataset
    from toolgym.rollout.batch.arrow import to_parquet as to_parquet
    from toolgym.rollout.batch.batch import Batch as Batch
    from toolgym.rollout.batch.batch import MicroBatch as MicroBatch
    from toolgym.rollout.batch.batch import restore_rows as restore_rows
    from toolgym.rollout.batch.check import check_batch as check_batch
    from toolgym.rollout.batch.io import load_batch as load_batch
    from toolgym.rollout.batch.io import save_batch as save_batch
    from toolgym.rollout.batch.make import make_batch as make_batch
    from toolgym.rollout.batch.packing import Packed as Packed
    from toolgym.rollout.batch.packing import pack as pack
    from toolgym.rollout.batch.tree import Tree as Tree
    from toolgym.rollout.batch.tree import pack_tree as pack_tree
else:
    __getattr__, __dir__ = lazy_names(__name__)
