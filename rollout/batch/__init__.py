"""Tensors made from trajectories, and the check of their invariants."""

from __future__ import annotations

from toolgym.tools.errors import missing_extra

try:
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise missing_extra("rollout", "A batch of tensors", error) from error
