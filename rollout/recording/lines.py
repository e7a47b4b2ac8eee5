"""The file format of a run's log, for replaying and resuming it: JSON Lines.

Every line is one object with a `kind`:

| kind | what it holds |
| --- | --- |
| `header` | always first: format, version of the format, version of the library |
| `engine` | the engine's class, vocabulary, context length and weight version |
| `run` | env id and arguments (of a mixture by member), tasks, run config, fingerprints of tokenizer and template |
| `tools` | the schemas of an env's tools |
| `generate` | one request to the engine and its reply, error or end |
| `tool` | one call of a tool's `create`, `execute` or `calc_reward` and its result, error or end |
| `trajectory` | one finished episode |
| `end` | the run ended, and was not killed |

A recording has them all. A journal (see `JournaledEngine`) has `generate` lines only, of episodes that are under way.

A prompt is stored as what it adds to the request before it in the same episode. The last field of a line, `digest`,
is over the line and all before it, so that an edit is noticed. A killed run leaves a file whose last line may be cut
off; a reader uses the lines before it.

Never written: an engine's address, key or headers, and a tool's configuration. Arguments whose name says that they
are secret, and credentials in the text of errors, are replaced by `[redacted]`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypeAlias, TypedDict

import numpy as np

from toolgym.rollout.engines.base import FinishReason, Generation, SamplingParams
from toolgym.rollout.job import EpisodeKey
from toolgym.rollout.recording.secrets import redacted
from toolgym.rollout.trajectory.token_sequence import ArrayJson, array_from_json, array_to_json
from toolgym.rollout.trajectory.trajectory import plain
from toolgym.tools.errors import ConfigError, missing_file

FORMAT = "toolgym-cassette"
FORMAT_VERSION = 4
"""Version of the format that is written, and the only one that is read."""

ENDED = re.compile(r',"digest":"([0-9a-f]{32})"}$')

Line: TypeAlias = dict[str, Any]
"""One line's object, without its digest."""

_log = logging.getLogger("toolgym.rollout")


class LastPrompts(dict[EpisodeKey | None, list[int]]):
    """The last prompt of each episode; of the next prompt only what it adds is written."""

    def shortened(self, episode: EpisodeKey | None, prompt_ids: Sequence[int]) -> tuple[int, list[int]]:
        prompt = list(prompt_ids)
        shared = shared_length(self.get(episode, ()), prompt)
        self[episode] = prompt
        return shared, prompt[shared:]

    def whole(self, episode: EpisodeKey | None, shared: int, rest: Iterable[int]) -> list[int]:
        self[episode] = [*self.get(episode, ())[:shared], *rest]
        return self[episode]


class RecordedRequest(NamedTuple):
    key: str
    prompt_ids: list[int]
    params: SamplingParams


def read_request(line: Line, prompts: LastPrompts) -> RecordedRequest:
    episode = episode_of(line)
    prompt = prompts.whole(episode, line["shared"], line["prompt"])
    params = SamplingParams.from_json(line["params"])
    return RecordedRequest(generate_key(episode, prompt, params, line.get("images", ())), prompt, params)


def episode_of(line: Line) -> EpisodeKey | None:
    return EpisodeKey(*line["episode"]) if line["episode"] is not None else None


def read_lines(path: Path, *, allow_edited: bool) -> Iterator[tuple[int, Line]]:
    """The lines of a file with their numbers, from 1; one that was cut off at the end is left out."""
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
            body, stated, digest = split_line(raw, digest)
            if not allow_edited and stated != digest:
                if number == 1 and FORMAT not in body:
                    raise ConfigError(f"{str(path)!r} is not a recording of toolgym")
                raise ConfigError(
                    f"{path}, line {number}: this line, or one before it, was changed or removed after recording. "
                    "What follows is not what happened; read it all the same with allow_edited (--allow-edited)"
                )
            digest = stated or digest
            try:
                line = json.loads(body)
            except (ValueError, RecursionError) as error:
                if number == 1:
                    raise ConfigError(f"{str(path)!r} is not a recording of toolgym") from error
                raise ConfigError(f"{path}, line {number}: not a line of a recording: {error}") from error
            if number == 1:
                check_header(path, line)
            yield number, line
    if number == 0:
        raise ConfigError(f"{str(path)!r} is not a recording of toolgym: it has no whole line")


