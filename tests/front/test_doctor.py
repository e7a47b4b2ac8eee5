"""`toolgym doctor`."""

from __future__ import annotations

import json
import subprocess
import sys


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "toolgym", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_names_the_isolation_and_the_languages():
    shown = run("--json")
    findings = json.loads(shown.stdout)
    if findings["isolation"] is None:
        assert shown.returncode == 1
        assert findings["trouble"]
        return
    assert shown.returncode == 0
    assert findings["isolation"]["level"] == findings["machine"]["levels"][0]
    assert "bash" in findings["languages"]
    table = run().stdout
    assert findings["isolation"]["level"] in table
    assert "bash" in table
