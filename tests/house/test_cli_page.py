"""docs/cli.md has each command, and its examples and JSON keys are those of the commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.as_typed import needs_a_shell
from toolgym.cli.app import COMMANDS, app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
BLOCKS = {name: re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S) for name, text in SECTIONS.items()}


def examples():
    lines = [line for blocks in BLOCKS.values() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("toolgym ")]


def options_of(words):
    """The options that the command takes whose words these are."""
    command = typer.main.get_command(app).get_command(None, words[0])
    if hasattr(command, "get_command"):
        command = command.get_command(None, words[1]) or command.get_command(None, "<run>")
    assert command is not None, words
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


def test_each_command_has_a_section_with_an_example():
    assert set(SECTIONS) == set(COMMANDS)
    for name, blocks in BLOCKS.items():
        assert any(line.startswith(f"toolgym {name}") for block in blocks for line in block.splitlines()), name


@pytest.mark.parametrize("example", examples())
def test_an_example_has_only_options_that_there_are(example):
    words = shlex.split(example)[1:]
    assert {word for word in words if word.startswith("--")} <= options_of(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_says_what_the_json_holds(name):
    words = [name, "--"]  # a group has none of its own
    if hasattr(typer.main.get_command(app).get_command(None, name), "get_command"):
        return
    assert ("--json" in options_of(words)) == ("\nJSON: " in SECTIONS[name])


def keys(printed):
    """The names of what was printed, those in lists too."""
    value = json.loads(printed)
    names = [name for entry in (value if isinstance(value, list) else [value]) for name in entry]
    return set(names)


def run(command, folder):
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("name", ["envs", "prepare"])
def test_the_json_has_the_keys_that_are_documented(tmp_path, name):
    done = run(BLOCKS[name][0], tmp_path)
    assert done.returncode == 0, done.stderr
    assert keys(done.stdout) == documented(name)


def documented(name):
    return set(re.findall(r"`(\w+)`", SECTIONS[name].partition("\nJSON: ")[2].partition("\n\n")[0]))


@pytest.mark.long
def test_the_examples_run_from_top_to_bottom(tmp_path, as_typed):
    for name, blocks in BLOCKS.items():
        for block in blocks:
            is_plain = "\n" not in block.strip() and not needs_a_shell(block)
            done = as_typed(block.strip(), tmp_path) if is_plain else run(block, tmp_path)
            assert done.returncode == 0, (block, done.stderr)
            if "--json" in block and name not in ("bench", "tools"):
                assert keys(done.stdout) <= documented(name), name
                assert documented(name) <= keys(done.stdout) | NESTED, name


NESTED = {"missing", "needed_for", "remedy", "name", "status", "why", "required"}
"""Names of what stands in a list below another name."""
