"""When a call is sent again, and how long to wait before."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from toolgym.tools.errors import ConfigError


@dataclass(frozen=True)
class Retries:
    """How patient a client is. Times are seconds.

    Attributes:
        attempts: how often a call is sent where servers fail. A server that says it is full (429) did not fail: the
            call comes back until `patience` is over.
        first_delay: before the second attempt at most this; before each further one at most twice as much, drawn evenly
            from 0 up ("full jitter"), so that calls that failed together do not come back together.
        max_delay: the most that this grows to.
        max_retry_after: the most that a server's `Retry-After` is obeyed.
        connect_timeout: for a connection to be made, and for a health check.
        attempt_margin: beyond the call's own time-out, until one attempt is given up. It has to cover the server's
            queue (60 s in ours).
        patience: beyond the call's own time-out, until the call is given up, all attempts together.

    Raises:
        ConfigError: a number is out of range.
    """

    attempts: int = 5
    first_delay: float = 0.25
    max_delay: float = 8.0
    max_retry_after: float = 60.0
    connect_timeout: float = 5.0
    attempt_margin: float = 90.0
    patience: float = 300.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
                raise ConfigError(f"retries: {name} must be a positive number, got {value!r}")
        if not isinstance(self.attempts, int):
            raise ConfigError(f"retries: attempts must be a whole number, got {self.attempts!r}")

    def delay(self, failed: int) -> float:
        """Seconds to wait after so many failed attempts."""
        return random.uniform(0.0, self.ceiling(failed))

    def ceiling(self, failed: int) -> float:
        """The most that `delay` gives."""
        return min(self.max_delay, self.first_delay * 2.0 ** min(max(failed - 1, 0), 60))

    def obeyed(self, retry_after: float | None, refused: int) -> float:
        """Seconds to wait after a refusal, the `refused`-th in a row.

        Never before the server's own time, if it gave one, and up to a tenth later, so that not all come at once.
        """
        if retry_after is None:
            return self.delay(refused)
        return min(retry_after, self.max_retry_after) * random.uniform(1.0, 1.1)


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for: a number of seconds, or an HTTP date. None where it says neither.

    Args:
        value: the header.
        now: the present, for dates; with a time zone.
    """
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = parsedate_to_datetime(text)
        except (ValueError, TypeError, OverflowError):
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        try:
            seconds = (date - (now or datetime.now(UTC))).total_seconds()
        except OverflowError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
