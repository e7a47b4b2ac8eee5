"""The file format of recorded runs: JSON Lines, written as things happen, read back whole.

Every line is one object with a `kind`:

| kind | what it holds |
| --- | --- |
| `header` | always first: format, version of the format, version of the library |
| `engine` | the engine's class, vocabulary, context length and weight version |
| `run` | env id and arguments, tasks, run config, fingerprints of tokenizer and chat template |
| `tools` | the schemas of the env's tools |
| `generate` | one request to the engine and its reply, error or end |
| `tool` | one call of a tool's `create`, `execute` or `calc_reward` and its result, error or end |
| `trajectory` | one finished episode |
| `end` | the run ended, and was not killed |

A prompt is stored as what it adds to the request before it in the same episode. The last field of a line, `digest`,
is over the line and all before it, so that an edit is noticed. A killed run leaves a file whose last line may be cut
off; a reader uses the lines before it.

Never written: an engine's address, key or headers, and a tool's configuration. Arguments whose name says that they
are secret, and credentials in the text of errors, are replaced by `[redacted]`.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import json
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.episode_key import EpisodeKey, current_episode
from toolgym.rollout.trajectory.locked_file import clear, open_locked, replaced
from toolgym.rollout.trajectory.trajectory import Trajectory, plain
from toolgym.tools import errors
from toolgym.tools.concurrency import deadline
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import ConfigError, EngineError, is_infrastructure, missing_file

FORMAT = "toolgym-cassette"
FORMAT_VERSION = 3
"""Version of the format that is written. Versions 1 (whose run config called the training step `step`) and 2 (where
sampling seeds did not depend on the training step, a run without a seed had none, and results were not cut) are read
too."""

ENDED = re.compile(r',"digest":"([0-9a-f]{32})"}$')
SECRET = re.compile(r"(?i)api[_-]?key|secret|passw|authorization|auth[_-]?token|access[_-]?token|credential|bearer")
REDACTED = "[redacted]"
RUN = ("env", "env_is_id", "env_kwargs", "config", "config_left_out", "tokenizer", "tasks")
"""What a `run` line must have."""

_log = logging.getLogger("toolgym.rollout")


class CassetteMissError(EngineError, LookupError):
    """A replay asked for something that was not recorded. Says what was asked, and what is nearest to it."""


class CassetteWriter:
    """Writes a recording. Every line is flushed to the operating system, so that a killed run keeps what it had.

    Args:
        path: the file; an existing one is replaced.
        finished: go on with the recording that is there, of a run that is resumed: what it holds of these episodes is
            kept, and what it holds of others is removed, since they are played again. None: begin anew.

    Raises:
        ConfigError: the file cannot be written, another run is writing it, or it is no recording to go on with.
    """

    def __init__(self, path: str | Path, *, finished: Collection[EpisodeKey] | None = None) -> None:
        self.path = Path(path)
        self._digest = ""
        self._prompts: dict[EpisodeKey | None, list[int]] = {}
        self._counts: Counter[str] = Counter()
        try:
            if finished is None:
                raw = open_locked(self.path)
                clear(raw)
                self._begin(raw, ())
            else:
                with replaced(self.path) as raw:
                    self._begin(raw, _of_finished(self.path, finished))
        except OSError as error:
            raise ConfigError(f"cannot record to {str(self.path)!r}: {error}") from error

    def _begin(self, raw: io.FileIO, values: Iterable[dict[str, Any]]) -> None:
        self._file: IO[str] = io.TextIOWrapper(io.BufferedWriter(raw), encoding="ascii", newline="\n")
        self.write("header", format=FORMAT, version=FORMAT_VERSION, library=_library())
        for value in values:
            self.write(**value)

    def count(self, key: str) -> int:
        """Return how often this key was counted before, which tells equal requests apart."""
        self._counts[key] += 1
        return self._counts[key] - 1

    def write(self, kind: str, **fields: Any) -> None:
        """Append a line.

        Raises:
            ConfigError: the disk is full or the file is gone.
        """
        if self._file.closed:
            _log.warning("%s is closed: a late %r line is not recorded", self.path, kind)
            return
        line = json.dumps({"kind": kind, **fields}, ensure_ascii=True, separators=(",", ":"))
        self._digest = _digest(self._digest, line)
        try:
            self._file.write(f'{line[:-1]},"digest":"{self._digest}"}}\n')
            self._file.flush()
        except OSError as error:
            raise ConfigError(f"cannot record to {str(self.path)!r}: {error}") from error

    def generate(self, prompt_ids: Sequence[int], params: SamplingParams, number: int, **outcome: Any) -> None:
        """Append a request to the engine, the `number`-th of its kind, and its outcome."""
        episode = current_episode()
        prompt = list(prompt_ids)
        shared = shared_length(self._prompts.get(episode, ()), prompt)
        self._prompts[episode] = prompt
        self.write(
            "generate",
            episode=episode,
            number=number,
            shared=shared,
            prompt=prompt[shared:],
            params=asdict(params),
            **outcome,
        )

    def trajectory(self, trajectory: Trajectory) -> None:
        """Append a finished episode."""
        self.write("trajectory", trajectory=scrubbed(trajectory.to_json()))
        self._prompts.pop(EpisodeKey(trajectory.task_index, trajectory.sample_index), None)

    def close(self, *, ended: bool = True) -> None:
        """Write what is left to disk and close the file. Closing twice is fine.

        Args:
            ended: whether the run came to its end.
        """
        if self._file.closed:
            return
        try:
            if ended:
                self.write("end")
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError(f"cannot finish {str(self.path)!r}: {error}") from error
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(ended=error is None)


@dataclass(frozen=True)
class Recorded:
    """One recorded request and its outcome.

    Attributes:
        line: where it stands in the file, from 1.
        episode: the episode that it belongs to; None outside of any.
        number: how many equal requests of the episode came before it.
        asked: the request: `prompt_ids` and `params` of a generation, `tool`, `call`, `arguments` and `kwargs` of a
            tool.
        outcome: `reply`, `error` or `ended`.
    """

    line: int
    episode: EpisodeKey | None
    number: int
    asked: Mapping[str, Any]
    outcome: Mapping[str, Any]


@dataclass
class Cassette:
    """A recording, read back. Replies are found by what was asked, not by their order.

    Attributes:
        path: the file.
        engine: the `engine` line.
        run: the `run` line; None where an engine was recorded by itself.
        tools: schemas of the recorded tools in the OpenAI shape; None where none were recorded.
        trajectories: the recorded trajectories as JSON, by episode.
        ended: whether the recording came to its end.
        version: of the file's format.
        misses: one line for each request of a replay that was not recorded.
    """

    path: Path
    engine: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    trajectories: dict[EpisodeKey, dict[str, Any]] = field(default_factory=dict)
    ended: bool = False
    version: int = FORMAT_VERSION
    misses: list[str] = field(default_factory=list)
    _found: dict[str, list[Recorded]] = field(default_factory=lambda: defaultdict(list))
    _counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def load(cls, path: str | Path, *, allow_edited: bool = False) -> Cassette:
        """Read a file.

        Args:
            path: the file.
            allow_edited: read it although lines were changed after recording.

        Raises:
            UnknownNameError: there is no such file; names the nearest one.
            ConfigError: it is no recording, of another version, or was edited; names the line.
        """
        made = cls(Path(path))
        prompts: dict[EpisodeKey | None, list[int]] = {}
        for number, value in _lines(made.path, allow_edited=allow_edited):
            try:
                made._take(number, value, prompts)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path}, line {number}: not a line of a recording: {error!r}") from error
        for same in made._found.values():
            same.sort(key=lambda one: one.number)
        return made

    def _take(self, number: int, value: dict[str, Any], prompts: dict[EpisodeKey | None, list[int]]) -> None:
        kind = value["kind"]
        if kind == "engine":
            self.engine = value
        elif kind == "run":
            absent = [name for name in RUN if name not in value]
            if absent:
                raise ValueError(f"the run has no {absent[0]!r}")
            if "step" in value["config"]:  # its name in version 1
                value["config"]["training_step"] = value["config"].pop("step")
            self.run = value
        elif kind == "tools":
            self.tools = value["tools"]
        elif kind == "trajectory":
            one = value["trajectory"]
            names = ("group_id", "sample") if "sample" in one else ("task_index", "sample_index")  # before version 3
            self.trajectories[EpisodeKey(*(one[name] for name in names))] = one
        elif kind == "end":
            self.ended = True
        elif kind in ("generate", "tool"):
            episode = EpisodeKey(*value["episode"]) if value["episode"] is not None else None
            if kind == "generate":
                prompt = [*prompts.get(episode, ())[: value["shared"]], *value["prompt"]]
                prompts[episode] = prompt
                params = SamplingParams(
                    **(value["params"] | {"stop_token_ids": tuple(value["params"]["stop_token_ids"])})
                )
                key = generate_key(episode, prompt, params)
                asked: dict[str, Any] = {"prompt_ids": prompt, "params": params}
            else:
                asked = {name: value[name] for name in ("tool", "call", "arguments", "kwargs")}
                key = tool_key(episode, **asked)
            outcome: dict[str, Any] = {name: value[name] for name in ("reply", "error", "ended") if name in value}
            if len(outcome) != 1:
                raise ValueError("one of reply, error and ended must be there")
            self._found[key].append(Recorded(number, episode, int(value["number"]), asked, outcome))
        elif kind == "header":
            self.version = value["version"]
        else:
            raise ValueError(f"unknown kind {kind!r}")

    def find(self, key: str) -> Recorded | None:
        """Return the next recorded request with this key, each once; None where none is left."""
        number = self._counts[key]
        same = self._found.get(key, [])
        if number >= len(same):
            return None
        self._counts[key] += 1
        return same[number]

    def times(self, key: str) -> int:
        """How often this was recorded."""
        return len(self._found.get(key, ()))

    def requests(self, episode: EpisodeKey | None) -> Iterator[Recorded]:
        """All recorded requests of an episode."""
        for same in self._found.values():
            yield from (one for one in same if one.episode == episode)

    def everything(self) -> Iterator[Recorded]:
        """All recorded requests."""
        for same in self._found.values():
            yield from same

    def miss(self, message: str) -> CassetteMissError:
        """Note a request that was not recorded; returns the error to raise."""
        self.misses.append(message)
        return CassetteMissError(message)


def _lines(path: Path, *, allow_edited: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise missing_file("recording", path) from None
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from error
    digest, number = "", 0
    with file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                _log.warning("%s: line %d was cut off and is skipped", path, number)
                number -= 1
                break
            line = raw.decode("ascii", errors="replace").rstrip("\n")
            found = ENDED.search(line)
            body = f"{line[: found.start()]}}}" if found else line
            digest = _digest(digest, body)
            if not allow_edited and (found is None or found[1] != digest):
                if number == 1 and FORMAT not in line:
                    raise ConfigError(f"{str(path)!r} is not a recording of toolgym")
                raise ConfigError(
                    f"{path}, line {number}: this line, or one before it, was changed or removed after recording. "
                    "What follows is not what happened; read it all the same with allow_edited (--allow-edited)"
                )
            if found:
                digest = found[1]
            try:
                value = json.loads(body)
                if number == 1 and (value.get("kind"), value.get("format")) != ("header", FORMAT):
                    raise ConfigError(f"{str(path)!r} is not a recording of toolgym")
            except (ValueError, AttributeError, RecursionError) as error:
                if isinstance(error, ConfigError):
                    raise
                raise ConfigError(f"{path}, line {number}: not a line of a recording: {error}") from error
            if number == 1 and value.get("version") not in range(1, FORMAT_VERSION + 1):
                raise ConfigError(
                    f"{str(path)!r} has version {value.get('version')!r} of the format; this library reads 1 "
                    f"to {FORMAT_VERSION}. It was written by toolgym {value.get('library')}"
                )
            yield number, value
    if number == 0:
        raise ConfigError(f"{str(path)!r} is not a recording of toolgym: it has no whole line")


def _of_finished(path: Path, finished: Collection[EpisodeKey]) -> Iterator[dict[str, Any]]:
    """What a recording holds of episodes that have finished; the rest is written again by the run that goes on."""
    for number, value in _lines(path, allow_edited=False):
        if number == 1 and value["version"] != FORMAT_VERSION:
            raise ConfigError(
                f"{str(path)!r} has version {value['version']} of the format, and this library writes "
                f"{FORMAT_VERSION}: only a recording that it began can be gone on with"
            )
        if value["kind"] == "trajectory":
            key = (value["trajectory"]["task_index"], value["trajectory"]["sample_index"])
        elif value["kind"] in ("generate", "tool") and value["episode"] is not None:
            key = tuple(value["episode"])
        else:
            continue
        if EpisodeKey(*key) in finished:
            yield value


def _library() -> str:
    try:
        return version("toolgym")
    except PackageNotFoundError:
        return "unknown"


# ---------------------------------------------------------------------- keys


def described(episode: EpisodeKey | None) -> str:
    """Return an episode's name for messages."""
    return "outside of any episode" if episode is None else str(episode)


