"""The Open Reward Standard: tasks by split and index, sessions by header, and one tool call at a time.

The paths and shapes are those of openreward 0.1.167 (`environments/server.py`, `environments/types.py`, and for the
stream of events `environments/reconnect.py`). The task API is OpenEnv's too. Unless the settings say otherwise, a
call's reward is null until the episode is over, and then the episode's: trainers take the last reward that is not null,
or the sum, and both are right.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import cached_property
from typing import Any, Self
from weakref import WeakKeyDictionary

import pydantic
from aiohttp import web
from pydantic import BaseModel

from toolgym.envs.served.catalog import ANSWER_ARGUMENT, ServedEnv, TaskPlace, listed
from toolgym.envs.served.env_session import EnvSession
from toolgym.envs.served.environments.face import JSON, SESSION_HEADER, Face, session_name
from toolgym.envs.types import EpisodeFailedError
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import EpisodeError
from toolgym.tools.message import Content, Message, image_data, joined
from toolgym.tools.schema import ToolSchema
from toolgym.tools.serving.json_bodies import parse
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.session_table import new_name
from toolgym.tools.serving.transport import RequestRefusedError, answer, within

SPLIT_TYPES = ("train", "validation", "test")

EVENTS = "text/event-stream"

KEPT_CALLS = 8
"""Calls of one session whose results can be asked for again."""

TERMINAL = "Ends the episode with the message."


class SplitRequest(BaseModel, extra="forbid"):
    """Asks about a split."""

    split: str


class TaskRequest(SplitRequest):
    """Asks for one task."""

    index: int


class TaskRangeRequest(SplitRequest):
    """Asks for the tasks that Python's slice `[start:stop]` gives."""

    start: int | None = None
    stop: int | None = None


class CreateRequest(BaseModel, extra="forbid"):
    """Asks for an env with one task."""

    env_name: str | None = None
    task_spec: dict[str, Any] | None = None
    split: str | None = None
    index: int | None = None
    toolset_name: str | None = None

    @pydantic.model_validator(mode="after")
    def _one_task(self) -> Self:
        by_place = self.split is not None and self.index is not None
        if (self.task_spec is not None) == by_place or (self.split is None) != (self.index is None):
            raise ValueError("a task is chosen by 'task_spec', or by 'split' and 'index' together")
        return self


class ToolRequest(BaseModel, extra="forbid"):
    """Asks for a tool call, or for one again that was asked for before."""

    name: str
    input: dict[str, Any]
    task_id: str | None = None


