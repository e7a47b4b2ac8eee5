"""The local sandbox: a template process forks a hardened child per execution and per session.

(Template processes load this package without the rest of toolgym, so it imports nothing by itself.)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.isolation import Isolation, Level, probe
    from toolgym.tools.sandbox.local.sandbox import LocalSandbox
    from toolgym.tools.sandbox.local.session import LocalSession

_HOMES = {
    "Isolation": "isolation",
    "Level": "isolation",
    "LocalSandbox": "sandbox",
    "LocalSession": "session",
    "probe": "isolation",
}

__all__ = ["Isolation", "Level", "LocalSandbox", "LocalSession", "probe"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
