"""Files that the judge sends to a sandbox. They need only Linux and the standard library: see `in_sandbox`."""

from __future__ import annotations

import hashlib
from pathlib import Path

FILES = (
    "link", "limits", "pipes", "files", "processes", "emptiness", "values", "loading", "loader", "compiled", "kinds",
    "in_sandbox",
)  # fmt: skip
"""The files by name, each after those that it imports."""


def source_of(name: str) -> str:
    """Return the source of one of `FILES`."""
    return Path(__file__).with_name(f"{name}.py").read_text("utf-8")


def first_line() -> str:
    """Return the first line of code that expects these very files to be loaded where it runs."""
    digest = hashlib.sha256("\0".join(map(source_of, FILES)).encode())
    return f"# toolgym.tools.judge.inside {digest.hexdigest()}"
