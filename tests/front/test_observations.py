"""The code interpreter shows all marks of the observation suite; and the suite finds a tool that does not."""

import pytest
import pytest_asyncio

from tests.parameters import first
from toolgym.testing import ObservationSuite
from toolgym.testing.observations import ENDINGS, PROGRAMS, Summary, score_programs, tool_reader
from toolgym.testing.observations.case import cell, program
from toolgym.tools import CodeInterpreterTool
from toolgym.tools.sandbox import LocalSandbox

BY_NAME = {case.name: case for case in (*PROGRAMS, *ENDINGS)}
SHORT = ("interest", "shell_line", "progress_bar", "json_text", "chained_errors", "log_of_twenty_lines")
SHORT_ENDINGS = ("exit_3", "exit_with_a_text", "syntax_error_late", "memory_at_once", "error_in_a_finalizer")


def ordered(cases, quick):
    names = [case.name for case in cases]
    return [*quick, *(name for name in names if name not in quick)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool():
    async with LocalSandbox(preload=[]) as sandbox:
        tool = CodeInterpreterTool(sandbox=sandbox)
        yield tool
        await tool.close()


class TestCodeInterpreter(ObservationSuite):
    loop_scope = "module"

    @first("name", ordered(PROGRAMS, SHORT), short=len(SHORT))
    async def test_program(self, tool, name):
        await super().test_program(tool, BY_NAME[name])

    @first("name", ordered(ENDINGS, SHORT_ENDINGS), short=len(SHORT_ENDINGS))
    async def test_ending(self, tool, name):
        await super().test_ending(tool, BY_NAME[name])


def test_the_suite_has_the_programs_that_it_promises():
    assert len(PROGRAMS) == 40
    assert sum(len(case.cells) for case in PROGRAMS) == 82
    assert len(ENDINGS) == 28
    assert len(BY_NAME) == 68


def test_marks_that_a_text_lacks_are_named():
    checked = cell("x", line="# here", error="ValueError", absent="frame 1")
    assert checked.missing("# here ValueError frame 2") == []
    assert checked.missing("ValueError frame 1") == ["line", "absent"]
    with pytest.raises(ValueError, match="unknown kinds of marks: \\['lines'\\]"):
        cell("x", lines="a")


@pytest.mark.asyncio(loop_scope="module")
async def test_scores_count_marks_and_characters(tool):
    cases = [
        program("shown", cell("6 * 7", value="42"), cell("print('a' * 8)", output="b")),
        program("absent", cell("1", value="1"), needs=("no_such_module",)),
    ]
    scores = await score_programs(cases, lambda: tool_reader(tool))
    assert [(score.program, score.text, score.missing) for score in scores] == [
        ("shown", "42", ()),
        ("shown", "aaaaaaaa", ("output",)),
    ]
    assert Summary.of(scores) == Summary(cells=2, marks=2, shown=1, characters=10)
