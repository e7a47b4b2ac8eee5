"""`altered`: another version of a frozen record."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def altered(record: T, **changes: Any) -> T:
    """A copy of a frozen dataclass with some fields changed, as `dataclasses.replace` gives it in five times the time.

    Nothing is checked anew: the record was when it was made, and the caller answers for the changes.
    """
    made = object.__new__(type(record))
    made.__dict__.update(record.__dict__, **changes)
    return made
