"""The cache of renderers: sessions with tools of their own do not push each other out."""

from __future__ import annotations

import gc

import pytest

from toolgym.envs.tasks.task import Task
from toolgym.rollout.capture import prompts
from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage
from toolgym.rollout.capture.canonical import written
from toolgym.rollout.capture.prompts import Renderers
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import EpisodeKey, Job


def tools_in(folder):
    function = {"name": "bash", "description": f"Run in {folder}.", "parameters": {"type": "object", "properties": {}}}
    return ({"type": "function", "function": function},)


@pytest.fixture
def renderers(tokenizer, monkeypatch):
    monkeypatch.setattr(prompts, "_RECENT", 2)
    return Renderers(tokenizer)


async def test_open_sessions_keep_their_renderers_whatever_their_number(scripted, renderers):
    engine = scripted(lambda text, request_id: "Done.")
    config = EpisodeConfig(sampling=SamplingParams(max_new_tokens=20))
    job = Job(Task(({"role": "user", "content": "q"},)), EpisodeKey(0, 0), "group")
    sessions = [CaptureSession(engine, renderers, job, config) for _ in range(5)]
    histories = [(AgentMessage("user", "q"),) for _ in sessions]
    for _ in range(3):
        for at, session in enumerate(sessions):
            reply = await session.answer(AgentCall("chat", histories[at], tools_in(f"/tmp/{at}")))
            histories[at] += (written(reply), AgentMessage("user", "And now?"))
    assert renderers.made == len(sessions)
    assert all(len(session.finish(1.0).sequences) == 1 for session in sessions)


async def test_renderers_that_no_session_uses_are_freed(renderers):
    renderers._last = []
    for at in range(4):
        await renderers.of(tools_in(f"/tmp/{at}"))
    renderers._last = []
    gc.collect()
    assert len(renderers._in_use) == 2
