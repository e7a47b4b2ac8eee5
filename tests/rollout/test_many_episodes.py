"""As many episodes at once as a large run has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "concurrency.py"


@pytest.mark.long
def test_five_thousand_episodes_wait_at_once_and_all_run_to_the_end():
    run = subprocess.run(
        [sys.executable, str(BENCHMARK), "--here", "memory", "--waiting", "5000"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]  # the benchmark refuses a run that lost an episode
    found = re.search(r"([0-9.]+) kB above .* each of 5000 .* peak of the process (\d+) MB", run.stdout)
    assert found, run.stdout
    assert float(found[1]) < 30
    assert int(found[2]) < 1000
