"""What every tool must do: the four calls of its life, and `fork`.

import pytest
from toolgym.testing import ToolSuite

class TestNotes(ToolSuite):
    arguments = {"note": "12 * 34 = 408"}

    @pytest.fixture
    def tool(self):
        return NotesTool()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolgym.testing import tool_checks
from toolgym.testing.suite import Suite, needs
from toolgym.testing.tool_checks import ToolSubject
from toolgym.tools.base import BaseTool
from toolgym.tools.function import ToolFunction, as_tool

import pytest  # isort: skip  after `suite`, which says what to install where it is absent


class ToolSuite(Suite):
    """What every tool must do. Needs the fixture `tool`, a `BaseTool` or a function with `@tool`, which it closes.

    Attributes:
        arguments: of a call that the tool can carry out, any number of times.
        create_kwargs: what a task would give to `create`.
        execute_kwargs: what a task would give to `execute`.
        repeatable: whether fresh instances answer the same calls with the same texts.
        forks: whether the tool can be forked; otherwise it must say that it cannot.
    """

    arguments: Mapping[str, Any] = {}
    create_kwargs: Mapping[str, Any] = {}
    execute_kwargs: Mapping[str, Any] = {}
    repeatable: bool = True
    forks: bool = False

    @pytest.fixture
    def subject(self, tool: BaseTool | ToolFunction[..., Any]) -> ToolSubject:
        """The tool with its arguments."""
        return ToolSubject(as_tool(tool), self.arguments, self.create_kwargs, self.execute_kwargs, self.repeatable)

    async def test_schema(self, subject: ToolSubject) -> None:
        tool_checks.check_schema(subject)

    async def test_create(self, subject: ToolSubject) -> None:
        await tool_checks.check_create(subject)

    async def test_execute(self, subject: ToolSubject) -> None:
        await tool_checks.check_execute(subject)

    async def test_calls_at_once(self, subject: ToolSubject) -> None:
        await tool_checks.check_calls_at_once(subject)

    async def test_reward(self, subject: ToolSubject) -> None:
        await tool_checks.check_reward(subject)

    async def test_release(self, subject: ToolSubject) -> None:
        await tool_checks.check_release(subject)

    @needs("repeatable")
    async def test_instances_do_not_mix(self, subject: ToolSubject) -> None:
        await tool_checks.check_instances(subject)

    async def test_fork(self, subject: ToolSubject) -> None:
        await (tool_checks.check_fork if self.forks else tool_checks.check_no_fork)(subject)
