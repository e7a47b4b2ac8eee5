"""Images on their way to verl: what its own worker makes of them, and its servers get."""

from __future__ import annotations

import base64
import dataclasses
import io
import types

import numpy as np
import pytest
from PIL import Image

from tests.rollout import tiny_vlm
from tests.rollout.adapters.verl.fakes import ROW, SUMS, FakeServers, ServerAnswer
from tests.rollout.pictures import policy
from tests.rollout.qwen_processor import QwenProcessor
from tests.rollout.trajectories import played
from toolgym.rollout.engines.base import GenerationRequest, SamplingParams
from toolgym.rollout.models.images import ImageProcessor, PlacedImage
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence

pytest.importorskip("verl")

import hydra
import torch
from omegaconf import OmegaConf
from transformers import Qwen2VLConfig
from transformers.models.qwen2_vl import Qwen2VLModel
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.utils.dataset.rl_dataset import RLHFDataset

from toolgym.rollout.adapters.verl import to_data_proto
from toolgym.rollout.adapters.verl.agent_loop import to_output
from toolgym.rollout.adapters.verl.generation import VerlGenerate
from toolgym.rollout.adapters.verl.rows import metrics, rows_of
from toolgym.rollout.adapters.verl.trainer_queue import queue_rows

KIND = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
SHAPE = {"prompt_length": 24, "response_length": 32}


