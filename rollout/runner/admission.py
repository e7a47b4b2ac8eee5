from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import Self

from toolgym.rollout.engines.base import Engine
from toolgym.rollout.runner.adaptive import Adaptive, LoadFollower, ask_load
from toolgym.rollout.runner.config import RunConfig
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.concurrency.run_limits import GENERATIONS, TOOL_CALLS
from toolgym.tools.sandbox.local.host.resources import available_processors

TOOL_CALLS_EACH = 1024
"""Tool calls at once for each processor by default. A call mostly waits; what computes has limits of its own."""


class Admission:
    """The limits of one run, each first come, first served; as an async context manager they follow the engine's load.

    An episode holds its lease until its trajectory has found room in the stream, so a slow consumer slows the run; a
    generation or a tool call only while the engine or the tool works for it.
    """

    def __init__(self, *, episodes: int, generations: int | None = None, tool_calls: int | None = None) -> None:
        self.episodes = LocalRateLimiter(episodes)
        self.generations = LocalRateLimiter(sys.maxsize if generations is None else generations)
        self.tool_calls = LocalRateLimiter(sys.maxsize if tool_calls is None else tool_calls)
        self._engine: Engine | None = None
        self._adaptive: Adaptive | None = None
        self._following: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, config: RunConfig, engine: Engine) -> Self:
        """The limits of a run with this config. The machine and, once they are entered, the engine say the rest."""
        adaptive = config.max_concurrent if isinstance(config.max_concurrent, Adaptive) else None
        admission = cls(
            episodes=config.max_concurrent if isinstance(config.max_concurrent, int) else config.max_concurrent.start,
            generations=config.max_generations,
            tool_calls=config.max_tool_calls or TOOL_CALLS_EACH * available_processors(),
        )
        admission._adaptive = adaptive
        if adaptive is not None or config.max_generations is None:
            admission._engine = engine
        return admission

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Let the limits hold for what the code of the block, and each task that begins in it, asks of engine and
        tools."""
        with GENERATIONS.set(self.generations), TOOL_CALLS.set(self.tool_calls):
            yield

    async def __aenter__(self) -> Self:
        load = await ask_load(self._engine) if self._engine is not None else None
        if self._engine is None or load is None:
            return self
        if load.max_running is not None and self.generations.limit == sys.maxsize:
            self.generations.resize(load.max_running)
        if self._adaptive is not None:
            follower = LoadFollower(self._engine, self._adaptive, self.episodes, self.generations, self.tool_calls)
            self._following = asyncio.create_task(follower.run(), name="toolgym follows the engine's load")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
