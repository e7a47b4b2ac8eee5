"""Checks of single values that callers of a sandbox hand in: names of files, environment variables, numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from toolgym.tools.errors import ConfigError

MAX_PART = 255
"""Bytes between two slashes of a file's name: the kernel's limit."""

MAX_DEPTH = 64
"""Folders that a file's name may lead through, the file itself included."""

MAX_NAME = 4096
"""Bytes of a file's whole name: the kernel's limit."""

MAX_LABEL = 200
"""Characters of a checkpoint's name."""


class OptionError(ConfigError):
    """One value among the options of a call cannot be used.

    Attributes:
        field: where it stands: the option's name, and behind it the key or index inside of the option.
    """

    def __init__(self, message: str, *field: str | int) -> None:
        super().__init__(message)
        self.field = field


def check_name(name: str, *, absolute: bool = False, field: Sequence[str | int] = ()) -> str:
    """Return the name of a file in a sandbox's folder.

    Args:
        name: relative, below the folder.
        absolute: whether `/tmp/…` is fine too.
        field: for the error.

    Raises:
        OptionError: the name leads outside of the folder, or cannot be a name.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise OptionError(f"a file's name must be a non-empty text without NUL, got {name!r}", *field)
    path = PurePosixPath(name.removeprefix("/tmp/") if absolute else name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise OptionError(f"a file's name must stay inside the sandbox's folder, got {name[:200]!r}", *field)
    try:
        sizes = [len(part.encode()) for part in path.parts]
    except UnicodeEncodeError:
        raise OptionError(f"a file's name must be valid Unicode, got {name[:200]!r}", *field) from None
    if max(sizes) > MAX_PART or len(sizes) > MAX_DEPTH or sum(sizes) + len(sizes) > MAX_NAME:
        raise OptionError(
            f"a file's name must have at most {MAX_PART} bytes between slashes, {MAX_DEPTH} parts and {MAX_NAME} bytes "
            f"in all, got {name[:200]!r}",
            *field,
        )
    return name


def check_env(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return environment variables.

    Raises:
        OptionError: one of them is none that a process can have.
    """
    for name, value in env.items():
        bad = not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name
        if bad or "\0" in name + value or name + value != (name + value).encode(errors="ignore").decode():
            said = f"an environment variable needs a name without '=' and a text, got {name!r}: {value!r}"
            raise OptionError(said, "env", str(name))
    return env


def check_argv(argv: Sequence[str]) -> list[str]:
    """Return the words of a command. Raises OptionError where there is none, or one is not a text."""
    if not argv or isinstance(argv, str) or not all(isinstance(word, str) for word in argv):
        raise OptionError(f"argv must be a list of words, got {argv!r}", "argv")
    return list(argv)


def check_label(name: str) -> str:
    """Return the name of a checkpoint, which is a part of a URL too.

    Raises:
        OptionError: it is not a text of 1 to `MAX_LABEL` printable characters, or it is `.` or `..`.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_LABEL or not name.isprintable() or name in (".", ".."):
        said = f"a checkpoint's name must be 1 to {MAX_LABEL} printable characters, and not '.' or '..', got {name!r}"
        raise OptionError(said, "name")
    return name


def positive(name: str, value: float) -> float:
    """Return a number. Raises OptionError where it is not a positive one."""
    if not isinstance(value, int | float) or not value > 0:
        raise OptionError(f"{name} must be a positive number, got {value!r}", name)
    return value
