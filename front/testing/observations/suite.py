"""`ObservationSuite`: what a model must be able to read of its programs, for every tool that runs Python."""

from __future__ import annotations

from typing import ClassVar

from toolgym.testing.observations.case import ObservedProgram
from toolgym.testing.observations.endings import ENDINGS
from toolgym.testing.observations.programs import PROGRAMS
from toolgym.testing.observations.scores import absent_module, score_program, tool_reader
from toolgym.testing.suite import Suite, need
from toolgym.tools.base import BaseTool

import pytest  # isort: skip  after `suite`, which says what to install where it is absent


class ObservationSuite(Suite):
    """A test for each program of `PROGRAMS` and each ending of `ENDINGS`: their observations show all marks.

    Needs the fixture `tool`, a tool that runs Python cells in a session for each episode. Its `execute` must take
    `timeout`. Programs whose modules are not installed where the cells run are skipped.

        class TestObservations(ObservationSuite):
            @pytest_asyncio.fixture
            async def tool(self):
                tool = CodeInterpreterTool()
                yield tool
                await tool.close()

    Attributes:
        argument: name of the tool's argument that takes the code.
        confined: whether the tool confines programs. If not, those that may harm the machine are skipped.
    """

    argument: ClassVar[str] = "code"
    confined: ClassVar[bool] = True

    @pytest.mark.parametrize("program", PROGRAMS, ids=str)
    async def test_program(self, tool: BaseTool, program: ObservedProgram) -> None:
        await self._check(tool, program)

    @pytest.mark.parametrize("program", ENDINGS, ids=str)
    async def test_ending(self, tool: BaseTool, program: ObservedProgram) -> None:
        await self._check(tool, program)

    async def _check(self, tool: BaseTool, program: ObservedProgram) -> None:
        need(self.confined or not program.harmful, f"{type(self).__name__}.confined is {self.confined!r}")
        async with tool_reader(tool, self.argument) as read:
            module = await absent_module(program, read)
            need(module is None, f"{module} is not installed where cells run")
            for score in await score_program(program, read):
                assert not score.missing, f"cell {score.index} lacks {', '.join(score.missing)}:\n{score.text}"
