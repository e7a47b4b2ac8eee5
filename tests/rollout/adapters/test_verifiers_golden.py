"""The golden set through verifiers' traces, as prime-rl takes samples from their branches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rollout.adapters.golden import assert_golden, whole_row

pytest.importorskip("verifiers.v1", reason="verifiers is not installed")

from toolgym.rollout.adapters.verifiers import to_trace


def row_of(branch, reward):
    sampling = branch.sampling_mask
    kept = [one.tolist() for one in np.split(sampling.ids, np.cumsum(sampling.counts)[:-1])]
    return whole_row(
        branch.token_ids,
        [int(one) for one in branch.sampled_mask],
        branch.logprobs,
        reward,
        kept=kept,
    )


def test_the_golden_set():
    def read(trajectories):
        traces = [to_trace(one) for one in trajectories]
        return [
            [row_of(one, trace.reward) for one in trace.branches if any(one.sampled_mask)] if trace.ok else []
            for trace in traces
        ]

    assert_golden(read)
