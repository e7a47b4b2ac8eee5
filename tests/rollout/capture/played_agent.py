"""An agent that speaks to a captured episode, and a policy whose turns are written down beforehand."""

from __future__ import annotations

import json
from dataclasses import replace

from toolgym.envs.tasks.task import Task
from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage, WrittenCall
from toolgym.rollout.capture.prompts import Renderers
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.runner.config import RunConfig


def schema(name):
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": "Run it.", "parameters": parameters}}


TOOLS = (schema("bash"), schema("read"))
SYSTEM, USER = AgentMessage("system", "You are an agent."), AgentMessage("user", "List the files.")
START = (SYSTEM, USER)


def written_call(command, name="bash"):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": {"command": command}}) + "\n</tool_call>"


def user(text):
    return AgentMessage("user", text)


def system(text):
    return AgentMessage("system", text)


def foreign(text, **fields):
    return AgentMessage("assistant", text, **fields)


def back(reply, **changes):
    """A reply as an agent sends it back that keeps ids, thinking and text, and writes JSON in its own way."""
    calls = tuple(
        WrittenCall(call.id, call.name, json.dumps(json.loads(call.arguments), separators=(",", ":")))
        for call in reply.calls
    )
    ids = frozenset({f"msg_{reply.id}", *(call.id for call in calls)})
    return replace(AgentMessage("assistant", reply.content, reply.reasoning, calls, ids=ids), **changes)


def result(reply, text, number=0):
    return AgentMessage("tool", text, call_id=reply.calls[number].id)


class PlayedAgent:
    """A session and its engine. `answers` are the policy's turns in the order of the requests."""

    def __init__(
        self, make_engine, tokenizer, answers=(), *, rules=None, limits=None, sampling=None, parser=None, **options
    ):
        self.answers = iter(answers)
        self.engine = make_engine(self._answer, **options)
        job = Job(Task(({"role": "user", "content": "q"},)), EpisodeKey(3, 1), "the-group", seed=5)
        config = EpisodeConfig(
            sampling=sampling or SamplingParams(max_new_tokens=200), limits=limits or EpisodeLimits()
        )
        renderers = Renderers(tokenizer, RunConfig(parser=parser))
        self.session = CaptureSession(self.engine, renderers, job, config, rules=rules or CaptureRules())
        self.tokenizer = tokenizer
        self.trajectory = None

    def _answer(self, text, request_id):
        return next(self.answers)

    async def ask(self, *messages, tools=TOOLS, **fields):
        return await self.session.answer(AgentCall("chat", messages, tools, **fields))

    def prompt(self, number):
        """The ids that the request of this number went to the engine with."""
        return self.engine.seen[f"{self.session.id}-{number}"][0]

    def sampled(self, number):
        return list(self.engine.given[f"{self.session.id}-{number}"].token_ids)

    def assert_goes_on(self, number, earlier):
        """A call's prompt begins with the prompt and the sample of an earlier one."""
        before = self.prompt(earlier) + self.sampled(earlier)
        assert self.prompt(number)[: len(before)] == before

    def finish(self, reward=1.0):
        """The rows: why each began, and the numbers of the calls that it trains on; each is what the engine saw."""
        self.trajectory = self.session.finish(reward)
        return rows_of(self.trajectory, self.engine)


def rows_of(trajectory, engine):
    left = {name: (engine.seen[name][0], given) for name, given in engine.given.items()}
    rows = []
    for sequence in trajectory.sequences:
        context, numbers = sequence.prompt_ids.tolist(), []
        for segment in sequence.segments:
            if segment.is_policy:
                name = next(
                    name
                    for name, (prompt, given) in left.items()
                    if prompt == context and given.token_ids == tuple(segment.token_ids)
                )
                given = left.pop(name)[1]
                assert tuple(segment.logprobs) == given.logprobs
                assert segment.weight_versions == given.weight_versions
                numbers.append(int(name.rsplit("-", 1)[1]))
            context += segment.token_ids.tolist()
        assert numbers
        rows.append((sequence.start_reason, numbers))
    assert trajectory.policy_tokens == sum(turn.generated_tokens for turn in trajectory.turns)
    assert [turn.sequence for turn in trajectory.turns] == [
        number for number, (_, calls) in enumerate(rows) for _ in calls
    ]
    assert len(trajectory.turn_places) == len(trajectory.turns)
    return rows
