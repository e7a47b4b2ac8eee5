"""Batches: layout, dtypes, the checker, and the way back to the trajectories."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from toolgym.envs.types import StopReason
from toolgym.rollout.batch.batch import Batch
from toolgym.rollout.batch.check import check_batch
from toolgym.rollout.batch.fields import FIELDS
from toolgym.rollout.batch.io import load_batch, metadata_of, save_batch
from toolgym.rollout.batch.make import make_batch
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory
from toolgym.tools.errors import BatchError, ConfigError, UnknownNameError

PAD = 0


def trajectory(prompt, segments, *, name="t", reward=1.0, group=0, error=None):
    """`segments` alternate policy, env, policy, …; each a list of ids."""
    made = tuple(
        Segment.policy(ids, [-0.5 - n for n in range(len(ids))], ["0"] * len(ids))
        if index % 2 == 0
        else Segment.env(ids)
        for index, ids in enumerate(segments)
    )
    return Trajectory(
        id=name, env_id="", task_id="", source="", group_id=f"g{group}", task_index=group, sample_index=0, messages=(),
        tools=(), sequences=(TokenSequence(prompt, made),), reward=reward, error=error,
        stop_reason=StopReason.ENGINE_FAILED if error else StopReason.ANSWERED,
    )  # fmt: skip


LONG = trajectory([1, 2, 3], [[4, 5], [6, 7], [8]], name="long", reward=0.5, group=1)
SHORT = trajectory([9], [[4]], name="short", group=2)


def test_the_layout_of_the_module_docstring():
    batch = make_batch([LONG, SHORT], pad_token_id=PAD)
    assert batch.prompts.tolist() == [[1, 2, 3], [0, 0, 9]]
    assert batch.responses.tolist() == [[4, 5, 6, 7, 8], [4, 0, 0, 0, 0]]
    assert batch.response_mask.tolist() == [[1, 1, 0, 0, 1], [1, 0, 0, 0, 0]]
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 9, 4, 0, 0, 0, 0]]
    assert batch.attention_mask.tolist() == [[1] * 8, [0, 0, 1, 1, 0, 0, 0, 0]]
    assert batch.position_ids.tolist() == [list(range(8)), [0, 0, 0, 1, 0, 0, 0, 0]]
    assert batch.rollout_log_probs.tolist() == [[-0.5, -1.5, 0, 0, -0.5], [-0.5, 0, 0, 0, 0]]
    assert batch.weight_versions.tolist() == [[0, 0, -1, -1, 0], [0, -1, -1, -1, -1]]
    assert batch.version_numbers == {"0": 0}
    assert batch.trajectory_ids.tolist() == [0, 1]
    assert batch.rewards.tolist() == [0.5, 1.0]
    assert batch.token_rewards.tolist() == [[0, 0, 0, 0, 0.5], [1, 0, 0, 0, 0]]
    assert batch.group_ids.tolist() == [0, 1]
    assert batch.groups == ("g1", "g2")
    assert batch.ids == ("long", "short")
    for name, value in batch.tensors().items():
        floats = name in ("rollout_log_probs", "temperatures", "rewards", "token_rewards")
        assert value.dtype == (torch.float32 if floats else torch.int64), name


def test_the_pad_token_may_also_be_a_real_token():
    one = trajectory([PAD, PAD], [[PAD, 5], [PAD], [PAD]])
    batch = make_batch([one, LONG], pad_token_id=PAD, max_prompt_length=6, max_response_length=9)
    assert batch.attention_mask[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert batch.prompts.shape == (2, 6)
    assert batch.responses.shape == (2, 9)


def test_nothing_is_ever_cut():
    with pytest.raises(BatchError, match="the prompt of trajectory long has 3 tokens, more than max_prompt_length=2"):
        make_batch([SHORT, LONG], pad_token_id=PAD, max_prompt_length=2)
    with pytest.raises(BatchError, match="max_response_length=4"):
        make_batch([SHORT, LONG], pad_token_id=PAD, max_response_length=4)


def test_what_is_left_out_is_listed():
    failed = trajectory([1], [[2]], name="failed", error=Failure("died", 0))
    empty = trajectory([1], [], name="empty")
    batch = make_batch([failed, LONG, empty], pad_token_id=PAD)
    assert batch.ids == ("long",)
    assert [(d.id, d.reason) for d in batch.dropped] == [
        ("failed", "engine_failed: died"),
        ("empty", "no policy tokens (stop reason answered)"),
    ]
    with pytest.raises(BatchError, match="engine_failed: died"):
        make_batch([failed, empty], pad_token_id=PAD)
    with pytest.raises(BatchError, match="none were given"):
        make_batch([], pad_token_id=PAD)


def changed(name, row, column, value):
    batch = make_batch([LONG, SHORT], pad_token_id=PAD)
    tensor = getattr(batch, name).clone()
    tensor[row, column] = value
    return dataclasses.replace(batch, **{name: tensor})


@pytest.mark.parametrize(
    ("name", "row", "column", "value", "said"),
    [
        ("response_mask", 1, 2, 1, "within the attention"),
        ("response_mask", 0, 0, 2, "0 and 1 only"),
        ("attention_mask", 1, 2, 0, "every prompt has a token"),
        ("attention_mask", 0, 1, 0, "padded on the left only"),
        ("attention_mask", 0, 4, 0, "padded on the right only"),
        ("attention_mask", 1, 1, 1, "position_ids"),
        ("input_ids", 1, 0, 3, "padding holds the pad token"),
        ("prompts", 0, 0, 8, "prompts and responses"),
        ("position_ids", 0, 3, 9, "position_ids"),
        ("position_ids", 1, 7, 4, "position_ids are 0 on padding"),
        ("rollout_log_probs", 0, 2, -1.0, "did not sample"),
        ("rollout_log_probs", 0, 0, 0.5, "at most 0"),
        ("rollout_log_probs", 0, 0, float("nan"), "finite"),
        ("weight_versions", 0, 2, 0, "-1 where the policy did not sample"),
        ("weight_versions", 0, 0, -1, "in version_numbers"),
        ("weight_versions", 0, 0, 3, "in version_numbers"),
    ],
)
def test_the_checker_finds_every_broken_invariant(name, row, column, value, said):
    with pytest.raises(BatchError, match=said):
        check_batch(changed(name, row, column, value))


def test_the_checker_finds_a_mask_without_policy_tokens_and_wrong_shapes():
    batch = make_batch([LONG, SHORT], pad_token_id=PAD)
    with pytest.raises(BatchError, match="every response has a policy token"):
        check_batch(dataclasses.replace(batch, response_mask=batch.response_mask * 0))
    with pytest.raises(BatchError, match="rewards must be torch.float32"):
        check_batch(dataclasses.replace(batch, rewards=batch.rewards.double()))
    with pytest.raises(BatchError, match="rewards are finite"):
        check_batch(dataclasses.replace(batch, rewards=batch.rewards / 0))
    with pytest.raises(BatchError, match="as many ids"):
        check_batch(dataclasses.replace(batch, ids=("a",)))


def test_the_checker_finds_rows_that_do_not_lead_back():
    batch = make_batch([LONG, SHORT], pad_token_id=PAD)
    for other, said in [
        (trajectory([1, 2, 4], [[4, 5], [6, 7], [8]], name="long"), "prompts, input_ids"),
        (trajectory([1, 2, 3], [[4, 5], [6, 7], [9]], name="long"), "responses, input_ids"),
        (
            trajectory([1, 2, 3], [[4, 5, 6], [7], [8]], name="long"),
            "response_mask, rollout_log_probs, temperatures, weight_versions",
        ),
        (dataclasses.replace(LONG, id="other"), "ids differ"),
    ]:
        with pytest.raises(BatchError, match=said):
            check_batch(batch, [other, SHORT])
    with pytest.raises(BatchError, match="2 rows came from trajectories that make 1"):
        check_batch(batch, [LONG])


def versions(*names):
    return TokenSequence([1], (Segment.policy(range(len(names)), [-1.0] * len(names), names),))


def test_versions_are_numbered_by_the_documented_rule():
    one = dataclasses.replace(LONG, sequences=(versions("default", "1", "007", "3", "1", "step-9", "9" * 30),))
    batch = make_batch([one, SHORT], pad_token_id=PAD)
    numbers = {"default": 2, "1": 1, "007": 4, "3": 3, "step-9": 5, "9" * 30: 6, "0": 0}
    assert batch.version_numbers == numbers
    assert batch.weight_versions[0].tolist() == [2, 1, 4, 3, 1, 5, 6]
    default = dataclasses.replace(LONG, sequences=(versions("1", "default"),))
    assert make_batch([default], pad_token_id=PAD).version_numbers == {"1": 1, "default": 0}


PARTS = dataclasses.replace(
    trajectory([1], [[2]], name="parts", reward=0.25, group=7),
    sequences=(
        trajectory([1], [[2]]).sequence,
        TokenSequence([1, 2, 3], (Segment.policy([4], [-1.0], ["5"]),), "template"),
        TokenSequence([1, 9], (), "KeepToolResults"),
    ),
)


def test_every_sequence_is_a_row_that_shares_reward_and_group(tmp_path):
    batch = make_batch([LONG, PARTS, SHORT], pad_token_id=PAD)
    assert batch.ids == ("long", "parts/0", "parts/1", "short")  # what was sent and got no answer has nothing to train
    assert batch.trajectory_ids.tolist() == [0, 1, 1, 2]
    assert batch.rewards.tolist() == [0.5, 0.25, 0.25, 1.0]
    assert batch.group_ids.tolist() == [0, 1, 1, 2]
    assert batch.groups == ("g1", "g7", "g2")
    assert batch.responses[1:3].tolist() == [[2, 0, 0, 0, 0], [4, 0, 0, 0, 0]]
    save_batch(batch, tmp_path / "batch.safetensors")
    back = load_batch(tmp_path / "batch.safetensors")
    assert back.version_numbers == batch.version_numbers == {"0": 0, "5": 5}
    check_batch(back, [LONG, PARTS, SHORT])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trajectory_ids": torch.tensor([0, 1, 2, 3])}, "does not lead back.*trajectory_ids differ"),
        ({"trajectory_ids": torch.tensor([0, 1, 0, 2])}, "trajectory_ids do not fall"),
        ({"rewards": torch.tensor([0.5, 0.25, 0.5, 1.0])}, "share its reward"),
        ({"group_ids": torch.tensor([0, 1, 2, 2])}, "share its group"),
        ({"group_ids": torch.tensor([0, 2, 2, 1])}, "does not lead back.*group_ids differ"),
        ({"group_ids": torch.tensor([0, 1, 1, 3])}, "places in groups"),
        ({"groups": ("g1", "g7", "g7")}, "groups must be different"),
        ({"ids": ("long", "parts/0", "parts/0", "short")}, "two rows have the id 'parts/0'"),
        ({"version_numbers": {"0": 5, "5": 5}}, "different numbers"),
        ({"version_numbers": {"5": 0, "0": 5}}, "weight_versions differ"),
    ],
)
def test_the_checker_looks_at_rows_of_one_trajectory_and_at_versions(change, said):
    batch = make_batch([LONG, PARTS, SHORT], pad_token_id=PAD)
    with pytest.raises(BatchError, match=said):
        check_batch(dataclasses.replace(batch, **change), [LONG, PARTS, SHORT])


ids = st.lists(st.integers(0, 500), min_size=1, max_size=12)


@settings(deadline=None)
@given(st.lists(st.tuples(ids, st.lists(ids, min_size=1, max_size=5)), min_size=1, max_size=8))
def test_any_trajectories_make_a_batch_that_holds(rows):
    made = [trajectory(prompt, segments, name=str(n)) for n, (prompt, segments) in enumerate(rows)]
    batch = make_batch(made, pad_token_id=PAD)
    check_batch(batch, made)
    assert int(batch.response_mask.sum()) == sum(one.policy_tokens for one in made)
    assert int(batch.attention_mask.sum()) == sum(len(o.prompt_ids) + len(o.response_ids) for o in made)


def test_there_and_back_through_a_file(tmp_path):
    failed = trajectory([1], [[2]], name="failed", error=Failure("died", 0))
    batch = make_batch([LONG, SHORT, failed], pad_token_id=PAD)
    path = tmp_path / "deep" / "batch.safetensors"
    save_batch(batch, path)
    back = load_batch(path)
    for name, value in batch.tensors().items():
        assert torch.equal(value, getattr(back, name)), name
    for name in ("ids", "groups", "dropped", "pad_token_id", "version_numbers"):
        assert getattr(back, name) == getattr(batch, name), name


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "batch.safetensors"
    path.write_bytes(b"nonsense")
    with pytest.raises(UnknownNameError, match=r"did you mean 'batch\.safetensors'"):
        load_batch(tmp_path / "bach.safetensors")
    with pytest.raises(ConfigError, match="is not a batch"):
        load_batch(path)
    with pytest.raises(ConfigError, match="cannot write"):
        save_batch(make_batch([LONG], pad_token_id=PAD), "/proc/nowhere/batch.safetensors")


def test_the_table_is_the_batch():
    batch = make_batch([LONG, SHORT], pad_token_id=PAD)
    assert [item.name for item in FIELDS] == list(batch.tensors())
    assert [item.name for item in FIELDS] == [item.name for item in dataclasses.fields(Batch)][: len(FIELDS)]
    for item in FIELDS:
        assert f"{item.name}: {str(item.dtype).removeprefix('torch.')} `[rows" in Batch.__doc__, item.name


def with_payloads(one, *, dtype=np.int16, axes=(2, 3), name="routed_experts"):
    """The trajectory with a payload that tells each of its tokens apart."""
    count = iter(range(10**6))

    def filled(segment):
        if not segment.is_policy:
            return segment
        values = [np.full(axes, next(count) % 120) for _ in segment.token_ids]
        return dataclasses.replace(segment, aligned={**segment.aligned, name: np.array(values, dtype=dtype)})

    sequences = [
        dataclasses.replace(sequence, segments=tuple(map(filled, sequence.segments))) for sequence in one.sequences
    ]
    return dataclasses.replace(one, sequences=tuple(sequences))


@pytest.mark.parametrize(
    ("dtype", "padding"),
    [(np.int16, -1), (np.int8, -1), (np.int64, -1), (np.uint8, 0), (np.float32, 0), (np.float16, 0), (np.bool_, False)],
)
def test_payloads_stay_with_their_tokens(dtype, padding, tmp_path):
    given = [with_payloads(one, dtype=dtype) for one in (LONG, PARTS, SHORT)]
    batch = make_batch(given, pad_token_id=PAD)
    values = batch.aligned["routed_experts"]
    assert values.shape == (4, 5, 2, 3)
    assert values.numpy().dtype == dtype
    policy = batch.response_mask.bool()
    assert (values[~policy] == padding).all()
    assert torch.equal(values[0][policy[0]][:, 1, 2].long(), torch.tensor([0, 1, 2]).to(values.dtype).long())
    save_batch(batch, tmp_path / "batch.safetensors")
    back = load_batch(tmp_path / "batch.safetensors")
    assert torch.equal(back.aligned["routed_experts"], values)
    check_batch(back, given)
    wrong = values.clone()
    wrong[0, 2] = 1
    with pytest.raises(BatchError, match=r"aligned\.routed_experts holds"):
        check_batch(dataclasses.replace(batch, aligned={"routed_experts": wrong}))
    wrong = values.clone()
    wrong[0, 0] = 1
    with pytest.raises(
        BatchError, match=r"row 0 does not lead back to trajectory long: aligned\.routed_experts differ"
    ):
        check_batch(dataclasses.replace(batch, aligned={"routed_experts": wrong}), given)
    with pytest.raises(BatchError, match=r"aligned\.routed_experts must be .* \[4, 5, 2, 3\], got .* \[4, 4, 2, 3\]"):
        check_batch(dataclasses.replace(batch, aligned={"routed_experts": values[:, :4]}))


def test_a_payload_of_one_value_a_token_is_a_column_of_the_response():
    batch = make_batch([with_payloads(LONG, axes=(), dtype=np.float32, name="entropy")], pad_token_id=PAD)
    assert batch.aligned["entropy"].tolist() == [[0, 1, 0, 0, 2]]
    assert list(batch.tensors()) == [*(item.name for item in FIELDS), "aligned.entropy"]


def test_a_payload_that_some_tokens_lack_is_refused_and_can_be_left_out():
    mixed = [with_payloads(LONG), SHORT]
    with pytest.raises(BatchError, match="1 policy tokens of row short have no payload 'routed_experts'"):
        make_batch(mixed, pad_token_id=PAD)
    assert make_batch(mixed, pad_token_id=PAD, aligned=()).aligned == {}
    both = [with_payloads(with_payloads(LONG), name="other"), with_payloads(SHORT, name="other")]
    assert list(make_batch(both, pad_token_id=PAD, aligned=["other"]).aligned) == ["other"]
    with pytest.raises(BatchError, match="no payload 'third'"):
        make_batch(both, pad_token_id=PAD, aligned=["third"])
    with pytest.raises(
        BatchError, match=r"one dtype and shape, got int16 .*2, 3.* in row long and int16 .*4.* in row sho"
    ):
        make_batch([with_payloads(LONG), with_payloads(SHORT, axes=(4,))], pad_token_id=PAD)


def test_sampling_masks_of_different_widths_share_a_tensor(tmp_path):
    masks = {4: [[4, 1]], 5: [[5, 6, 7]], 9: [[9]]}

    def masked(first):
        segment = Segment.policy([first], [-1.0], ["0"], {"sampling_mask": np.array(masks[first], dtype=np.int32)})
        rest = [Segment.policy([5], [-1.0], ["0"], {"sampling_mask": np.array(masks[5], dtype=np.int32)})]
        return TokenSequence([1], (segment, *(rest if first == 4 else ())))

    resumed = dataclasses.replace(trajectory([1], [[2]], name="resumed", group=1), sequences=(masked(4),))
    short = dataclasses.replace(trajectory([1], [[2]], name="short", group=2), sequences=(masked(9),))
    for pair in ([resumed, short], [short, resumed]):
        batch = make_batch(pair, pad_token_id=PAD)
        rows = [[[4, 1, -1], [5, 6, 7]], [[9, -1, -1], [-1, -1, -1]]]
        assert batch.aligned["sampling_mask"].tolist() == (rows if pair[0] is resumed else rows[::-1])
        check_batch(batch, pair)
    save_batch(batch, tmp_path / "batch.safetensors")
    check_batch(load_batch(tmp_path / "batch.safetensors"), pair)


def test_a_file_of_another_version_is_refused(tmp_path):
    batch = make_batch([trajectory([1], [[2]])], pad_token_id=PAD)
    metadata = metadata_of(batch) | {"format_version": 2}
    save_file(batch.tensors(), tmp_path / "batch.safetensors", {name: json.dumps(v) for name, v in metadata.items()})
    with pytest.raises(ConfigError, match="expected format version 4, got 2"):
        load_batch(tmp_path / "batch.safetensors")
