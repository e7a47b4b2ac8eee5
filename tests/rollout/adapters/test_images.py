"""Images on their way to trainers: each adapter hands them on as its trainer takes them, or refuses them by name."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path

import pytest
import torch

import toolgym.rollout.adapters
from tests.rollout.adapters import slime_stand_in
from tests.rollout.adapters.test_skyrl import skyrl  # noqa: F401 - a fixture
from tests.rollout.adapters.test_stand_ins import cookbook, stand_in  # noqa: F401 - a fixture
from tests.rollout.pictures import PART, Patches, pictured, policy, url
from toolgym.envs.types import StopReason
from toolgym.rollout import make_batch
from toolgym.rollout.adapters.areal import to_tensors
from toolgym.rollout.adapters.nemo_rl import to_message_log
from toolgym.rollout.adapters.openrlhf import to_response
from toolgym.rollout.adapters.trl.rows import to_output
from toolgym.rollout.adapters.verl.rows import rows_of
from toolgym.tools.errors import BatchError, ConfigError

TASK, PLOT = url(2, 3, 1), url(1, 2, 2)
SHOWN = pictured([TASK], [PLOT], name="shown")
TEXT = pictured([], [], name="text")
GRIDS = [[1, 2, 3], [1, 1, 2]]

AS_MESSAGES = ("agent_lightning", "gem", "miles", "nemo_gym", "rllm", "titanrl")
"""Adapters that hand over messages alone: the trainer renders them, or a text is made of them."""

SHARED = ("episode_settings", "served_episodes", "task_rows", "trainer_row", "transfer_queue", "versions")


def tunix_module(load):
    """The adapter for Tunix with stand-ins of its names."""
    item = dataclasses.make_dataclass("TrajectoryItem", ["pair_index", "group_id", "start_step", "traj", "metadata"])
    status = enum.Enum("TrajectoryStatus", ["SUCCEEDED", "MAX_STEPS_REACHED", "MAX_CONTEXT_LIMIT_REACHED"])
    modules = {name: {} for name in ("tunix", "tunix__rl", "tunix__rl__agentic", "tunix__rl__agentic__agents")}
    kinds = {"TrajectoryItem": item, "TrajectoryStatus": status}
    return load("tunix", **modules, tunix__rl__agentic__agents__agent_types=kinds)


def tunix_items(load, trajectory):
    bounds = {"group_size": 1, "pad_token_id": 0, "max_prompt_length": 40, "max_response_length": 40}
    bounds["temperature"] = 1.0
    return tunix_module(load).to_items([trajectory], **bounds)


def torchrl_batch(load, trajectory):
    adapter = load("torchrl", tensordict={"TensorDict": lambda source, batch_size, device: source})
    batch = make_batch([trajectory], pad_token_id=0, processor=Patches())
    return adapter.to_tensordict(batch, torch.zeros(1))


REFUSED = {
    "tinker": lambda load, shown: load("tinker", **cookbook()).to_groups([shown]),
    "torchrl": torchrl_batch,
    "tunix": tunix_items,
    "nemo_rl": lambda load, shown: to_message_log(shown, None),
    "trl": lambda load, shown: to_output([shown], filler_id=2),
    "openrlhf": lambda load, shown: to_response(shown),
    "areal": lambda load, shown: to_tensors(shown),
    "verl": lambda load, shown: rows_of(shown, response_length=40, pad_token_id=0),
}
"""Conversions without a processor. Those of slime, SkyRL and verifiers need further stand-ins: they are below, and in
`test_verifiers_trace.py`."""


def test_every_adapter_is_told_of_here():
    folder = Path(toolgym.rollout.adapters.__file__).parent
    names = {path.stem for path in folder.iterdir() if path.stem[:1] not in "_."}
    tested = {*REFUSED, "slime", "skyrl", "verifiers"}
    assert names == tested | {*AS_MESSAGES, *SHARED}


@pytest.mark.parametrize("name", REFUSED)
def test_no_adapter_drops_images_silently(name, stand_in):  # noqa: F811
    with pytest.raises(BatchError, match="has images, and"):
        REFUSED[name](stand_in, SHOWN)


def test_openrlhf_gets_the_tensors_of_each_sample():
    response = to_response(SHOWN, processor=Patches())
    assert response["mm_train_inputs"]["image_grid_thw"].tolist() == GRIDS
    assert response["observation_tokens"].count(PART) == len(response["mm_train_inputs"]["pixel_values"])
    assert to_response(TEXT, processor=Patches())["mm_train_inputs"] is None


def test_areal_gets_them_in_a_list_of_rows():
    tensors = to_tensors(SHOWN, processor=Patches())
    [row] = tensors["multi_modal_input"]
    assert row["image_grid_thw"].tolist() == GRIDS
    assert torch.equal(tensors["mm_token_type_ids"], (tensors["input_ids"] == PART).long())
    assert int(tensors["mm_token_type_ids"].sum()) == len(row["pixel_values"])
    assert "multi_modal_input" not in to_tensors(TEXT, processor=Patches())


class WithSizes(Patches):
    """As LLaVA-NeXT's processor."""

    def pixel_inputs(self, addresses):
        return {"pixel_values": torch.zeros(len(addresses), 2), "image_sizes": torch.zeros(len(addresses), 2)}


