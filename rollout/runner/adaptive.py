"""`Adaptive`: the number of episodes at once follows how full the engine's KV cache is: it is raised while there is
room, and lowered when it gets tight, as TCP does with its window (RFC 5681)."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass

from toolgym.rollout.engines.base import Engine, EngineLoad
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ConfigError, check_seconds, error_text, require_whole_number
from toolgym.tools.keywords import named_fields
from toolgym.tools.sandbox.local.host.resources import available_processors

LOAD_TIMEOUT = 10.0

EPISODES_EACH = 256
"""Most episodes at once for each processor by default: each has an env, and its tools' state."""

STEP = 8
"""The limit changes by an eighth at most. Once it was lowered, it changes only after an eighth of the episodes are new:
a change shows in the cache only when the episodes get long."""

UNANSWERED = 3
"""Questions in a row without an answer, after which the engine is no longer taken to be full."""

_log = logging.getLogger("toolgym.rollout")
_silent = LogThrottle(60.0)


@named_fields
@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """Settings by which the number of running episodes follows the engine's KV-cache use, for an engine that tells it.

    Attributes:
        start: episodes at once in the beginning; for an engine that does not tell its load, also later.
        least: never fewer than these.
        most: never more than these; None: 256 for each processor of this machine.
        grow_below: share of the cache in use below which more episodes are started.
        trim_above: share from which on fewer are: those that run go on, and fewer new ones follow.
        stop_above: share from which on no further request is sent to the engine until it is less again, if one is under
            way.
        interval: seconds between two looks.

    Raises:
        ConfigError: a number is out of range or of the wrong kind.
    """

    start: int = 64
    least: int = 4
    most: int | None = None
    grow_below: float = 0.6
    trim_above: float = 0.8
    stop_above: float = 0.9
    interval: float = 1.0

    def __post_init__(self) -> None:
        require_whole_number("least", self.least, at_least=1)
        require_whole_number("start", self.start, at_least=self.least)
        if self.most is not None:
            require_whole_number("most", self.most, at_least=self.start)
        shares = self.grow_below, self.trim_above, self.stop_above
        if (
            not all(isinstance(share, int | float) for share in shares)
            or not 0 < shares[0] < shares[1] < shares[2] <= 1
        ):
            raise ConfigError(
                f"expected 0 < grow_below < trim_above < stop_above <= 1, got {', '.join(map(repr, shares))}"
            )
        check_seconds(interval=self.interval)


async def ask_load(engine: Engine) -> EngineLoad | None:
    """The engine's load; None, with a line in the log once a minute, if it does not answer."""
    try:
        return await with_deadline(engine.load(), LOAD_TIMEOUT)
    except Exception as error:  # noqa: BLE001  a run goes on with the limits that it has
        if _silent.due(type(engine).__name__) is not None:
            text = error_text(error)
            _log.warning("the engine does not say how busy it is, so the number of episodes stays as it is: %s", text)
        return None


class LoadFollower:
    """Changes the limits of a run as the engine's load says. If calls wait for `tool_calls`, the tools are what is
    slow, and more episodes do not help."""

    def __init__(
        self,
        engine: Engine,
        adaptive: Adaptive,
        episodes: LocalRateLimiter,
        generations: LocalRateLimiter,
        tool_calls: LocalRateLimiter,
    ) -> None:
        self._engine, self._adaptive = engine, adaptive
        self._episodes, self._generations, self._tool_calls = episodes, generations, tool_calls
        self._most = adaptive.most or max(adaptive.start, EPISODES_EACH * available_processors())
        self._most_generations = generations.limit
        self._fitting: int | None = None  # requests that the cache can take; None: it was not full lately
        self._trimmed = False
        self._begun = 0  # episodes that had begun when the limit was changed last
        self._unanswered = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._adaptive.interval)
            self.follow(await ask_load(self._engine))

    def follow(self, load: EngineLoad | None) -> None:
        """Do what one answer asks for. None, an answer that did not come, leaves the number of episodes as it is."""
        if load is None:
            self._unanswered += 1
            if self._unanswered >= UNANSWERED:
                self._admit(None)
            return
        self._unanswered = 0
        use, rules = load.kv_cache_use, self._adaptive
        if use >= rules.stop_above:
            self._fitting = max(1, math.floor(self._generations.in_use * self._middle / use))
            self._generations.resize(1)
        elif self._fitting is not None:
            self._reopen(use)
        if use >= rules.trim_above or self._crowded:
            self._trim(use)
        elif use < rules.grow_below:
            self._grow(load)

    @property
    def _middle(self) -> float:
        """The share of the cache that is aimed at."""
        return (self._adaptive.grow_below + self._adaptive.trim_above) / 2

    @property
    def _crowded(self) -> bool:
        """Whether requests wait because the cache was full."""
        return self._fitting is not None and self._generations.waiting > 0

    @property
    def _turnover(self) -> int:
        """Number of episodes that have begun since the limit was changed last, without those that its change let in."""
        return self._episodes.granted - self._begun

    def _reopen(self, use: float) -> None:
        """After a hard stop: admit as many requests as the cache can take, and more step by step, not all at once."""
        assert self._fitting is not None
        if use < self._adaptive.grow_below:
            self._fitting += max(1, self._fitting // STEP)
        self._admit(self._fitting if self._generations.waiting or use >= self._adaptive.grow_below else None)

    def _admit(self, requests: int | None) -> None:
        """Let this many requests run at once; None: as many as before the hard stop."""
        if requests is None or requests >= self._most_generations:
            self._fitting, requests = None, self._most_generations
        if requests != self._generations.limit:
            self._generations.resize(requests)

    def _trim(self, use: float) -> None:
        """Lower the limit to the episodes that the cache can take, but by one step at most."""
        running = self._episodes.in_use
        if running > self._episodes.limit or (self._trimmed and self._turnover < running // STEP):
            return  # the last time has not come into effect yet
        fitting = running - self._generations.waiting if self._crowded else running
        if use >= self._adaptive.trim_above:
            fitting = min(fitting, math.floor(running * self._middle / use))
        limit = max(fitting, running - running // STEP, self._adaptive.least)
        self._episodes.resize(min(limit, self._episodes.limit))
        self._trimmed, self._begun = True, self._episodes.granted

    def _grow(self, load: EngineLoad) -> None:
        """Raise the limit by one step, if it is this limit that keeps the engine from having more to do."""
        waits_elsewhere = load.queued or self._generations.waiting or self._tool_calls.waiting
        if not load.running or waits_elsewhere or not self._episodes.full:
            return
        limit = self._episodes.limit
        step = max(1, limit // STEP)
        if self._trimmed:
            step = min(step, self._turnover // (STEP // 2))
        if step:
            self._begun = self._episodes.granted + step
            self._episodes.resize(min(self._most, limit + step))
