"""`toolgym serve openenv` as a user starts it: settings, mistakes, signals."""

from __future__ import annotations

import re
import signal

import aiohttp
import pytest

from tests.envs.served.environments.toy import serving
from tests.serve_command import running
from toolgym.cli.app import main
from toolgym.envs.served.environments.config import EnvServerConfig
from toolgym.tools.errors import ConfigError
from toolgym.tools.serving.config import meanings

MINE = """
import toolgym
from toolgym.envs import Task, ToolEnv

class Echo(ToolEnv):
    def __init__(self, word="hello", **kwargs):
        super().__init__([], [Task(({"role": "user", "content": f"Say {word}."},))], **kwargs)

toolgym.register("Echo-v0", Echo, description="Say a word.")
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command in this process until it exits; returns its status and what it printed."""

    def run(*arguments):
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr("sys.argv", ["toolgym", "serve", "openenv", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return run


def test_the_settings_are_printed_as_a_file(run, tmp_path):
    flags = ["CodeInterpreter-v0", "--env", "mine:Echo-v0", "--env-kwargs", '{"max_turns": 3}', "--step-timeout", "5"]
    code, printed, _ = run(*flags, "--print-config")
    assert code == 0
    file = tmp_path / "server.yaml"
    file.write_text(printed)
    config = EnvServerConfig.load(file)
    assert (config.step_timeout, config.port, config.workers) == (5.0, 8000, 1)
    assert config.envs == {"CodeInterpreter-v0": {"max_turns": 3}, "mine:Echo-v0": {"max_turns": 3}}
    assert set(meanings(EnvServerConfig)) >= set(EnvServerConfig.model_fields), "each has a meaning"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name at least one env to serve"),
        (["CodeInterpreter-v1"], "no env has the id 'CodeInterpreter-v1', did you mean 'CodeInterpreter-v0'?"),
        (["nosuch:Echo-v0"], "there is no module 'nosuch'"),
        (["CodeInterpreter-v0", "--env-kwargs", "max_turns=3"], "--env-kwargs: not JSON"),
        (["CodeInterpreter-v0", "--env-kwargs", "[3]"], "--env-kwargs: expected a JSON object"),
        (["--env-kwargs", "{}"], "--env-kwargs goes with ENV"),
        (["CodeInterpreter-v0", "--step-timeout", "0"], "--step-timeout: Input should be greater than 0"),
        (["CodeInterpreter-v0", "--host", "0.0.0.0"], "TOOLGYM_OPENENV_TOKEN"),
    ],
)
def test_mistakes_are_told_at_once(run, arguments, message):
    code, _, said = run(*arguments)
    assert (code, message in said) == (2, True), said


async def test_an_env_of_ones_own_is_served_until_the_server_is_stopped(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    flags = ("--env-kwargs", '{"word": "bye"}')
    with running("openenv", "mine:Echo-v0", *flags, cwd=tmp_path, TOOLGYM_OPENENV_TOKEN="open-sesame") as server:
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer open-sesame"}) as http:
            async with http.post(f"{server.url}/reset", json={}) as response:
                assert (await response.json())["observation"]["messages"][0]["content"] == "Say bye."
            async with http.get(f"{server.url}/list_environments", headers={"Authorization": "no"}) as response:
                assert response.status == 401
            async with http.ws_connect(f"{server.url}/ws") as socket:
                await socket.send_json({"type": "reset"})
                await socket.receive_json(timeout=60)
                server.process.send_signal(signal.SIGTERM)
                message = await socket.receive(timeout=60)
                assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)
        code, log = server.stop()
    assert (code, "Traceback" in log, "open-sesame" in log) == (0, False, False), log


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kwargs": {"max_turns": 0}}, "env 'tests/Sum-v0': max_turns must be"),
        ({"kwargs": {"max_turn": 1}}, "did you mean 'max_turns'?"),
        ({"answer_tool": "add"}, "has a tool 'add' of its own: set answer_tool to another name"),
    ],
)
async def test_an_env_that_cannot_be_served_is_told(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        async with serving(**settings):
            pass


async def test_the_answer_tool_may_be_left_out(http):
    async with serving(answer_tool=None) as service, http.get(f"{service.url}/tools") as response:
        tools = await response.json()
    assert (len(tools["tools"]), tools["terminal_tool"]) == (3, None)
