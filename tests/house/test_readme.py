"""The programs of the README and of the pages for users run as they stand there."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


PAGES = ("README.md", "docs/rollout.md", "docs/tools.md", "docs/sandbox.md")
PROGRAMS = [program for page in PAGES for program in _blocks(page, "python")]
OWN_ENV = _blocks("docs/own_env.md", "python")
TRAINERS = [one for page in ("docs/trainers.md", "docs/trl.md") for one in _blocks(page, "python")]
FOREIGN_ENVS = _blocks("docs/foreign_envs.md", "python")
FILES = {name: (ROOT / "examples" / name).read_text() for name in ("sums.py", "grpo.py")}


@pytest.fixture
def folder(tmp_path):
    """A folder with the examples that the page's programs import."""
    for name in FILES:
        shutil.copy(ROOT / "examples" / name, tmp_path)
    return tmp_path


def _run(arguments, folder=None):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=False, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _name(program):
    return program.partition("\n\n")[0].replace("\n", "; ")[:60]


def test_there_are_programs():
    assert len(PROGRAMS) >= 5
    assert len(OWN_ENV) == 7
    assert len(TRAINERS) >= 5
    assert len(FOREIGN_ENVS) == 1


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS, ids=_name)
def test_a_program_of_the_readme_and_its_pages_runs(program, tmp_path, as_program):
    as_program(program, tmp_path)


@pytest.mark.long
def test_the_program_of_the_page_on_foreign_envs_runs():
    rewards = ast.literal_eval(_run([sys.executable, "-c", FOREIGN_ENVS[0]]))
    assert len(rewards) == 8
    assert set(rewards) <= {0.0, 1.0}


def test_the_page_shows_the_examples_as_they_are():
    assert [one for one in OWN_ENV if one in FILES.values()] == [*FILES.values()]


@pytest.mark.long
@pytest.mark.parametrize("program", [one for one in OWN_ENV if one not in FILES.values()], ids=_name)
def test_a_program_of_the_page_on_envs_runs(program, folder):
    _run([sys.executable, "-c", program], folder)


@pytest.mark.long
@pytest.mark.parametrize("program", TRAINERS, ids=_name)
def test_a_program_of_the_pages_on_trainers_runs(program, tmp_path):
    if "adapters.openrlhf" in program:  # the class that it makes is one of OpenRLHF's
        pytest.importorskip("openrlhf")
    _run([sys.executable, "-c", program], tmp_path)


@pytest.mark.long
def test_the_commands_of_the_page_on_envs_run(folder):
    for command in _blocks("docs/own_env.md", "bash"):
        _run(["bash", "-c", command.replace("../.venv/bin/python", sys.executable)], folder)
    assert (folder / "sums-out" / "batch.safetensors").exists()


@pytest.mark.long
def test_the_training_of_the_page_learns_from_exactly_what_was_sampled(folder):
    steps = re.findall(
        r"mean reward (\S+), log-probs apart by at most (\S+)", _run([sys.executable, "grpo.py"], folder)
    )
    assert len(steps) == 3
    assert all(float(apart) < 1e-3 for _, apart in steps)
    assert any(float(reward) > 0 for reward, _ in steps)


LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)]*))?\)")


def _prose(page):
    """A page's text without its programs."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def _anchors(page):
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _pages():
    return [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
        (ROOT / "docs").rglob("*.md")
    )


def test_every_link_leads_somewhere():
    broken = []
    for page in _pages():
        for target, anchor in LINK.findall(_prose(page)):
            if "://" in target:
                continue
            path = (page.parent / target).resolve()
            if not path.exists() or (anchor and path.suffix == ".md" and anchor not in _anchors(path)):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []


def test_the_index_leads_to_every_page():
    index = ROOT / "docs" / "README.md"
    reached, waiting = set(), [index]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        waiting += [(page.parent / target).resolve() for target, _ in LINK.findall(_prose(page))]
    assert [str(page.relative_to(ROOT)) for page in _pages() if page not in reached] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
