"""`toolgym envs`, and envs in modules of the current folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolgym.envs.ids import FAMILIES, OWN_ENVS

SCRIPT = Path(sys.executable).with_name("toolgym")
"""What pip installs: unlike `python -m toolgym`, it does not have the current folder on its path by itself."""

MODULE = """
import toolgym
toolgym.register("Towns-v0", "toolgym.envs.library.code_interpreter:CodeInterpreterEnv", description="Towns, by name.")
"""


def run(folder, *arguments, **env):
    return subprocess.run(
        [SCRIPT, *arguments],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **env},
    )  # fmt: skip


def test_each_id_is_a_line_and_a_module_of_the_current_folder_adds_its_own(tmp_path):
    (tmp_path / "town_env.py").write_text(MODULE)
    done = run(tmp_path, "envs", "--all", "--env", "town_env")
    assert done.returncode == 0, done.stderr
    names = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert set(names) == {*OWN_ENVS, "town_env:Towns-v0"}
    assert names["town_env:Towns-v0"].endswith("Towns, by name.")


def test_a_family_is_one_line_and_a_name_lists_its_ids(tmp_path, as_typed):
    lines = run(tmp_path, "envs").stdout.splitlines()
    assert len(lines) == len({id.split("/")[0] for id in OWN_ENVS})
    games = [id for id in OWN_ENVS if id.startswith("TextArena/")]
    assert [line for line in lines if line.startswith("TextArena/*") and line.endswith(f"({len(games)} ids)")]
    for name in ("TextArena/*", "textarena/"):
        listed = as_typed(f"toolgym envs '{name}'", tmp_path).stdout
        assert [line.split("  ")[0] for line in listed.splitlines()] == sorted(games)
    unknown = as_typed("toolgym envs chess", tmp_path)
    assert unknown.returncode == 2
    assert unknown.stderr == "error: no id has 'chess' in it; `toolgym envs --all` lists every id\n"


def test_json_has_each_id(tmp_path, as_typed):
    rows = json.loads(run(tmp_path, "envs", "--json").stdout)
    assert {row["id"]: row["description"] for row in rows} == {id: own.description for id, own in OWN_ENVS.items()}
    chosen = json.loads(as_typed("toolgym envs gsm8k-v0 --json", tmp_path).stdout)
    assert [row["id"] for row in chosen] == ["GSM8K-v0"]


def install(folder, package, code):
    """Put a package into `folder` as pip does; its entry point names its module."""
    (folder / f"{package}.py").write_text(code)
    (about := folder / f"{package}-1.0.dist-info").mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[toolgym.envs]\n{package} = {package}\n")


def test_an_installed_package_brings_its_ids(tmp_path):
    (site := tmp_path / "site").mkdir()
    install(site, "town_env", MODULE + "toolgym.registered()\n")  # which asks for the ids while they are collected
    install(site, "broken_town", "import no_such_thing\n")
    listed = run(tmp_path, "envs", "towns", "--json", PYTHONPATH=str(site))
    assert json.loads(listed.stdout) == [{"id": "Towns-v0", "description": "Towns, by name."}]
    warning = "the envs of the package 'broken_town' are left out, since its module 'broken_town' cannot be imported"
    assert listed.stderr.count(warning) == 1
    for code in (
        "import toolgym; toolgym.make('Towns-v0')",
        "from toolgym.cli.user_code import load_env; load_env('Towns-v0')",  # as check-env, rollout and play do
        "import toolgym, sys; toolgym.make('GSM8K-v0'); assert 'town_env' not in sys.modules",  # not needed for that
    ):
        command = [sys.executable, "-W", "ignore:the envs of", "-c", code]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(site)}, check=True)


def test_each_family_has_a_line():
    assert {id.split("/")[0] for id in OWN_ENVS if "/" in id} == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("town_evn", "error: there is no module 'town_evn', did you mean 'town_env'?"),
        ("tracemaloc", "error: there is no module 'tracemaloc'; "),  # Python's own modules have no envs
        ("broken", "error: importing the module 'broken' failed: SyntaxError: "),
        ("needs", "error: importing the module 'needs' failed: ModuleNotFoundError: No module named 'no_such_thing' ("),
        ("no module", "error: 'no module' is not the name of a module"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch, capfd, name, said):
    from toolgym.cli.app import main

    (tmp_path / "town_env.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("x = (\n")
    (tmp_path / "needs.py").write_text("import no_such_thing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    for command in (["envs", "--env", name], ["rollout", "--env", f"{name}:Towns-v0"]):
        monkeypatch.setattr("sys.argv", ["toolgym", *command])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        stderr = capfd.readouterr().err
        assert stderr.startswith(said)
        assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("toolgym ro", "rollout"),
        ("toolgym pla", "play"),
        ("toolgym play CodeI", "CodeInterpreter-v0"),
        ("toolgym rollout --env CodeI", "CodeInterpreter-v0"),
        ("toolgym serve sa", "sandbox"),
        ("toolgym serve openenv CodeI", "CodeInterpreter-v0"),
    ],
)
def test_a_shell_completes_commands_and_ids(tmp_path, as_typed, monkeypatch, words, offered):
    monkeypatch.setenv("_TOOLGYM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert as_typed("toolgym", tmp_path).stdout.split() == [offered]


def test_completion_is_offered_by_the_command_and_not_by_its_parts(tmp_path, as_typed):
    assert "--install-completion" in as_typed("toolgym --help", tmp_path).stdout
    for command in ("envs", "serve"):
        assert "completion" not in as_typed(f"toolgym {command} --help", tmp_path).stdout


def test_the_help_of_a_server_shows_its_defaults(tmp_path, as_typed):
    assert "[default: 127.0.0.1]" in as_typed("toolgym serve search --help", tmp_path).stdout
