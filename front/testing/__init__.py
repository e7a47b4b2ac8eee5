"""Conformance suites for tools, envs, engines and sandboxes, of toolgym and of others.

A suite is a class of tests that an implementation's own test file subclasses, as the docstring of `SandboxSuite` shows.
Tests of what it cannot do are skipped, with the reason. `check_env` and `check_tool` are plain coroutines that raise a
`ConformanceError`, for use outside of tests; they need nothing that toolgym does not need. The suites need the extra
`testing`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.testing.engines import EngineSubject as EngineSubject
    from toolgym.testing.engines import EngineSuite as EngineSuite
    from toolgym.testing.env_report import check_env as check_env
    from toolgym.testing.errors import ConformanceError as ConformanceError
    from toolgym.testing.observations.suite import ObservationSuite as ObservationSuite
    from toolgym.testing.sandbox_programs import ProgramSuite as ProgramSuite
    from toolgym.testing.sandbox_runs import RunSuite as RunSuite
    from toolgym.testing.sandbox_sessions import ForkSuite as ForkSuite
    from toolgym.testing.sandbox_sessions import SessionSuite as SessionSuite
    from toolgym.testing.suites import EnvSuite as EnvSuite
    from toolgym.testing.suites import SandboxSuite as SandboxSuite
    from toolgym.testing.suites import ToolSuite as ToolSuite
    from toolgym.testing.tool_checks import check_tool as check_tool
else:
    __getattr__, __dir__ = lazy_names(__name__)

if (_pytest := sys.modules.get("pytest")) is not None:  # a failure then shows its values, as in a test file
    _pytest.register_assert_rewrite(
        *(f"toolgym.testing.{name}" for name in ("engines", "sandbox_runs", "sandbox_sessions", "sandbox_programs"))
    )
