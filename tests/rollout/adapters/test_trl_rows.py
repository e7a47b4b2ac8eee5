"""What TRL takes silently is refused before it gets there, and failures are masked."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from tests.actors import policy
from tests.rollout.adapters.golden import assert_golden, response_row, whole_row
from toolgym.envs.types import StopReason
from toolgym.rollout import Trajectory, Turn, group_advantages
from toolgym.rollout.adapters.trl import check_output, to_output, to_rollout_samples
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.trajectory import Failure, Segment, TokenSequence
from toolgym.tools.errors import BatchError, ConfigError

EOS = 2


GOOD = Trajectory(
    id="good",
    env_id="e",
    task_id="t",
    source="",
    group_id="g",
    task_index=0,
    sample_index=0,
    messages=(
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "call"},
        {"role": "tool", "content": "r", "tool_call_id": "c", "name": "n"},
        {"role": "assistant", "content": "a"},
    ),
    tools=(),
    sequences=(
        TokenSequence(np.array([5, 6]), (policy(7, 8, EOS), Segment.env([9, 9]), policy(10, EOS, version="4"))),
    ),
    reward=1.0,
    stop_reason=StopReason.ANSWERED,
    turns=(Turn("call", "stop", 2, 3), Turn("a", "stop", 7, 2)),
)
FAILED = dataclasses.replace(
    GOOD, id="failed", stop_reason=StopReason.SANDBOX_FAILED, error=Failure("no disk", 1), reward=0.25
)
ABORTED = dataclasses.replace(GOOD, id="aborted", stop_reason=StopReason.ABORTED, reward=0.0)
NEVER = dataclasses.replace(
    FAILED, id="never", sequences=(), turns=(), messages=GOOD.messages[:1], stop_reason=StopReason.RESET_FAILED
)
SILENT = dataclasses.replace(
    GOOD, id="silent", sequences=(TokenSequence(np.array([5]), ()),), turns=(), stop_reason=StopReason.BUDGET
)
TWO = dataclasses.replace(GOOD, id="two", sequences=(*GOOD.sequences, TokenSequence(np.array([5]), (policy(1),), "x")))


def test_the_golden_set_as_rows():
    names = ("prompt_ids", "completion_ids", "env_mask", "logprobs", "toolgym_reward")

    def read(trajectories):
        output = to_output(trajectories, filler_id=EOS)
        check_output(output, prompts=len(trajectories))
        rows = zip(*(output[name] for name in names), strict=True)
        return [[] if row[-1] is None else [response_row(*row)] for row in rows]

    assert_golden(read, several_rows=False)


def test_the_golden_set_as_samples():
    def read(trajectories):
        counts = [advantage is not None for advantage in group_advantages(trajectories)]
        made = [
            to_rollout_samples([one], [one.reward if counted else None])
            for one, counted in zip(trajectories, counts, strict=True)
        ]
        return [
            [whole_row(one.input_ids, one.completion_mask, one.old_log_probs, one.advantage) for one in samples]
            for samples in made
        ]

    assert_golden(read)


def test_a_trajectory_is_a_row():
    output = to_output([GOOD], filler_id=EOS)
    assert output == {
        "prompt_ids": [[5, 6]],
        "completion_ids": [[7, 8, EOS, 9, 9, 10, EOS]],
        "logprobs": [[-0.5, -0.6, -0.7, 0.0, 0.0, -0.5, -0.6]],
        "env_mask": [[1, 1, 1, 0, 0, 1, 1]],
        "toolgym_reward": [1.0],
        "toolgym_stop_reason": ["answered"],
    }
    check_output(output, prompts=1, max_completion_length=7)


def test_failures_keep_their_place_masked_and_without_a_reward():
    output = to_output([FAILED, GOOD, NEVER, ABORTED, SILENT], filler_id=EOS)
    assert output["toolgym_reward"] == [None, 1.0, None, None, None]
    assert [sum(mask) for mask in output["env_mask"]] == [0, 5, 0, 0, 0]
    assert output["completion_ids"][2] == output["prompt_ids"][2] == output["completion_ids"][4] == [EOS]
    with pytest.raises(BatchError, match="logprobs of row 0 has -0.5 at 0, which the env put there"):
        check_output({**output, "logprobs": [GOOD.logprobs.tolist(), *output["logprobs"][1:]]}, prompts=5)
    check_output(output, prompts=5)


def test_several_sequences_are_refused_and_are_samples_of_the_async_trainer():
    with pytest.raises(BatchError, match="trajectory two has 2 token sequences, and TRL takes one"):
        to_output([TWO], filler_id=EOS)
    assert len(to_rollout_samples([TWO], [0.5])) == 2


def changed(**fields):
    output = to_output([GOOD, GOOD], filler_id=EOS)
    return {name: value for name, value in {**output, **fields}.items() if value is not None}


ROW = [7, 8, EOS, 9, 9, 10, EOS]
MASK = [1, 1, 1, 0, 0, 1, 1]
LOGPROBS = [-0.5, -0.6, -0.7, 0.0, 0.0, -0.5, -0.6]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"env_mask": None}, "must return 'env_mask': without it TRL would train on the env's tokens"),
        ({"logprobs": None}, "must return 'logprobs'"),
        ({"env_mask": [MASK[:3], MASK]}, "env_mask of row 0 has 3 values for 7 ids"),
        ({"logprobs": [LOGPROBS, LOGPROBS[1:]]}, "logprobs of row 1 has 6 values for 7 ids"),
        ({"logprobs": [LOGPROBS, [float("nan"), *LOGPROBS[1:]]]}, "logprobs of row 1 has nan at 0"),
        ({"env_mask": [MASK, [2, *MASK[1:]]]}, "env_mask of row 1 must hold 0"),
        ({"score": np.arange(2)}, "field 'score' must be a list with one entry for each prompt, got ndarray"),
        ({"tag": "broadcast"}, "field 'tag' must be a list"),
        ({"score": [1.0]}, "field 'score' has 1 entries for 2 prompts"),
        ({"completion_ids": [[], ROW]}, "completion_ids of row 0 is empty"),
        ({"prompt_ids": [[5], []]}, "prompt_ids of row 1 is empty"),
        ({"completion_ids": [ROW, [0.5, *ROW[1:]]]}, "completion_ids of row 1 holds something else"),
        ({"completion_ids": [[*ROW, 3], ROW]}, "completion_ids of row 0 has 8 ids, more than max_completion_length=7"),
    ],
)
def test_what_trl_takes_silently_is_refused(fields, text):
    with pytest.raises(BatchError, match=text):
        check_output(changed(**fields), prompts=2, max_completion_length=7)


def test_samples_for_the_async_trainer():
    other = dataclasses.replace(GOOD, id="other", group_id="h")
    one, two = to_rollout_samples([GOOD, FAILED, other], [0.5, 9.0, -0.5], first_group=4)
    assert one.input_ids.tolist() == [5, 6, *ROW]
    assert one.completion_mask.tolist() == [0, 0, *MASK]
    assert one.old_log_probs.tolist() == pytest.approx([0, 0, *LOGPROBS])
    assert [value.dtype.name for value in (one.input_ids, one.completion_mask, one.old_log_probs)] == [
        "int64", "int64", "float32",
    ]  # fmt: skip
    assert (one.advantage, one.model_version, one.group_id, two.advantage, two.group_id) == (0.5, 3, 4, -0.5, 5)
    assert [message["role"] for message in one.prompt] == ["user"]
    assert [message["role"] for message in one.completion] == ["assistant", "tool", "assistant"]


def test_samples_pack_in_trls_own_rows():
    from trl.experimental.async_grpo.packing import TreeRow

    samples = to_rollout_samples([GOOD, dataclasses.replace(GOOD, id="again", sample_index=1)], [0.5, -0.5])
    row = TreeRow()
    for one in map(vars_of, samples):
        assert row.fits(one, budget=100)
        row.add(one)
    assert (row.tokens, row.trained) == ([5, 6, *ROW], 10)  # the same tokens, once


def vars_of(sample):
    return {name: getattr(sample, name) for name in ("input_ids", "completion_mask", "group_id")}


def test_samples_refuse_what_does_not_fit():
    with pytest.raises(BatchError, match="as many advantages"):
        to_rollout_samples([GOOD], [])
    with pytest.raises(BatchError, match="advantage of trajectory good is nan"):
        to_rollout_samples([GOOD], [float("nan")])
    named = dataclasses.replace(GOOD, sequences=(TokenSequence(np.array([5]), (policy(7, version="step-3"),)),))
    with pytest.raises(BatchError, match="advantage of trajectory good is None"):
        to_rollout_samples([GOOD], [None])
    with pytest.raises(BatchError, match="step-3"):
        to_rollout_samples([named], [1.0])
    with pytest.raises(ConfigError, match="Trajectories"):
        to_rollout_samples([7], [1.0])


def test_the_reward_function_goes_to_another_process():
    from toolgym.rollout.adapters.trl.spec import EnvReward

    reward = EnvReward(load_tokenizer(tiny_policy_path()))
    copy = pickle.loads(pickle.dumps(reward))
    assert copy._end_ids == reward._end_ids != frozenset()
    assert copy.__name__ == "toolgym_reward"
    with pytest.raises(ConfigError, match="belongs to a Spec"):
        reward(["x"], [[1]])
