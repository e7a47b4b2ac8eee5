"""The life of a captured episode: what goes to the engine, what the agent gets, and what the trajectory has."""

from __future__ import annotations

import pytest

from toolgym.envs.tasks.task import Task
from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage, CallRefusedError, WrittenCall
from toolgym.rollout.capture.prompts import Renderers
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import EpisodeKey, Job

TOOLS = ({"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object"}}},)
CALL = 'Let me run it.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


async def test_a_turn_is_kept_as_it_was_sampled(scripted, tokenizer):
    answers = iter([CALL, "done"])
    engine = scripted(lambda text, request_id: next(answers))
    job = Job(Task(({"role": "user", "content": "q"},)), EpisodeKey(0, 0), "g")
    session = CaptureSession(engine, Renderers(tokenizer), job, EpisodeConfig())
    first = (AgentMessage("system", "Be brief."), AgentMessage("user", "Look."))
    reply = await session.answer(AgentCall("chat", first, TOOLS))
    assert reply.content == "Let me run it."
    call = WrittenCall(reply.calls[0].id, "bash", '{ "command":"ls" }')
    turn = AgentMessage("assistant", "Let me run it. ", calls=(call,))
    result = AgentMessage("tool", "a.txt", call_id=call.id)
    assert (await session.answer(AgentCall("chat", (*first, turn, result), TOOLS))).content == "done"
    trajectory = session.finish(1.0)
    prompts = [prompt for prompt, _ in engine.seen.values()]
    sampled = [list(generation.token_ids) for generation in engine.given.values()]
    assert prompts[1][: len(prompts[0]) + len(sampled[0])] == prompts[0] + sampled[0]
    assert [s.token_ids.tolist() for s in trajectory.sequence.policy_segments] == sampled
    with pytest.raises(CallRefusedError, match="over"):
        await session.answer(AgentCall("chat", first, TOOLS))
