"""`CaptureServer` over the tiny policy, with all its parts, from an agent's request to the run's files."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import numpy as np
import pytest

from tests.rollout.capture.gateway.stand_ins import Kept
from toolgym.envs.types import StopReason
from toolgym.rollout import RunConfig, SamplingParams, make_batch, open_engine, rollout
from toolgym.rollout.capture import CaptureConfig, CaptureServer
from toolgym.rollout.endpoint import run
from toolgym.rollout.recording.run_folder import RunFile
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.trajectory.file import read_trajectories
from toolgym.tools.errors import ConfigError, EpisodeError, NoSessionError
from toolgym.viewer.run_index import RunIndex

ENV = "CodeInterpreter-v0"


@pytest.fixture
def sdks():
    """Imports the SDKs, which takes seconds, only where they are used."""
    global anthropic, openai
    import anthropic
    import openai


@pytest.fixture
async def engine():
    async with open_engine("tiny") as engine:
        yield engine


def config(**settings):
    return CaptureConfig(**{"port": 0, "max_new_tokens": 128, **settings})


async def chat(session, messages, tools=(), **body):
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {session.key}"}) as http:
        request = {"model": "m", "messages": messages, "tools": list(tools), **body}
        async with http.post(f"{session.openai_url}/chat/completions", json=request) as response:
            return response.status, await response.json()


QUESTION = [{"role": "user", "content": "6*7?"}]


async def test_the_tokens_of_an_env_played_through_the_gateway_are_those_of_a_rollout(engine):
    env = EnvFactory.of(ENV)
    tasks = (await env.tasks()).take(3, seed=5, training_step=0)
    usual = RunConfig(seed=5, group_size=2, sampling=SamplingParams(max_new_tokens=128))
    expected = await rollout(ENV, engine, tasks, config=usual)
    async with CaptureServer(engine, config=config(seed=5)) as server:

        async def play(number, sample):
            session = await server.open(tasks[number], group=str(number), sample=sample)
            reward = await run(tasks[number], base_url=session.openai_url, api_key=session.key, env=ENV)
            return await server.finish(session, reward)

        for number in range(len(tasks)):  # groups are numbered in their order
            session = await server.open(group=str(number))
            await server.drop(session)
        captured = await asyncio.gather(*(play(number, sample) for number in range(3) for sample in range(2)))
    assert sum(len(trajectory.turns) for trajectory in expected) > 6, "some call their tool"
    for mine, theirs in zip(captured, expected, strict=True):
        assert (mine.task_index, mine.sample_index) == (theirs.task_index, theirs.sample_index)
        assert mine.reward == theirs.reward
        assert mine.prompt_ids.tolist() == theirs.prompt_ids.tolist()
        assert mine.response_ids.tolist() == theirs.response_ids.tolist()
        assert mine.response_mask.tolist() == theirs.response_mask.tolist()
        assert np.allclose(mine.logprobs, theirs.logprobs, atol=1e-4)
    assert len(make_batch(captured, pad_token_id=0)) == 6


async def test_a_run_is_begun_gone_on_with_and_opened_by_the_viewer(engine, tmp_path):
    out = tmp_path / "run"
    async with CaptureServer(engine, out=out, config=config()) as server:
        session = await server.open("t1", group="g")
        assert (await chat(session, QUESTION))[0] == 200
        trajectory = await server.finish(session, 0.5, metrics={"passed": 3})
        with pytest.raises(ConfigError, match="is being written by another run"):
            async with CaptureServer(engine, out=out):
                pass
    async with CaptureServer(engine, out=out, config=config()) as server:
        with pytest.raises(ConfigError, match="sample 0 of group 'g' is there already"):
            await server.open("t1", group="g", sample=0)
        session = await server.open("t1", group="g")
        await chat(session, QUESTION)
        left_open = await server.open("t2")
        await chat(left_open, QUESTION)
        await server.finish(session, 1.0)
    first, second, third = read_trajectories(out / "0.jsonl")
    assert first == trajectory
    assert first.metrics["passed"] == 3
    assert (second.group_id, second.sample_index) == (first.group_id, 1)
    assert (third.stop_reason, third.task_index, third.policy_tokens > 0) == (StopReason.ABORTED, 1, True)
    assert RunFile.read(out).run_id == first.group_id.rpartition("-")[0]
    index = RunIndex(out).read_all()
    assert [row.reward for row in index.rows] == [0.5, 1.0, 0.0]


async def test_the_run_of_another_command_is_left_alone(engine, tmp_path):
    (tmp_path / "0.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="holds trajectories of another run"):
        async with CaptureServer(engine, out=tmp_path):
            pass
    run_file = {"format": "toolgym-run", "version": 1, "run_id": "r", "options": {}, "episodes": 1, "tasks": ""}
    run_file |= {"files": {}, "tokenizer": {}, "pad_token_id": 0}
    (tmp_path / "run.json").write_text(json.dumps(run_file))
    with pytest.raises(ConfigError, match="is of another run"):
        async with CaptureServer(engine, out=tmp_path):
            pass
    (tmp_path / "run.json").write_text(json.dumps(run_file | {"options": {"capture": True}}))
    with pytest.raises(ConfigError, match="another tokenizer"):
        async with CaptureServer(engine, out=tmp_path):
            pass
    assert (tmp_path / "0.jsonl").read_text() == "{}\n"


async def test_the_ends_of_a_session_in_python(engine):
    kept = Kept()
    async with CaptureServer(engine, out=kept, config=config()) as server:
        session = await server.open({"id": "t", "reward_model": {"ground_truth": "42"}})
        await chat(session, QUESTION)
        trajectory = await server.finish(session, 1.0)
        assert await server.finish(session.id, 1.0) is trajectory
        with pytest.raises(EpisodeError, match="ended already, with reward 1"):
            await server.finish(session.id, 0.0)
        assert (trajectory.ground_truth, trajectory.reward) == ("42", 1.0)
        broken = await server.open()
        failed = await server.finish(broken, 1.0, error="no machine")
        assert (failed.failed, failed.stop_reason, failed.reward) == (True, StopReason.ENV_FAILED, 0.0)
        dropped = await server.open()
        await server.drop(dropped)
        with pytest.raises(EpisodeError, match="dropped"):
            await server.finish(dropped, 1.0)
        with pytest.raises(NoSessionError):
            await server.finish("unknown", 1.0)
        with pytest.raises(ConfigError, match="sampel"):
            await server.open(sampel=1)
    with pytest.raises(ConfigError, match="inside of `async with"):
        await server.open()
    assert kept.trajectories == [trajectory, failed]


async def test_a_stream_has_the_text_of_its_turn(engine):
    async with CaptureServer(engine, config=config()) as server:
        session = await server.open(sampling={"temperature": 0.0})
        _, whole = await chat(session, QUESTION)
        async with aiohttp.ClientSession(headers={"x-api-key": session.key}) as http:
            body = {"model": "m", "messages": QUESTION, "stream": True}
            async with http.post(f"{session.openai_url}/chat/completions", json=body) as response:
                lines = (await response.text()).splitlines()
            body = {"model": "m", "messages": QUESTION, "max_tokens": 500}
            async with http.post(f"{session.anthropic_url}/v1/messages?beta=true", json=body) as response:
                blocks = (await response.json())["content"]
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        message = whole["choices"][0]["message"]
        assert text == (message["content"] or "")
        assert "".join(block.get("text", "") for block in blocks) == text
        trajectory = await server.finish(session, 1.0)
    assert len(trajectory.turns) == 3


async def test_tokens_are_counted_as_a_call_has_them_and_counting_is_no_call(engine, sdks):
    async with CaptureServer(engine, config=config()) as server:
        session = await server.open("t1")
        async with (
            anthropic.AsyncAnthropic(base_url=session.anthropic_url, api_key=session.key) as claude,
            openai.AsyncOpenAI(base_url=session.openai_url, api_key=session.key) as codex,
        ):
            asked = {"model": "m", "messages": [*QUESTION]}
            for _ in range(2):
                count = await claude.messages.count_tokens(**asked)
                message = await claude.messages.create(max_tokens=64, **asked)
                assert count.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
                answered = [block.model_dump() for block in message.content]
                asked["messages"] += [{"role": "assistant", "content": answered}, {"role": "user", "content": "Sure?"}]
            counted = await codex.responses.input_tokens.count(model="m", input="6*7?")
            response = await codex.responses.create(model="m", input="6*7?")
            assert counted.input_tokens == response.usage.input_tokens
            with pytest.raises(anthropic.BadRequestError, match="messages"):
                await claude.messages.count_tokens(model="m", messages=[{"role": "robot", "content": "x"}])
        trajectory = await server.finish(session)
    assert trajectory.metrics["calls"] == len(trajectory.turns) == 3
    assert len(trajectory.sequences) == 2, "the second question of the first conversation goes on from its answer"


async def test_what_a_call_does_not_get_is_counted_though_its_tokens_were_counted_before(engine, sdks):
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "no such file", "is_error": True}
    asked = [{"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}]
    messages = [*QUESTION, {"role": "assistant", "content": asked}, {"role": "user", "content": [result]}]
    async with CaptureServer(engine, config=config()) as server:
        session = await server.open("t1")
        async with anthropic.AsyncAnthropic(base_url=session.anthropic_url, api_key=session.key) as claude:
            await claude.messages.count_tokens(model="m", messages=messages)
            await claude.messages.create(model="m", max_tokens=64, messages=messages)
        trajectory = await server.finish(session)
    assert trajectory.metrics["calls_ignored_tool_result.is_error"] == 1


async def test_variables_of_the_chat_template_reach_it(engine):
    template = engine.tokenizer.chat_template
    begins = "{% if word is defined %}{{ word }}{% endif %}"
    try:
        engine.tokenizer.chat_template = begins + template
        async with CaptureServer(engine, config=config(template_kwargs={"word": "Thoughtless."})) as server:
            session = await server.open()
            assert (await chat(session, QUESTION))[0] == 200
            trajectory = await server.finish(session)
    finally:
        engine.tokenizer.chat_template = template
    assert trajectory.prompt_text.startswith("Thoughtless.")
