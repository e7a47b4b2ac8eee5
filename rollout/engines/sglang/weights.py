"""Tensors as SGLang's `/update_weights_from_tensor` takes them: a pickled list of (name, tensor) pairs in base64.

Tensors on a CPU are pickled with their data: SGLang's own `MultiprocessingSerializer` hands over open files or shared
memory, which kills a server that is no child of this process. Tensors on CUDA are handed over as CUDA IPC handles,
which needs the same machine.
"""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Iterable, Mapping
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from typing import Any

from toolgym.rollout.engines.weights import collect_weights
from toolgym.tools.errors import ConfigError
from toolgym.tools.lazy import missing_extra

try:
    import torch
except ImportError as error:
    raise missing_extra("rollout", "Sending tensors to SGLang", error) from error


def tensor_buckets(
    named_tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]], bucket_bytes: int
) -> list[list[tuple[str, torch.Tensor]]]:
    buckets: list[list[tuple[str, torch.Tensor]]] = []
    size = 0
    for name, tensor in collect_weights(named_tensors).items():
        count = tensor.numel() * tensor.element_size()
        if not buckets or size + count > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append((name, tensor.detach()))
        size += count
    if not buckets:
        raise ConfigError("there must be at least one weight to send")
    return buckets


def payload(bucket: Iterable[tuple[str, torch.Tensor]]) -> str:
    pairs = list(bucket)
    buffer = io.BytesIO()
    if any(tensor.is_cuda for _, tensor in pairs):
        ForkingPickler(buffer).dump(pairs)
    else:
        # Cloned, for a view would be pickled with the whole storage behind it.
        pickle.dump([(name, tensor.clone()) for name, tensor in pairs], buffer)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def join_weights_update_group(
    master_address: str, master_port: int, world_size: int, *, group_name: str, backend: str = "nccl", timeout: float
) -> Any:
    """Join, as the learner (rank 0), the process group that `init_weights_update_group` lets the servers join, and
    return it.

    It stands beside the learner's own default group, so it cannot be made with `torch.distributed.init_process_group`;
    the servers look for each other under its name in the store at `master_address` (`init_custom_process_group` in
    SGLang's `srt/utils/common.py`). Blocks until all have joined: call it in a thread while the engine's
    `init_weights_update_group` runs. `timeout` is in seconds, for joining and for every broadcast.
    """
    from torch.distributed import PrefixStore, distributed_c10d
    from torch.distributed.rendezvous import rendezvous

    limit = timedelta(seconds=timeout)
    store, rank, size = next(rendezvous(f"tcp://{master_address}:{master_port}", 0, world_size, timeout=limit))
    store.set_timeout(limit)
    group, _ = distributed_c10d._new_process_group_helper(
        size,
        rank,
        [],
        distributed_c10d.Backend(backend),
        PrefixStore(group_name, store),
        group_name=group_name,
        timeout=limit,
    )
    distributed_c10d._world.pg_group_ranks[group] = {number: number for number in range(size)}
    return group