class OrsFace(Face):
    @cached_property
    def _calls(self) -> WeakKeyDictionary[EnvSession, dict[str, asyncio.Task[Any]]]:
        return WeakKeyDictionary()

    def env_operations(self) -> Mapping[str, Mapping[str, Operation]]:
        return {
            "/splits": {"GET": Operation(self.splits, "List the splits", None, JSON)},
            "/tasks": {"POST": Operation(self.tasks, "Tell of all tasks of a split", SplitRequest, JSON)},
            "/num_tasks": {"POST": Operation(self.num_tasks, "Count the tasks of a split", SplitRequest, JSON)},
            "/task": {"POST": Operation(self.task, "Tell of one task", TaskRequest, JSON)},
            "/task_range": {"POST": Operation(self.task_range, "Tell of some tasks", TaskRangeRequest, JSON)},
            "/tools": {"GET": Operation(self.tools, "List the tools", None, JSON)},
            "/task_tools": {"GET": Operation(self.task_tools, "List the tools of a session", None, JSON)},
            "/prompt": {"GET": Operation(self.prompt, "Give the first messages as text", None, JSON)},
            "/messages": {"GET": Operation(self.messages, "Give the first messages", None, JSON)},
            "/call": {"POST": Operation(self.call, "Call a tool of a session", ToolRequest, EVENTS)},
        }

    def routes(self) -> list[Route]:
        delete = {"POST": Operation(self.delete, "Close a session", None, JSON)}
        return [
            Route("/list_environments", {"GET": Operation(self.list_environments, "List the envs", None, JSON)}),
            Route("/version", {"GET": Operation(self.version, "Tell the version", None, JSON)}),
            Route("/create_session", {"POST": Operation(self.create_session, "Name a session", JSON, EVENTS)}),
            Route("/create", {"POST": Operation(self.create, "Make a session's env", CreateRequest, JSON)}),
            Route("/delete", delete, while_draining=True),
            Route("/delete_session", delete, while_draining=True),
            Route("/ping", {"POST": Operation(self.ping, "Keep a session", None, JSON)}, while_draining=True),
        ]

    async def undelivered(self, response: web.StreamResponse) -> None:
        if SESSION_HEADER in response.headers:
            await self.sessions.discard(response.headers[SESSION_HEADER])

    # ------------------------------------------------------------------ tasks

    async def list_environments(self, call: Call) -> web.Response:
        return answer([env.id for env in self.catalog.envs])

    async def version(self, call: Call) -> web.Response:
        return answer({"version": self.library_version, "build_sha": None})

    async def splits(self, call: Call) -> web.Response:
        names = self.env_of(call).split_names
        return answer([{"name": name, "type": name if name in SPLIT_TYPES else "validation"} for name in names])

    async def num_tasks(self, call: Call) -> web.Response:
        return answer({"num_tasks": self.env_of(call).count(parse(SplitRequest, call.body).split)})

    async def task(self, call: Call) -> web.Response:
        request, served = parse(TaskRequest, call.body), self.env_of(call)
        return answer({"task": served.place(request.split, request.index).spec, "env_name": served.id})

    async def tasks(self, call: Call) -> web.Response:
        request, served = parse(SplitRequest, call.body), self.env_of(call)
        return await self._places(served, request.split, range(served.count(request.split)))

    async def task_range(self, call: Call) -> web.Response:
        request, served = parse(TaskRangeRequest, call.body), self.env_of(call)
        places = range(served.count(request.split))[request.start : request.stop]
        return await self._places(served, request.split, places)

    async def _places(self, served: ServedEnv, split: str, places: range) -> web.Response:
        # A list may be long, and generated tasks take a while to generate.
        tasks = await in_thread(lambda: [served.place(split, index).spec for index in places])
        return answer({"tasks": tasks, "env_name": served.id})

    # ------------------------------------------------------------------ sessions

    async def create_session(self, call: Call) -> web.StreamResponse:
        asked = parse(_NameRequest, call.body or b"{}")
        if asked.env:
            raise RequestRefusedError(400, "this server sets no environment variables for a session (env)")
        name = new_name()

        async def events() -> Any:
            yield "task_id", name
            yield "end", ""

        return await stream(call.request, events(), self.config.write_timeout)

    async def create(self, call: Call) -> web.Response:
        request, name = parse(CreateRequest, call.body), _name(call)
        named = "env" if request.env_name is None else request.env_name
        served = self.env_of(call) if named == "env" else self.env_named(named)
        if request.toolset_name is not None:
            raise RequestRefusedError(400, f"this server has no toolset {request.toolset_name[:80]!r}")
        place = _place(served, request)
        session = self.sessions.open(served, name)
        try:
            await session.reset(place=place)
        except BaseException as error:
            await self.sessions.remove(name)
            if isinstance(error, EpisodeFailedError):  # clients try again after this status
                raise RequestRefusedError(503, str(error), {"Retry-After": "1"}, reason=error.stop_reason) from error
            raise
        return answer({"sid": name}, headers={SESSION_HEADER: name})

    async def delete(self, call: Call) -> web.Response:
        name = _name(call)
        await self.sessions.discard(name)
        return answer({"sid": name})

    async def ping(self, call: Call) -> web.Response:
        self.sessions.find(_name(call))
        return answer({"status": "ok"})

    async def prompt(self, call: Call) -> web.Response:
        """Give the messages that the episode begins with, as one block: clients differ in how they join several."""
        contents = [message["content"] for message in self._begun(call) if message["content"]]
        return answer(_blocks(joined(contents, "\n\n")) or [_block("text", text="")])

    async def messages(self, call: Call) -> web.Response:
        return answer([_message(message) for message in self._begun(call)])

    async def tools(self, call: Call) -> web.Response:
        served = self.env_of(call)
        return answer(_tools(served, served.with_answer(served.tools)))

    async def task_tools(self, call: Call) -> web.Response:
        session = self.sessions.find(_name(call))
        return answer(_tools(session.served, session.tools))

    async def call(self, call: Call) -> web.StreamResponse:
        request, session = parse(ToolRequest, call.body), self.sessions.find(_name(call))
        calls, name = self._calls.setdefault(session, {}), request.task_id
        if name is None:
            while len(calls) >= KEPT_CALLS and next(iter(calls.values())).done():
                del calls[next(iter(calls))]
            name = uuid.uuid4().hex
            calls[name] = session.start(self._called(session, request.name, request.input))
        task = calls.get(name)
        if task is None:
            raise RequestRefusedError(404, f"this session has no call {name[:80]!r} (any more)")
        with session.attached():
            return await stream(call.request, events_of(name, task), self.config.write_timeout)

    async def _called(self, session: EnvSession, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            turn = await session.call_tool(name, arguments)
        except EpisodeError as error:
            return {"ok": False, "error": str(error), "reason": "episode_finished"}
        if turn.result is None:
            return {"ok": False, "error": turn.text, "reason": "input_validation"}
        step = turn.result
        metadata = session.metadata(step)
        reward = metadata["episode_reward"] if step.done else None
        if self.config.rewards == "step":
            reward = metadata["step_reward"]
        output = {
            "blocks": [_block("text", text=turn.text)],
            "metadata": metadata,
            "reward": reward,
            "finished": step.done,
        }
        return {"ok": True, "output": output}

    def _begun(self, call: Call) -> list[Message]:
        episode = self.sessions.find(_name(call)).episode
        if episode is None:
            raise EpisodeError("no episode is under way; create one first")
        return episode.messages


class _NameRequest(BaseModel):
    env: dict[str, Any] | None = None


def _name(call: Call) -> str:
    name = session_name(call)
    if name is None:
        raise RequestRefusedError(400, f"{SESSION_HEADER} header is required")
    return name


def _place(served: ServedEnv, request: CreateRequest) -> TaskPlace:
    if request.task_spec is not None:
        return served.place_of_spec(request.task_spec)
    assert request.split is not None
    assert request.index is not None
    return served.place(request.split, request.index)


def _tools(served: ServedEnv, tools: list[ToolSchema]) -> dict[str, Any]:
    """Return the tools. The answer tool is one of them, and the terminal tool too, for clients that know of that."""
    terminal = None
    if served.answer_tool is not None:
        terminal = {"name": served.answer_tool.name, "arg": ANSWER_ARGUMENT, "description": TERMINAL}
    return {
        "tools": listed(tools),
        "terminal_tool": terminal,
        "supports_score_group": False,
        "message_block_types": ["text", "reasoning", "tool_call", "tool_result"],
    }


def _block(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields, "detail": None}


def _blocks(content: Content) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [_block("text", text=content)] if content else []
    blocks = []
    for part in content:
        if part["type"] == "text":
            blocks.append(_block("text", text=part["text"]))
        else:
            media_type, data = image_data(part["image_url"]["url"])
            blocks.append(_block("image", data=data, mimeType=media_type))
    return blocks


def _message(message: Message) -> dict[str, Any]:
    """Return a message with the standard's blocks, in which results of tools stand in the user's turns."""
    blocks = _blocks(message["content"])
    if message["role"] == "tool":
        shown = blocks or [_block("text", text="")]
        blocks = [_block("tool_result", tool_call_id=message.get("tool_call_id", ""), blocks=shown, is_error=False)]
        return {"role": "user", "blocks": blocks, "detail": None}
    if "reasoning_content" in message:
        blocks = [_block("reasoning", text=message["reasoning_content"], signature=None), *blocks]
    for call in message.get("tool_calls", []):
        function = call["function"]
        blocks.append(_block("tool_call", id=call.get("id", ""), name=function["name"], input=function["arguments"]))
    return {"role": message["role"], "blocks": blocks, "detail": None}


PING = 10.0
"""Seconds between two signs of life; clients wait for 30."""

CHUNK = 4096

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def stream(
    request: web.BaseRequest, events: AsyncGenerator[tuple[str, str]], write_timeout: float
) -> web.StreamResponse:
    """Send events as they come; one without a name is a sign of life. Raises ConnectionError: the client is gone."""
    response = web.StreamResponse(headers=HEADERS)
    try:
        await within(write_timeout, response.prepare(request))
        async with aclosing(events):
            async for event, data in events:
                text = f"event: {event}\ndata: {data}\n\n" if event else ": ping\n\n"
                await within(write_timeout, response.write(text.encode()))
        await within(write_timeout, response.write_eof())
    except ConnectionError:
        if request.transport is not None:
            request.transport.abort()
        raise
    return response


async def events_of(name: str, task: asyncio.Task[Any]) -> AsyncGenerator[tuple[str, str]]:
    """Give the events of a call: its id, and once it has ended its result as JSON, or the text of its error."""
    yield "task_id", name
    while not task.done():
        await asyncio.wait({task}, timeout=PING)
        if not task.done():
            yield "", ""
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is not None:
        yield "error", " ".join(str(error).split()) or "the session was closed"
        return
    for event, chunk in chunks(task.result()):
        yield event, chunk


def chunks(result: Any) -> list[tuple[str, str]]:
    """Return a result as events: `chunk`s, and the `end`.

    Clients drop blanks at the beginning of an event's data. In this JSON a blank can only stand inside of a string, and
    an escape means the same there.
    """
    text = json.dumps(result, separators=(",", ":"), allow_nan=False)
    parts = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    parts = [f"\\u0020{part[1:]}" if part.startswith(" ") else part for part in parts]
    return [("chunk", part) for part in parts[:-1]] + [("end", parts[-1])]
