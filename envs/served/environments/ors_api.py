"""The Open Reward Standard: tasks by split and index, sessions by header, and one tool call at a time.

The paths and shapes are those of openreward 0.1.167 (`environments/server.py`, `environments/types.py`). The task API
is OpenEnv's too. Unless the settings say otherwise, a call's reward is null until the episode is over, and then the
episode's: trainers take the last reward that is not null, or the sum, and both are right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Self

import pydantic
from aiohttp import web
from pydantic import BaseModel, ConfigDict

from toolgym.envs.served.environments.answers import step_metadata
from toolgym.envs.served.environments.catalog import ANSWER_ARGUMENT, Catalog, Place, ServedEnv
from toolgym.envs.served.environments.event_stream import events_of, stream
from toolgym.envs.served.environments.openenv_api import SESSION_HEADER
from toolgym.envs.served.environments.session import EnvSession
from toolgym.envs.served.environments.sessions import Sessions
from toolgym.envs.types import EpisodeFailedError
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import EpisodeError
from toolgym.tools.message import Message
from toolgym.tools.schema import ToolSchema
from toolgym.tools.serving.json_bodies import parse
from toolgym.tools.serving.routes import Call
from toolgym.tools.serving.transport import RefusedError, answer

SPLIT_TYPES = ("train", "validation", "test")

TERMINAL = "Ends the episode with the message."


class SplitRequest(BaseModel):
    """Asks about a split."""

    model_config = ConfigDict(extra="forbid")

    split: str


class TaskRequest(SplitRequest):
    """Asks for one task."""

    index: int


class TaskRangeRequest(SplitRequest):
    """Asks for the tasks that Python's slice `[start:stop]` gives."""

    start: int | None = None
    stop: int | None = None


class CreateRequest(BaseModel):
    """Asks for an env with one task."""

    model_config = ConfigDict(extra="forbid")

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


class ToolRequest(BaseModel):
    """Asks for a tool call, or for one again that was asked for before."""

    model_config = ConfigDict(extra="forbid")

    name: str
    input: dict[str, Any]
    task_id: str | None = None


def session_name(call: Call) -> str | None:
    """Return the session's name in a call's header; None where it has none.

    Raises:
        RefusedError: 400, it is no name.
    """
    name = call.request.headers.get(SESSION_HEADER, "").strip()
    if name and not re.fullmatch(r"[\w.:/-]{8,200}", name):
        raise RefusedError(400, f"{SESSION_HEADER} must have 8 to 200 letters, digits or any of . : / _ -")
    return name or None


