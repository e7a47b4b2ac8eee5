"""`ConformanceError`, which a check raises."""

from __future__ import annotations

from toolgym.tools.errors import ToolgymError, shorten


class ConformanceError(ToolgymError, AssertionError):
    """An implementation does not do what its contract says. Says what was expected and what was given."""


def expect(holds: bool, expected: str, got: object) -> None:
    """Raise a `ConformanceError` with what the contract says, a sentence without a full stop, unless it holds."""
    if not holds:
        raise ConformanceError(f"{expected}; got {shorten(got)}")
