"""The examples in which a policy learns: what they say of themselves, and a few of their steps."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import toolgym
from toolgym.envs import ArithmeticTasks

FOLDER = Path(__file__).parents[2] / "examples"
PLAIN, TRL = FOLDER / "learn_plain_torch.py", FOLDER / "learn_code_interpreter.py"
NIM = FOLDER / "learn_nim.py"
FEW = ["--steps", "3", "--tasks", "48", "--samples", "1"]


def _run(path, *arguments):
    done = subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _figures(line):
    """Sampled and greedy success, as a line says them."""
    [(sampled, greedy)] = re.findall(r"sampled (\S+?)(?: ± \S+)?, greedy (\S+)", line)
    return float(sampled), float(greedy)


@pytest.mark.long
def test_the_plain_loop_learns():
    before, *steps, took, after = _run(PLAIN, *FEW).splitlines()
    assert [re.sub(r"\S+$", "", step) for step in steps] == [f"step {one}: mean reward " for one in (1, 2, 3)]
    assert took.startswith("3 steps of 64 episodes took ")
    assert _figures(after)[0] > _figures(before)[0] + 0.05  # 0.2 more on most machines


@pytest.mark.long
def test_self_play_learns_both_roles_of_a_game():
    def rewards(line):
        return [float(number) for number in re.findall(r"as \w+ (\S\d\.\d+)", line)]

    _, before, *steps, took, after = _run(NIM, "--steps", "30").splitlines()
    assert len(steps) == 30
    assert took.startswith("30 steps took ")
    assert len(rewards(before)) == len(rewards(after)) == 2
    assert sum(rewards(after)) > sum(rewards(before)) + 0.3  # 0.8 more after 25 steps on one machine


@pytest.mark.long
def test_trl_learns_and_the_plot_is_drawn(tmp_path):
    drawing = importlib.util.find_spec("matplotlib") is not None
    plot = ["--plot", tmp_path / "plot.svg"] if drawing else []
    printed = _run(TRL, *FEW, "--groups", "6", "--seeds", "2", *plot).splitlines()
    [before] = [line for line in printed if line.startswith("before: ")]
    [after] = [line for line in printed if line.startswith("seed 2, after: ")]
    assert len([line for line in printed if re.match(r"step [123]: mean reward 0\.\d+$", line)]) == 3
    assert _figures(after)[0] > _figures(before)[0] + 0.05
    if drawing:
        drawn = (tmp_path / "plot.svg").read_text()
        assert "step of the optimizer" in drawn
        assert "seed 2: held-out, after" in drawn


async def test_what_is_trained_on_and_what_is_held_out_have_no_problem_in_common():
    def problems(tasks):
        return {(frozenset(re.findall(r"\d+", task.messages[-1]["content"])), task.ground_truth) for task in tasks}

    async with toolgym.make("CodeInterpreter-v0") as env:
        trained = set().union(*(problems(env.tasks.take(160, seed=seed)) for seed in range(3)))
    held_out = problems(ArithmeticTasks("test").take(256, seed=1))
    assert len(held_out) > 250  # told apart by numbers and answer
    assert not trained & held_out


def test_the_plain_loop_is_no_longer_than_it_says():
    tree = ast.parse(PLAIN.read_text())
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [one.name for one in functions] == ["evaluate", "learn", "main"]
    assert sum(one.end_lineno - one.lineno + 1 for one in functions) <= 60
