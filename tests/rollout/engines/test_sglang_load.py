"""How busy SGLang says that it is: the worst of its replicas, and what it does not say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolgym.rollout.engines import EngineLoad, PauseMode, SamplingParams, SGLangServer
from toolgym.rollout.engines.sglang import client, messages
from toolgym.tools.errors import EngineError
from toolgym.tools.http.replicas import ReplicaState


def entry(use: float, running: int, queued: int, most: int, rank: int = 0) -> dict[str, Any]:
    """What `/v1/loads` of SGLang 0.5.23 says of one scheduler, without its further sections."""
    return {
        "timestamp": 1.0,
        "dp_rank": rank,
        "num_running_reqs": running,
        "num_waiting_reqs": queued,
        "num_used_tokens": int(use * 1000),
        "max_total_num_tokens": 1000,
        "max_running_requests": most,
        "token_usage": use,
        "cache_hit_rate": 0.5,
    }


@pytest.fixture
async def two(stand_in_of: Any, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setattr(client, "LOAD_TIMEOUT", 60.0)
    async with (
        stand_in_of(tiny_model_path) as one,
        stand_in_of(tiny_model_path) as other,
        SGLangServer(one.url, other.url, control_timeout=60) as engine,
    ):
        yield engine, one, other


async def test_it_is_that_of_the_fullest_replica_and_the_requests_of_all(two: Any) -> None:
    engine, one, other = two
    one.loads = [entry(0.25, 3, 0, 128)]
    other.loads = [entry(0.5, 4, 1, 64), entry(0.75, 5, 2, 64, rank=1)]
    assert await engine.load() == EngineLoad(0.75, running=12, queued=3, max_running=256)


async def test_a_pause_is_no_sign_of_what_it_can_take(two: Any) -> None:
    engine, one, other = two
    one.loads = other.loads = [entry(0.0, 0, 0, 128)]
    await engine.pause(PauseMode.IN_PLACE)
    assert await engine.load() is None
    await engine.resume()
    assert await engine.load() == EngineLoad(0.0, 0, 0, 256)


async def test_a_replica_that_hangs_is_an_error_and_still_takes_requests(
    two: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LOAD_TIMEOUT", 0.1)
    engine, one, _ = two
    one.loads = [entry(0.25, 3, 0, 128)]
    with pytest.raises(EngineError, match="no answer within"):
        await engine.load()
    assert set(engine.replicas.values()) == {ReplicaState.HEALTHY}


async def test_a_replica_that_says_nothing_is_in_the_log_once(
    two: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_silent", messages.LogThrottle(60.0))
    engine, one, other = two
    one.loads, other.loads = [entry(0.25, 3, 0, 128)], []
    with caplog.at_level(logging.WARNING):
        assert [await engine.load(), await engine.load()] == [None, None]
    [line] = [record.getMessage() for record in caplog.records]
    assert other.url in line
    assert "max_concurrent" in line


async def test_an_answer_of_another_form_says_which_one_is_needed(two: Any) -> None:
    engine, one, other = two
    one.loads, other.loads = [entry(0.25, 3, 0, 128)], [{"num_tokens": 4}]
    with pytest.raises(EngineError, match="token_usage"):
        await engine.load()


@pytest.mark.sglang
async def test_a_real_server_tells_how_full_its_cache_is(farm: Any) -> None:
    async with SGLangServer(*farm.urls(1)) as engine:
        idle = await engine.load()
        assert idle is not None
        assert 0 <= idle.kv_cache_use < 0.05
        assert idle.max_running is not None
        prompt = [5 + n % 200 for n in range(300)]
        params = SamplingParams(max_new_tokens=1200, stop_token_ids=())
        calls = [asyncio.create_task(engine.generate(prompt, params, request_id=str(n))) for n in range(12)]
        try:
            async with asyncio.timeout(120):
                while (busy := await engine.load()) is None or busy.running < 12 or busy.kv_cache_use < 0.04:
                    assert not any(one.done() for one in calls)
                    await asyncio.sleep(0.05)
        finally:
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert busy.kv_cache_use > idle.kv_cache_use
