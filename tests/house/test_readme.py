"""The programs of the README run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = re.findall(r"^```python\n(.*?)^```", (Path(__file__).parents[2] / "README.md").read_text(), re.M | re.S)


def test_there_are_programs():
    assert len(PROGRAMS) >= 4


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.partition("\n\n")[0].replace("\n", "; "))
def test_a_program_of_the_readme_runs(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
