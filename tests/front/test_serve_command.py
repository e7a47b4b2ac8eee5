"""`toolgym serve`: each server's flags come from its settings."""

from __future__ import annotations

import importlib

import pytest

from toolgym.cli.app import main
from toolgym.cli.serve import SERVERS
from toolgym.tools.serving.config import meanings


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `toolgym serve` in this process until it exits; returns its status, output and errors."""

    def run(*arguments):
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr("sys.argv", ["toolgym", "serve", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return run


def test_the_help_lists_the_servers(run):
    code, printed, _ = run("--help")
    assert (code, [name in printed for name in SERVERS]) == (0, [True] * len(SERVERS))


@pytest.mark.parametrize("name", SERVERS)
def test_every_flag_is_a_setting_with_its_meaning_and_default(run, name):
    module, _, attribute = SERVERS[name].settings.partition(":")
    model = getattr(importlib.import_module(module), attribute)
    code, printed, _ = run(name, "--help")
    words = " ".join(printed.split())
    assert code == 0
    for flag in model.flags():
        assert f"--{flag.replace('_', '-')} " in words
        assert meanings(model)[flag].split(";")[0][1:30] in words
    assert f"[default: {model.model_fields['port'].default}]" in words
    assert f"[env var: {model.spec.token_variable}]" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sessions", "--backend-kwargs", "{"], "--backend-kwargs: not JSON"),
        (["sessions", "--port", "many"], "Invalid value for '--port'"),
        (["sandbox", "--max-session", "3"], "--max-sessions"),
        (["sandbx"], "No such command 'sandbx'"),
        (["search", "--log-level", "loud"], "--log-level: Input should be 'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_wrong_usage_is_told(run, arguments, message):
    code, _, told = run(*arguments)
    assert (code, message in told) == (2, True), told


def test_the_token_of_the_environment_lets_a_server_listen_for_others(run, monkeypatch):
    code, _, told = run("sandbox", "--host", "0.0.0.0", "--print-config")
    assert (code, "TOOLGYM_SANDBOX_TOKEN" in told) == (2, True)
    monkeypatch.setenv("TOOLGYM_SANDBOX_TOKEN", "open-sesame")
    code, printed, _ = run("sandbox", "--host", "0.0.0.0", "--print-config")
    assert (code, "host: 0.0.0.0" in printed, "open-sesame" in printed) == (0, True, False)
