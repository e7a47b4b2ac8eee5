"""The files that commands write."""

from __future__ import annotations

from pathlib import Path

from toolgym.tools.errors import ConfigError


def require_absent(option: str, *paths: Path) -> None:
    """Refuse to replace what an earlier run wrote. A run that was stopped at its start may leave an empty file."""
    for path in paths:
        if path.is_file() and path.stat().st_size:
            raise ConfigError(
                f"{str(path)!r} holds the results of an earlier run: name another place with {option}, or replace them "
                "with --overwrite"
            )
