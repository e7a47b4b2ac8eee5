"""`JournaledEngine`: what an engine generated stays on disk, so that an interrupted episode goes on where it was.

The journal is a JSON Lines file: a header, then one line for each answer of the engine, with its episode and a digest
of the request. An episode that is played again gets the answers that are there, with their exact ids, log-probabilities
and weight versions, as long as it asks the same. Its env is stepped with the same turns for real, so that a sandbox has
its variables and files again. Where the env then answers otherwise than the first time, the next request is another
one, and is the engine's to answer. So each turn is what a policy said to exactly what it saw, recorded or not.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
from array import array
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from toolgym.rollout.engines.base import Engine, Generation, GenerationRequest
from toolgym.rollout.engines.wrapper import EngineWrapper
from toolgym.rollout.episode_key import EpisodeKey, current_episode
from toolgym.rollout.recording.generations import generation_from_json, generation_to_json
from toolgym.rollout.trajectory.locked_file import replaced
from toolgym.rollout.trajectory.token_sequence import array_from_json, array_to_json
from toolgym.tools.errors import ConfigError, EngineError

FORMAT = "toolgym-turns"
FORMAT_VERSION = 1

_log = logging.getLogger("toolgym.rollout")


class JournaledEngine(EngineWrapper):
    """Keeps what the engine inside generates in a file, and answers from it what is asked again.

    Only requests of episodes are kept. Where the disk is full, the log says so once, and the run goes on without.

    Args:
        engine: the engine inside; started and closed with this one.
        path: the journal of this run. One that is there is gone on with; it must be of the same run, not of one whose
            seeds are the same.
        finished: episodes that will not be played again; their answers are removed from the file.

    Attributes:
        answered: how many requests were answered from the journal.

    Raises:
        ConfigError: the file cannot be written, is no journal or a newer one, or another run is writing it.
    """

    def __init__(self, engine: Engine, path: str | Path, *, finished: Collection[EpisodeKey] = ()) -> None:
        super().__init__(engine)
        self.path = Path(path)
        self.answered = 0
        self._answers: dict[EpisodeKey, list[tuple[str, Generation]]] = {}
        self._warned: set[EpisodeKey] = set()
        try:
            with replaced(self.path) as self._file:
                header = _encoded({"format": FORMAT, "version": FORMAT_VERSION})
                _write_all(self._file, header + b"".join(self._taken(finished)))
        except OSError as error:
            raise ConfigError(f"cannot write the journal {str(self.path)!r}: {error}") from error

    def _taken(self, finished: Collection[EpisodeKey]) -> Iterator[bytes]:
        """The file's lines that are still of use, with what they say kept in memory."""
        for line, key, digest, generation in _read(self.path):
            if key not in finished:
                self._answers.setdefault(key, []).append((digest, generation))
                yield line

    async def _generate(self, request: GenerationRequest) -> Generation:
        key = current_episode()
        if key is None:
            return await super()._generate(request)
        digest = _digest(request)
        generation = self._recorded(key, digest)
        if generation is not None:
            await asyncio.sleep(0)  # an engine gives way to others, too
            return generation
        generation = await super()._generate(request)
        self._check_generation(generation, request)
        self._write(key, digest, generation)
        return generation

    def _recorded(self, key: EpisodeKey, digest: str) -> Generation | None:
        answers = self._answers.get(key)
        if not answers:
            return None
        for place, (asked, generation) in enumerate(answers):
            if asked == digest:
                del answers[place]
                self.answered += 1
                return generation
        if key not in self._warned:
            self._warned.add(key)
            _log.warning(
                "%s: its env did not answer as before the interruption: %d recorded answers of the engine do not fit "
                "any more, and it goes on without them",
                key,
                len(answers),
            )
        return None

    def _write(self, key: EpisodeKey, digest: str, generation: Generation) -> None:
        if self._file.closed:
            return
        reply = generation_to_json(generation)
        reply["logprobs"] = array_to_json(np.array(generation.logprobs))  # as decimals they took half of all the time
        try:
            _write_all(self._file, _encoded({"episode": key, "request": digest, "reply": reply}))
        except OSError as error:
            self._file.close()  # whatever follows half a line could not be read
            _log.warning("%s: %s; an interrupted episode will begin anew", self.path, error)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self.close_journal()

    def close_journal(self) -> None:
        """Close the file, and not the engine inside."""
        self._file.close()


def _read(path: Path) -> Iterator[tuple[bytes, EpisodeKey, str, Generation]]:
    """The answers in a journal, each with its line. Lines that cannot be read are left out, and the log says so."""
    with path.open("rb") as file:
        header = file.readline()
        if not header.endswith(b"\n"):
            return  # it is new, or the process that began it was killed at once
        _check_header(path, header)
        broken = 0
        for line in file:
            try:
                value = json.loads(line)
                reply = value["reply"] | {"logprobs": array_from_json(value["reply"]["logprobs"]).tolist()}
                read = line, EpisodeKey(*value["episode"]), value["request"], generation_from_json(reply)
            except (AttributeError, EngineError, KeyError, TypeError, ValueError):
                broken += 1
            else:
                yield read
    if broken:
        _log.warning("%s: %d lines could not be read and are left out", path, broken)


def _check_header(path: Path, line: bytes) -> None:
    try:
        header = json.loads(line)
        known = header["format"] == FORMAT
    except (KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise ConfigError(f"{str(path)!r} is no journal of an engine's answers: name another file, or remove it")
    if header.get("version") != FORMAT_VERSION:
        raise ConfigError(
            f"{str(path)!r} has version {header.get('version')!r} of the journal's format, and this library reads "
            f"{FORMAT_VERSION}: remove it, and interrupted episodes begin anew"
        )


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def _write_all(file: io.FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _digest(request: GenerationRequest) -> str:
    """What tells a request from another: its ids and how to sample, the seed included."""
    text = repr(request.params).encode() + array("i", request.prompt_ids).tobytes()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
