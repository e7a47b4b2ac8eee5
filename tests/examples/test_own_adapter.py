"""The example of an adapter of one's own runs, and gives rows only of what may be trained on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_adapter.py"


def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=300, check=False, cwd=EXAMPLE.parent
    )
    assert done.returncode == 0, done.stderr
    right, wrong, reasons = done.stdout.splitlines()
    assert right.endswith("advantage +0.71")
    assert wrong.endswith("advantage -0.71")
    assert reasons == "['answered', 'answered', 'engine_failed']"
