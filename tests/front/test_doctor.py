"""`toolgym doctor`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from toolgym.cli.app import main
from toolgym.tools.sandbox.local.host import isolation


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "toolgym", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
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
    assert all(findings["languages_not_installed"].values()), "says what each one lacks"
    table = run().stdout
    assert findings["isolation"]["level"] in table
    assert "bash" in table


def test_a_language_whose_compiler_may_not_start_processes_is_not_offered(monkeypatch, capsys):
    if isolation.Level.LANDLOCK not in isolation.offered():
        pytest.skip("no Landlock here")
    monkeypatch.setattr(isolation, "offered", lambda: [isolation.Level.LANDLOCK])
    monkeypatch.setattr("sys.argv", ["toolgym", "doctor", "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    findings = json.loads(capsys.readouterr().out)
    compiled = {"c", "cpp", "rust"}
    assert compiled <= {*findings["languages_not_at_this_level"], *findings["languages_not_installed"]}
    assert not compiled & set(findings["languages"])
    assert "bash" in findings["languages"]
