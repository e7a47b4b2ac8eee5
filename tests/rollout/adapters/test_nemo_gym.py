"""An env as a resources server, with NeMo-Gym's own agent, base classes and check of sessions where it is installed."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from tests.rollout.adapters import nemo_gym_stand_in
from toolgym.envs import ArithmeticTasks
from toolgym.envs.library.code_interpreter import CodeInterpreterEnv
from toolgym.rollout.adapters.nemo_gym import to_rows
from toolgym.tools.errors import ConfigError, MissingExtraError

HOME = "toolgym.rollout.adapters.nemo_gym.server"
TASK = {"prompt": [{"role": "user", "content": "What is 2*3?"}], "reward_model": {"ground_truth": "6"}}


@pytest.fixture
def nemo_gym(monkeypatch):
    pytest.importorskip("nemo_gym", reason="NeMo-Gym is not installed")
    nemo_gym_stand_in.install(monkeypatch)


@pytest.fixture(scope="module")
def row():
    [made] = to_rows("CodeInterpreter-v0", [TASK], env_kwargs={"max_turns": 4})
    return made


def server_of(**settings):
    from unittest.mock import MagicMock

    from nemo_gym.server_utils import ServerClient

    from toolgym.rollout.adapters.nemo_gym import ToolgymServer, ToolgymServerConfig

    given = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "toolgym", "domain": "other"}
    config = ToolgymServerConfig(**{**given, "env": "CodeInterpreter-v0", "env_kwargs": {"max_turns": 4}, **settings})
    return ToolgymServer(config=config, server_client=MagicMock(spec=ServerClient))


class Rollout:
    """NeMo-Gym's simple agent between our server and a model server."""

    def __init__(self, server, model):
        import httpx
        from responses_api_agents.simple_agent.app import (
            ModelServerRef,
            ResourcesServerRef,
            SimpleAgent,
            SimpleAgentConfig,
        )

        self.app, self.model = server.setup_webserver(), model
        config = SimpleAgentConfig(
            host="127.0.0.1", port=2, entrypoint="app.py", name="agent",
            model_server=ModelServerRef(type="responses_api_models", name="model"),
            resources_server=ResourcesServerRef(type="resources_servers", name="toolgym"),
        )  # fmt: skip
        self.agent = SimpleAgent.model_construct(config=config, server_client=self)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://toolgym")
        self.outputs = []

    async def post(self, *, server_name, url_path, json=None, cookies=None):
        """The `ServerClient` of the agent."""
        import httpx

        if server_name == "model":
            return nemo_gym_stand_in.Answer(200, self.model.answer(json.model_dump()), {})
        if server_name == "agent":
            from fastapi import Request, Response

            request = Request({"type": "http", "headers": [], "path_params": {}, "method": "POST", "path": url_path})
            request._cookies = dict(cookies)
            made = await self.agent.responses(request, Response(), json)
            return nemo_gym_stand_in.Answer(200, made.model_dump_json().encode(), cookies)
        self.client.cookies = httpx.Cookies(dict(cookies or {}))
        answer = await self.client.post(url_path, json=json)
        if url_path not in ("/seed_session", "/verify"):
            self.outputs.append((answer.status_code, answer.text))
        return nemo_gym_stand_in.Answer(answer.status_code, answer.content, {**(cookies or {}), **answer.cookies})

    async def play(self, row):
        """Play one row; what `/run` of the agent answers."""
        from fastapi import Request
        from responses_api_agents.simple_agent.app import SimpleAgentRunRequest

        request = Request({"type": "http", "headers": [], "method": "POST", "path": "/run"})
        async with self.app.router.lifespan_context(self.app):
            return await self.agent.run(request, SimpleAgentRunRequest.model_validate(row))


def six(outputs):
    return f"#### {outputs[-1]['output'].strip()}" if outputs else "print(2*3)"


async def test_its_agent_plays_an_episode(nemo_gym, row):
    server = server_of()
    rollout = Rollout(server, nemo_gym_stand_in.Model(six))
    answer = await rollout.play(row)
    assert (answer.reward, answer.mask_sample, answer.stop_reason, answer.turns) == (1.0, False, "answered", 2)
    assert [(status, text.strip()) for status, text in rollout.outputs] == [(200, "6")]
    assert len(server._episodes.sessions) == 0


async def test_a_response_that_was_cut_is_not_taken_as_the_answer(nemo_gym, row):
    answer = await Rollout(server_of(), nemo_gym_stand_in.Model(lambda outputs: "#### 6", cut=True)).play(row)
    assert (answer.reward, answer.mask_sample, answer.stop_reason, answer.turns) == (0.0, False, "length", 1)


