"""What callers of a sandbox hand in, checked before it goes anywhere."""

from __future__ import annotations

from pathlib import PurePosixPath

from toolgym.tools.errors import ConfigError

MAX_PART = 255
"""Bytes between two slashes of a file's name: the kernel's limit."""

MAX_DEPTH = 64
"""Folders that a file's name may lead through, the file itself included."""


def check_name(name: str, *, absolute: bool = False) -> str:
    """Check the name of a file in a sandbox's folder.

    Args:
        name: relative, below the folder.
        absolute: whether `/tmp/…` is fine too.

    Raises:
        ConfigError: the name leads outside, or is none.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigError(f"a file's name must be a non-empty text without NUL, got {name!r}")
    inner = name.removeprefix("/tmp/") if absolute else name
    path = PurePosixPath(inner)
    if path.is_absolute() or ".." in path.parts or str(path) in (".", ""):
        raise ConfigError(f"a file's name must stay inside the sandbox's folder, got {name!r}")
    try:
        sizes = [len(part.encode()) for part in path.parts]
    except UnicodeEncodeError:
        raise ConfigError(f"a file's name must be valid Unicode, got {name!r}") from None
    if max(sizes) > MAX_PART or len(sizes) > MAX_DEPTH:
        raise ConfigError(
            f"a file's name must have at most {MAX_PART} bytes between slashes and at most {MAX_DEPTH} parts, got "
            f"{name[:200]!r}"
        )
    return name


def positive(name: str, value: float) -> float:
    """Return a number, or raise ConfigError where it is not a positive one."""
    if not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{name} must be a positive number, got {value!r}")
    return value