class OrsApi:
    """Answers the requests of the Open Reward Standard.

    Args:
        catalog: the envs that are offered.
        sessions: the open sessions.
        env_of: finds the env that a call is about.
        write_timeout: seconds for a client to take an answer.
        version: version of the library.
        step_rewards: whether a call's reward is the step's own.
    """

    def __init__(
        self,
        catalog: Catalog,
        sessions: Sessions,
        env_of: Callable[[Call], ServedEnv],
        write_timeout: float,
        version: str,
        *,
        step_rewards: bool,
    ) -> None:
        self._step_rewards = step_rewards
        self._catalog, self._sessions, self._env_of = catalog, sessions, env_of
        self._write_timeout, self._version = write_timeout, version

    # ------------------------------------------------------------------ tasks

    async def list_environments(self, call: Call) -> web.Response:
        """List the ids of the envs; the first is the default."""
        return answer([env.id for env in self._catalog.envs])

    async def version(self, call: Call) -> web.Response:
        """Tell the library's version."""
        return answer({"version": self._version, "build_sha": None})

    async def splits(self, call: Call) -> web.Response:
        """List the splits of an env."""
        names = self._env_of(call).split_names
        return answer([{"name": name, "type": name if name in SPLIT_TYPES else "validation"} for name in names])

    async def num_tasks(self, call: Call) -> web.Response:
        """Count the tasks of a split."""
        return answer({"num_tasks": self._env_of(call).count(parse(SplitRequest, call.body).split)})

    async def task(self, call: Call) -> web.Response:
        """Tell of one task."""
        request, served = parse(TaskRequest, call.body), self._env_of(call)
        return answer({"task": served.place(request.split, request.index).spec, "env_name": served.id})

    async def tasks(self, call: Call) -> web.Response:
        """Tell of all tasks of a split."""
        request, served = parse(SplitRequest, call.body), self._env_of(call)
        return await self._places(served, request.split, range(served.count(request.split)))

    async def task_range(self, call: Call) -> web.Response:
        """Tell of some tasks of a split."""
        request, served = parse(TaskRangeRequest, call.body), self._env_of(call)
        places = range(served.count(request.split))[request.start : request.stop]
        return await self._places(served, request.split, places)

    async def _places(self, served: ServedEnv, split: str, places: range) -> web.Response:
        # A list may be long, and generated tasks take a while to generate.
        tasks = await in_thread(lambda: [served.place(split, index).spec for index in places])
        return answer({"tasks": tasks, "env_name": served.id})

    # ------------------------------------------------------------------ sessions

    async def create_session(self, call: Call) -> web.StreamResponse:
        """Give a name for a session, as a stream of events."""
        asked = parse(_SessionRequest, call.body or b"{}")
        if asked.env:
            raise RefusedError(400, "this server sets no environment variables for a session (env)")
        name = self._sessions.new_name()

        async def events() -> Any:
            yield "task_id", name
            yield "end", ""

        return await stream(call.request, events(), self._write_timeout)

    async def create(self, call: Call) -> web.Response:
        """Make the env of a session, with its task."""
        request, name = parse(CreateRequest, call.body), _required(call)
        served = self._env_of(call) if request.env_name is None else self._named(request.env_name, call)
        if request.toolset_name is not None:
            raise RefusedError(400, f"this server has no toolset {request.toolset_name[:80]!r}")
        place = _place(served, request)
        session = self._sessions.open(served, name)
        try:
            await session.reset(place=place)
        except BaseException as error:
            await self._sessions.remove(name)
            if isinstance(error, EpisodeFailedError):  # clients try again after this status
                raise RefusedError(503, str(error), {"Retry-After": "1"}, reason=error.stop_reason) from error
            raise
        return answer({"sid": name}, headers={SESSION_HEADER: name})

    async def delete(self, call: Call) -> web.Response:
        """Close a session; fine also where there is none."""
        name = _required(call)
        await self._sessions.discard(name)
        return answer({"sid": name})

    async def ping(self, call: Call) -> web.Response:
        """Keep a session from being idle."""
        self._sessions.find(_required(call))
        return answer({"status": "ok"})

    async def prompt(self, call: Call) -> web.Response:
        """Give the messages that the episode begins with, as one block: clients differ in how they join several."""
        return answer([_text("\n\n".join(one["content"] for one in self._begun(call) if one["content"]))])

    async def messages(self, call: Call) -> web.Response:
        """Give the messages that the episode begins with, each with its role."""
        return answer([_message(message) for message in self._begun(call)])

    async def tools(self, call: Call) -> web.Response:
        """List the tools of an env."""
        served = self._env_of(call)
        return answer(_tools(served, served.callable_tools))

    async def task_tools(self, call: Call) -> web.Response:
        """List the tools of a session."""
        session = self._sessions.find(_required(call))
        return answer(_tools(session.served, session.tools))

    async def call(self, call: Call) -> web.StreamResponse:
        """Call a tool. The answer is a stream of events; see `event_stream`."""
        request, session = parse(ToolRequest, call.body), self._sessions.find(_required(call))
        name = request.task_id
        if name is None:
            name = session.calls.start(self._called(session, request.name, request.input))
        task = session.calls.find(name)
        if task is None:
            raise RefusedError(404, f"this session has no call {name[:80]!r} (any more)")
        with self._sessions.attached(session):
            return await stream(call.request, events_of(name, task), self._write_timeout)

    async def _called(self, session: EnvSession, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool; return the standard's answer."""
        try:
            turn = await session.call_tool(name, arguments)
        except EpisodeError as error:
            return {"ok": False, "error": str(error), "reason": "episode_finished"}
        if turn.result is None:
            return {"ok": False, "error": turn.text, "reason": "input_validation"}
        step = turn.result
        metadata = step_metadata(session, step)
        reward = metadata["episode_reward"] if step.done else None
        if self._step_rewards:
            reward = metadata["step_reward"]
        output = {
            "blocks": [_text(turn.text)],
            "metadata": metadata,
            "reward": reward,
            "finished": step.done,
        }
        return {"ok": True, "output": output}

    async def forget(self, response: web.StreamResponse) -> None:
        """Close the session whose name its client never got."""
        if SESSION_HEADER in response.headers:
            await self._sessions.discard(response.headers[SESSION_HEADER])

    def _named(self, name: str, call: Call) -> ServedEnv:
        """Return the env of a name, which clients that were given a URL alone make up: then it is the default."""
        return self._env_of(call) if len(self._catalog.envs) == 1 or name == "env" else self._catalog.find(name)

    def _begun(self, call: Call) -> list[Message]:
        episode = self._sessions.find(_required(call)).episode
        if episode is None:
            raise EpisodeError("no episode is under way; create one first")
        return episode.messages


class _SessionRequest(BaseModel):
    """Asks for the name of a session."""

    env: dict[str, Any] | None = None


def _required(call: Call) -> str:
    name = session_name(call)
    if name is None:
        raise RefusedError(400, f"{SESSION_HEADER} header is required")
    return name


def _place(served: ServedEnv, request: CreateRequest) -> Place:
    if request.task_spec is not None:
        return served.place_of_spec(request.task_spec)
    assert request.split is not None
    assert request.index is not None
    return served.place(request.split, request.index)


def _tools(served: ServedEnv, tools: list[ToolSchema]) -> dict[str, Any]:
    """The tools, the answer tool among them; it is the terminal tool too, for clients that know what that is."""
    listed = [{"name": one.name, "description": one.description, "input_schema": dict(one.parameters)} for one in tools]
    terminal = None
    if served.answer_tool is not None:
        terminal = {"name": served.answer_tool.name, "arg": ANSWER_ARGUMENT, "description": TERMINAL}
    return {
        "tools": listed,
        "terminal_tool": terminal,
        "supports_score_group": False,
        "message_block_types": ["text", "reasoning", "tool_call", "tool_result"],
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "detail": None}


def _message(message: Message) -> dict[str, Any]:
    """Return a message with the standard's blocks, in which results of tools stand in the user's turns."""
    if message["role"] == "tool":
        block = {
            "type": "tool_result",
            "tool_call_id": message.get("tool_call_id", ""),
            "blocks": [_text(message["content"])],
            "is_error": False,
            "detail": None,
        }
        return {"role": "user", "blocks": [block], "detail": None}
    blocks: list[Mapping[str, Any]] = []
    if "reasoning_content" in message:
        blocks.append({"type": "reasoning", "text": message["reasoning_content"], "signature": None, "detail": None})
    if message["content"]:
        blocks.append(_text(message["content"]))
    for call in message.get("tool_calls", []):
        function = call["function"]
        blocks.append(
            {
                "type": "tool_call",
                "id": call.get("id", ""),
                "name": function["name"],
                "input": function["arguments"],
                "detail": None,
            }
        )
    return {"role": message["role"], "blocks": blocks, "detail": None}
