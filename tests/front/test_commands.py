"""The table of commands: what it promises without loading them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from toolgym.cli.app import COMMANDS, app


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_module(name):
    assert typer.main.get_command(app).get_command(None, name).get_short_help_str(200)


def test_the_list_of_commands_loads_none_of_them():
    code = (
        "import sys\n"
        "from toolgym.cli.app import main\n"
        "sys.argv = ['toolgym', '--help']\n"
        "try:\n    main()\n"
        "finally:\n    print(sorted(name for name in sys.modules if name.startswith('toolgym.cli.')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines()[-1] == "['toolgym.cli.app']"
    for name, summary in COMMANDS.items():
        assert name in done.stdout
        assert summary.split(";")[0].split(",")[0] in done.stdout


def test_a_mistyped_command_gets_the_nearest():
    done = subprocess.run(
        [sys.executable, "-m", "toolgym", "rolout"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert "No such command 'rolout', did you mean 'rollout'?" in done.stderr
