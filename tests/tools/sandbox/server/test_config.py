"""Settings: from a file and from flags, every mistake told with its field."""

from __future__ import annotations

import dataclasses

import pytest

from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.server.config import LimitsConfig, ServerConfig
from toolgym.tools.serving.config import is_loopback, meanings


def test_flags_win_over_the_file(tmp_path):
    file = tmp_path / "server.yaml"
    file.write_text("port: 1234\nmax_queue: 7\nlimits: {memory_mb: 100}\nlanguages: [python, bash]\n")
    config = ServerConfig.load(file, {"port": 4321, "host": None})
    assert (config.port, config.max_queue, config.host, config.languages) == (4321, 7, "127.0.0.1", ("python", "bash"))
    assert Limits(**config.limits.model_dump()) == Limits(memory_mb=100)


def test_the_printed_settings_are_taken_back(tmp_path):
    given = {"port": 4321, "workers": 3, "network": "loopback", "isolation": "landlock", "languages": ["python"]}
    config = ServerConfig.load(flags={**given, "limits": {"cores": 0.5}, "token": "s3sam3"})
    text = config.as_yaml()
    assert "s3sam3" not in text
    file = tmp_path / "server.yaml"
    file.write_text(text)
    assert ServerConfig.load(file, {"token": "s3sam3"}) == config
    for name in ("max_concurrency", "max_computing"):  # they follow the machine where the file is read
        assert f"\n# {name}: " in text
    assert "\nworkers: 3\n" in text


@pytest.mark.parametrize("model", [ServerConfig, LimitsConfig])
def test_every_setting_says_what_it_means(model):
    assert [name for name in model.model_fields if not meanings(model).get(name)] == []


def test_the_limits_defaults_are_the_sandboxs():
    assert LimitsConfig().model_dump() == dataclasses.asdict(Limits())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", "prot: no such setting, did you mean 'port'?"),
        ("limits: {memory: 1}", "limits.memory: no such setting, did you mean 'memory_mb'?"),
        ("limits: {memory_mb: 0}", "limits.memory_mb: Input should be greater than 0 (got 0)"),
        ("port: 70000", "port: Input should be less than or equal to 65535 (got 70000)"),
        ("queue_timeout: .inf", "queue_timeout: Input should be a finite number"),
        ("isolation: strong", "isolation: Input should be 'namespaces', 'uid' or 'landlock' (got 'strong')"),
        ("languages: [pyton]", "languages: unknown language 'pyton', did you mean 'python'?"),
        ("token: 'a b'", "token: a token should be printable ASCII"),
        ("token_file: /nowhere", "token_file: cannot read '/nowhere'"),
        ("host: 0.0.0.0", "host: '0.0.0.0' can be reached from other machines"),
        ("host: '::'", "host: '::' can be reached from other machines"),
        ("port: true", "port: Input should not be true or false"),
        ("workers: yes", "workers: Input should not be true or false"),
        ("limits: {memory_mb: no}", "limits.memory_mb: Input should not be true or false"),
        ("languages: []", "languages: Tuple should have at least 1 item"),
        ("python: /nowhere", "python: there is no such program"),
        ("port: 1\nport: 2", "port: is given twice"),
        ("limits: {inodes: 1, inodes: 1}", "inodes: is given twice"),
        ("[" * 3000, "nested too deeply"),
        ("[1]", "expected a mapping of settings, got list"),
        ("a: [", "not valid YAML"),
    ],
)
def test_mistakes_name_the_field(tmp_path, text, message):
    file = tmp_path / "server.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        ServerConfig.load(file)
    assert message in str(caught.value)


def test_mistakes_in_flags_name_the_flag():
    with pytest.raises(ConfigError, match="--max-queue: Input should be greater than or equal to 0"):
        ServerConfig.load(None, {"max_queue": -1})


def test_a_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "server.yaml").touch()
    with pytest.raises(UnknownNameError, match=r"did you mean 'server\.yaml'"):
        ServerConfig.load(tmp_path / "sever.yaml")


def test_the_token_is_read_and_never_shown(tmp_path):
    (tmp_path / "token").write_text("open-sesame\n")
    config = ServerConfig.load(None, {"token_file": tmp_path / "token", "host": "0.0.0.0"})
    assert config.secret == "open-sesame"
    assert "open-sesame" not in repr(config)
    (tmp_path / "token").write_text("open sesame\n")
    with pytest.raises(ConfigError, match="token_file") as caught:
        ServerConfig.load(None, {"token_file": tmp_path / "token"})
    assert "sesame" not in str(caught.value).replace(str(tmp_path), "")


def test_loopback():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org")] == [
        False
    ] * 5
