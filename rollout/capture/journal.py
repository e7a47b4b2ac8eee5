"""`SessionJournal`: a file that holds one open session, so that a killed gateway continues it with the same tokens.

Each answered call is appended before its answer is sent. The lines are JSON with a digest over the line and all lines
before it (see `toolgym.rollout.recording.lines`). Reading stops at the first line whose digest does not fit, which is
the last line of a process that was killed while it wrote.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from toolgym.envs.tasks.task import Task
from toolgym.rollout.capture.agent_call import AgentMessage, Reply, ReplyCall, WrittenCall
from toolgym.rollout.capture.forest import CapturedCall, Forest, State
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.models.images import PlacedImage
from toolgym.rollout.recording.lines import generation_from_json, generation_to_json, line_digest, split_line
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.trajectory import turn_from_json, turn_to_json
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError

VERSION = 1
"""Version of the lines that are written, and the only version that is read."""

RETRY_AFTER = 5
"""Seconds after which clients should repeat a request that the disk had no room for."""

_log = logging.getLogger("toolgym.rollout.capture")


class NotWrittenError(ConfigError):
    """Something could not be written, so nothing was changed: the same request may be repeated.

    `status` is the status of HTTP, at which the clients of all wires repeat a request by themselves.
    """

    status = 500
    retry_after = RETRY_AFTER

    def __init__(self, text: str) -> None:
        super().__init__(f"{text}; nothing was changed, so repeat the request")


class AppendedFile:
    """A file of lines that only its owner can read. A line is appended whole, or not at all.

    The file is opened for each line: thousands of sessions need no descriptors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = ""

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line. Raises NotWrittenError, and then the file is as it was."""
        body = json.dumps(line, ensure_ascii=True, separators=(",", ":"))
        digest = line_digest(self._digest, body)
        try:
            self._write(f'{body[:-1]},"digest":"{digest}"}}\n'.encode("ascii"))
        except OSError as error:
            raise NotWrittenError(f"cannot append to {str(self.path)!r}: {error}") from error
        self._digest = digest

    def read(self) -> list[dict[str, Any]]:
        """Return all whole lines, and remove what follows them."""
        lines, end = [], 0
        self._digest = ""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        for raw in data.splitlines(keepends=True):
            body, stated, expected = split_line(raw, self._digest)
            if not raw.endswith(b"\n") or stated != expected:
                break
            lines.append(json.loads(body))
            self._digest, end = expected, end + len(raw)
        if end < len(data):
            _log.warning("%s: %d bytes after line %d are not as they were written and are removed",
                         self.path, len(data) - end, len(lines))  # fmt: skip
            os.truncate(self.path, end)
        return lines

    async def flush(self) -> None:
        """Wait until all lines are on the disk. Raises NotWrittenError."""
        try:
            await in_thread(_flush, self.path)
        except OSError as error:
            raise NotWrittenError(f"cannot flush {str(self.path)!r}: {error}") from error

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _write(self, data: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            try:
                written = 0
                while written < len(data):
                    written += os.write(descriptor, data[written:])
            except BaseException:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


@dataclass
class SavedSession:
    """A session as its journal has it: the `opening` line, the answered calls and the last state."""

    opening: Mapping[str, Any]
    state: Mapping[str, Any]
    tools: Sequence[Sequence[Mapping[str, Any]]]
    calls: Sequence[Mapping[str, Any]]
    changes: Mapping[int, Sequence[Any]]

    def job(self) -> Job:
        opening = self.opening
        task = Task.from_row(opening["task"], id=opening["task_id"])
        return Job(task, EpisodeKey(*opening["key"]), opening["group_id"], opening["seed"])

    def config(self) -> EpisodeConfig:
        sampling = SamplingParams.from_json(self.opening["sampling"])
        limits = EpisodeLimits(**_with_tuples(self.opening["limits"]))
        return EpisodeConfig(sampling=sampling, limits=limits, training_step=self.opening["training_step"])

    def rules(self) -> CaptureRules:
        return CaptureRules(**_with_tuples(self.opening["rules"]))


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


class SessionJournal:
    """The journal of one session.

    Args:
        path: the session's file.
        fsync: whether `flush` waits for the disk.
        facts: returns further state that is written with each call.
    """

    def __init__(self, path: Path, *, fsync: bool, facts: Callable[[], dict[str, Any]] = dict) -> None:
        self._file, self._fsync, self.facts = AppendedFile(path), fsync, facts
        self._tools: list[Sequence[Mapping[str, Any]]] = []
        self._numbers: dict[ChatRenderer, int] = {}
        self._written: dict[int, _Change] = {}

    @property
    def path(self) -> Path:
        return self._file.path

    def open(self, opening: Mapping[str, Any]) -> None:
        """Begin the file. Raises NotWrittenError."""
        self._file.append({"kind": "open", "version": VERSION, **opening})

    def keep(self, call: CapturedCall, reply: Reply, forest: Forest, state: Mapping[str, Any]) -> None:
        """Append an answered call. Raises NotWrittenError."""
        tools = self._number_of(call.renderer)
        line = {**call_to_json(call, reply), "tools": tools, "state": {**state, **self.facts()}}
        changes = self._changes(forest)
        self._file.append({"kind": "call", **line, "changes": _changes_to_json(changes)})
        self._written |= changes
        self._written[call.number] = _Change(State.KEPT, None, False)

    def note(self, forest: Forest, state: Mapping[str, Any]) -> None:
        """Append what has changed without an answered call, unless the disk is full: the next call has it too."""
        changes = self._changes(forest)
        line = {"kind": "state", "state": {**state, **self.facts()}, "changes": _changes_to_json(changes)}
        with contextlib.suppress(NotWrittenError):
            self._file.append(line)
            self._written |= changes

    async def flush(self) -> None:
        if self._fsync:
            await self._file.flush()

    def remove(self) -> None:
        self._file.remove()

    def read(self) -> SavedSession | None:
        """Return the session that the file holds, to append to it from now on. None if it holds no whole opening."""
        lines = self._file.read()
        if not lines or lines[0].get("kind") != "open":
            return None
        if lines[0]["version"] != VERSION:
            raise ConfigError(
                f"{str(self._file.path)!r} has version {lines[0]['version']!r}, and this library reads {VERSION}: "
                "finish the open sessions with the version of toolgym that wrote it"
            )
        calls: list[Mapping[str, Any]] = []
        state: Mapping[str, Any] = {}
        changes: dict[int, Sequence[Any]] = {}
        for line in lines[1:]:
            state = line.get("state", state)
            changes |= {int(number): change for number, change in line.get("changes", {}).items()}
            if line["kind"] == "tools":
                self._tools.append(line["tools"])
            elif line["kind"] == "call":
                calls.append(line)
        return SavedSession(lines[0], state, self._tools, calls, changes)

    def follow(self, forest: Forest) -> None:
        """Take the calls of a restored forest as written."""
        self._written |= {call.number: _Change.of(call) for call in forest}

    def _number_of(self, renderer: ChatRenderer) -> int:
        if renderer not in self._numbers:
            if renderer.tools not in self._tools:
                self._file.append({"kind": "tools", "tools": renderer.tools})
                self._tools.append(renderer.tools)
            self._numbers[renderer] = self._tools.index(renderer.tools)
        return self._numbers[renderer]

    def _changes(self, forest: Forest) -> dict[int, _Change]:
        """Return what is not in the file yet of the calls that are."""
        now = {call.number: _Change.of(call) for call in forest if call.number in self._written}
        return {number: change for number, change in now.items() if change != self._written[number]}


class _Change(NamedTuple):
    """The part of a written call that later requests change."""

    state: State
    seen: AgentMessage | None
    is_quoted: bool

    @classmethod
    def of(cls, call: CapturedCall) -> _Change:
        return cls(call.state, call.seen, call.is_quoted)


def _changes_to_json(changes: Mapping[int, _Change]) -> dict[str, list[Any]]:
    return {
        str(number): [state, seen and message_to_json(seen), is_quoted]
        for number, (state, seen, is_quoted) in changes.items()
    }


# ---------------------------------------------------------------------- messages and calls


def message_to_json(message: AgentMessage) -> dict[str, Any]:
    value = {item.name: getattr(message, item.name) for item in dataclasses.fields(message)}
    return {**value, "calls": [vars_of(call) for call in message.calls], "ids": sorted(message.ids)}


def message_from_json(value: Mapping[str, Any]) -> AgentMessage:
    calls = tuple(WrittenCall(**call) for call in value["calls"])
    lists = {"calls": calls, "ids": frozenset(value["ids"]), "images": tuple(value["images"])}
    return AgentMessage(**{**value, **lists})


def vars_of(value: Any) -> dict[str, Any]:
    return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}


def call_to_json(call: CapturedCall, reply: Reply) -> dict[str, Any]:
    assert call.turn is not None
    return {
        "number": call.number,
        "agent": call.agent,
        "parent": None if call.parent is None else call.parent.number,
        "cause": call.cause,
        "origin": [call.origin.number, call.origin.cause],
        "messages": [message_to_json(message) for message in call.messages],
        "observation": call.observation,
        "lead": call.lead,
        "images": [vars_of(image) for image in call.images],
        "parts": [generation_to_json(part) for part in call.parts],
        "turn": turn_to_json(call.turn),
        "message": call.message,
        "requests": call.requests,
        "end": call.end,
        "plain": call.plain,
        "constrained": call.constrained,
        "twin": None if call.twin is None else call.twin.number,
        "summarizes": None if call.summarizes is None else call.summarizes.number,
        "reply": {**vars_of(reply), "calls": [vars_of(entry) for entry in reply.calls]},
    }


def restore_forest(saved: SavedSession, renderers: Sequence[ChatRenderer], forest: Forest) -> None:
    """Put the saved calls into an empty forest. `renderers` are those of the saved sets of tools."""
    calls: dict[int, CapturedCall] = {}
    lost: dict[int, CapturedCall] = {}
    for line in sorted(saved.calls, key=lambda line: line["number"]):
        parent = None if line["parent"] is None else calls[line["parent"]]
        call = _call_from_json(line, renderers[line["tools"]], parent)
        calls[call.number] = call
        # The call that a conversation began with may have failed: its number still tells conversations apart.
        number, cause = line["origin"]
        if number != call.number:
            call.origin = calls.get(number) or lost.setdefault(
                number, dataclasses.replace(call, number=number, cause=cause, children=[])
            )
        if (number := line["twin"]) is not None:
            call.twin = calls.get(number) or lost.setdefault(
                number, dataclasses.replace(call, number=number, children=[])
            )
            call.twin.twin = call.twin  # the first of them did not know it when it was written
        if (number := line["summarizes"]) is not None:
            call.summarizes = calls[number]
        reply = line["reply"]
        reply = Reply(**{**reply, "calls": tuple(ReplyCall(**entry) for entry in reply["calls"])})
        (forest.roots if parent is None else parent.children).append(call)
        forest.keep(call, reply)
    for number, (state, seen, is_quoted) in saved.changes.items():
        if number in calls:
            calls[number].is_quoted = is_quoted
            calls[number].state = State(state)
            calls[number].seen = None if seen is None else message_from_json(seen)


def _call_from_json(line: Mapping[str, Any], renderer: ChatRenderer, parent: CapturedCall | None) -> CapturedCall:
    return CapturedCall(
        line["number"],
        line["agent"],
        renderer,
        tuple(map(message_from_json, line["messages"])),
        parent,
        line["cause"],
        observation=tuple(line["observation"]),
        lead=tuple(line["lead"]),
        images=tuple(PlacedImage(**image) for image in line["images"]),
        parts=tuple(map(generation_from_json, line["parts"])),
        turn=turn_from_json(line["turn"]),
        message=line["message"],
        requests=tuple(tuple(request) for request in line["requests"]),
        end=line["end"],
        plain=line["plain"],
        constrained=line["constrained"],
    )
