"""Sandboxes: where tools run code."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolgym.tools.sandbox.base import (
        CellError,
        CellResult,
        ExecutionResult,
        ExecutionStatus,
        Limits,
        Sandbox,
        Session,
    )
    from toolgym.tools.sandbox.fusion import FusionSandbox
    from toolgym.tools.sandbox.local.sandbox import LocalSandbox
    from toolgym.tools.sandbox.process import ProcessSandbox
    from toolgym.tools.sandbox.remote.retries import Retries
    from toolgym.tools.sandbox.remote.sandbox import RemoteSandbox
    from toolgym.tools.sandbox.shared import SharedSandbox

_HOMES = {
    "CellError": "base",
    "CellResult": "base",
    "ExecutionResult": "base",
    "ExecutionStatus": "base",
    "FusionSandbox": "fusion",
    "Limits": "base",
    "LocalSandbox": "local.sandbox",
    "ProcessSandbox": "process",
    "RemoteSandbox": "remote.sandbox",
    "Retries": "remote.retries",
    "Sandbox": "base",
    "Session": "base",
    "SharedSandbox": "shared",
}

__all__ = [
    "CellError",
    "CellResult",
    "ExecutionResult",
    "ExecutionStatus",
    "FusionSandbox",
    "Limits",
    "LocalSandbox",
    "ProcessSandbox",
    "RemoteSandbox",
    "Retries",
    "Sandbox",
    "Session",
    "SharedSandbox",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
