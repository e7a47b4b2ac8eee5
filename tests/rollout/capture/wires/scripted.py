"""A server of all wires whose policy is a script, for clients that a test points at it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator

from aiohttp import web

from tests.rollout.engines.http_server import serving
from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage, CallRefusedError, Reply, ReplyCall, WrittenCall
from toolgym.rollout.capture.wires import WIRES
from toolgym.rollout.capture.wires.memory import RequestMemory

ODD = '{"city":  "Zürich" , "days": [1,  2] }'
"""Arguments with blanks that no client writes."""

TEXT = " Let me look. \n"
THOUGHT = "I should\n call the tool. "

BY_NAME = {wire.name: wire for wire in WIRES}


def reply(number: int = 1, **changes) -> Reply:
    usage = {"prompt_tokens": 120, "cached_tokens": 100, "completion_tokens": 30, "reasoning_tokens": 12}
    return Reply(**{"id": f"g{number:020x}", "content": "Done: hello.", "created": 1_700_000_000, **usage, **changes})


def called(*arguments: str, number: int = 1, name: str = "get_weather", **changes) -> Reply:
    """A reply with a call for each of the arguments."""
    id = f"g{number:020x}"
    calls = tuple(ReplyCall(f"call_{id}_{index}", name, text) for index, text in enumerate(arguments))
    return reply(number, **{"content": TEXT, "reasoning": THOUGHT, "calls": calls, "finish": "tool_calls", **changes})


def as_sent(answer: Reply, **changes) -> AgentMessage:
    """The reply as an agent sends it back that changes nothing, apart from the ids."""
    calls = tuple(WrittenCall(call.id, call.name, call.arguments) for call in answer.calls)
    return dataclasses.replace(AgentMessage("assistant", answer.content, answer.reasoning, calls), **changes)


@dataclasses.dataclass
class Scripted:
    """`script` has what each request gets: a reply, or the error that refuses it. `heartbeats` go before each stream,
    and an error after some of them ends it."""

    script: list[Reply | CallRefusedError]
    heartbeats: int = 0
    calls: list[AgentCall] = dataclasses.field(default_factory=list)
    requests: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        wire = next(wire for wire in WIRES if request.path.endswith(wire.path))
        self.requests += 1
        try:
            call = wire.read(await request.json(), RequestMemory())
            self.calls.append(call)
            outcome = self.script.pop(0)
            if isinstance(outcome, CallRefusedError) and not (call.stream and self.heartbeats):
                raise outcome
        except CallRefusedError as error:
            return web.json_response(wire.refusal(error), status=error.status)
        if not call.stream:
            return web.json_response(wire.answer(call, outcome))
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for sent in range(self.heartbeats):
            await stream.write(wire.heartbeat(call, sent))
        if isinstance(outcome, CallRefusedError):
            await stream.write(wire.failed_event(call, outcome))
        else:
            for event in wire.events(call, outcome, heartbeats=self.heartbeats):
                await stream.write(event)
        await stream.write_eof()
        return stream

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        async with serving({"POST /v1/{path:.*}": self.answer}) as url:
            yield url


def scripted(*script: Reply | CallRefusedError, heartbeats: int = 0) -> Scripted:
    return Scripted(list(script), heartbeats)


def read(wire: str, body: dict) -> AgentCall:
    return BY_NAME[wire].read(body, RequestMemory())
