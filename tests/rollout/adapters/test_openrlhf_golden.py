"""The golden set through what an agent of OpenRLHF returns."""

from __future__ import annotations

import pytest

from tests.rollout.adapters.golden import CASES, assert_golden, whole_row
from toolgym.rollout.adapters.openrlhf import to_response
from toolgym.tools.errors import BatchError


def row_of(response):
    ids = response["observation_tokens"]
    mask = [0] * len(ids)
    for start, end in response["action_ranges"]:
        mask[start:end] = [1] * (end - start)
    return whole_row(ids, mask, response["rollout_log_probs"], response["reward"])


def test_the_golden_set():
    """What cannot be trained on is played again, and never gets as far as a response."""
    trainable = {case.trajectory.id for case in CASES if case.rows}

    def read(trajectories):
        return [[row_of(to_response(one))] if one.id in trainable else [] for one in trajectories]

    assert_golden(read, several_rows=False)
    for case in CASES:
        if len(case.rows) != 1:
            with pytest.raises(BatchError, match=case.trajectory.id):
                to_response(case.trajectory)
