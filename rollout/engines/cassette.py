"""`RecordingEngine` writes down what an engine is asked and answers; `CassetteEngine` answers from the recording."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolgym.rollout.cassette import Cassette, CassetteWriter, Recorded, generate_key, make_error, shared_length
from toolgym.rollout.engines.base import Engine, FinishReason, Generation, PauseMode, SamplingParams
from toolgym.rollout.playing import EpisodeName, current_episode
from toolgym.rollout.watching import watch
from toolgym.tools.deadline import DeadlineError
from toolgym.tools.errors import EngineError


class RecordingEngine(Engine):
    """Passes everything on to the engine inside, and records each request with what became of it.

    Failures are recorded as well: an error, an abort, and the end of a request that was cancelled or overran its
    deadline.

    Args:
        engine: the engine inside; started and closed with this one.
        tape: where to record; a path makes a file that is closed with this engine.
        deadline: wall seconds after which callers give up a generation, so that a replay can tell that end from
            another.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, engine: Engine, tape: CassetteWriter | str | Path, *, deadline: float | None = None) -> None:
        self.engine = engine
        self._own = not isinstance(tape, CassetteWriter)
        self._tape = tape if isinstance(tape, CassetteWriter) else CassetteWriter(tape)
        self._deadline = deadline
        self._described = False

    @property
    def vocab_size(self) -> int:
        return self.engine.vocab_size

    @property
    def context_length(self) -> int:
        return self.engine.context_length

    @property
    def weight_version(self) -> str:
        return self.engine.weight_version

    async def start(self) -> None:
        try:
            await self.engine.start()
            self.describe()
        except BaseException:  # nobody closes an engine that did not start
            if self._own:
                self._tape.close(ended=False)
            raise

    def describe(self) -> None:
        """Record what the engine is, once. The first request does so too."""
        if self._described:
            return
        facts = {
            "vocab_size": self.engine.vocab_size,
            "context_length": self.engine.context_length,
            "weight_version": self.engine.weight_version,
        }
        self._described = True
        self._tape.write("engine", name=type(self.engine).__name__, **facts)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        affinity: str | None = None,
    ) -> Generation:
        asked = list(prompt_ids)  # it may grow while the answer is on its way
        number = self._tape.count(generate_key(current_episode(), asked, params))
        call = self.engine.generate(asked, params, request_id=request_id, affinity=affinity)

        def note(**outcome: Any) -> None:
            with contextlib.suppress(EngineError):  # it was not started, which its own error says
                self.describe()
            self._tape.generate(asked, params, number, **outcome)

        return await watch(call, self._deadline, _to_json, note)

    async def abort(self, request_id: str) -> None:
        await asyncio.sleep(0)  # a request that was made just now is passed on first: see `watch`
        await self.engine.abort(request_id)

    async def pause(self, mode: PauseMode = PauseMode.IN_PLACE) -> None:
        await self.engine.pause(mode)

    async def resume(self) -> None:
        await self.engine.resume()

    async def close(self) -> None:
        try:
            await self.engine.close()
        finally:
            if self._own:
                self._tape.close()


class CassetteEngine(Engine):
    """Answers each request as the recorded engine did. It needs no model and no network.

    A reply is found by the episode, the prompt and the sampling parameters, never by the order of arrival, so that
    it does not matter how many episodes are played at once. Equal requests of one episode get their replies in the
    order in which they were asked. A recorded error is raised again; a request that overran its deadline raises at
    once what the deadline would have; one that was cancelled otherwise (by the deadline of the whole episode) waits
    for ever, as it did.

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

    async def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        affinity: str | None = None,
    ) -> Generation:
        await self._going.wait()
        if self._closed:
            raise EngineError("the engine was closed")
        await asyncio.sleep(0)  # a real one gives way to others, too
        episode = current_episode()
        key = generate_key(episode, prompt_ids, params)
        found = self.cassette.find(key)
        if found is None:
            raise self.cassette.miss(self._explain(episode, list(prompt_ids), params, key))
        if "error" in found.outcome:
            raise make_error(found.outcome["error"])
        ended = found.outcome.get("ended")
        if ended is not None:
            if ended["by"] == "deadline":
                raise DeadlineError(ended["seconds"], stuck=False)
            if episode not in self.cassette.trajectories:
                raise self.cassette.miss(
                    f"{_where(episode)}: the recording stopped while this request was on its way (line {found.line})"
                )
            await asyncio.Event().wait()
        generation = _from_json(found.outcome["reply"])
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

    def _explain(self, episode: EpisodeName | None, prompt: list[int], params: SamplingParams, key: str) -> str:
        start = f"{_where(episode)}: a request with {len(prompt)} prompt ids"
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
            text += f", of {_where(nearest.episode)} (there is none of this one)"
        return f"{text}: {_differences(nearest, prompt, params)}"


def _where(episode: EpisodeName | None) -> str:
    return "outside of any episode" if episode is None else f"group {episode.group_id}, sample {episode.sample}"


def _likeness(one: Recorded, prompt: list[int], params: SamplingParams) -> tuple[int, int, int]:
    recorded = one.asked["prompt_ids"]
    same = sum(value == getattr(params, name) for name, value in asdict(one.asked["params"]).items())
    return shared_length(recorded, prompt), -abs(len(recorded) - len(prompt)), same


def _differences(one: Recorded, prompt: list[int], params: SamplingParams) -> str:
    recorded, told = one.asked["prompt_ids"], []
    shared = shared_length(recorded, prompt)
    if shared < min(len(recorded), len(prompt)):
        told.append(
            f"{len(recorded)} prompt ids, of which the first {shared} are the same; then id {recorded[shared]} was "
            f"recorded and {prompt[shared]} is asked"
        )
    elif len(recorded) != len(prompt):
        told.append(f"{len(recorded)} prompt ids; the shorter of the two is the beginning of the longer")
    for name, value in asdict(one.asked["params"]).items():
        if value != getattr(params, name):
            told.append(f"{name} {value!r} was recorded and {getattr(params, name)!r} is asked")
    return "; ".join(told) or "it is the same"


def _to_json(generation: Generation) -> dict[str, Any]:
    versions = [[version, len(list(group))] for version, group in itertools.groupby(generation.weight_versions)]
    return {
        "token_ids": list(generation.token_ids),
        "logprobs": list(generation.logprobs),
        "finish_reason": generation.finish_reason.value,
        "weight_versions": versions,
        "cached_tokens": generation.cached_tokens,
    }


def _from_json(reply: Mapping[str, Any]) -> Generation:
    return Generation(
        token_ids=tuple(reply["token_ids"]),
        logprobs=tuple(reply["logprobs"]),
        finish_reason=FinishReason(reply["finish_reason"]),
        weight_versions=tuple(version for version, count in reply["weight_versions"] for _ in range(count)),
        cached_tokens=reply["cached_tokens"],
    )
