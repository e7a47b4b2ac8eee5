"""Images in a batch: pixel inputs beside the ids of each row, checked, divided, packed, kept on disk."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.rollout import test_images, tiny_vlm
from tests.rollout.pictures import PART, Patches, pictured, policy, url
from tests.rollout.trajectories import played
from toolgym.rollout.batch.arrow import from_parquet, to_dataset, to_parquet
from toolgym.rollout.batch.check import check_batch
from toolgym.rollout.batch.io import load_batch, save_batch
from toolgym.rollout.batch.make import make_batch
from toolgym.rollout.batch.packing import pack
from toolgym.rollout.batch.row import RowImages, joined_inputs
from toolgym.rollout.batch.tree import pack_tree
from toolgym.rollout.engines import SamplingParams
from toolgym.rollout.models.images import PlacedImage
from toolgym.rollout.recording import CassetteEngine, RecordingEngine
from toolgym.tools.errors import BatchError, ConfigError

TASK, PLOT, OTHER = url(2, 3, 1), url(1, 2, 2), url(1, 2, 3)
TWO = pictured([TASK], [PLOT, OTHER], name="two")
SAME = pictured([TASK], [PLOT, OTHER], name="same", reward=0.0)
TEXT = played([[(2, 1.0)]], name="text", group="h")
LATE = pictured([], [PLOT], name="late", group="h")
ALL = [TWO, SAME, TEXT, LATE]


def batch_of(*trajectories, processor=None):
    return make_batch(trajectories or ALL, pad_token_id=0, processor=processor or Patches())


def assert_same(images, others):
    assert [row.tokens for row in images] == [row.tokens for row in others]
    for row, other in zip(images, others, strict=True):
        assert row.inputs.keys() == other.inputs.keys()
        for name, value in row.inputs.items():
            assert value.dtype == other.inputs[name].dtype
            assert torch.equal(value, other.inputs[name])


def test_each_row_has_the_pixel_inputs_of_its_images_in_order():
    batch = batch_of()
    assert [row.tokens for row in batch.images] == [10, 10, 0, 2]
    assert batch.images[0].inputs["image_grid_thw"].tolist() == [[1, 2, 3], [1, 1, 2], [1, 1, 2]]
    assert batch.images[0].inputs["pixel_values"][:, 0].tolist() == [1.0] * 6 + [2.0] * 2 + [3.0] * 2
    assert batch.images[2].inputs == {}
    assert batch.image_token_id == PART
    for row, images in zip(batch.input_ids, batch.images, strict=True):
        assert int((row == PART).sum()) == images.tokens
    check_batch(batch, ALL)


def test_a_model_gets_the_images_of_all_rows_one_behind_the_other():
    inputs = batch_of().pixel_inputs
    assert inputs["pixel_values"].shape == (22, 4)
    assert inputs["image_grid_thw"].tolist() == [[1, 2, 3], [1, 1, 2], [1, 1, 2]] * 2 + [[1, 1, 2]]


def test_images_with_different_numbers_of_tiles_are_filled_up_with_zeros():
    few = RowImages({"pixel_values": torch.ones(1, 1, 2), "image_sizes": torch.tensor([[4, 4]])}, 1)
    more = RowImages({"pixel_values": torch.ones(2, 3, 2), "image_sizes": torch.tensor([[8, 4], [8, 8]])}, 2)
    joined = joined_inputs([few, RowImages({}, 0), more])
    assert joined["pixel_values"].shape == (3, 3, 2)
    assert joined["pixel_values"].sum(dim=(1, 2)).tolist() == [2.0, 6.0, 6.0]
    assert joined["image_sizes"].tolist() == [[4, 4], [8, 4], [8, 8]]


def test_rows_with_the_same_images_are_processed_once():
    processor = Patches()
    batch = batch_of(processor=processor)
    assert processor.asked == [(TASK, PLOT, OTHER), (PLOT,)]
    assert batch.images[0].inputs is batch.images[1].inputs


def test_a_batch_of_texts_has_no_images():
    batch = batch_of(TEXT)
    assert (batch.images, batch.image_token_id, batch.pixel_inputs) == ((), None, {})


def test_images_without_a_processor_are_refused():
    with pytest.raises(BatchError, match=r"trajectory two has 3 images: .*make_batch\(\.\.\., processor=\.\.\.\)"):
        make_batch(ALL, pad_token_id=0)


def test_another_processor_than_that_of_the_rollout_is_refused():
    class Finer(Patches):
        def expansion(self, address):
            return (5, *super().expansion(address)[1:], 6)

    with pytest.raises(BatchError, match="image 0 of trajectory two stands there as 8 ids, and this processor gives 9"):
        batch_of(processor=Finer())


def test_a_sampled_image_token_leaves_its_trajectory_out():
    [sequence] = LATE.sequences
    stray = dataclasses.replace(
        LATE, id="stray", sequences=(dataclasses.replace(sequence, segments=(*sequence.segments, policy(PART))),)
    )
    batch = batch_of(TWO, stray)
    assert [(dropped.id, dropped.reason) for dropped in batch.dropped] == [
        ("stray", "the policy sampled the token that stands for parts of images")
    ]
    assert batch.ids == ("two",)


def test_widths_never_cut_an_image():
    with pytest.raises(BatchError, match="nothing is cut"):
        make_batch([TWO], pad_token_id=0, processor=Patches(), max_prompt_length=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": ()}, "4 rows have as many images and an image_token_id, or none of both; got 0 and 7"),
        ({"image_token_id": None}, "got 4 and None"),
        ({"image_token_id": 8}, r"row two has 3 ids for parts of images \(8\), and its pixel inputs need 10"),
    ],
)
def test_what_does_not_fit_the_ids_is_refused(changes, message):
    with pytest.raises(BatchError, match=message):
        check_batch(dataclasses.replace(batch_of(), **changes))


def test_a_batch_leads_back_to_the_images_of_its_trajectories():
    batch = batch_of()
    fewer = dataclasses.replace(TWO.sequences[0], images=TWO.sequences[0].images[:2])
    with pytest.raises(BatchError, match="row 0 does not lead back to trajectory two: images differ"):
        check_batch(batch, [dataclasses.replace(TWO, sequences=(fewer,)), *ALL[1:]])
    with pytest.raises(BatchError, match="images"):
        check_batch(dataclasses.replace(batch, images=(), image_token_id=None), ALL)


def test_parts_keep_the_images_of_their_rows():
    batch = batch_of()
    part = batch.select([1, 3])
    check_batch(part)
    assert_same(part.images, [batch.images[1], batch.images[3]])
    assert batch.select([2]).pixel_inputs == {}
    parts = batch.micro_batches(max_tokens=60, count="packed")
    assert len(parts) > 1
    for rows, micro in parts:
        check_batch(micro)
        assert_same(micro.images, [batch.images[row] for row in rows.tolist()])


def test_packed_rows_keep_their_images_in_order():
    batch = batch_of()
    packed = pack(batch)
    assert_same(packed.images, batch.images)
    assert int((packed.input_ids == PART).sum()) == len(packed.pixel_inputs["pixel_values"])


def test_a_tree_refuses_images():
    batch = batch_of()
    with pytest.raises(ConfigError, match="images, which differ behind equal ids: use pack"):
        pack_tree(batch)
    with pytest.raises(ConfigError, match="images, which differ behind equal ids"):
        batch.micro_batches(max_tokens=60, count="tree")


def test_moving_a_batch_moves_the_pixels():
    moved = batch_of().to("meta")
    assert {value.device.type for row in moved.images for value in row.inputs.values()} == {"meta"}


def test_images_are_kept_on_disk(tmp_path):
    batch = batch_of()
    save_batch(batch, tmp_path / "batch.safetensors")
    loaded = load_batch(tmp_path / "batch.safetensors")
    assert_same(loaded.images, batch.images)
    assert loaded.image_token_id == PART
    assert loaded.images[0].inputs is loaded.images[1].inputs
    to_parquet(batch, tmp_path / "batch.parquet")
    assert_same(from_parquet(tmp_path / "batch.parquet").images, batch.images)


def test_a_data_set_has_the_images_of_each_row():
    pytest.importorskip("datasets")
    rows = to_dataset(batch_of(), ALL)["images"]
    assert [[part["name"] for part in row] for row in rows] == [["pixel_values", "image_grid_thw"]] * 2 + [
        [],
        ["pixel_values", "image_grid_thw"],
    ]
    assert rows[3][0]["shape"] == [2, 4]


async def test_the_inputs_of_a_batch_give_the_log_probabilities_of_the_rollout():
    processor = test_images.PROCESSOR
    engine = tiny_vlm.TinyVlm(processor, [test_images.CALL, test_images.CALL, "It is blue."])
    batch = make_batch([await test_images.play(engine)], pad_token_id=0, processor=processor)
    rows = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    parts = (batch.input_ids == batch.image_token_id).long()
    with torch.no_grad():
        logits = tiny_vlm.model()(**rows, mm_token_type_ids=parts, **batch.pixel_inputs).logits
    width = batch.prompts.shape[1]
    scored = logits[:, width - 1 : -1].log_softmax(-1).gather(2, batch.responses[:, :, None])[:, :, 0]
    assert torch.allclose(scored * batch.response_mask, batch.rollout_log_probs, atol=1e-3)


async def test_a_recording_knows_images_apart(tmp_path):
    ids, (red, blue) = [1, 2], [PlacedImage(url(1, 1, color), 0, 1) for color in (1, 2)]
    engine = tiny_vlm.TinyVlm(test_images.PROCESSOR, [])
    answers = iter([[3], [4]])

    async def generate(request):
        return next(answers), [-0.5], "length"

    engine._generate_turn = generate
    sampling = SamplingParams(max_new_tokens=1)
    async with RecordingEngine(engine, tmp_path / "log") as recorded:
        for image in (red, blue):
            await recorded.generate(ids, sampling, request_id="a", images=[image])
    replayed = CassetteEngine(tmp_path / "log")
    seen = [(await replayed.generate(ids, sampling, request_id="a", images=[image])).token_ids for image in (blue, red)]
    assert seen == [(4,), (3,)]