def data_url(width, height, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


WIDE, HIGH = data_url(84, 56, 1), data_url(56, 112, 2)


@pytest.fixture(scope="module")
def theirs():
    """A processor as verl has it: the model's own positions are bound to it (`verl.utils.tokenizer.hf_processor`)."""
    processor = QwenProcessor()
    processor.config = Qwen2VLConfig(
        vision_start_token_id=processor.vision_start_token_id,
        image_token_id=processor.image_token_id,
        video_token_id=processor.video_token_id,
    )
    for name in ("get_rope_index", "get_vision_position_ids"):
        if hasattr(Qwen2VLModel, name):
            setattr(processor, name, types.MethodType(getattr(Qwen2VLModel, name), processor))
    return processor


@pytest.fixture(scope="module")
def ours(theirs):
    return ImageProcessor(theirs)


def shown(ours, name="shown"):
    """An image in the prompt, and a larger one in a tool's result."""
    start, end = ours.processor.vision_start_token_id, ours.processor.vision_end_token_id
    prompt = [20, start, *ours.expansion(WIDE), end, 21]
    result = [22, start, *ours.expansion(HIGH), end]
    images = (
        PlacedImage(WIDE, 2, len(ours.expansion(WIDE))),
        PlacedImage(HIGH, len(prompt) + 4, len(ours.expansion(HIGH))),
    )
    segments = (policy(30, 31), Segment.env(result), policy(32, 33))
    return dataclasses.replace(
        played([[(2, 1.0)]], name=name), sequences=(TokenSequence(prompt, segments, images=images),), turns=()
    )


def text():
    sequence = TokenSequence([20, 21], (policy(30), Segment.env([22]), policy(31)))
    return dataclasses.replace(played([[(2, 0.0)]], name="text"), sequences=(sequence,), turns=())


def with_verl(worker, theirs, *overrides):
    loop_worker = worker(None, *overrides)
    loop_worker.processor, loop_worker.mm_processor_kwargs = theirs, {}
    return loop_worker


async def test_a_batch_has_the_positions_and_pixels_of_verl_s_own(worker, theirs, ours):
    loop_worker = with_verl(worker, theirs, "data.max_prompt_length=24", "data.max_response_length=32")
    pad = loop_worker.tokenizer.pad_token_id
    trajectories = [shown(ours), text()]
    padded = []
    for trajectory in trajectories:
        [row] = rows_of(trajectory, **SHAPE, pad_token_id=pad, processor=ours)
        padded.append(await loop_worker._agent_loop_postprocess(to_output(row), False, raw_prompt=ROW["raw_prompt"]))
    expected = loop_worker._postprocess(padded)
    batch = to_data_proto(trajectories, **SHAPE, pad_token_id=pad, processor=ours)
    assert batch.batch["position_ids"].shape == (2, 4, 56)
    for name in ("position_ids", "input_ids", "responses", "response_mask"):
        assert torch.equal(batch.batch[name], expected.batch[name]), name
    pairs = zip(
        batch.non_tensor_batch["multi_modal_inputs"], expected.non_tensor_batch["multi_modal_inputs"], strict=True
    )
    for row, wanted in pairs:
        assert_equal(row, wanted)


async def test_queue_rows_are_those_of_verl_s_own_worker(worker, theirs, ours, monkeypatch):
    calls = []

    async def put(**call):
        calls.append(call)

    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", put)
    trajectory = shown(ours)
    columns = {**ROW, "uid": trajectory.group_id, "session_id": 0, "global_steps": 7}
    rows = rows_of(trajectory, response_length=32, pad_token_id=0, global_steps=(7, 7), processor=ours)
    loop_metrics = agent_loop_tq.AgentLoopOutput.model_fields["metrics"].annotation(**metrics(trajectory))
    outputs = [to_output(row, loop_metrics) for row in rows]
    await KIND._agent_loop_postprocess(with_verl(worker, theirs), outputs, False, **columns)
    [queue_row] = queue_rows(
        trajectory, response_length=32, pad_token_id=0, global_steps=7, columns=columns, versions=(7, 7), processor=ours
    )
    fields = calls[0]["fields"]
    assert torch.equal(queue_row.fields["position_ids"], fields["position_ids"][0])
    assert_equal(queue_row.fields["multi_modal_inputs"], fields["multi_modal_inputs"][0])
    assert set(queue_row.fields) == set(fields.keys())


def assert_equal(row, wanted):
    wanted = dict(getattr(wanted, "data", wanted))
    assert row.keys() == wanted.keys() - {"mm_token_type_ids"}
    for name, value in row.items():
        assert torch.equal(value, wanted[name]), name


async def test_verl_s_servers_get_pictures_and_one_id_for_each(ours):
    asked = []

    class Servers:
        async def generate(self, request_id, **request):
            asked.append(request)
            return ServerAnswer([30], [-0.5], "stop")

    sequence = shown(ours).sequences[0]
    ids = (*sequence.prompt_ids.tolist(), *sequence.response_ids.tolist())
    request = GenerationRequest(ids, SamplingParams(max_new_tokens=4), "a", images=sequence.images, forbidden_ids=(9,))
    await VerlGenerate(Servers(), {"logprobs": True}, "r")(request)
    [sent] = asked
    assert [picture.size for picture in sent["image_data"]] == [(84, 56), (56, 112)]
    assert sent["sampling_params"]["logit_bias"] == {9: -100.0}
    assert sent["prompt_ids"].count(ours.image_token_id) == 2
    await VerlGenerate(Servers(), {"logprobs": True}, "r")(dataclasses.replace(request, images=(), prompt_ids=(1, 2)))
    assert "image_data" not in asked[1]


async def test_the_loop_plays_a_row_with_a_picture(verl_config):
    seeing = tiny_vlm.processor().processor
    seeing.tokenizer.name_or_path = "tests/none"  # it has more tokens than the tiny policy, whose folder it names
    servers = FakeServers(seeing.tokenizer)
    loop = hydra.utils.instantiate(
        config=OmegaConf.create({**_agent_loop_registry["toolgym_agent"], "env": SUMS}),
        trainer_config=DictConfigWrap(config=verl_config()),
        server_manager=servers,
        tokenizer=seeing.tokenizer,
        processor=seeing,
        hf_model_type="qwen2_vl",
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(verl_config().data),
    )
    parts = [{"type": "image", "image": Image.new("RGB", (84, 56), "red")}, {"type": "text", "text": "What is 2*3?"}]
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
    output = await loop.run(sampling, **{**ROW, "raw_prompt": [{"role": "user", "content": parts}]})
    assert output.reward_score == 1.0
    assert [picture.size for picture in output.multi_modal_data["images"]] == [(84, 56)]
    assert output.prompt_ids.count(seeing.image_token_id) == 6
    for _, prompt, _, further in servers.requests:
        assert prompt.count(seeing.image_token_id) == len(further["image_data"]) == 1
