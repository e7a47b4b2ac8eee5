"""`Admission`: how much of a run may happen at once. What happens holds a lease."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from toolgym.rollout.engines.base import Engine
from toolgym.rollout.runner.adaptive import Adaptive, LoadFollower, ask_load
from toolgym.rollout.runner.config import RunConfig
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.concurrency.run_limits import GENERATIONS, TOOL_CALLS
from toolgym.tools.sandbox.local.host.resources import available_processors

TOOL_CALLS_EACH = 1024
"""Tool calls that run at once for each processor, where nothing else is asked for. A call mostly waits, for a server or
for a program; what computes has limits of its own."""


class Admission:
    """The limits of one run, each first come, first served.

    An episode holds its own lease all the time, a generation's only while the engine works for it, and that of a tool
    call only while the tool does: one that is in a tool takes no place of the engine's.

    Use it as an async context manager, which ends what follows the engine's load. `of` makes the limits of a run.

    Args:
        episodes: most episodes at once. An episode holds its lease until its trajectory has found room in the stream,
            so a slow consumer slows the run.
        generations: most requests to the engine at once; None: any number.
        tool_calls: most tool calls at once, those of all episodes together; None: any number.

    Attributes:
        episodes: the limit on episodes.
        generations: the limit on requests to the engine.
        tool_calls: the limit on tool calls.

    Raises:
        ConfigError: a limit is no whole number of at least 1.
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
        """The limits of a run with this config. What it leaves open the machine says, and the engine, when the limits
        are entered."""
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
        """Let the limits hold for what the code of the block, and each task that begins in it, asks of the engine, and
        for the tools that it calls."""
        with GENERATIONS.set(self.generations), TOOL_CALLS.set(self.tool_calls):
            yield

    async def close(self) -> None:
        """Follow the engine's load no longer. Closing twice is fine."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
