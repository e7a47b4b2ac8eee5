"""Images among the ids of a sequence: what a processor makes of them, on disk, and engines that take none."""

from __future__ import annotations

import base64
import dataclasses
import io
import json

import numpy as np
import pytest
from PIL import Image

from tests.rollout.pictures import pictured
from tests.rollout.qwen_processor import QwenProcessor
from toolgym.rollout import Trajectory
from toolgym.rollout.engines import CallableEngine, SamplingParams
from toolgym.rollout.engines.wrapper import EngineWrapper
from toolgym.rollout.models import images
from toolgym.rollout.models.images import ImageProcessor, PlacedImage, picture
from toolgym.tools.errors import ConfigError, EngineError, TemplateError
from toolgym.tools.message import image, user


def png(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def url(*size):
    return image(png(*size))["image_url"]["url"]


@pytest.fixture(scope="module")
def theirs():
    return QwenProcessor()


def test_ids_and_pixels_are_those_of_the_processor_for_the_whole_text(theirs):
    ours = ImageProcessor(theirs)
    urls = [url(84, 56, 1), url(56, 112, 2)]
    begin, end = theirs.tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
    text = "a<|vision_start|><|image_pad|><|vision_end|>b<|vision_start|><|image_pad|><|vision_end|>"
    whole = theirs(text=[text], images=[picture(each) for each in urls], return_tensors="pt")
    a, b = (theirs.tokenizer(letter, add_special_tokens=False)["input_ids"] for letter in "ab")
    first, second = map(ours.expansion, urls)
    assert [*a, begin, *first, end, *b, begin, *second, end] == whole["input_ids"][0].tolist()
    inputs = ours.pixel_inputs(urls)
    assert inputs.keys() == {"pixel_values", "image_grid_thw"}
    for name, value in inputs.items():
        assert value.equal(whole[name])
    assert ours.image_token_id == first[0]
    assert ours.pixel_inputs([]) == {}


def test_an_image_is_processed_once(theirs, monkeypatch):
    ours = ImageProcessor(theirs)
    address = url(84, 56, 1)
    first = ours.expansion(address)
    monkeypatch.setattr(ours, "processor", None)
    assert ours.expansion(address) == first


@pytest.mark.parametrize("data", ["", "AAAA", "no base64", base64.b64encode(png(8, 8)[:40]).decode()])
def test_what_is_no_image_is_told_in_one_line(data):
    with pytest.raises(TemplateError, match="no image that can be read"):
        picture(f"data:image/png;base64,{data}")


def test_too_many_pixels_are_not_decoded(monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 100)
    with pytest.raises(TemplateError, match="an image has 20 x 10 pixels, and at most 100 are read"):
        picture(url(20, 10))


def test_a_picture_without_colors_becomes_rgb():
    data = io.BytesIO()
    Image.new("LA", (4, 4)).save(data, "PNG")
    assert picture(image(data.getvalue())["image_url"]["url"]).mode == "RGB"


def test_a_processor_of_texts_is_refused(theirs):
    with pytest.raises(ConfigError, match="expected a processor of texts and images"):
        ImageProcessor(theirs.tokenizer)


def test_a_file_of_trajectories_finds_images_among_the_messages():
    shown = pictured(["data:image/png;base64,2x3x1"], ["data:image/png;base64,1x2x2"])
    parts = [{"type": "image_url", "image_url": {"url": i.url}} for i in shown.sequences[0].images]
    shown = dataclasses.replace(shown, messages=(user([parts[0]]), user([parts[1]])))
    value = json.loads(json.dumps(shown.to_json()))
    assert [place.keys() for place in value["sequences"][0]["images"]] == [{"sha256", "start", "tokens"}] * 2
    assert Trajectory.from_json(value).sequences == shown.sequences
    with pytest.raises(ConfigError, match="not a trajectory of toolgym: KeyError"):
        Trajectory.from_json({**value, "messages": []})
    assert "images" not in pictured().sequences[0].to_json()


async def test_an_engine_that_takes_no_images_refuses_them(tokenizer):
    asked = []

    async def generate(request):
        asked.append(request)
        return [5], [-0.5], "stop"

    placed = (PlacedImage(url(8, 8), 0, 1),)
    blind = CallableEngine(generate, tokenizer=tokenizer, context_length=64)
    with pytest.raises(ConfigError, match="CallableEngine takes no images, and the context has 1"):
        await blind.generate([1, 2], SamplingParams(max_new_tokens=4), request_id="a", images=placed)
    assert asked == []
    seeing = EngineWrapper(CallableEngine(generate, tokenizer=tokenizer, context_length=64, takes_images=True))
    await seeing.generate([1, 2], SamplingParams(max_new_tokens=4), request_id="a", images=placed)
    assert asked[0].images == placed
    with pytest.raises(EngineError, match="sampled the token id 5, which stands for images alone"):
        await seeing.generate([1, 2], SamplingParams(max_new_tokens=4), request_id="b", forbidden_ids=(4, 5))


def test_a_file_keeps_images_that_are_in_no_message():
    # As an env that begins the context anew, or a context policy, may show them.
    trajectory = pictured(["data:image/png;base64,2x3x1"], ["data:image/png;base64,1x2x2"])
    elsewhere = dataclasses.replace(trajectory, messages=(user("Look."),))
    stored = json.loads(json.dumps(elsewhere.to_json()))
    assert stored["images"] == ["data:image/png;base64,2x3x1", "data:image/png;base64,1x2x2"]
    assert Trajectory.from_json(stored).sequences == trajectory.sequences
