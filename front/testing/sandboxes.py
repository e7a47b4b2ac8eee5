"""What every sandbox must do: one run from a clean start, sessions, their programs and files, and forks of sessions.

    import pytest_asyncio
    from toolgym.testing import SandboxSuite

    class TestMySandbox(SandboxSuite):
        forks = False            # what it cannot do; see the attributes of `SandboxSuite`
        output_bytes = 64 * 1024

        @pytest_asyncio.fixture
        async def sandbox(self):
            async with MySandbox() as made:
                yield made

        @pytest.fixture
        def make_sandbox(self):  # for the tests that close one
            return MySandbox

`RunSuite`, `SessionSuite`, `ProgramSuite` and `ForkSuite` are its parts. How strongly a sandbox confines what it runs
is not tested here: that differs, and each sandbox says it of itself.
"""

from __future__ import annotations

from toolgym.testing.sandbox_forks import ForkSuite
from toolgym.testing.sandbox_programs import ProgramSuite
from toolgym.testing.sandbox_runs import RunSuite
from toolgym.testing.sandbox_sessions import SessionSuite


class SandboxSuite(RunSuite, SessionSuite, ProgramSuite, ForkSuite):
    """What every sandbox must do.

    Needs the fixture `sandbox`, an open `Sandbox` that runs Python; the fixture `make_sandbox`, a function that makes
    another one, is for the tests that close it, and may be left out.

    Attributes:
        sessions: whether it has sessions.
        forks: whether sessions can be forked and have checkpoints.
        programs: whether a session can start other programs (`Session.exec`), a shell and its usual tools among them.
        terminals: whether these can have a terminal (`Session.start(pty=)`).
        session_limits: whether a session can have limits of its own for files, and a network of its own.
        folders: whether a session can have further folders with absolute names.
        variables: whether runs and sessions take environment variables.
        output_bytes: its cap on each of stdout and stderr in bytes (`Limits.output_bytes`); at most 1 MiB for a quick
            test. None: not tested.

    A fixture may set them on `self`, where its parameters differ in what they can do.
    """
