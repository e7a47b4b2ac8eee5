"""Which failures are repeated, how long the pauses are, and what `Retry-After` asks for."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgym.tools.http.retries import (
    AttemptError,
    FullError,
    Retries,
    repeat,
    retry_after,
)

QUICK = Retries(attempts=3, first_delay=0.001, max_delay=0.01)


def failing(*errors):
    """Calls that raise these errors one after another, then answer."""
    left = list(errors)

    async def attempt():
        attempt.count += 1
        if left:
            raise left.pop(0)
        return "answer"

    attempt.count = 0
    return attempt


async def test_attempts_are_repeated_until_one_succeeds():
    attempt = failing(AttemptError("a", sent=True), AttemptError("b", sent=False))
    assert await repeat(attempt, QUICK, repeatable=True) == "answer"
    assert attempt.count == 3


async def test_the_last_of_so_many_attempts_raises():
    attempt = failing(*(AttemptError(f"number {n}", sent=True) for n in range(1, 9)))
    with pytest.raises(AttemptError, match="number 3"):
        await repeat(attempt, QUICK, repeatable=True)
    assert attempt.count == 3
    attempt = failing(AttemptError("only", sent=False), AttemptError("not", sent=False))
    with pytest.raises(AttemptError, match="only"):
        await repeat(attempt, QUICK, repeatable=True, attempts=1)


async def test_what_may_have_been_carried_out_is_repeated_only_where_that_is_safe():
    attempt = failing(AttemptError("refused", sent=False), AttemptError("broke off", sent=True))
    with pytest.raises(AttemptError, match="broke off"):
        await repeat(attempt, QUICK, repeatable=False)
    assert attempt.count == 2


async def test_a_full_server_uses_up_no_attempt():
    attempt = failing(*(FullError("full", 0.0) for _ in range(10)))
    assert await repeat(attempt, QUICK, repeatable=False) == "answer"
    assert attempt.count == 11


@pytest.mark.parametrize(
    "error", [lambda after: FullError("full", after), lambda after: AttemptError("stopping", sent=False, after=after)]
)
async def test_a_pause_is_at_least_what_the_server_asks_for_unless_another_one_is_free(error):
    began = time.monotonic()
    await repeat(failing(error(0.1)), QUICK, repeatable=True)
    assert time.monotonic() - began >= 0.1
    began = time.monotonic()
    await repeat(failing(error(60.0)), QUICK, repeatable=True, elsewhere=lambda: True)
    assert time.monotonic() - began < 30


async def test_other_exceptions_end_the_call():
    attempt = failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await repeat(attempt, QUICK, repeatable=True)
    assert attempt.count == 1


@given(text=st.text(max_size=40) | st.floats().map(str) | st.integers().map(str))
def test_retry_after_is_a_number_of_seconds_or_nothing(text):
    seconds = retry_after(text)
    assert seconds is None or 0 <= seconds < float("inf")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3), (" 2.5 ", 2.5), ("-1", 0), ("inf", None), ("nan", None), ("soon", None), ("", None), (None, None)],
)
def test_retry_after(text, seconds):
    assert retry_after(text) == seconds


def test_retry_after_as_a_date():
    now = datetime(2026, 10, 21, 7, 27, 30, tzinfo=UTC)
    assert retry_after("Wed, 21 Oct 2026 07:28:00 GMT", now) == 30
    assert retry_after("Wed, 21 Oct 2026 07:27:00 GMT", now) == 0
