"""How the text of a tool's result is cut to a length."""

from __future__ import annotations

from typing import Literal

from toolgym.tools.errors import ConfigError, require_whole_number

Side = Literal["left", "middle", "right"]
"""What stays of a text that is cut, as in verl: `left` its beginning, `right` its end, `middle` both."""


def check_cut(name: str, max_chars: object, side: object) -> None:
    """Check the arguments of `cut`.

    Raises:
        ConfigError: `max_chars`, which is called `name`, is no whole number of at least 1, or there is no such side.
    """
    require_whole_number(name, max_chars, at_least=1)
    if side not in ("left", "middle", "right"):
        raise ConfigError(f"side must be 'left', 'middle' or 'right', got {side!r}")


def cut(text: str, max_chars: int, side: Side) -> str:
    """Cut a text to `max_chars` characters and a note that says how many were left out; a shorter one stays."""
    if len(text) <= max_chars:
        return text
    note = f"[... {len(text) - max_chars} characters left out ...]"
    if side == "left":
        return f"{text[:max_chars]} {note}"
    if side == "right":
        return f"{note} {text[-max_chars:]}"
    tail = max_chars // 2
    return f"{text[: max_chars - tail]} {note} {text[len(text) - tail :]}"
