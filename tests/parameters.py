"""Parameters of tests of which most run only in the long list."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def first(name: str, values: Iterable[object], *, short: int) -> pytest.MarkDecorator:
    """Parametrize a test: with its first `short` values in `make test`, and with the others in `make test-rest`."""
    each = [value if at < short else pytest.param(value, marks=pytest.mark.long) for at, value in enumerate(values)]
    return pytest.mark.parametrize(name, each)
