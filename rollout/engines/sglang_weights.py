"""Tensors as SGLang's `/update_weights_from_tensor` takes them: a pickled list of (name, tensor) pairs in base64.

Tensors on a CPU are pickled with their data. (SGLang's own `MultiprocessingSerializer` hands over open files or
shared memory, which a server that is no child of this process cannot take: it dies of it.) Tensors on CUDA are handed
over as CUDA IPC handles, which needs the same machine. The server's unpickler (`SafeUnpickler` in
`srt/utils/common.py`) takes both.
"""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Iterable, Mapping
from multiprocessing.reduction import ForkingPickler

from toolgym.rollout.engines.weights import collect_weights
from toolgym.tools.errors import ConfigError, missing_extra

try:
    import torch
except ImportError as error:
    raise missing_extra("rollout", "Sending tensors to SGLang", error) from error


def tensor_buckets(
    named_tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]], bucket_bytes: int
) -> list[list[tuple[str, torch.Tensor]]]:
    """Split weights into groups of at most `bucket_bytes` bytes; a larger tensor is a group of its own.

    Raises:
        ConfigError: an entry is no name with a tensor, a name comes twice, or there is none.
    """
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
    """Pickle one group of weights, in base64."""
    pairs = list(bucket)
    buffer = io.BytesIO()
    if any(tensor.is_cuda for _, tensor in pairs):
        ForkingPickler(buffer).dump(pairs)
    else:
        # Cloned, for a view would be pickled with the whole storage behind it.
        pickle.dump([(name, tensor.clone()) for name, tensor in pairs], buffer)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
