"""What the suites for sandboxes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from toolgym.testing.suite import Suite
from toolgym.tools.sandbox.base import ExecutionStatus, Sandbox, Session

import pytest  # isort: skip  after `suite`, which says what to install where it is absent

TIMEOUT, OK, ERROR = ExecutionStatus.TIMEOUT, ExecutionStatus.OK, ExecutionStatus.ERROR

DEADLINES = (1.0, 15.0)
"""Seconds after which a program is stopped that should have begun by then: a busy machine may need the second."""

LONG = 60.0
"""Seconds within which all comes that should come soon. What must end before its time would take ten times as long."""

BAD_RUN_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"timeout": 0}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
    ({"timeout": "1"}, "timeout"),
    ({"compile_timeout": -1}, "compile_timeout"),
    ({"memory_mb": 0}, "memory_mb"),
    ({"stdin": b"x"}, "stdin must be a text"),
    ({"language": None}, "language must be a text"),
    ({"files": {"../x": b""}}, "inside the sandbox's folder"),
    ({"files": {"x": "text"}}, "'x' must be bytes"),
    ({"files": {"/".join(["x" * 200] * 25): b""}}, "4096 bytes in all"),
    ({"fetch_files": "x"}, "fetch_files must be a list"),
    ({"fetch_files": [1]}, "fetch_files must be a list"),
    ({"files": {"a": b"", "a/b": b""}}, "'a/b' leads through another file, 'a'"),
    ({"files": {"a/": b""}}, "must not be a folder's"),
    ({"env": {"A=B": "x"}}, "without '='"),
    ({"env": {"A": "\0"}}, "environment variable"),
]
BAD_SESSION_OPTIONS = [
    (options, said) for options, said in BAD_RUN_OPTIONS if options.keys() <= {"files", "env", "memory_mb", "hint"}
]


class SandboxTests(Suite):
    """The attributes of all parts; see `SandboxSuite`."""

    sessions: bool = True
    forks: bool = True
    programs: bool = True
    terminals: bool = True
    session_limits: bool = True
    folders: bool = True
    variables: bool = True
    output_bytes: int | None = None

    @pytest.fixture
    def make_sandbox(self) -> Callable[[], Sandbox]:
        """Return what makes another sandbox, which the test closes."""
        pytest.skip(f"{type(self).__name__} has no fixture make_sandbox")


async def close_all(sessions: Sequence[Session]) -> None:
    await asyncio.gather(*(one.close() for one in sessions))
