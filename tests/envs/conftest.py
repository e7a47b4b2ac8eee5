from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import warnings
from typing import Any

import pytest

from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.types import StopReason
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.errors import EpisodeError
from toolgym.tools.message import assistant, system, tool, user
from toolgym.tools.schema import ToolSchema


class ToyEnv(BaseEnv):
    """A number is drawn; every turn is echoed with it. "done" ends the episode, and so do `max_turns` turns.

    `sleep` seconds pass in every step; the action "fail" raises. `stepping` is how many steps have begun to sleep.
    """

    def __init__(self, max_turns: int = 3, sleep: float = 0.0) -> None:
        self.max_turns = max_turns
        self.sleep = sleep
        self.rng = random.Random()
        self.turn: int | None = None
        self.closed = 0
        self.cancelled = 0
        self.stepping = 0
        self.log: list[str] = []

    async def reset(self, *, seed=None, options=None):
        self.log.append(f"reset({seed}, {options})")
        if (options or {}).get("fail"):
            raise ValueError("reset failed on purpose")
        if seed is not None:
            self.rng = random.Random(seed)
        self.turn, self.number = 0, self.rng.randrange(1000)
        info: dict[str, Any] = {"number": self.number, "tools": [], "nested": {"first": True}}
        return [system("Echo."), user(f"The number is {self.number}.")], info

    async def step(self, action):
        if self.turn is None:
            raise EpisodeError("no episode")
        self.stepping += 1
        try:
            await asyncio.sleep(self.sleep)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if action == "fail":
            raise ValueError("step failed on purpose")
        self.turn += 1
        terminated = action == "done"
        truncated = not terminated and self.turn >= self.max_turns
        reason = StopReason.ANSWERED if terminated else StopReason.MAX_TURNS if truncated else None
        obs = [] if reason else [tool(f"{action} {self.number}", tool_call_id=f"call_{self.turn}", name="echo")]
        info: dict[str, Any] = {
            "stop_reason": reason,
            "message": assistant(action),
            "metrics": {"turn": self.turn} | ({"score": 0.5} if terminated else {}),
        }
        if reason:
            self.turn = None
        return StepResult(obs, self.number / 8 + len(action), reason is not None, info)

    async def close(self) -> None:
        self.closed += 1


class SleepTool(BaseTool):
    """Sleeps without blocking, and counts how many sleep at once. None wakes before `meet` have slept at once."""

    default_schema = ToolSchema("nap", "Sleep.", {"type": "object", "properties": {"seconds": {"type": "number"}}})
    now = most = meet = 0

    async def execute(self, instance_id, parameters, **kwargs):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(parameters["seconds"])
            while self.most < self.meet:
                await asyncio.sleep(0.005)
        finally:
            self.now -= 1
        return ToolResult("slept")


@pytest.fixture
def toy_env():
    return ToyEnv


@pytest.fixture
def sleep_tool():
    return SleepTool


class StoppedClock:
    """Stands in for the module `time`; its monotonic clock goes on only where the test says so."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def stop_clock(monkeypatch):
    """Gives modules a clock that stands still, for tests of what is idle: a busy machine makes nothing older."""

    def stop(*modules):
        clock = StoppedClock()
        for module in modules:
            monkeypatch.setattr(module, "time", clock)
        return clock

    return stop


@pytest.fixture
def env_threads():
    """Gives the threads of this process, without those of sandboxes that earlier tests left to end when they like."""

    def find():
        found = threading.enumerate()
        return {one for one in found if not one.name.startswith("toolgym-sandbox") and "(shutdown)" not in one.name}

    return find


@pytest.fixture
def no_warnings():
    gc.collect()  # what earlier tests left behind must not warn in this one
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