def generate_key(episode: EpisodeKey | None, prompt_ids: Sequence[int], params: SamplingParams) -> str:
    """Return the key of a request to an engine, made of its episode, prompt and parameters."""
    sampling = asdict(params) | {"stop_token_ids": sorted(params.stop_token_ids)}
    return _key(["generate", episode, list(prompt_ids), sampling])


def tool_key(episode: EpisodeKey | None, tool: str, call: str, arguments: Any, kwargs: Any) -> str:
    """Return the key of a tool's call, made of its episode, the tool, the method and the arguments."""
    return _key(["tool", episode, tool, call, arguments, kwargs])


def _key(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digest(before: str, line: str) -> str:
    return hashlib.blake2b(f"{before}{line}".encode(), digest_size=16).hexdigest()


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    most = min(len(one), len(other))
    if list(one[:most]) == list(other[:most]):
        return most
    return next(place for place in range(most) if one[place] != other[place])


# ---------------------------------------------------------------------- errors, secrets


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON."""
    described: dict[str, Any] = {"type": type(error).__name__, "message": scrub(str(error))}
    if isinstance(error, DeadlineError):
        described |= {"seconds": error.seconds, "stuck": error.stuck}
    if is_infrastructure(error):
        described["infrastructure"] = True
    return described


def make_error(described: Mapping[str, Any]) -> Exception:
    """Return an exception of the same name and text, and of the same class where that is Python's or the library's."""
    name, message = str(described["type"]), str(described["message"])
    if name == "DeadlineError":
        return DeadlineError(described["seconds"], stuck=described["stuck"])
    if name == "CassetteMissError":
        return CassetteMissError(message)
    base = next((found for home in (errors, deadline, builtins) if (found := getattr(home, name, None))), Exception)
    if not (isinstance(base, type) and issubclass(base, Exception)):
        base = Exception
    # Its own constructor may want other arguments, and its text may be made of them.
    remade = type(name, (base,), {"__init__": lambda self: None, "__str__": lambda self: message})
    try:
        error: Exception = remade()
    except TypeError:  # a group of exceptions, which cannot be without its members
        error = type(name, (Exception,), {"__str__": lambda self: message})()
    if described.get("infrastructure"):
        error.__cause__ = OSError(message)
    return error


def scrub(text: str) -> str:
    """Replace credentials: those of a URL, and bearer tokens."""
    text = re.sub(r"(://)[^/\s@]+@", rf"\1{REDACTED}@", text)
    return re.sub(r"(?i)(bearer\s+)(?!\[)[^\s'\",}]+", rf"\1{REDACTED}", text)


def redacted(value: Any) -> Any:
    """Return a value as plain JSON, with arguments of a secret name replaced."""
    return _redact(plain(value))


def _redact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: REDACTED if SECRET.search(name) and one else _redact(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_redact(one) for one in value]
    return value


def scrubbed(trajectory: dict[str, Any]) -> dict[str, Any]:
    """Return a trajectory's JSON without credentials in its error."""
    if not trajectory.get("error"):
        return trajectory
    error = trajectory["error"]
    return trajectory | {"error": error | {"message": scrub(error["message"])}}
