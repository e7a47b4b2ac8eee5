"""Programs that models write and ways in which a cell ends, with the marks that an observation must show.

`ObservationSuite` tests a tool; `score_programs` compares ways to render results, as `benchmarks/observations.py` does.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.testing.observations.case import ObservedCell as ObservedCell
    from toolgym.testing.observations.case import ObservedProgram as ObservedProgram
    from toolgym.testing.observations.endings import ENDINGS as ENDINGS
    from toolgym.testing.observations.programs import PROGRAMS as PROGRAMS
    from toolgym.testing.observations.scores import CellScore as CellScore
    from toolgym.testing.observations.scores import Summary as Summary
    from toolgym.testing.observations.scores import score_program as score_program
    from toolgym.testing.observations.scores import score_programs as score_programs
    from toolgym.testing.observations.scores import tool_reader as tool_reader
    from toolgym.testing.observations.suite import ObservationSuite as ObservationSuite
else:
    __getattr__, __dir__ = lazy_names(__name__)

if (_pytest := sys.modules.get("pytest")) is not None:
    _pytest.register_assert_rewrite(f"{__name__}.suite")
