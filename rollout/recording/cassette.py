"""The log of a run, for replaying and resuming it: written as things happen, read back whole. See `lines`."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from toolgym.rollout.engines.base import Generation, GenerationRequest
from toolgym.rollout.job import EpisodeKey, current_episode
from toolgym.rollout.recording.lines import (
    FORMAT,
    FORMAT_VERSION,
    LastPrompts,
    Line,
    RecordedCall,
    check_header,
    episode_of,
    generation_from_json,
    line_digest,
    read_lines,
    read_request,
    split_line,
    tool_key,
)
from toolgym.rollout.recording.secrets import scrubbed
from toolgym.rollout.trajectory.locked_file import LineFile, open_locked, replaced
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, EngineError

RUN = ("env", "env_is_id", "env_kwargs", "config", "config_left_out", "tokenizer", "tasks")
"""What a `run` line must have."""

_log = logging.getLogger("toolgym.rollout")


class CassetteMissError(EngineError, LookupError):
    """A replay asked for something that was not recorded. Says what was asked, and what is nearest to it."""


class CassetteWriter:
    """Writes a log. Every line is handed to the operating system at once, so that a killed run keeps what it had.

    An existing file is replaced, but for the lines `kept`, which are read while the file is locked.
    """

    def __init__(self, path: str | Path, *, kept: Iterable[Line] | None = None) -> None:
        self.path = Path(path)
        self._digest = ""
        self._prompts = LastPrompts()
        self._counts: Counter[str] = Counter()
        try:
            if kept is None:
                self._file = LineFile(open_locked(self.path))
                self._begin(())
            else:
                with replaced(self.path) as file:
                    self._file = LineFile(file)
                    self._begin(kept)
        except OSError as error:
            raise ConfigError(f"cannot record to {str(self.path)!r}: {error}") from error

    def _begin(self, lines: Iterable[Line]) -> None:
        self._file.clear()
        self.write("header", format=FORMAT, version=FORMAT_VERSION, library=version("toolgym"))
        for line in lines:
            self.write(**line)

    @property
    def closed(self) -> bool:
        return self._file.file.closed

    def count(self, key: str) -> int:
        """Return how often this key was counted before, which tells equal requests apart."""
        self._counts[key] += 1
        return self._counts[key] - 1

    def write(self, kind: str, **fields: Any) -> None:
        if self.closed:
            _log.warning("%s is closed: a late %r line is not recorded", self.path, kind)
            return
        line = json.dumps({"kind": kind, **fields}, ensure_ascii=True, separators=(",", ":"))
        self._digest = line_digest(self._digest, line)
        try:
            self._file.write(f'{line[:-1]},"digest":"{self._digest}"}}\n'.encode("ascii"))
        except OSError as error:
            raise ConfigError(f"cannot record to {str(self.path)!r}: {error}") from error

    def generate(self, request: GenerationRequest, number: int, **outcome: Any) -> None:
        episode = current_episode()
        shared, rest = self._prompts.shortened(episode, request.prompt_ids)
        images = {"images": request.image_hashes} if request.images else {}
        asked = {"episode": episode, "number": number, "shared": shared, "prompt": rest, **images}
        self.write("generate", **asked, params=asdict(request.params), **outcome)

    def trajectory(self, trajectory: Trajectory) -> None:
        self.write("trajectory", trajectory=scrubbed(trajectory.to_json()))
        self._prompts.pop(EpisodeKey(trajectory.task_index, trajectory.sample_index), None)

    def close(self, *, ended: bool = True) -> None:
        if self.closed:
            return
        try:
            if ended:
                self.write("end")
        finally:
            try:
                self._file.close()
            except OSError as error:
                raise ConfigError(f"cannot finish {str(self.path)!r}: {error}") from error

    def abandon(self) -> None:
        """Close the file at once, as if the run had been killed."""
        self._file.file.close()


@dataclass(frozen=True)
class Recorded:
    """A recorded request to the engine or call of a tool, and its outcome: a `reply`, an `error`, or `ended`."""

    line: int
    episode: EpisodeKey | None
    number: int
    """Count of the episode's equal requests before it."""
    asked: Mapping[str, Any]
    outcome: Mapping[str, Any]