def split_line(raw: bytes, before: str) -> tuple[str, str, str]:
    """A line's JSON, the digest that it states ("" if none), and the one that it should state."""
    line = raw.decode("ascii", errors="replace").rstrip("\n")
    end = ENDED.search(line)
    body = f"{line[: end.start()]}}}" if end else line
    return body, end[1] if end else "", line_digest(before, body)


def is_recording(path: Path) -> bool:
    """Return whether a file begins as a recording does."""
    begin = f'{{"kind":"header","format":"{FORMAT}"'.encode()
    with path.open("rb") as file:
        return file.read(len(begin)) == begin


def check_header(path: Path, line: object) -> None:
    if not isinstance(line, dict) or (line.get("kind"), line.get("format")) != ("header", FORMAT):
        raise ConfigError(f"{str(path)!r} is not a recording of toolgym")
    if line.get("version") != FORMAT_VERSION:
        raise ConfigError(
            f"{str(path)!r} has version {line.get('version')!r} of the format; this library reads {FORMAT_VERSION} "
            f"only. It was written by toolgym {line.get('library')}"
        )


def line_digest(before: str, line: str) -> str:
    return hashlib.blake2b(f"{before}{line}".encode(), digest_size=16).hexdigest()


# ---------------------------------------------------------------------- requests and replies


def described(episode: EpisodeKey | None) -> str:
    return "outside of any episode" if episode is None else str(episode)


def generate_key(
    episode: EpisodeKey | None, prompt_ids: Sequence[int], params: SamplingParams, images: Sequence[str] = ()
) -> str:
    """The key of a request; `images` are the SHA-256 of those in its context."""
    sampling = asdict(params) | {"stop_token_ids": sorted(params.stop_token_ids)}
    return _key(["generate", episode, sampling, *images], array("q", prompt_ids).tobytes())


class RecordedCall(TypedDict):
    """A call of a tool's method, its arguments as plain JSON without secrets."""

    tool: str
    call: str
    arguments: Any
    kwargs: Any


def tool_request(tool: str, call: str, arguments: object, kwargs: Mapping[str, object]) -> RecordedCall:
    return {"tool": tool, "call": call, "arguments": plain(arguments), "kwargs": redacted(kwargs)}


def tool_key(episode: EpisodeKey | None, request: RecordedCall) -> str:
    return _key(["tool", episode, request["tool"], request["call"], request["arguments"], request["kwargs"]])


def _key(value: Any, further: bytes = b"") -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode() + further, digest_size=16).hexdigest()


def shared_length(ids: Sequence[int], others: Sequence[int]) -> int:
    most = min(len(ids), len(others))
    if list(ids[:most]) == list(others[:most]):
        return most
    return next(place for place in range(most) if ids[place] != others[place])


class GenerationJson(TypedDict):
    token_ids: list[int]
    logprobs: ArrayJson
    finish_reason: str
    weight_versions: list[tuple[str, int]]
    cached_tokens: int
    aligned: NotRequired[dict[str, ArrayJson]]


def generation_to_json(generation: Generation) -> GenerationJson:
    versions = [(version, len(list(group))) for version, group in itertools.groupby(generation.weight_versions)]
    return {
        "token_ids": list(generation.token_ids),
        "logprobs": array_to_json(np.array(generation.logprobs)),  # decimals would take half of all the time
        "finish_reason": generation.finish_reason.value,
        "weight_versions": versions,
        "cached_tokens": generation.cached_tokens,
        "aligned": {name: array_to_json(payload) for name, payload in generation.aligned.items()},
    }


def generation_from_json(reply: GenerationJson) -> Generation:
    return Generation(
        token_ids=tuple(reply["token_ids"]),
        logprobs=tuple(array_from_json(reply["logprobs"]).tolist()),
        finish_reason=FinishReason(reply["finish_reason"]),
        weight_versions=tuple(version for version, count in reply["weight_versions"] for _ in range(count)),
        cached_tokens=reply["cached_tokens"],
        aligned={name: array_from_json(payload) for name, payload in reply.get("aligned", {}).items()},
    )
