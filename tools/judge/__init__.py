"""Judging programs: tests, a verdict for each, and the data sets that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.tools.judge.cases import AssertTest as AssertTest
    from toolgym.tools.judge.cases import CheckerTest as CheckerTest
    from toolgym.tools.judge.cases import FunctionTest as FunctionTest
    from toolgym.tools.judge.cases import InteractiveTest as InteractiveTest
    from toolgym.tools.judge.cases import Problem as Problem
    from toolgym.tools.judge.cases import StdioTest as StdioTest
    from toolgym.tools.judge.cases import Test as Test
    from toolgym.tools.judge.cases import Verdict as Verdict
    from toolgym.tools.judge.cases import VerdictStatus as VerdictStatus
    from toolgym.tools.judge.comparing import same_output as same_output
    from toolgym.tools.judge.comparing import same_value as same_value
    from toolgym.tools.judge.extraction import Extracted as Extracted
    from toolgym.tools.judge.extraction import extract_program as extract_program
    from toolgym.tools.judge.judge import Judge as Judge
    from toolgym.tools.judge.rows import problem_of as problem_of
    from toolgym.tools.judge.rows import read_tests as read_tests
else:
    __getattr__, __dir__ = lazy_names(__name__)
