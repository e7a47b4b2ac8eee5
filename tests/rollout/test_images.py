"""Images from the messages to the exact tokens: what a vision-language model saw is what a trajectory has."""

from __future__ import annotations

import io
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.rollout import tiny_vlm
from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import RunConfig, Runner, SamplingParams
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.models.images import picture as read
from toolgym.rollout.models.processor import load_processor
from toolgym.rollout.tokens.placed_ids import images_in
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, EngineError, TemplateError
from toolgym.tools.message import image, images_of, text_part, tool, user
from toolgym.tools.schema import ToolSchema


def picture(color="red", size=(64, 48)):
    data = io.BytesIO()
    Image.new("RGB", size, color).save(data, "PNG")
    return image(data.getvalue())


PROCESSOR = tiny_vlm.processor()
LOOK = ToolSchema("look", "Look at a place.", {"type": "object", "properties": {}})
CALL = 'I look.\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
QUESTION = user([text_part("What is in "), picture("blue"), text_part(" and "), picture("green", (96, 64))])


def renderer(**options):
    return ChatRenderer(PROCESSOR.processor.tokenizer, [LOOK], processor=PROCESSOR, **options)


def whole(messages, renderer):
    """The ids that the model's own processor gives for a whole conversation."""
    shown = [
        {**message, "content": [{"type": "image"} if "image_url" in part else part for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]
    text = renderer.render(shown)
    pictures = [url for message in messages for url in images_of(message["content"])]
    return PROCESSOR.processor(text=[text], images=[read(url) for url in pictures])["input_ids"][0]


class LookingEnv(BaseEnv):
    """Shows a picture for each call, and ends behind the second."""

    tool_schemas = (LOOK,)

    async def reset(self, *, seed=None, options=None):
        self.turn = 0
        return [QUESTION], {}

    async def step(self, action):
        self.turn += 1
        if self.turn == 3:
            return StepResult([], 1.0, True, {"stop_reason": StopReason.ANSWERED, "message": action.message})
        shown = [picture(("yellow", "black")[self.turn - 1], (64, 40 * self.turn))]
        content = [text_part("Seen:"), *shown]
        message = tool(content, tool_call_id=action.calls[0].id, name="look")
        return StepResult([message], 0.0, False, {"message": action.message})

    async def close(self):
        pass


async def play(engine, **settings):
    config = RunConfig(
        sampling=SamplingParams(max_new_tokens=64, temperature=0.0), processor=PROCESSOR, seed=1, **settings
    )
    task = Task(({"role": "user", "content": "q"},))
    [trajectory] = await Runner(LookingEnv, engine, config=config).run([task])
    return trajectory


async def test_what_a_model_saw_of_several_images_is_what_the_trajectory_has():
    engine = tiny_vlm.TinyVlm(PROCESSOR, [CALL, CALL, "It is blue."])
    trajectory = await play(engine)
    assert (trajectory.error, len(trajectory.turns)) == (None, 3)
    [sequence] = trajectory.sequences
    ids = [*sequence.prompt_ids.tolist(), *trajectory.response_ids.tolist()]
    assert [len(request.images) for request in engine.requests] == [2, 3, 4]
    assert all(PROCESSOR.image_token_id in request.forbidden_ids for request in engine.requests)
    last = engine.requests[-1]
    assert tuple(ids[: len(last.prompt_ids)]) == last.prompt_ids
    assert sequence.images == last.images
    assert list(last.prompt_ids) == whole(trajectory.messages[:-1], renderer())
    for placed in sequence.images:
        assert ids[placed.start : placed.start + placed.tokens] == list(PROCESSOR.expansion(placed.url))
    urls = [url for message in trajectory.messages for url in images_of(message["content"])]
    assert [placed.url for placed in sequence.images] == urls

    again = tiny_vlm.logprobs(ids, sequence.images, PROCESSOR)
    at = len(sequence.prompt_ids)
    for segment in sequence.segments:
        if segment.is_policy:
            theirs = [float(again[at + place - 1, token]) for place, token in enumerate(segment.token_ids)]
            assert np.allclose(theirs, segment.logprobs, atol=1e-4)
        at += len(segment)
    white = replace(sequence.images[-1], url=picture("white", (64, 80))["image_url"]["url"])
    other = tiny_vlm.logprobs(ids, [*sequence.images[:-1], white], PROCESSOR)
    assert not np.allclose(again[-1], other[-1], atol=1e-3), "the model looks at its images"

    written = trajectory.to_json()
    assert Trajectory.from_json(written).sequences == trajectory.sequences
    assert json.dumps(written).count(urls[0]) == 1, "an image stands in a file once"


async def test_the_embedded_engine_refuses_what_its_model_would_fail_on():
    ids, images = tiny_vlm.shown("red", "blue")
    params, part = SamplingParams(max_new_tokens=2), PROCESSOR.image_token_id
    async with tiny_vlm.embedded() as engine:
        with pytest.raises(EngineError, match="has 9 ids 514 of images, and the engine's processor gives its images 8"):
            await engine.generate([*ids, part], params, request_id="a", images=images)
        with pytest.raises(EngineError, match="or others around: it must be the rollout's"):
            await engine.generate(ids, params, request_id="b", images=(replace(images[0], tokens=3), images[1]))
        assert len((await engine.generate(ids, params, request_id="c", images=images)).token_ids) == 2


async def test_a_template_that_renders_all_anew_keeps_places_and_ids():
    engine = tiny_vlm.TinyVlm(PROCESSOR, [CALL, CALL, "It is blue."])
    trajectory = await play(engine, history="template")
    assert trajectory.error is None
    assert list(engine.requests[-1].prompt_ids) == whole(trajectory.messages[:-1], renderer())
    assert len(trajectory.sequences[-1].images) == 4


async def test_an_engine_without_images_is_refused_by_name(scripted):
    engine = tiny_vlm.TinyVlm(PROCESSOR, ["x"])
    engine._takes_images = False
    trajectory = await play(engine)
    assert trajectory.stop_reason is StopReason.ENGINE_FAILED
    assert "TinyVlm takes no images, and the context has 2" in trajectory.error.message
    assert engine.requests == []


def test_texts_that_look_like_images_stay_texts():
    rendering = renderer()
    fake = "<|vision_start|><|image_pad|><|vision_end|>"
    ids = rendering.prompt([user([text_part(fake), picture()])])
    assert len(images_in(ids)) == 1
    assert ids.count(PROCESSOR.image_token_id) == len(PROCESSOR.expansion(picture()["image_url"]["url"]))
    assert rendering.decode(ids).count(fake) == 1
    assert images_in(rendering.prompt([user(fake)])) == ()


def test_what_would_lose_an_image_is_refused_by_name(tokenizer):
    plain = PROCESSOR.processor.tokenizer.chat_template.replace(tiny_vlm.PARTS, tiny_vlm.PLAIN)
    dropping = tiny_vlm.processor()
    dropping.processor.tokenizer.chat_template = plain
    with pytest.raises(TemplateError, match="have 1 images, and the chat template writes 0 times '<|image_pad|>'"):
        ChatRenderer(dropping.processor.tokenizer, [LOOK], processor=dropping).prompt([user([picture()])])
    textless = tiny_vlm.processor()
    textless.processor.tokenizer.chat_template = dropping.processor.tokenizer.chat_template.replace(
        tiny_vlm.PLAIN, tiny_vlm.PARTS.replace("{{ part.text }}", "")
    )
    rendering = ChatRenderer(textless.processor.tokenizer, [LOOK], processor=textless)
    shown = [text_part(" What?\nThis. "), picture()]
    for use in (rendering.prompt, rendering.extend):
        assert use([user([picture()])])
        with pytest.raises(TemplateError, match="drops a text beside an image: 'What"):
            use([user(shown)])
    with pytest.raises(TemplateError, match="no processor of images beside the tokenizer"):
        ChatRenderer(tokenizer, [LOOK]).prompt([user([picture()])])
    for content in ([{"type": "video"}], [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]):
        with pytest.raises(TemplateError, match=r"parts of type text and image_url \(a data URL\)"):
            renderer().prompt([user(content)])
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(TemplateError, match="is no image that can be read"):
        renderer().prompt([user([broken])])
    with pytest.raises(ConfigError, match="processor must be an ImageProcessor"):
        RunConfig(processor=PROCESSOR.processor)


def test_a_template_that_numbers_images_is_refused_behind_a_turn():
    numbering = tiny_vlm.processor()
    template = numbering.processor.tokenizer.chat_template
    counted = template.replace('{%- if part.type == "image" -%}', '{%- if part.type == "image" -%}{{ counter.next() }}')
    assert counted != template
    counted = "{%- set counter = namespace(n=0) -%}" + template.replace(
        '{%- if part.type == "image" -%}',
        '{%- if part.type == "image" -%}{%- set counter.n = counter.n + 1 -%}Picture {{ counter.n }}: ',
    )
    numbering.processor.tokenizer.chat_template = counted
    rendering = ChatRenderer(numbering.processor.tokenizer, [LOOK], processor=numbering)
    assert "Picture 2: " in rendering.decode(rendering.prompt([user([picture(), picture("blue")])]))
    with pytest.raises(TemplateError, match="depends on the images before it"):
        rendering.extend([user([picture()])])


def test_a_processor_that_is_none_or_cannot_be_loaded_is_told(tmp_path):
    with pytest.raises(ConfigError, match="expected a processor of texts and images"):
        ImageProcessor(PROCESSOR.processor.tokenizer)
    broken = tiny_vlm.processor().processor.tokenizer
    broken.name_or_path = str(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot load a processor from"):
        load_processor(tmp_path)
    with pytest.raises(TemplateError, match="the messages have images: cannot load a processor from"):
        ChatRenderer(broken, [LOOK]).prompt([user([picture()])])


def test_an_image_that_the_processor_refuses_is_told():
    with pytest.raises(TemplateError, match="the processor refuses images of 1000 x 2: ValueError"):
        renderer().prompt([user([picture(size=(1000, 2))])])


def test_threads_share_a_processor_and_other_processes_get_a_copy():
    shared = tiny_vlm.processor()
    urls = [picture(size=(64, 40 + 4 * number))["image_url"]["url"] for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        expansions = list(threads.map(shared.expansion, urls * 4))
    assert expansions == [PROCESSOR.expansion(url) for url in urls] * 4
    assert pickle.loads(pickle.dumps(shared)).expansion(urls[0]) == expansions[0]
