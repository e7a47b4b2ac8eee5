"""`moved`: tensors, and what holds tensors, on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def moved(value: T, device: torch.device | str) -> T:
    """A copy whose tensors are on the device, in dataclasses and mappings too; those that are there already are shared.

    Args:
        value: a tensor, a frozen dataclass, a mapping of such; everything else is returned as it is.
        device: as `torch.Tensor.to` takes it.
    """
    return _moved(value, device)  # type: ignore[no-any-return]


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(part, device) for name, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: _moved(getattr(value, item.name), device) for item in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
