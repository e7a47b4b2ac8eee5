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

    def __init__(self, config: RunConfig, engine: Engine) -> None:
        """The limits of a run with this config. The machine and, once they are entered, the engine say the rest."""
        most = config.max_concurrent
        self._adaptive = most if isinstance(most, Adaptive) else None
        self.episodes = LocalRateLimiter(most.start if isinstance(most, Adaptive) else most)
        self.generations = LocalRateLimiter(config.max_generations or sys.maxsize)
        self.tool_calls = LocalRateLimiter(config.max_tool_calls or TOOL_CALLS_EACH * available_processors())
        self._engine = engine if self._adaptive is not None or config.max_generations is None else None
        self._following: asyncio.Task[None] | None = None

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
