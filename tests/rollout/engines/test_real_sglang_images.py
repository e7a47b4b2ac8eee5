"""The real SGLang with a tiny Qwen2-VL: it computes on exactly our ids, and on the images behind them."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2VLForConditionalGeneration, Qwen2VLImageProcessorPil

from toolgym.rollout.engines import Generation, SamplingParams, SGLangServer
from toolgym.rollout.models.images import PlacedImage
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.tools.errors import ConfigError, EngineError

pytestmark = pytest.mark.sglang

SIX = SamplingParams(max_new_tokens=6)


@pytest.fixture(scope="module")
def model_folder(farm: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    farm.need_venv()
    folder: Path = tmp_path_factory.mktemp("qwen_vl")
    script = Path(__file__).with_name("tiny_qwen_vl.py")
    words = [str(farm.python), "-W", "ignore", str(script), str(folder), str(tiny_policy_path())]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def url(farm: Any, model_folder: Path) -> str:
    return str(farm.server_of(model_folder))


@pytest.fixture
async def engine(url: str) -> AsyncIterator[SGLangServer]:
    async with SGLangServer(url) as server:
        yield server


class Model:
    """The same model in transformers, and the ids and pixels of its processor."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.model = Qwen2VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.images = Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=112 * 112)
        self.part = self.config["image_token_id"]

    def context(self, *parts: list[int] | Image.Image) -> tuple[list[int], list[PlacedImage]]:
        ids: list[int] = []
        placed = []
        for part in parts:
            if isinstance(part, list):
                ids += part
                continue
            grid = self.images(images=[part], return_tensors="np")["image_grid_thw"][0]
            count = int(np.prod(grid)) // 4
            ids.append(self.config["vision_start_token_id"])
            placed.append(PlacedImage(data_url(part), len(ids), count))
            ids += [self.part] * count + [self.config["vision_end_token_id"]]
        return ids, placed

    def gap(self, ids: list[int], pictures: list[Image.Image], generation: Generation) -> float:
        """Largest difference between SGLang's log-probabilities and those of a forward pass with these images."""
        whole = torch.tensor([[*ids, *generation.token_ids]])
        pixels = self.images(images=pictures, return_tensors="pt")
        with torch.no_grad():
            output = self.model(input_ids=whole, mm_token_type_ids=(whole == self.part).int(), **pixels)
        scored = output.logits[0].log_softmax(-1)
        pairs = zip(generation.token_ids, generation.logprobs, strict=True)
        return max(abs(scored[len(ids) - 1 + at, token].item() - value) for at, (token, value) in enumerate(pairs))


@pytest.fixture(scope="module")
def model(model_folder: Path) -> Model:
    return Model(model_folder)


def data_url(picture: Image.Image) -> str:
    data = io.BytesIO()
    picture.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def picture(width: int, height: int, seed: int) -> Image.Image:
    """A picture that its processor does not resize."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


WIDE, HIGH, OTHER = picture(84, 56, 1), picture(56, 112, 2), picture(84, 56, 3)
LETTERS = [72, 69, 76, 76, 79]
"""Ids that the tokenizer would not write so: it knows longer ones."""


async def test_it_computes_on_our_ids_and_on_the_images(engine: SGLangServer, model: Model) -> None:
    ids, images = model.context(LETTERS, WIDE, [64, 65], HIGH, LETTERS)
    generation = await engine.generate(ids, SIX, request_id="a", images=images)
    assert model.gap(ids, [WIDE, HIGH], generation) < 1e-3
    assert model.gap(ids, [OTHER, HIGH], generation) > 1e-2  # so the images do count


async def test_a_second_turn_brings_a_further_image(engine: SGLangServer, model: Model) -> None:
    ids, images = model.context([64, 65], WIDE, LETTERS)
    first = await engine.generate(ids, SIX, request_id="a", images=images)
    longer, both = model.context([64, 65], WIDE, [*LETTERS, *first.token_ids, 66], HIGH, [67])
    second = await engine.generate(longer, SIX, request_id="b", images=both)
    assert second.cached_tokens >= len(ids)
    assert model.gap(longer, [WIDE, HIGH], second) < 1e-3


async def test_another_image_of_the_same_size_is_not_taken_from_the_cache(engine: SGLangServer, model: Model) -> None:
    ids, images = model.context([70], WIDE, [71])
    await engine.generate(ids, SIX, request_id="a", images=images)
    ids, images = model.context([70], OTHER, [71])
    generation = await engine.generate(ids, SIX, request_id="b", images=images)
    assert model.gap(ids, [OTHER], generation) < 1e-3


async def test_ids_for_another_size_are_a_named_failure(engine: SGLangServer, model: Model) -> None:
    ids, [image] = model.context([70], WIDE, [71])
    wrong = PlacedImage(data_url(HIGH), image.start, image.tokens)
    with pytest.raises(EngineError, match="SGLang computed on 12 ids that are not the 10 of the request with 1 images"):
        await engine.generate(ids, SIX, request_id="a", images=[wrong])


async def test_what_is_no_image_is_refused_by_the_server(engine: SGLangServer, model: Model) -> None:
    ids, [image] = model.context([70], WIDE, [71])
    broken = PlacedImage("data:image/png;base64,AAAA", image.start, image.tokens)
    with pytest.raises((ConfigError, EngineError), match="image"):
        await engine.generate(ids, SIX, request_id="a", images=[broken])