@dataclass
class Cassette:
    """A recording, read back. Replies are found by what was asked, not by their order.

    Without a `run`, an engine was recorded by itself. `tools` has the schemas of each env's tools, by the env's name;
    `trajectories` are by episode and role; `misses` a line for each request of a replay that was not recorded.
    """

    path: Path
    engine: Line = field(default_factory=dict)
    run: Line | None = None
    tools: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    trajectories: dict[EpisodeKey, dict[str, Line]] = field(default_factory=dict)
    ended: bool = False
    misses: list[str] = field(default_factory=list)
    _requests: dict[str, list[Recorded]] = field(default_factory=lambda: defaultdict(list))
    _counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def load(cls, path: str | Path, *, allow_edited: bool = False) -> Cassette:
        """Read a file; with `allow_edited` although lines were changed after recording."""
        cassette = cls(Path(path))
        prompts = LastPrompts()
        for number, line in read_lines(cassette.path, allow_edited=allow_edited):
            try:
                cassette._take(number, line, prompts)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path}, line {number}: not a line of a recording: {error!r}") from error
        for same in cassette._requests.values():
            same.sort(key=lambda recorded: recorded.number)
        return cassette

    def _take(self, number: int, line: Line, prompts: LastPrompts) -> None:
        kind = line["kind"]
        if kind == "engine":
            self.engine = line
        elif kind == "run":
            absent = [name for name in RUN if name not in line]
            if absent:
                raise ValueError(f"the run has no {absent[0]!r}")
            self.run = line
        elif kind == "tools":
            self.tools[{**(self.run or {}), **line}["env"]] = line["tools"]  # older recordings are of one env
        elif kind == "trajectory":
            value = line["trajectory"]
            name = EpisodeKey(value["task_index"], value["sample_index"])
            self.trajectories.setdefault(name, {})[value.get("role", "policy")] = value
        elif kind == "end":
            self.ended = True
        elif kind in ("generate", "tool"):
            episode = episode_of(line)
            asked: Mapping[str, object]
            if kind == "generate":
                request = read_request(line, prompts)
                key, asked = request.key, {"prompt_ids": request.prompt_ids, "params": request.params}
            else:
                call = RecordedCall(
                    tool=line["tool"], call=line["call"], arguments=line["arguments"], kwargs=line["kwargs"]
                )
                key, asked = tool_key(episode, call), call
            outcome: dict[str, Any] = {name: line[name] for name in ("reply", "error", "ended") if name in line}
            if len(outcome) != 1:
                raise ValueError("one of reply, error and ended must be there")
            self._requests[key].append(Recorded(number, episode, int(line["number"]), asked, outcome))
        elif kind != "header":
            raise ValueError(f"unknown kind {kind!r}")

    def find(self, key: str) -> Recorded | None:
        """Return the next recorded request with this key, each once; None if none is left."""
        number = self._counts[key]
        same = self._requests.get(key, [])
        if number >= len(same):
            return None
        self._counts[key] += 1
        return same[number]

    def times(self, key: str) -> int:
        return len(self._requests.get(key, ()))

    def everything(self) -> Iterator[Recorded]:
        for same in self._requests.values():
            yield from same

    def miss(self, message: str) -> CassetteMissError:
        """Note a request that was not recorded; returns the error to raise."""
        self.misses.append(message)
        return CassetteMissError(message)


def lines_of_finished(path: Path, finished: Collection[EpisodeKey]) -> Iterator[Line]:
    """The lines of a recording that a resumed run keeps: those of finished episodes; the others are played again."""
    for _, line in read_lines(path, allow_edited=False):
        if line["kind"] == "trajectory":
            value = line["trajectory"]
            if EpisodeKey(value["task_index"], value["sample_index"]) in finished:
                yield line
        elif line["kind"] in ("generate", "tool") and episode_of(line) in finished:
            yield line


def generations_of(path: Path) -> Iterator[tuple[EpisodeKey | None, str, Generation, Line]]:
    """The generations of a journal: episode, key of the request, answer and line.

    A line that is not as it was written is left out, as are those that need its prompt; the log says how many.
    """
    with path.open("rb") as file:
        header = file.readline()
        if not header.endswith(b"\n"):
            return  # it is new, or the process that began it was killed at once
        body, digest, _ = split_line(header, "")
        try:
            first_line = json.loads(body)
        except ValueError:
            first_line = None
        check_header(path, first_line)
        prompts, broken = LastPrompts(), 0
        for raw in file:
            body, stated, expected = split_line(raw, digest)
            digest = stated or digest
            try:
                if stated != expected:
                    raise ValueError("it was changed")
                line = json.loads(body)
                if line["shared"] > len(prompts.get(episode_of(line), ())):
                    raise ValueError("the prompt before it was left out")
                key, generation = read_request(line, prompts).key, generation_from_json(line["reply"])
            except (AttributeError, EngineError, KeyError, TypeError, ValueError):
                prompts.clear()
                broken += 1
            else:
                yield episode_of(line), key, generation, line
    if broken:
        _log.warning("%s: %d lines could not be read and are left out", path, broken)
