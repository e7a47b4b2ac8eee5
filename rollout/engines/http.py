"""The text of an error's body, for the engines that speak HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import shorten


def error_text(answer: Any) -> str:
    """Find the message in the decoded body of an error.

    Shapes seen, of SGLang and vLLM: `{"error": {"message": ...}}`, `{"error": "..."}`, `{"message": ...}`,
    `{"detail": ...}`.
    """
    if isinstance(answer, Mapping):
        for name in ("error", "message", "detail"):
            inner = answer.get(name)
            if isinstance(inner, Mapping):
                inner = inner.get("message")
            if inner:
                return str(inner)
    return shorten(answer)
