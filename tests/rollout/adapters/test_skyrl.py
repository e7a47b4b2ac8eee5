"""Trajectories as SkyRL's `GeneratorOutput`. `test_skyrl_own.py` does the rest with SkyRL itself."""

from __future__ import annotations

import dataclasses
import sys
import types

import numpy as np
import pytest

from toolgym.envs.types import StopReason
from toolgym.rollout import Trajectory
from toolgym.rollout.adapters.skyrl import to_generator_output
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.tools.errors import BatchError, MissingExtraError


@dataclasses.dataclass
class TrajectoryID:
    """SkyRL's, in shape."""

    instance_id: str
    repetition_id: int


@pytest.fixture
def skyrl(monkeypatch):
    for name in ("skyrl", "skyrl.train", "skyrl.train.generators", "skyrl.train.generators.base"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["skyrl.train.generators.base"].TrajectoryID = TrajectoryID


def policy(*ids, **aligned):
    return Segment.policy(ids, [-0.5] * len(ids), ["3"] * len(ids), aligned)


ONE = Trajectory(
    id="one", env_id="e", task_id="t", source="", group_id="g", task_index=0, sample_index=1, messages=(), tools=(),
    sequences=(TokenSequence(np.array([5, 6]), (policy(7, 8), Segment.env([9]), policy(1), Segment.env([2]))),),
    reward=0.5, stop_reason=StopReason.ANSWERED,
)  # fmt: skip
TWO = dataclasses.replace(
    ONE, id="two", sequences=(*ONE.sequences, TokenSequence(np.array([5]), (policy(3, 4),), "template"))
)
FAILED = dataclasses.replace(ONE, id="failed", stop_reason=StopReason.ENGINE_FAILED)


def test_rows_end_with_what_the_policy_sampled(skyrl):
    output = to_generator_output([ONE, FAILED], filler_id=0)
    assert output["prompt_token_ids"] == [[5, 6], [0]]
    assert output["response_ids"] == [[7, 8, 9, 1], [0]]
    assert output["loss_masks"] == [[1, 1, 0, 1], [0]]
    assert output["rollout_logprobs"] == [[-0.5, -0.5, 0.0, -0.5], [0.0]]
    assert output["rewards"] == [[0.0, 0.0, 0.0, 0.5], [0.0]]
    assert output["stop_reasons"] == ["stop", "abort"]
    assert output["trajectory_ids"] == [TrajectoryID("g", 1)] * 2
    assert output["is_last_step"] is output["rollout_sample_support"] is output["rollout_expert_indices"] is None


def test_several_sequences_are_steps(skyrl):
    output = to_generator_output([TWO, ONE], filler_id=0, step_wise=True)
    assert output["response_ids"] == [[7, 8, 9, 1], [3, 4], [7, 8, 9, 1]]
    assert output["rewards"] == [[0.0] * 4, [0.0, 0.5], [0.0, 0.0, 0.0, 0.5]]
    assert output["is_last_step"] == [False, True, True]
    with pytest.raises(BatchError, match="trajectory two has 2 token sequences"):
        to_generator_output([TWO], filler_id=0)


def test_what_is_missing_or_not_finite_is_named(skyrl):
    kept = policy(7, 8, sampling_mask=np.array([[7, 1], [8, -1]]))
    whole = dataclasses.replace(ONE, sequences=(TokenSequence(np.array([5]), (kept, Segment.env([9]))),))
    [support] = to_generator_output([whole], filler_id=0)["rollout_sample_support"]
    assert support.tolist() == [[7, 1], [8, -1]]
    with pytest.raises(BatchError, match="rollout_sample_support: a turn of row 1 has no"):
        to_generator_output([whole, ONE], filler_id=0)
    routed = policy(7, routed_experts=np.zeros((1, 2, 2), np.int32))
    routed_one = dataclasses.replace(ONE, sequences=(TokenSequence(np.array([5]), (routed,)),))
    with pytest.raises(BatchError, match="rollout_expert_indices: row 0"):
        to_generator_output([routed_one], filler_id=0)
    with pytest.raises(BatchError, match="field rewards: row 1 holds nan"):
        to_generator_output([FAILED, dataclasses.replace(ONE, reward=float("nan"))], filler_id=0)


def test_without_skyrl_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "skyrl.train.generators.base", None)
    with pytest.raises(MissingExtraError, match="skyrl"):
        to_generator_output([ONE], filler_id=0)
