"""`run`: our loop against a chat server that only knows messages, over real HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json

import pytest
from aiohttp import web

import toolgym
from tests.rollout.engines.http_server import serving
from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout import EpisodeLimits
from toolgym.rollout.endpoint import make_run, run
from toolgym.tools import image, text_part, tool
from toolgym.tools.errors import ConfigError, SandboxUnavailableError, UnknownArgumentError, UnknownNameError

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")
"""One red pixel."""

ROW = {"prompt": [{"role": "user", "content": "6*7?"}], "reward_model": {"ground_truth": "42"}}


def calls(*written, content=None):
    """A turn that calls tools: `(name, arguments)` each, arguments as they are written."""
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": text}}
        for n, (name, text) in enumerate(written)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made, "refusal": None}


def interpreter(code):
    return calls(("code_interpreter", json.dumps({"code": code})))


class Gateway:
    """A chat server that plays a model: `script(messages)` gives a turn, `(turn, finish_reason)` or a response."""

    def __init__(self, script):
        self.script, self.bodies, self.headers = script, [], []

    async def answer(self, request):
        self.headers.append(request.headers)
        self.bodies.append(await request.json())
        said = self.script(self.bodies[-1]["messages"])
        if isinstance(said, web.Response):
            return said
        if isinstance(said, float):
            await asyncio.sleep(said)
        said, reason = said if isinstance(said, tuple) else (said, None)
        message = {"role": "assistant", "content": said} if isinstance(said, str) else said
        return web.json_response({"choices": [{"message": message, "finish_reason": reason or "stop"}]})


@contextlib.asynccontextmanager
async def gateway(script):
    made = Gateway(script)
    async with serving({"POST /v1/chat/completions": made.answer}) as url:
        made.url = f"{url}/v1"
        yield made


def solve(messages):
    return f"#### {messages[-1]['content']}" if messages[-1]["role"] == "tool" else interpreter("print(6*7)")


async def test_a_task_is_solved_and_the_messages_are_the_servers_own():
    async with gateway(solve) as server:
        reward = await run(
            ROW, base_url=server.url, api_key="k", env="CodeInterpreter-v0", request={"temperature": 0.5}, model="m"
        )
    assert reward == 1.0
    first, second = server.bodies
    assert (first["model"], first["temperature"]) == ("m", 0.5)
    assert first["messages"] == ROW["prompt"]
    assert first["tools"][0]["function"]["name"] == "code_interpreter"
    assert second["messages"][:1] == first["messages"]
    echoed = interpreter("print(6*7)")
    del echoed["refusal"]
    assert second["messages"][1:] == [echoed, {"role": "tool", "content": "42", "tool_call_id": "c0"}]
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer k"}


async def test_images_of_a_task_and_of_a_tool_go_to_the_server_as_they_are():
    @tool
    def draw() -> list:
        """Draw."""
        return [text_part("drawn"), image(PNG)]

    def script(messages):
        return "42" if messages[-1]["role"] == "tool" else calls(("draw", "{}"))

    row = {**ROW, "prompt": [{"role": "user", "content": [text_part("What is it?"), image(PNG)]}]}
    async with gateway(script) as server:
        env = lambda: ToolEnv([draw], [Task(({"role": "user", "content": "q"},))])  # noqa: E731
        await run(row, base_url=server.url, env=env)
    messages = server.bodies[-1]["messages"]
    assert messages[0]["content"] == [text_part("What is it?"), image(PNG)]
    assert messages[-1]["content"] == [text_part("drawn"), image(PNG)]


async def test_a_run_for_one_env_takes_rows_in_either_way():
    made = make_run("CodeInterpreter-v0", env_kwargs={"max_turns": 3})
    async with gateway(lambda messages: "#### 42") as server:
        assert await made(ROW, base_url=server.url) == 1.0
        assert await made.run(Task.from_row(ROW), base_url=server.url, api_key=None) == 1.0
        assert await run({**ROW, "env_id": "CodeInterpreter-v0"}, base_url=server.url) == 1.0
        assert await run(ROW, base_url=server.url, env=lambda: ToolEnv([], [Task.from_row(ROW)])) == 0.0


async def test_a_client_of_the_trainer_is_used_and_left_open():
    httpx = pytest.importorskip("httpx2")
    async with gateway(solve) as server, httpx.AsyncClient(headers={"x-session": "s"}) as client:
        assert await run(ROW, base_url=server.url, http_client=client, env="CodeInterpreter-v0") == 1.0
        assert not client.is_closed
        assert {headers["x-session"] for headers in server.headers} == {"s"}
    async with httpx.AsyncClient() as client:
        with pytest.raises(EpisodeFailedError, match="nothing answers") as caught:
            await run(ROW, base_url=server.url, http_client=client, env="CodeInterpreter-v0")
    assert caught.value.stop_reason is StopReason.ENGINE_FAILED


async def test_what_the_model_does_wrong_is_read_by_it():
    def script(messages):
        if messages[-1]["role"] == "user":
            return calls(
                ("code_interpreter", "{"), ("code_interpreter", "[1]"), ("nosuch", "{}"), ("code_interpreter", "")
            )
        answers.extend(message["content"] for message in messages if message["role"] == "tool")
        return "#### 42"

    answers = []
    async with gateway(script) as server:
        assert await run(ROW, base_url=server.url, env="CodeInterpreter-v0") == 1.0
    assert "not valid JSON" in answers[0]
    assert "must be one JSON object" in answers[1]
    assert "Unknown tool 'nosuch'" in answers[2]
    assert "Wrong arguments" in answers[3]


async def test_a_turn_that_was_cut_ends_the_episode_and_is_scored():
    seen = []

    def scored():
        return ToolEnv([], [Task.from_row(ROW)], scorer=lambda outcome: float(seen.append(outcome) is None))

    async with gateway(lambda messages: ("#### 42", "length")) as server:
        assert await run(ROW, base_url=server.url, env=scored) == 1.0
    assert len(server.bodies) == 1
    assert [(trajectory.stop_reason, trajectory.final_text, trajectory.turns) for trajectory in seen] == [
        (StopReason.LENGTH, "", 1)
    ]


async def test_what_a_full_context_or_the_trainer_ends_is_scored():
    seen = []

    def scored():
        env = toolgym.make("CodeInterpreter-v0")
        return ToolEnv(
            list(env.tools.values()), [Task.from_row(ROW)], scorer=lambda outcome: float(seen.append(outcome) is None)
        )

    def refuse(messages):
        if messages[-1]["role"] == "user":
            return interpreter("1")
        return web.json_response({"error": {"message": "rollout stopped: max_turns"}}, status=400)

    async with gateway(too_long) as server:
        assert await run(ROW, base_url=server.url, env=scored) == 1.0
    async with gateway(refuse) as server:
        assert await run(ROW, base_url=server.url, env=scored, ended=lambda: True) == 1.0
    assert [(trajectory.stop_reason, trajectory.turns) for trajectory in seen] == [(StopReason.BUDGET, 1)] * 2


def too_long(messages):
    if messages[-1]["role"] == "user" and len(messages) == 1 and messages[0]["content"] != "long":
        return interpreter("1")
    error = {"message": "This model's maximum context length is 10 tokens.", "code": "context_length_exceeded"}
    return web.json_response({"error": error}, status=400)


async def test_a_conversation_that_became_too_long_ends_the_episode_and_a_prompt_that_is_has_no_reward():
    async with gateway(too_long) as server:
        assert await run(ROW, base_url=server.url, env="CodeInterpreter-v0") == 0.0
        long = {"prompt": [{"role": "user", "content": "long"}]}
        with pytest.raises(EpisodeFailedError) as caught:
            await run(long, base_url=server.url, env="CodeInterpreter-v0")
    assert caught.value.stop_reason is StopReason.PROMPT_REFUSED


async def test_a_trainer_that_ended_the_episode_has_the_reward_until_then():
    def refuse(messages):
        if messages[-1]["role"] == "user":
            return interpreter("print(6*7)")
        return web.json_response({"error": {"message": "rollout stopped: max_turns"}}, status=400)

    def paid():
        env = ToolEnv([], [Task.from_row(ROW)])
        step = env.step

        async def paid_step(action):
            return (await step(action))._replace(reward=0.25)

        env.step = paid_step
        return env

    async with gateway(refuse) as server:
        assert await run(ROW, base_url=server.url, env=paid, ended=lambda: True) == 0.25
        with pytest.raises(ConfigError, match="rollout stopped"):
            await run(ROW, base_url=server.url, env=paid, ended=lambda: False)


async def test_a_server_that_is_full_is_asked_again():
    answers = iter([web.Response(status=429, headers={"Retry-After": "0"}), "#### 42"])
    async with gateway(lambda messages: next(answers)) as server:
        assert await run(ROW, base_url=server.url, env="CodeInterpreter-v0") == 1.0
    assert len(server.bodies) == 2


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (web.Response(status=500, text="cuda died"), "cuda died"),
        (web.Response(status=401, text="who"), "api_key"),
        (web.json_response({"id": "x"}), "must answer with a chat completion"),
        (web.Response(text="hello"), "must answer with a chat completion"),
    ],
)
async def test_a_server_that_fails_is_an_error_and_no_reward(answer, text):
    body, status = answer.body, answer.status
    async with gateway(lambda messages: web.Response(body=body, status=status)) as server:
        with pytest.raises(EpisodeFailedError, match=text) as caught:
            await run(ROW, base_url=server.url, env="CodeInterpreter-v0")
    assert caught.value.stop_reason is StopReason.ENGINE_FAILED
    assert len(server.bodies) == 1


async def test_a_server_that_hangs_is_given_up_in_time():
    async with gateway(lambda messages: 60.0) as server:
        with pytest.raises(EpisodeFailedError) as caught:
            await run(ROW, base_url=server.url, env="CodeInterpreter-v0", limits=EpisodeLimits(engine_timeout=0.2))
        assert caught.value.stop_reason is StopReason.ENGINE_TIMEOUT
        with pytest.raises(EpisodeFailedError) as caught:
            await run(ROW, base_url=server.url, env="CodeInterpreter-v0", limits=EpisodeLimits(episode_timeout=0.2))
        assert caught.value.stop_reason is StopReason.EPISODE_TIMEOUT


async def test_a_request_that_the_server_refuses_is_the_users():
    async with gateway(lambda m: web.json_response({"error": {"message": "no such field"}}, status=400)) as server:
        with pytest.raises(ConfigError, match="no such field"):
            await run(ROW, base_url=server.url, env="CodeInterpreter-v0", request={"temperatur": 1})


class Failing(ToolEnv):
    closed = 0

    def respond(self, turn):
        raise SandboxUnavailableError("no disk")

    async def close(self):
        type(self).closed += 1
        await super().close()


async def test_an_env_that_fails_is_an_error_and_is_closed():
    @tool
    def nothing() -> str:
        """Do nothing."""
        return ""

    Failing.closed = 0
    async with gateway(lambda messages: "#### 42") as server:
        with pytest.raises(EpisodeFailedError, match="no disk") as caught:
            await run(ROW, base_url=server.url, env=lambda: Failing([nothing], [Task.from_row(ROW)]))
    assert (caught.value.stop_reason, Failing.closed) == (StopReason.SANDBOX_FAILED, 1)


async def test_mistakes_are_errors():
    url = "http://127.0.0.1:1/v1"
    with pytest.raises(ConfigError, match="which env"):
        await run(ROW, base_url=url)
    with pytest.raises(UnknownNameError, match="did you mean"):
        await run(ROW, base_url=url, env="CodeInterpretr-v0")
    with pytest.raises(UnknownNameError):
        make_run("CodeInterpretr-v0")
    with pytest.raises(UnknownArgumentError, match="did you mean 'base_url'"):
        await run(ROW, baseurl=url, env="CodeInterpreter-v0")
    with pytest.raises(ConfigError, match="must look like"):
        await run(ROW, base_url="gateway", env="CodeInterpreter-v0")
    with pytest.raises(ConfigError, match=r"httpx\.AsyncClient"):
        await run(ROW, base_url=url, http_client=object(), env="CodeInterpreter-v0")
