"""`ToolgymAgent` in Agent-Lightning's contract: environment variables, a gateway, events and states."""

from __future__ import annotations

import dataclasses
import json

import pytest
from aiohttp import web

from tests.rollout.engines.http_server import serving
from toolgym.envs.types import EpisodeFailedError
from toolgym.rollout.adapters import agent_lightning
from toolgym.rollout.adapters.agent_lightning import play
from toolgym.rollout.engines import http
from toolgym.tools.errors import ConfigError, EngineError

TASK = {"prompt": [{"role": "user", "content": "What is 2*3?"}], "reward_model": {"ground_truth": "6"}}


class Server:
    """Agent-Lightning's server in shape: answers each chat request with the next of `says`, a text or a status."""

    def __init__(self, *says, events=(201,)):
        self.says, self.statuses = list(says), list(events)
        self.requests = []

    async def chat(self, request):
        assert request.headers["Authorization"] == "Bearer key"
        said = self.says.pop(0)
        if isinstance(said, int):
            return web.json_response({"detail": "no"}, status=said, headers={"Retry-After": "0"} if said == 429 else {})
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    async def tell(self, request):
        assert request.headers["Authorization"] == "Bearer key"
        self.requests.append((request.method, request.path, await request.json()))
        return web.json_response({}, status=self.statuses.pop(0) if self.statuses else 200)

    async def play(self, **changes):
        paths = {
            "POST /proxy/openai/v1/chat/completions": self.chat,
            "POST /api/rollouts/r1/attempt/0/events": self.tell,
            "PATCH /api/rollouts/r1": self.tell,
        }
        async with serving(paths) as url:
            given = {
                "AGL_OPENAI_BASE_URL": f"{url}/proxy/openai/v1",
                "AGL_EVENT_URL": f"{url}/api/rollouts/r1/attempt/0/events",
                "AGL_KEY": "key",
                "TOOLGYM_TASK": json.dumps(TASK),
                "TOOLGYM_ENV": "CodeInterpreter-v0",
                **changes,
            }
            return await play({name: value for name, value in given.items() if value is not None})


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(http, "RETRIES", dataclasses.replace(http.RETRIES, first_delay=0.001))
    monkeypatch.setattr(agent_lightning, "_RETRIES", dataclasses.replace(agent_lightning._RETRIES, first_delay=0.001))


async def test_the_reward_is_an_event():
    server = Server(*[429] * 6, "#### 6", events=[500, 201])  # paused while weights change, longer than 4 attempts
    assert await server.play() == 1.0
    event = ("POST", "/api/rollouts/r1/attempt/0/events",
             {"event_type": "reward", "data": {"value": 1.0, "source": "agent"}})  # fmt: skip
    assert server.requests == [event, event]


async def test_what_was_broken_off_has_no_reward_and_no_events():
    server = Server(500)
    with pytest.raises(EpisodeFailedError):
        await server.play(TOOLGYM_RUN=json.dumps({"limits": {"engine_timeout": 120.0}}))
    [(method, path, content)] = server.requests
    assert (method, path) == ("PATCH", "/api/rollouts/r1")
    assert content["status"]["state"] == "failed"
    assert content["status"]["last_attempt_id"] == "broken-off"
    assert "500" in content["status"]["error_message"]


async def test_what_does_not_fit_is_named():
    with pytest.raises(EngineError, match="answered 404"):
        await Server("#### 6", events=[404]).play()
    for name, value in {"TOOLGYM_TASK": "[1]", "TOOLGYM_RUN": "{"}.items():
        with pytest.raises(ConfigError, match=name):
            await Server().play(**{name: value})
    for name in ("AGL_OPENAI_BASE_URL", "AGL_EVENT_URL"):
        with pytest.raises(ConfigError, match=name):
            await Server().play(**{name: None})
    with pytest.raises(ConfigError, match="/attempt/NAME/events"):
        await Server().play(AGL_EVENT_URL="http://127.0.0.1:1/events")
