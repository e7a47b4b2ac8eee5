"""An engine that is recorded by itself, and one that answers from its cassette."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random

import pytest

from toolgym.rollout import SamplingParams
from toolgym.rollout.engines import FinishReason, Generation, PauseMode
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.job import EpisodeKey, current_episode, enter_episode
from toolgym.rollout.recording import CassetteEngine, RecordingEngine
from toolgym.rollout.recording.cassette import Cassette, CassetteMissError, CassetteWriter
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError

PARAMS = SamplingParams(max_new_tokens=50)


async def ask(engine, *prompts, params=PARAMS):
    return [await engine.generate(ids, params, request_id=str(n)) for n, ids in enumerate(prompts)]


async def test_equal_requests_get_their_replies_in_order(scripted, tmp_path):
    said = iter(["one", "two", ("three", FinishReason.ABORT), ("", FinishReason.LENGTH)])
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: next(said)), path) as engine:
        assert (engine.vocab_size, engine.context_length, engine.weight_version) == (512, 4096, "7")
        before = await ask(engine, *[[5, 6]] * 4)
    async with CassetteEngine(path) as engine:
        assert (engine.vocab_size, engine.context_length, engine.weight_version) == (512, 4096, "7")
        assert await ask(engine, *[[5, 6]] * 4) == before
        with pytest.raises(CassetteMissError, match=r"recorded 4 time\(s\), and is asked once more"):
            await ask(engine, [5, 6])
    assert before[2].finish_reason is FinishReason.ABORT
    assert before[3] == Generation((), (), FinishReason.LENGTH, (), 3)


async def test_a_miss_names_the_nearest_request_and_what_differs(scripted, tmp_path):
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: "x"), path) as engine:
        await ask(engine, [1, 2, 3, 4], [9, 9])
    engine = CassetteEngine(path)
    with pytest.raises(CassetteMissError, match="first 2 are the same; then id 3 was recorded and 7 is asked"):
        await ask(engine, [1, 2, 7, 4])
    with pytest.raises(CassetteMissError, match="line 3: 4 prompt ids; the shorter of the two"):
        await ask(engine, [1, 2, 3])
    hot = dataclasses.replace(PARAMS, temperature=1.5)
    with pytest.raises(CassetteMissError, match=r"line 4: temperature 1.0 was recorded and 1.5 is asked"):
        await ask(engine, [9, 9], params=hot)
    enter_episode(EpisodeKey(3, 1))
    with pytest.raises(CassetteMissError, match=r"^task 3, sample 1: .*there is none of this one"):
        await ask(engine, [9, 9])
    enter_episode(None)
    assert len(engine.cassette.misses) == 4
    with pytest.raises(CassetteMissError, match="holds no request at all"):
        await ask(CassetteEngine(Cassette(path, engine=engine.cassette.engine)), [1])


async def test_the_order_of_arrival_does_not_matter(scripted, tmp_path):
    source = random.Random(1)
    path = tmp_path / "engine.jsonl"

    async def one(engine, episode, delay):
        await asyncio.sleep(delay)
        enter_episode(EpisodeKey(*episode))
        return await ask(engine, [1, 2], [1, 2, 3], [1, 2])

    async def everyone(engine):
        delays = [source.random() / 50 for _ in range(40)]
        jobs = [one(engine, divmod(n, 4), delay) for n, delay in enumerate(delays)]
        return await asyncio.gather(*jobs)

    async with RecordingEngine(scripted(lambda *_: str(source.random())), path) as engine:
        before = await everyone(engine)
    for _ in range(3):
        assert await everyone(CassetteEngine(path)) == before


@pytest.mark.parametrize(
    "error",
    [
        EngineError("it broke"),
        EngineUnavailableError("nothing answers"),
        ConfigError("wrong"),
        KeyError("name"),
        OSError(28, "No space left"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        json.JSONDecodeError("bad", "doc", 0),
        type("HerOwnError", (Exception,), {})("odd \ud800 text"),
        ExceptionGroup("several", [ValueError("one")]),
    ],
)
async def test_an_error_is_raised_again_with_its_class_and_text(scripted, tmp_path, error):
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: error), path) as engine:
        with pytest.raises(type(error)):
            await ask(engine, [5])
    with pytest.raises(Exception) as caught:
        await ask(CassetteEngine(path), [5])
    assert (type(caught.value).__name__, str(caught.value)) == (type(error).__name__, str(error))
    if isinstance(error, EngineError | OSError | KeyError):
        assert isinstance(caught.value, type(error))


async def test_a_cancelled_request_is_recorded_as_that(scripted, tmp_path):
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: 600), path, deadline=1.0) as engine:
        task = asyncio.create_task(ask(engine, [1]))
        while engine.engine.seen == {}:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.1):
                await ask(engine, [2])
    engine = CassetteEngine(path)
    with pytest.raises(CassetteMissError, match="the recording stopped while this request was on its way"):
        await ask(engine, [1])
    with pytest.raises(DeadlineError, match=r"within 1 seconds"):
        await ask(engine, [2])


async def test_the_cassette_engine_pauses_and_closes(scripted, tmp_path):
    path = tmp_path / "engine.jsonl"
    async with RecordingEngine(scripted(lambda *_: "x"), path) as engine:
        await ask(engine, [1], [2])
        await engine.abort("unknown")
        await engine.pause(PauseMode.ABORT)
        await engine.resume()
    engine = CassetteEngine(path)
    await engine.pause()
    task = asyncio.create_task(ask(engine, [1]))
    await asyncio.sleep(0.05)
    assert not task.done()
    await engine.resume()
    assert len(await task) == 1
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await ask(engine, [2])


async def test_a_recording_without_an_engine_says_so(tmp_path):
    path = tmp_path / "empty.jsonl"
    CassetteWriter(path).close()
    with pytest.raises(EngineError, match="says nothing of an engine"):
        _ = CassetteEngine(path).context_length


async def test_it_is_an_engine_like_any_other():
    assert issubclass(CassetteEngine, Engine)
    assert issubclass(RecordingEngine, Engine)


def test_code_outside_of_episodes_belongs_to_none():
    assert current_episode() is None
    assert enter_episode(EpisodeKey(2, 3)) is None
    assert current_episode() == (2, 3)
    assert enter_episode(None) == (2, 3)
    assert current_episode() is None
