"""Ray's actors and SGLang run on uvloop: a caller there gets what others get."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOMS = (
    "tools/sandbox/conformance/test_runs.py",
    "tools/sandbox/conformance/test_sessions.py",
    "tools/concurrency/test_rate_limit.py",
    "tools/concurrency/test_event_loop_thread.py",
    "rollout/test_runner.py",
)


@pytest.mark.uvloop
def test_what_awaits_the_outside_world_does_so_on_uvloop():
    command = [sys.executable, "-m", "pytest", "-q", "--event-loop", "uvloop", "-k", "not landlock and not uid"]
    done = subprocess.run(
        [*command, *(str(TESTS / room) for room in ROOMS)], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
