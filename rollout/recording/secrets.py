"""Credentials do not go to a log: what a name or a text shows to be one is replaced by `[redacted]`."""

from __future__ import annotations

import re
from typing import Any

from toolgym.rollout.trajectory.trajectory import plain

SECRET = re.compile(r"(?i)api[_-]?key|secret|passw|authorization|auth[_-]?token|access[_-]?token|credential|bearer")
REDACTED = "[redacted]"


def scrub(text: str) -> str:
    """Replace credentials: those of a URL, and bearer tokens."""
    text = re.sub(r"(://)[^/\s@]+@", rf"\1{REDACTED}@", text)
    return re.sub(r"(?i)(bearer\s+)(?!\[)[^\s'\",}]+", rf"\1{REDACTED}", text)


def redacted(value: Any) -> Any:
    return _redact(plain(value))


def _redact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: REDACTED if SECRET.search(name) and item else _redact(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_redact(item) for item in value]
    return value


def scrubbed(trajectory: dict[str, Any]) -> dict[str, Any]:
    if not trajectory.get("error"):
        return trajectory
    error = trajectory["error"]
    return trajectory | {"error": error | {"message": scrub(error["message"])}}
