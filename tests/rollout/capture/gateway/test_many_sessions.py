"""A thousand sessions at once, whose agents are another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[4] / "benchmarks/capture.py"


@pytest.mark.long
def test_a_thousand_sessions_at_once_each_keep_their_own_calls():
    arguments = [sys.executable, str(BENCHMARK), "--sessions", "1000", "--calls", "2"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr  # each session has two turns, in one sequence
    assert done.stdout.startswith("1000 sessions at once, 2 calls each\n")
