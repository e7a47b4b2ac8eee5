"""`toolgym bench`: real measurements, of a few calls each."""

from __future__ import annotations

import json

import pytest

from toolgym.cli.app import main
from toolgym.commands import bench


@pytest.fixture
def run(monkeypatch, capsys):
    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["toolgym", "bench", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return command


@pytest.mark.long
def test_each_figure_is_measured(run, monkeypatch):
    for name, value in {"AT_ONCE": 2, "ENVS": 2, "STEPS": 1}.items():
        monkeypatch.setattr(bench, name, value)
    code, shown, _ = run("--json")
    figures = json.loads(shown)
    assert code == 0
    assert list(figures) == [
        "ms a program",
        "ms a cell",
        "programs a second, 2 at once",
        "code steps a second, 2 envs",
        "ms of CPU a turn with a call",
    ]
    assert all(value > 0 for value in figures.values())
    assert figures["ms a cell"] < figures["ms a program"]


def test_a_name_chooses_and_a_wrong_one_is_told(run):
    code, shown, errors = run("turns")
    assert (code, shown.split("  ")[-1]) == (0, "ms of CPU a turn with a call\n")
    assert "docs/cli.md" in errors
    assert run("turn")[::2] == (
        2,
        "error: nothing is called 'turn', did you mean 'turns'?; known: sandbox, vector, turns\n",
    )


@pytest.mark.long
def test_a_wrong_answer_is_no_figure(run, monkeypatch):
    monkeypatch.setattr(bench, "CODE", "print(3)")
    code, shown, errors = run("sandbox")
    assert (code, shown) == (1, "")
    assert "expected the program to print 2, got '3\\n'" in errors
