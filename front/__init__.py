"""toolgym: Gymnasium-style environments for training language models that use tools."""

from __future__ import annotations

from toolgym.version import __version__

__all__ = ["__version__"]
