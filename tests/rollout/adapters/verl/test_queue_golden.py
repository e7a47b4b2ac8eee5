"""The golden set through the rows for verl's TransferQueue."""

from __future__ import annotations

import pytest

from tests.rollout.adapters.golden import assert_golden, response_row

pytest.importorskip("verl")
pytest.importorskip("transfer_queue")

from toolgym.rollout.adapters.verl.trainer_queue import queue_rows


def test_the_golden_set():
    names = ("prompts", "responses", "response_mask", "rollout_log_probs")

    def read(trajectories):
        made = [queue_rows(one, response_length=12, pad_token_id=0, global_steps=7) for one in trajectories]
        fields = [[row.fields for row in rows] for rows in made]
        return [
            [response_row(*(one[name] for name in names), one["rm_scores"].sum()) for one in rows] for rows in fields
        ]

    assert_golden(read)
