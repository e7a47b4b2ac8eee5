"""`RecordingEngine` records what an engine is asked and answers; `CassetteEngine` answers from a cassette."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolgym.rollout.engines.base import Engine, Generation, GenerationRequest, PauseMode, SamplingParams
from toolgym.rollout.engines.wrapper import EngineWrapper
from toolgym.rollout.episode_key import EpisodeKey, current_episode
from toolgym.rollout.recording.cassette import (
    Cassette,
    CassetteWriter,
    Recorded,
    described,
    generate_key,
    shared_length,
)
from toolgym.rollout.recording.generations import generation_from_json, generation_to_json
from toolgym.rollout.recording.outcome import record_outcome, replay_outcome
from toolgym.tools.errors import EngineError


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
        self._own = not isinstance(cassette, CassetteWriter)
        self._cassette = cassette if isinstance(cassette, CassetteWriter) else CassetteWriter(cassette)
        self._deadline = deadline
        self._described = False

    async def start(self) -> None:
        try:
            await super().start()
            self.describe()
        except BaseException:  # an engine that did not start is not closed by its caller
            if self._own:
                self._cassette.close(ended=False)
            raise

    def describe(self) -> None:
        """Record the engine's class, sizes and weight version, once. The first request does so too."""
        if self._described:
            return
        facts = {
            "vocab_size": self.engine.vocab_size,
            "context_length": self.engine.context_length,
            "weight_version": self.engine.weight_version,
        }
        self._described = True
        self._cassette.write("engine", name=type(self.engine).__name__, **facts)

    async def _generate(self, request: GenerationRequest) -> Generation:
        asked, params = request.prompt_ids, request.params
        number = self._cassette.count(generate_key(current_episode(), asked, params))
        call = self.engine.generate(asked, params, request_id=request.request_id, affinity=request.affinity)

        def record(**outcome: Any) -> None:
            with contextlib.suppress(EngineError):  # it was not started, which its own error says
                self.describe()
            self._cassette.generate(asked, params, number, **outcome)

        return await record_outcome(call, self._deadline, generation_to_json, record)

    async def abort(self, request_id: str) -> None:
        await asyncio.sleep(0)  # a request that was made just now is passed on first: see `record_outcome`
        await super().abort(request_id)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if self._own:
                self._cassette.close()


class CassetteEngine(Engine):
    """Answers each request as the recorded engine did. It needs no model and no network.

    A reply is found by the episode, the prompt and the sampling parameters, never by the order of arrival, so it does
    not matter how many episodes are played at once. Equal requests of one episode get their replies in the order in
    which they were asked. A request that failed or was cancelled ends as it did, see `replay_outcome`.

    Args:
        cassette: the recording, or its path.

    Raises:
        ConfigError: see `Cassette.load`; or it holds no engine.
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
        """The version of the last reply that was given; before it, the one at the recording's start."""
        return self._weight_version

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
        key = generate_key(episode, prompt_ids, params)
        found = self.cassette.find(key)
        if found is None:
            raise self.cassette.miss(self._explain(episode, list(prompt_ids), params, key))
        generation = generation_from_json(await replay_outcome(self.cassette, found, "this request was on its way"))
        if generation.weight_versions:
            self._weight_version = generation.weight_versions[-1]
        return generation

    async def abort(self, request_id: str) -> None:
        """Do nothing: a recorded reply is there at once, and an aborted one was recorded as such."""

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
        own = [one for one in self.cassette.requests(episode) if "prompt_ids" in one.asked]
        candidates = own or [one for one in self.cassette.everything() if "prompt_ids" in one.asked]
        if not candidates:
            return f"{start} is not in {self.cassette.path}, which holds no request at all"
        nearest = max(candidates, key=lambda one: _likeness(one, prompt, params))
        text = f"{start} is not in {self.cassette.path}. Nearest is line {nearest.line}"
        if not own:
            text += f", of {described(nearest.episode)} (there is none of this one)"
        return f"{text}: {_differences(nearest, prompt, params)}"


def _likeness(one: Recorded, prompt: list[int], params: SamplingParams) -> tuple[int, int, int]:
    recorded = one.asked["prompt_ids"]
    same = sum(value == getattr(params, name) for name, value in asdict(one.asked["params"]).items())
    return shared_length(recorded, prompt), -abs(len(recorded) - len(prompt)), same


def _differences(one: Recorded, prompt: list[int], params: SamplingParams) -> str:
    recorded, found = one.asked["prompt_ids"], []
    shared = shared_length(recorded, prompt)
    if shared < min(len(recorded), len(prompt)):
        found.append(
            f"{len(recorded)} prompt ids, of which the first {shared} are the same; then id {recorded[shared]} was "
            f"recorded and {prompt[shared]} is asked"
        )
    elif len(recorded) != len(prompt):
        found.append(f"{len(recorded)} prompt ids; the shorter of the two is the beginning of the longer")
    for name, value in asdict(one.asked["params"]).items():
        if value != getattr(params, name):
            found.append(f"{name} {value!r} was recorded and {getattr(params, name)!r} is asked")
    return "; ".join(found) or "it is the same"
