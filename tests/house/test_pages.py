"""The programs and commands of the pages that begin a way into the library run as they stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.as_typed import needs_a_shell

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import drawings  # noqa: E402

MARK = r"^<!-- a program that the tests run{} -->\n```python\n(.*?)^```"
PROGRAMS = [
    (page, program)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for program in re.findall(MARK.format(""), page.read_text(encoding="utf-8"), re.M | re.S)
]
PROGRAM_OF = {"toolgym": f"{sys.executable} -m toolgym", "python": sys.executable}
START = (ROOT / "docs/start.md").read_text(encoding="utf-8")


def run(arguments, folder):
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def run_line(as_typed):
    """Runs a line of a page, in a shell if it needs one, and returns what it printed."""

    def run_it(line, folder):
        if needs_a_shell(line):
            line = re.sub(r"^(toolgym|python)\b", lambda name: PROGRAM_OF[name[1]], line)
            return run(["bash", "-euo", "pipefail", "-c", line], folder)
        done = as_typed(line, folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_it


def test_there_are_programs():
    assert len(PROGRAMS) >= 14
    names = {path.stem for path in (ROOT / "docs/coming_from").glob("*.md")} - {"README"}
    assert names <= {page.stem for page, _ in PROGRAMS if page.parent.name == "coming_from"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "program"), PROGRAMS, ids=[f"{page.stem}-{n}" for n, (page, _) in enumerate(PROGRAMS)]
)
def test_a_program_of_a_page_runs(page, program, tmp_path, as_program):
    as_program(program, tmp_path)


@pytest.fixture
def shop(tmp_path):
    """A folder with the file that the page of ten minutes writes."""
    parts = re.findall(r"^<!-- shop\.py -->\n```python\n(.*?)^```", START, re.M | re.S)
    assert len(parts) == 2
    (tmp_path / "shop.py").write_text("\n\n".join(parts))
    return tmp_path


def test_the_env_of_ten_minutes_pays_for_the_right_answer(shop):
    [program] = re.findall(MARK.format(", with shop.py"), START, re.M | re.S)
    question, reply, end = run([sys.executable, "-c", program], shop).splitlines()
    assert question.startswith("What do 5 x milk cost?")
    assert (reply, end[:3]) == ("10", "1.0")


@pytest.mark.long
def test_the_commands_of_ten_minutes_do_what_the_page_says(shop, run_line):
    blocks = re.findall(r"^```bash\n(.*?)^```", START, re.M | re.S)
    commands = [line for block in blocks for line in block.splitlines()]
    assert {command.split()[0] for command in commands} == {"make", ".venv/bin/toolgym", ".venv/bin/python"}
    played = ""
    for command in commands:
        if command == "make demo" or "demo-out" in command:  # CI runs the first, and the second is about its run
            continue
        command = command.replace(".venv/bin/", "", 1)
        page = " --filter tool=unknown_tool --html run.html" if " view " in command else ""  # there is no terminal here
        played += run_line(command + page, shop)
    assert "unknown_tool" in played
    assert (shop / "shop-run/batch.safetensors").exists()
    assert "unknown_tool" in (shop / "run.html").read_text()


@pytest.mark.long
@pytest.mark.parametrize("name", ["viewer", "report", "exports"])
def test_the_commands_that_look_at_a_run_work_on_that_of_make_demo(name, tmp_path, run_line):
    """The viewer in a terminal, a server, and runs that the page only names are left out."""
    shutil.copytree(ROOT / "front/viewer/demo", tmp_path / "demo-out")
    text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()]
    commands = [
        line
        for line in lines
        if "before" not in line and "--serve" not in line and (name != "viewer" or "--html" in line)
    ]
    assert len(commands) >= 3
    for command in commands:
        assert command.startswith("toolgym ")
        assert " 0 trajectories" not in run_line(command, tmp_path)


@pytest.mark.long
def test_the_commands_that_evaluate_do_what_the_page_says(tmp_path, run_line):
    text = (ROOT / "docs/evaluate.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    shown = [run_line(line, tmp_path) for line in block.splitlines()]
    assert len(shown) == 4
    assert "By env" in shown[0]
    assert "after - before" in shown[1]
    assert '"pass@2"' in shown[2]
    assert (tmp_path / "plots.png").exists()


def test_the_drawings_are_those_of_the_demo(tmp_path, monkeypatch):
    monkeypatch.setattr(drawings, "OUT", tmp_path)
    drawings.main()
    kept = {path.name: path.read_text() for path in (ROOT / "docs/drawings").iterdir()}
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == kept, "run scripts/drawings.py"
    assert 'class="box policy"' in kept["tokens.svg"]