async def test_the_envs_turns_are_the_agents(nemo_gym, row):
    rollout = Rollout(
        server_of(), nemo_gym_stand_in.Model(lambda outputs: "print(1)" if len(outputs) < 6 else "#### 6")
    )
    answer = await rollout.play(row)
    assert (answer.stop_reason, answer.reward, answer.turns) == ("max_turns", 0.0, 4)
    assert "over" in rollout.outputs[-1][1]


async def test_what_breaks_off_is_masked(nemo_gym, row, monkeypatch):
    slow = nemo_gym_stand_in.Model(lambda outputs: "#### 6" if outputs else "import time; time.sleep(9)")
    rollout = Rollout(server_of(step_timeout=0.3), slow)
    answer = await rollout.play(row)
    assert (answer.reward, answer.mask_sample, answer.failure_kind) == (0.0, True, "toolgym:env_timeout")
    assert rollout.outputs[0][0] == 503

    async def hangs(env, **kwargs):
        await asyncio.sleep(60)

    monkeypatch.setattr(CodeInterpreterEnv, "reset", hangs)
    rollout = Rollout(server_of(reset_timeout=0.1), nemo_gym_stand_in.Model(six))
    answer = await rollout.play(row)
    assert (answer.mask_sample, answer.failure_kind) == (True, "toolgym:reset_failed")
    assert rollout.outputs[0][0] == 503


async def test_a_session_that_is_gone_is_masked_and_wrong_rows_are_refused(nemo_gym, row):
    server = server_of()
    rollout = Rollout(server, nemo_gym_stand_in.Model(lambda outputs: "#### 6"))
    begin = server._begin

    async def lost(name, given):
        await begin(name, given)
        await server._episodes.sessions.discard(name)

    server.__dict__["_begin"] = lost
    answer = await rollout.play(row)
    assert (answer.mask_sample, answer.failure_kind) == (True, "session_lost")
    refused = await rollout.client.post("/seed_session", json={"toolgym_task": "no JSON"})
    assert (refused.status_code, "toolgym_task" in refused.text) == (422, True)
    refused = await rollout.client.post("/code_interpreter", content=b"no JSON")
    assert refused.status_code == 422


def seed_of(row):
    from nemo_gym.base_resources_server import ResourcesSeedSessionRequest

    episode, task = {"rollout_id": "r1"}, {"taskset": "a", "task_id": "1"}
    return ResourcesSeedSessionRequest(
        resources_session_id="one", episode_id=episode, task_id=task, task_data={"toolgym_task": row["toolgym_task"]}
    )


def test_its_own_check_of_sessions_passes(nemo_gym, row):
    from nemo_gym.testing.session_conformance import check_resources_session_contract

    check_resources_session_contract(server_of().setup_webserver(), seed_of(row), keeps_state=True)


async def test_an_environment_servers_session_keeps_its_name(nemo_gym, row):
    server = server_of()
    rollout = Rollout(server, nemo_gym_stand_in.Model(six))
    async with rollout.app.router.lifespan_context(rollout.app):
        seeded = await rollout.client.post("/seed_session", json=seed_of(row).model_dump(mode="json"))
        assert seeded.json()["resources_session_id"] == "one"
        said = await rollout.client.post("/code_interpreter", json={"code": "print(6)"})
        assert (said.text.strip(), server._episodes.sessions.find("one").episode.steps) == ("6", 1)
    assert len(server._episodes.sessions) == 0


def test_rows_are_as_its_agents_read_them(nemo_gym):
    from responses_api_agents.simple_agent.app import SimpleAgentRunRequest

    for made in to_rows("CodeInterpreter-v0", ArithmeticTasks().take(2, seed=0)):
        read = SimpleAgentRunRequest.model_validate(json.loads(json.dumps(made)))
        assert read.responses_create_params.tools[0]["name"] == "code_interpreter"
        assert read.responses_create_params.input[0].role in ("system", "user")


def test_rows_without_nemo_gym():
    called = {"prompt": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y", "tool_call_id": "a"}]}
    with pytest.raises(ConfigError, match="task 0"):
        to_rows("CodeInterpreter-v0", [called])


def test_without_nemo_gym_there_is_no_server(monkeypatch):
    monkeypatch.delitem(sys.modules, HOME, raising=False)
    monkeypatch.setitem(sys.modules, "nemo_gym.base_resources_server", None)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtraError, match="nemo-gym"):
        from toolgym.rollout.adapters.nemo_gym import ToolgymServer  # noqa: F401
