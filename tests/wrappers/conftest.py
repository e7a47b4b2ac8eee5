"""An env whose every turn does what it says, for the tests of what is around it."""

from __future__ import annotations

import asyncio
import json

import pytest

from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools import StatefulTool, ToolSchema, ToolSession
from toolgym.tools.errors import SandboxUnavailableError

TASKS = [Task(({"role": "user", "content": f"Task {n}"},), ground_truth=str(n), id=str(n)) for n in range(50)]


class Counter(ToolSession):
    """Adds `by` to a number and says it; the tool's `failures` are raised first, once each."""

    def __init__(self, tool, total=0):
        self.tool, self.total = tool, total
        tool.open_sessions += 1

    async def execute(self, parameters, **execute_kwargs):
        self.total += parameters["by"]
        if self.tool.hangs:
            await asyncio.Event().wait()
        if self.tool.call_failures:
            raise self.tool.call_failures.pop()
        return f"{self.total} {parameters.get('text', '')}".strip()

    async def reward(self, **calc_reward_kwargs):
        return self.total / 100

    async def fork(self):
        return Counter(self.tool, self.total)

    async def close(self):
        self.tool.open_sessions -= 1


class CounterTool(StatefulTool):
    """Counts. `open_failures` and `call_failures` are raised once each; with `hangs`, calls never end."""

    def __init__(self):
        properties = {"by": {"type": "integer"}, "text": {"type": "string"}}
        super().__init__({}, ToolSchema("add", "", {"type": "object", "properties": properties, "required": ["by"]}))
        self.open_sessions = self.opened = 0
        self.open_failures, self.call_failures, self.hangs = [], [], False

    async def open(self, **create_kwargs):
        self.opened += 1
        if self.open_failures:
            raise self.open_failures.pop()
        return Counter(self)


def add(by, text=None):
    arguments = {"by": by} if text is None else {"by": by, "text": text}
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"


def score(outcome):
    return float(outcome.final_text == outcome.task.ground_truth)


@pytest.fixture
def counter():
    return CounterTool()


@pytest.fixture
def counting(counter):
    """Makes an env with the tool `counter`."""
    return lambda **kwargs: ToolEnv([counter], TASKS, **{"scorer": score, **kwargs})


@pytest.fixture
def call():
    return add


@pytest.fixture
def down():
    return SandboxUnavailableError
