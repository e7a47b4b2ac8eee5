"""Matches regular expressions: the work of a `ProcessPool`."""

from __future__ import annotations

import functools
import re


def load() -> None:
    pass


def match(pattern: str, flags: int, whole: bool, text: str) -> bool:
    compiled = _compiled(pattern, flags)
    return (compiled.fullmatch(text) if whole else compiled.search(text)) is not None


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str, flags: int) -> re.Pattern[str]:
    return re.compile(pattern, flags)
