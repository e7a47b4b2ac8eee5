"""The command, and a file with trajectories of every kind."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.rollout.adapters.golden import CASES, GROUP, policy
from toolgym.cli.app import main
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.rollout.trajectory.file import TrajectoryWriter
from toolgym.viewer.run_index import RunIndex

DEMO = Path(__file__).parents[3] / "front/viewer/demo"


@pytest.fixture
def export(monkeypatch, capsys):
    """Runs `toolgym export`; returns its exit status, standard output and standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["toolgym", "export", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        return left.value.code, shown.out, shown.err

    return run


@pytest.fixture(scope="session")
def demo():
    index = RunIndex(DEMO).read_all()
    return [index.trajectory(row) for row in index.rows]


def odd():
    """Trajectories that no run makes often: a context that the env began, a number that is none, odd texts and ids."""
    base = next(case.trajectory for case in CASES if case.name == "several turns")
    turns = base.turns
    contexts = dataclasses.replace(
        base,
        id="anew",
        sequences=(
            TokenSequence(np.array([5, 6, 7]), (policy(10, 11, 12), Segment.env([30]))),
            TokenSequence(np.array([5, 8]), (policy(13, 14),), "env"),
        ),
        turns=(turns[0], dataclasses.replace(turns[1], sequence=1)),
    )
    infinite = dataclasses.replace(
        base, id="../../infinite", metrics={"score": float("nan")},
        sequences=(TokenSequence(np.array([5]), (Segment.policy([1, 2], [-np.inf, -1.0], ["0", "0"]),)),),
        turns=(dataclasses.replace(turns[0], generated_tokens=2),),
    )  # fmt: skip
    surrogate = dataclasses.replace(base, id="half", messages=({"role": "user", "content": "\ud800", "mood": "odd"},))
    thought = dataclasses.replace(
        base,
        id="thought",
        messages=(
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "a", "reasoning_content": "hm"},
            {"role": "user", "content": "and?"},
            {"role": "assistant", "content": "b"},
        ),
    )
    return [contexts, infinite, surrogate, thought]


@pytest.fixture(scope="session")
def kinds():
    return [*(case.trajectory for case in CASES), *GROUP, *odd()]


@pytest.fixture(scope="session")
def kinds_file(kinds, tmp_path_factory):
    path = tmp_path_factory.mktemp("kinds") / "trajectories.jsonl"
    with TrajectoryWriter(path) as writer:
        for trajectory in kinds:
            writer.write(trajectory)
    return path
