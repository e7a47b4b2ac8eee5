"""A wire and an episode without tokens, for tests of the server alone."""

from __future__ import annotations

import asyncio
import itertools

from toolgym.envs.types import StopReason
from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage, CallRefusedError, Reply
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn


class Kept:
    """A sink."""

    def __init__(self):
        self.trajectories = []

    def write(self, trajectory):
        self.trajectories.append(trajectory)


class LineWire:
    """A wire of one message a request."""

    name, path, counting_path = "lines", "/lines", "/lines/count"

    def read(self, body, memory, rules=None):
        if "text" not in body:
            raise CallRefusedError(400, "no_text", "a text is missing")
        message, left_out = AgentMessage("user", body["text"]), tuple(body.get("left_out", ()))
        return AgentCall("lines", (message,), stream=bool(body.get("stream")), left_out=left_out)

    def answer(self, call, reply):
        return {"id": reply.id, "text": reply.content, "agent": call.agent}

    def events(self, call, reply, heartbeats=0):
        for word in reply.content.split():
            yield b"data: %s\n\n" % word.encode()
        yield b"data: [END %d]\n\n" % heartbeats

    def heartbeat(self, call, sent):
        return b": alive\n\n"

    def refusal(self, error):
        return {"wire": "lines", "code": error.code, "text": str(error)}

    def failed_event(self, call, error):
        return b"data: !%s\n\n" % error.code.encode()


class Episode:
    """Answers each call with its text in capitals; `wait` gates the answers whose text is in it."""

    def __init__(self, job, config, rules):
        self.job, self.config, self.rules = job, config, rules
        self.calls, self.lost, self.cancelled, self.trajectory = [], [], 0, None
        self.wait, self.noted = {}, []
        self._numbers = itertools.count()

    def note(self, call):
        self.noted.append(call.left_out)

    async def count_tokens(self, call):
        return len(call.messages[0].content)

    async def answer(self, call):
        text = call.messages[-1].content
        if text == "bug":
            raise ZeroDivisionError
        try:
            gate = self.wait.get(text)
            if gate is not None:
                await gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.trajectory is not None:
            raise CallRefusedError(410, "episode_ended", "the episode is over")
        if self.rules.max_calls is not None and len(self.calls) >= self.rules.max_calls:
            raise CallRefusedError(410, "max_turns", "no turns are left")
        self.calls.append(call)
        return Reply(f"r{next(self._numbers)}", text.upper())

    def undelivered(self, reply_id):
        self.lost.append(reply_id)

    def figures(self):
        return {"lost": len(self.lost)}

    def close(self, trajectory):
        assert self.trajectory is None
        self.trajectory = trajectory
        for gate in self.wait.values():
            gate.set()

    def draft(self, reward, metrics, stop_reason=StopReason.ANSWERED, error=None):
        return Trajectory(
            id=f"{self.job.group_id}-{self.job.key.sample_index}",
            env_id="agent",
            task_id=self.job.task.id,
            source=self.job.task.source,
            group_id=self.job.group_id,
            task_index=self.job.key.task_index,
            sample_index=self.job.key.sample_index,
            messages=({"role": "user", "content": "x"},),
            tools=(),
            sequences=(),
            reward=reward,
            stop_reason=stop_reason,
            turns=tuple(Turn(call.messages[-1].content, "stop", 1, 1) for call in self.calls),
            error=error,
            ground_truth=self.job.task.ground_truth,
            metrics=dict(metrics or {}),
        )
