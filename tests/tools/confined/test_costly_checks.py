"""Users' regular expressions on the policy's text."""

from __future__ import annotations

import pytest

from toolgym.tools.confined import costly_checks
from toolgym.tools.confined.costly_checks import matches


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(costly_checks, "SECONDS", 0.3)


async def test_a_pattern_is_searched_or_matches_as_a_whole():
    assert await matches("b+", "abba")
    assert not await matches("b+", "abba", whole=True)
    assert not await matches("A", "a")


async def test_a_text_that_takes_too_long_does_not_match():
    assert not await matches(r"(a+)+$", "a" * 40 + "!")
    assert await matches(r"(a+)+$", "aaa")
