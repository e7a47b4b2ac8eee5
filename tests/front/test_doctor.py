"""`toolgym doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import metadata

import pytest

from toolgym.cli.app import main
from toolgym.commands import doctor
from toolgym.tools.sandbox.local.host import isolation
from toolgym.tools.sandbox.local.host.languages import LANGUAGES


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "toolgym", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_it_names_the_isolation_and_the_languages(tmp_path, as_typed):
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
    assert {step["missing"] for step in findings["remedies"]} >= {*findings["languages_not_installed"].values()}
    assert {f"extra {name}" for name, there in findings["extras"].items() if not there} <= {
        step["missing"] for step in findings["remedies"]
    }
    table = as_typed("toolgym doctor", tmp_path).stdout
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


BARE = {
    "machine": {"platform": "linux", "root": False, "user_namespaces": False, "landlock_abi": 0},
    "isolation": {"own_proc": False, "cgroup": None},
    "extras": {"rollout": False, "math": True},
    "gpu": False,
    "terminal": {"encoding": "ANSI_X3.4-1968", "kind": "dumb"},
    "languages_not_installed": {
        "typescript": "tsx",
        "csharp": "mcs, mono",
        "lean": "lean (which is /root/lean, where a)",
        "pytest": "the module pytest of /usr/bin/python3",
    },
}


def test_each_thing_that_is_missing_has_a_step():
    steps = [*doctor._isolation(BARE["machine"], BARE["isolation"]), *doctor._software(BARE)]
    remedies = {step.missing: step.remedy for step in steps}
    assert list(remedies)[:4] == ["user namespaces", "Landlock", "control groups", "extra rollout"]
    assert "systemd-run --user --scope -p Delegate=yes" in remedies["control groups"]
    assert "[rollout]'" in remedies["extra rollout"]
    assert remedies["UTF-8 in the terminal"] == "export LANG=C.UTF-8"
    assert remedies["tsx"] == "as root: npm install -g tsx"
    assert remedies["mcs, mono"] == "as root: apt-get install mono-mcs; apt-get install mono-runtime"
    module = remedies["the module pytest of /usr/bin/python3"]
    assert module == "as root: /usr/bin/python3 -m pip install pytest"
    assert "below /usr" in next(remedy for missing, remedy in remedies.items() if missing.startswith("lean"))


def test_every_extra_for_users_and_every_language_has_a_step():
    named = set(metadata("toolgym").get_all("Provides-Extra")) - {"cli", "docs", "envs", "testing", "dev"}
    assert named == set(doctor.TABLES["extras"])
    programs = {need for language in LANGUAGES.values() for need in language.needs}
    assert set(doctor.TABLES["programs"]) <= programs
    known = {"bash", "gcc", "g++", "rustc", "perl", "ruby", "scala", "racket", "iverilog", "sqlite3"}  # Debian's names
    assert programs - set(doctor.TABLES["programs"]) == known


def test_another_system_is_sent_to_a_server():
    machine = {"platform": "darwin", "root": False, "user_namespaces": False, "landlock_abi": 0}
    [step] = doctor._isolation(machine, None)
    assert (step.missing, "sandbox_url" in step.remedy) == ("Linux", True)