def test_areal_refuses_tensors_that_it_would_not_hand_on():
    with pytest.raises(BatchError, match="AReaL takes image_grid_thw and pixel_values .* shown has image_sizes"):
        to_tensors(SHOWN, processor=WithSizes())


def test_skyrl_gets_two_fields_and_a_tensor_in_every_row(skyrl):  # noqa: F811
    from toolgym.rollout.adapters.skyrl import to_generator_output

    failed = dataclasses.replace(SHOWN, id="failed", stop_reason=StopReason.ENGINE_FAILED)
    output = to_generator_output([SHOWN, TEXT, failed], filler_id=2, processor=Patches())
    assert [grids.tolist() for grids in output["image_grid_thw"]] == [GRIDS, [], []]
    assert [tuple(pixels.shape) for pixels in output["pixel_values"]] == [(8, 4), (0, 4), (0, 4)]
    assert "pixel_values" not in to_generator_output([TEXT], filler_id=2, processor=Patches())
    with pytest.raises(BatchError, match="has images, and"):
        to_generator_output([SHOWN], filler_id=2)
    with pytest.raises(BatchError, match="SkyRL takes pixel_values and image_grid_thw of images, and got image_sizes"):
        to_generator_output([SHOWN], filler_id=2, processor=WithSizes())


def test_images_behind_the_last_turn_go_with_the_tokens_that_are_left_out(skyrl):  # noqa: F811
    from toolgym.rollout.adapters.skyrl import to_generator_output

    [sequence] = SHOWN.sequences
    cut = dataclasses.replace(SHOWN, sequences=(dataclasses.replace(sequence, segments=sequence.segments[:2]),))
    output = to_generator_output([cut], filler_id=2, processor=Patches())
    assert output["image_grid_thw"][0].tolist() == GRIDS[:1]
    assert output["response_ids"] == [[11, 12]]


def test_slime_gets_the_tensors_of_each_sample(monkeypatch, tokenizer):
    from toolgym.rollout.adapters.slime import to_samples

    slime_stand_in.install(monkeypatch, tokenizer)
    [[[shown], [text]]] = to_samples([SHOWN, TEXT], tokenizer=tokenizer, processor=Patches())
    assert shown.multimodal_train_inputs["image_grid_thw"].tolist() == GRIDS
    assert text.multimodal_train_inputs is None
    with pytest.raises(BatchError, match="has images, and"):
        to_samples([SHOWN], tokenizer=tokenizer)


def test_a_sampled_image_token_masks_the_row():
    [sequence] = SHOWN.sequences
    stray = dataclasses.replace(
        SHOWN, sequences=(dataclasses.replace(sequence, segments=(*sequence.segments, policy(PART))),)
    )
    [row] = rows_of(stray, response_length=40, pad_token_id=0, processor=Patches())
    assert row.sequence.policy_tokens == 0
    assert PART not in row.sequence.prompt_ids
    assert row.pixel_inputs == {}
    assert to_tensors(stray, processor=Patches()) is None


def test_verl_refuses_a_length_that_would_cut_an_image():
    [row] = rows_of(SHOWN, response_length=40, pad_token_id=0, processor=Patches())
    assert row.multi_modal_inputs()["images_seqlens"].tolist() == [6, 2]
    ids = torch.arange(4)
    assert row.position_ids(ids, (ids > 0).long(), Patches()).tolist() == [0, 0, 1, 2]
    with pytest.raises(ConfigError, match="response_length=5 would cut an image"):
        rows_of(SHOWN, response_length=5, pad_token_id=0, processor=Patches())
