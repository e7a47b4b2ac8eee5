"""Engines and logs: `RecordingEngine` writes one, `CassetteEngine` answers from one, `JournaledEngine` does both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolgym.rollout.engines.base import Engine, Generation, GenerationRequest, PauseMode, SamplingParams
from toolgym.rollout.engines.wrapper import EngineWrapper
from toolgym.rollout.job import EpisodeKey, current_episode
from toolgym.rollout.recording.cassette import Cassette, CassetteWriter, Recorded, generations_of
from toolgym.rollout.recording.lines import (
    Line,
    described,
    generate_key,
    generation_from_json,
    generation_to_json,
    shared_length,
)
from toolgym.rollout.recording.outcome import record_outcome, replay_outcome
from toolgym.tools.errors import ConfigError, EngineError

_log = logging.getLogger("toolgym.rollout")


class RecordingEngine(EngineWrapper):
    """Passes everything on to the engine inside, and records each request with its outcome.

    Failures are recorded as well: an error, an abort, and the end of a request that was cancelled or overran its
    deadline.

    Args:
        engine: the engine inside; started and closed with this one.
        cassette: where to record; a path makes a file that is closed with this engine.
        deadline: wall seconds after which callers give up a generation, so that a replay can tell that end from
            another.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, engine: Engine, cassette: CassetteWriter | str | Path, *, deadline: float | None = None) -> None:
        super().__init__(engine)
        self._owns_cassette = not isinstance(cassette, CassetteWriter)
        self._cassette = cassette if isinstance(cassette, CassetteWriter) else CassetteWriter(cassette)
        self._deadline = deadline
        self._described = False

    async def start(self) -> None:
        try:
            await super().start()
            self.describe()
        except BaseException:  # an engine that did not start is not closed by its caller
            if self._owns_cassette:
                self._cassette.close(ended=False)
            raise

    def describe(self) -> None:
        if self._described:
            return
        facts = {name: getattr(self.engine, name) for name in ("vocab_size", "context_length", "weight_version")}
        self._described = True
        self._cassette.write("engine", name=type(self.engine).__name__, **facts)

    async def _generate(self, request: GenerationRequest) -> Generation:
        key = generate_key(current_episode(), request.prompt_ids, request.params, request.image_hashes)
        number = self._cassette.count(key)
        call = self.engine.generate(
            request.prompt_ids,
            request.params,
            request_id=request.request_id,
            affinity=request.affinity,
            images=request.images,
            forbidden_ids=request.forbidden_ids,
        )

        def record(**outcome: Any) -> None:
            with contextlib.suppress(EngineError):  # it was not started, which its own error says
                self.describe()
            self._cassette.generate(request, number, **outcome)

        return await record_outcome(call, self._deadline, generation_to_json, record)

    async def abort(self, request_id: str) -> None:
        await asyncio.sleep(0)  # a request that was made just now is passed on first: see `record_outcome`
        await super().abort(request_id)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if self._owns_cassette:
                self._cassette.close()


class CassetteEngine(Engine):
    """Answers each request as the recorded engine did. It needs no model and no network.

    A reply is found by the episode, the prompt and the sampling parameters, never by the order of arrival, so it does
    not matter how many episodes are played at once. Equal requests of one episode get their replies in the order in
    which they were asked. A request that failed or was cancelled ends as it did, see `replay_outcome`.

    Raises:
        ConfigError: it is no recording, of another version, or was edited; names the line.
        UnknownNameError: there is no such file; names the nearest one.
    """

    def __init__(self, cassette: Cassette | str | Path) -> None:
        self.cassette = cassette if isinstance(cassette, Cassette) else Cassette.load(cassette)
        self._weight_version = str(self.cassette.engine.get("weight_version", ""))
        self._going = asyncio.Event()
        self._going.set()
        self._closed = False

    @property
    def vocab_size(self) -> int:
        return int(self._fact("vocab_size"))

    @property
    def context_length(self) -> int:
        return int(self._fact("context_length"))

    @property
    def weight_version(self) -> str:
        return self._weight_version

    @property
    def takes_images(self) -> bool:
        return True

    @property
    def takes_grammars(self) -> bool:
        return True

    @property
    def stops_at_texts(self) -> bool:
        return True  # the recorded reply ends where the recorded engine stopped

    def _fact(self, name: str) -> Any:
        if name not in self.cassette.engine:
            raise EngineError(f"{self.cassette.path} says nothing of an engine: it ends before the engine was asked")
        return self.cassette.engine[name]

    async def _generate(self, request: GenerationRequest) -> Generation:
        prompt_ids, params = request.prompt_ids, request.params
        await self._going.wait()
        if self._closed:
            raise EngineError("the engine was closed")
        await asyncio.sleep(0)  # a real one gives way to others, too
        episode = current_episode()
        key = generate_key(episode, prompt_ids, params, request.image_hashes)
        recorded = self.cassette.find(key)
        if recorded is None:
            raise self.cassette.miss(self._explain(episode, list(prompt_ids), params, key))
        generation = generation_from_json(await replay_outcome(self.cassette, recorded, "this request was on its way"))
        if generation.weight_versions:
            self._weight_version = generation.weight_versions[-1]
        return generation

    async def abort(self, request_id: str) -> None:
        pass  # a recorded reply is there at once, and an aborted one was recorded as such

    async def pause(self, mode: PauseMode = PauseMode.IN_PLACE) -> None:
        PauseMode(mode)
        self._going.clear()

    async def resume(self) -> None:
        self._going.set()

    async def close(self) -> None:
        self._closed = True
        self._going.set()

    def _explain(self, episode: EpisodeKey | None, prompt: list[int], params: SamplingParams, key: str) -> str:
        start = f"{described(episode)}: a request with {len(prompt)} prompt ids"
        times = self.cassette.times(key)
        if times:
            return f"{start} was recorded {times} time(s), and is asked once more"
        requests = [recorded for recorded in self.cassette.everything() if "prompt_ids" in recorded.asked]
        of_episode = [recorded for recorded in requests if recorded.episode == episode]
        if not requests:
            return f"{start} is not in {self.cassette.path}, which holds no request at all"
        nearest = max(of_episode or requests, key=lambda recorded: _likeness(recorded, prompt, params))
        text = f"{start} is not in {self.cassette.path}. Nearest is line {nearest.line}"
        if not of_episode:
            text += f", of {described(nearest.episode)} (there is none of this one)"
        return f"{text}: {_differences(nearest, prompt, params)}"


