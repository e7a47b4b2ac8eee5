"""Rows of captured episodes beside one row for each request: far fewer, and each sampled token trains once."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

PATH = Path(__file__).parents[3] / "benchmarks/capture_rows.py"
spec = importlib.util.spec_from_file_location("capture_rows", PATH)
capture_rows = importlib.util.module_from_spec(spec)
spec.loader.exec_module(capture_rows)


@pytest.mark.parametrize("agent", capture_rows.AGENTS, ids=lambda agent: agent.__name__)
async def test_an_agents_requests_are_five_times_fewer_rows_and_no_sampled_token_is_lost(agent):
    row = await capture_rows.measure(agent, 16)
    assert row.requests >= 5 * row.rows
    assert row.positions_by_request >= 3 * row.positions
    assert row.lost == 0
    assert bool(row.left_out) == (agent is capture_rows.claude)  # the title


async def test_the_check_of_a_row_sees_a_token_that_is_trained_on_twice():
    policy = capture_rows.Policy()
    await policy.engine.start()
    session = capture_rows.begin(policy)
    await capture_rows.mini(session, policy, 4)
    trajectory = session.finish(1.0)
    assert capture_rows.check(trajectory, policy.log) == sum(len(ids) for _, ids in policy.log)
    doubled = replace(trajectory, sequences=(*trajectory.sequences, trajectory.sequences[0]))
    with pytest.raises(AssertionError, match="trained twice"):
        capture_rows.check(doubled, policy.log)
