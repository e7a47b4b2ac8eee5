"""`Admission`: how much of a run may happen at once. What happens holds a lease."""

from __future__ import annotations

from toolgym.tools.concurrency.rate_limit import LocalRateLimiter


class Admission:
    """The limits of one run, first come, first served. Each kind of work that needs a limit has an attribute.

    Args:
        episodes: most episodes at once. An episode holds its lease until its trajectory has found room in the stream,
            so a slow consumer slows the run.

    Attributes:
        episodes: the limit on episodes.

    Raises:
        ConfigError: a limit is no whole number of at least 1.
    """

    def __init__(self, *, episodes: int) -> None:
        self.episodes = LocalRateLimiter(episodes)