def _likeness(recorded: Recorded, prompt: list[int], params: SamplingParams) -> tuple[int, int, int]:
    ids = recorded.asked["prompt_ids"]
    same = sum(value == getattr(params, name) for name, value in asdict(recorded.asked["params"]).items())
    return shared_length(ids, prompt), -abs(len(ids) - len(prompt)), same


def _differences(recorded: Recorded, prompt: list[int], params: SamplingParams) -> str:
    ids, differences = recorded.asked["prompt_ids"], []
    shared = shared_length(ids, prompt)
    if shared < min(len(ids), len(prompt)):
        differences.append(
            f"{len(ids)} prompt ids, of which the first {shared} are the same; then id {ids[shared]} was "
            f"recorded and {prompt[shared]} is asked"
        )
    elif len(ids) != len(prompt):
        differences.append(f"{len(ids)} prompt ids; the shorter of the two is the beginning of the longer")
    for name, value in asdict(recorded.asked["params"]).items():
        if value != getattr(params, name):
            differences.append(f"{name} {value!r} was recorded and {getattr(params, name)!r} is asked")
    return "; ".join(differences) or "it is the same"


class JournaledEngine(EngineWrapper):
    """Keeps what the engine inside generates in a log, so that an interrupted episode goes on where it was.

    An episode that is played again gets the answers that are there, with their exact ids, log-probabilities and weight
    versions, as long as it asks the same. Its env is stepped with the same turns for real, so that a sandbox has its
    variables and files again. If the env then answers otherwise than the first time, the next request is another one,
    and is the engine's to answer. So each turn is what a policy answered to exactly what it saw, recorded or not.

    Only requests of episodes are kept. If the disk is full, the log says so once, and the run goes on without.

    Args:
        engine: the engine inside; started and closed with this one.
        path: the journal of this run. An existing one is gone on with; it must be of the same run, not of another with
            the same seeds.
        finished: episodes that will not be played again; their answers are removed from the file.

    Attributes:
        answered: how many requests were answered from the journal.

    Raises:
        ConfigError: the file cannot be written, is no journal or one of another version, or another run is writing it.
    """

    def __init__(self, engine: Engine, path: str | Path, *, finished: Collection[EpisodeKey] = ()) -> None:
        super().__init__(engine)
        self.path = Path(path)
        self.answered = 0
        self._answers: dict[str, list[Generation]] = {}
        self._unasked: Counter[EpisodeKey] = Counter()
        self._cassette = CassetteWriter(self.path, kept=self._kept(finished))

    def _kept(self, finished: Collection[EpisodeKey]) -> Iterator[Line]:
        try:
            for episode, key, generation, line in generations_of(self.path):
                if episode is not None and episode not in finished:
                    self._answers.setdefault(key, []).append(generation)
                    self._unasked[episode] += 1
                    yield line
        except ConfigError as error:
            raise ConfigError(
                f"the journal cannot be gone on with: {error}. Name another file, or remove it, and interrupted "
                "episodes begin anew"
            ) from error

    async def _generate(self, request: GenerationRequest) -> Generation:
        episode = current_episode()
        if episode is None:
            return await super()._generate(request)
        key = generate_key(episode, request.prompt_ids, request.params, request.image_hashes)
        if answers := self._answers.get(key):
            self.answered += 1
            self._unasked[episode] -= 1
            await asyncio.sleep(0)  # an engine gives way to others, too
            return answers.pop(0)
        if unasked := self._unasked.pop(episode, 0):
            _log.warning(
                "%s: its env did not answer as before the interruption: %d recorded answers of the engine do not fit "
                "any more, and it goes on without them",
                episode,
                unasked,
            )
        generation = await super()._generate(request)
        self._check_generation(generation, request)
        if not self._cassette.closed:
            self._keep(key, request, generation)
        return generation

    def _keep(self, key: str, request: GenerationRequest, generation: Generation) -> None:
        try:
            number = self._cassette.count(key)
            self._cassette.generate(request, number, reply=generation_to_json(generation))
        except ConfigError as error:
            self._cassette.abandon()  # whatever follows half a line could not be read
            _log.warning("%s; an interrupted episode will begin anew", error)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self.close_journal()

    def close_journal(self) -> None:
        self._cassette.abandon()
