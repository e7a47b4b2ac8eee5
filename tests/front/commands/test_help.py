"""What all commands have in common: their help, `-v`, and how errors look."""

from __future__ import annotations

import pytest
import typer

from toolgym.__main__ import main as from_the_shell
from toolgym.cli.app import COMMANDS, app, main


def paths():
    """The words of each command, those of groups too."""
    group = typer.main.get_command(app)
    commands = []
    for name in COMMANDS:
        command = group.get_command(None, name)
        commands.append([name])
        if hasattr(command, "list_commands"):
            commands += [[name, inner] for inner in command.list_commands(None) if inner.isalpha()]
    return commands


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["toolgym", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return command


def test_the_list_fits_and_names_every_command(run):
    code, shown, _ = run("--help")
    assert code == 0
    assert max(map(len, shown.splitlines())) <= 80
    assert [line.split()[0] for line in shown.partition("Commands:")[2].splitlines() if line[2:3].strip()] == [
        *COMMANDS
    ]


@pytest.mark.parametrize("words", paths(), ids=" ".join)
def test_the_help_of_each_command_has_the_same_form(run, words):
    code, shown, errors = run(*words, "--help")
    assert (code, errors) == (0, "")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"Usage: toolgym {' '.join(words)} ")
    about = shown.split("\n\n")[1]
    assert len(about.split()) <= 60
    assert " ".join(about.split()).endswith(".")
    assert "-v, --verbose" in shown
    assert "--help" in shown
    assert shown.count("Exit status: 0 done, 1 an error, 2 wrong usage, 130 interrupted.") == 1


@pytest.mark.parametrize(
    "arguments", [["-v", "envs", "chess"], ["envs", "chess", "-v"], ["envs", "--verbose", "chess"]]
)
def test_an_error_is_one_line_and_a_traceback_with_v(run, arguments):
    line = "error: no id has 'chess' in it; `toolgym envs --all` lists every id\n"
    assert run("envs", "chess") == (2, "", line)
    code, _, errors = run(*arguments)
    assert code == 2
    assert errors.startswith("Traceback (most recent call last):\n")
    assert errors.endswith(line)


def test_an_error_of_the_users_env_is_one_line_that_says_where(run, tmp_path, monkeypatch, registry):
    code = 'import toolgym\ntoolgym.register("Odd-v0", "odd_env:make")\ndef make(**kwargs):\n    return {}["towns"]\n'
    (tmp_path / "odd_env.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, errors = run("play", "odd_env:Odd-v0")
    assert (code, errors) == (
        1,
        f"error: KeyError: 'towns' ({tmp_path}/odd_env.py, line 4; -v shows the traceback)\n",
    )
    assert "Traceback" in run("-v", "play", "odd_env:Odd-v0")[2]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["check-env", "Nope-v0"], 2, "error: no env has the id 'Nope-v0'"),
        (["serve", "sandbox", "--port", "99999"], 2, "error: --port: Input should be less than or equal to 65535"),
        (["serve", "sandbx"], 2, "No such command 'sandbx', did you mean 'sandbox'?"),
        (["check-template", "./nope"], 2, "error: no model folder at 'nope'"),
        (["replay", "nope.jsonl"], 2, "error: no "),
        (["prepare", "gsm9k", "--in", "a", "--out", "b.jsonl"], 2, "did you mean 'gsm8k'"),
        (["play", "GSM9K-v0"], 2, "did you mean 'GSM8K-v0'"),
        (["tools", "bsh"], 2, "did you mean 'bash'"),
        (["bench", "sandbx"], 2, "did you mean 'sandbox'"),
        (["doctor", "--jsn"], 2, "No such option"),
    ],
)
def test_wrong_usage_is_exit_status_2(run, arguments, code, message):
    left, shown, errors = run(*arguments)
    assert (left, shown) == (code, "")
    assert message in errors
    assert "Traceback" not in errors


def test_an_interrupt_is_exit_status_130(run, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("toolgym.commands.bench._turns", interrupted)
    assert run("bench", "turns")[0] == 130


def test_so_is_one_while_the_command_loads(monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.__import__", interrupted)
    with pytest.raises(SystemExit) as left:
        from_the_shell()
    monkeypatch.undo()
    assert left.value.code == 130
