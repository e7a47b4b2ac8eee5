"""verl's `custom_reward_function` over session servers."""

from __future__ import annotations

import asyncio
import inspect

import numpy as np
import pytest

from tests.envs.served.sessions.counting import serving
from tests.envs.served.sessions.test_session_client import down
from toolgym.envs.served.sessions.client import SessionClient
from toolgym.rollout.adapters.verl import session_reward
from toolgym.rollout.adapters.verl.session_reward import (
    compute_score,
    compute_score_async,
    compute_scores,
    session_id,
)
from toolgym.tools.errors import ConfigError, RemoteSessionError

FAILED = {"score": 0.0, "acc": 0.0, "f2p_count": 0.0, "f2p_total": 0.0, "infra_failure": 1.0}


def score(count):
    return {"score": count / 10, "acc": count / 10, "f2p_count": count, "f2p_total": 10, "infra_failure": 0}


@pytest.fixture
async def served(tmp_path):
    """Two servers, and the ids of finished sessions that count 1 to 4."""
    async with (
        serving(tmp_path / "1.db") as one,
        serving(tmp_path / "2.db") as two,
        SessionClient([one.url, two.url]) as client,
    ):
        sessions = await asyncio.gather(*(client.start(f"count:{count}") for count in range(1, 5)))
        await asyncio.gather(*(session.postprocess() for session in sessions))
        yield [one.url, two.url], [int(session.sid) for session in sessions]


async def test_as_verls_managers_call_it(served, monkeypatch):
    urls, sids = served
    row = {"data_source": "swedev", "solution_str": "...", "ground_truth": None}
    assert not inspect.iscoroutinefunction(compute_score)  # so that verl calls it in a thread
    assert inspect.iscoroutinefunction(compute_score_async)
    for extra in ({"sid": sids[2]}, {"sids": [sids[0], sids[2]]}, {"sids": np.array([sids[2]]), "num_turns": 3}):
        called = {**row, "extra_info": extra, "base_url": urls, "reward_router_address": None}
        assert await asyncio.to_thread(compute_score, **called) == score(3)
        assert await compute_score_async(**called) == score(3)
    monkeypatch.setenv(session_reward.URL_VARIABLE, ",".join(urls))
    assert await compute_score_async(**row, extra_info={"sid": str(sids[0])}) == score(1)
    many = await asyncio.to_thread(
        compute_scores,
        data_sources=["swedev"] * 4,
        solution_strs=[""] * 4,
        ground_truths=[None] * 4,
        extra_infos=[{"sids": sid} for sid in sids],
    )
    assert many == [score(count) for count in range(1, 5)]


async def test_a_failure_is_told_from_a_zero(served):
    urls, sids = served
    row = {"data_source": "", "solution_str": "", "ground_truth": None}
    away = {"base_url": down(), "timeout": 0.1, "patience": 0.1}
    with pytest.raises(RemoteSessionError):
        await compute_score_async(**row, extra_info={"sid": sids[0]}, **away)
    assert await compute_score_async(**row, extra_info={"sid": sids[0]}, **away, on_failure="mark") == FAILED
    with pytest.raises(RemoteSessionError, match="no server has the session"):
        await asyncio.to_thread(compute_scores, [""], [""], [None], [{"sid": 12}], base_url=urls)
    assert FAILED.keys() == score(1).keys()


async def test_wrong_arguments(monkeypatch):
    monkeypatch.delenv(session_reward.URL_VARIABLE, raising=False)
    row = {"data_source": "", "solution_str": "", "ground_truth": None}
    with pytest.raises(ConfigError, match=session_reward.URL_VARIABLE):
        await compute_score_async(**row, extra_info={"sid": 1})
    with pytest.raises(ConfigError, match="on_failure"):
        await compute_score_async(**row, extra_info={"sid": 1}, base_url="http://a:1", on_failure="zero")
    for extra, problem in (({}, "needs 'sid'"), ({"sid": "x"}, "must be a session's id"), ({"sids": 1.5}, "must be")):
        with pytest.raises(ConfigError, match=problem):
            session_id(extra)
