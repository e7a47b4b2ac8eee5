"""Images of tasks and tool results in episodes: the processor's own ids, and log-probabilities of what they show."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.rollout import tiny_vlm
from tests.rollout.qwen_processor import QwenProcessor
from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, SamplingParams, Trajectory, rollout
from toolgym.rollout.engines import CallableEngine, FinishReason, Generation
from toolgym.rollout.models.images import ImageProcessor, PlacedImage, picture
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.tools import ToolResult, tool
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import assistant, image, images_of, text_of, text_part, user
from toolgym.tools.message import tool as result_of

CALL = '<tool_call>\n{"name": "draw", "arguments": {"seed": 2}}\n</tool_call>'
PAD = "<|image_pad|>"
MACRO = """{%- macro shown(content) -%}{%- if content is string -%}{{- content -}}{%- else -%}{%- for p in content -%}
{%- if p.type == "image" -%}{{- "<|vision_start|><|image_pad|><|vision_end|>" -}}{%- else -%}{{- p.text -}}{%- endif -%}
{%- endfor -%}{%- endif -%}{%- endmacro -%}"""


def template() -> str:
    text = (tiny_policy_path() / "chat_template.jinja").read_text()
    text = text.replace(
        '{%- set content = message.content if message.content is string else "" -%}',
        "{%- set content = shown(message.content) -%}",
    )
    return MACRO + text.replace("messages[0].content", "shown(messages[0].content)")


def png(seed: int, width: int = 84, height: int = 56) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


@pytest.fixture(scope="module")
def theirs() -> QwenProcessor:
    processor = QwenProcessor()
    processor.tokenizer.chat_template = template()
    return processor


@pytest.fixture(scope="module")
def ours(theirs: QwenProcessor) -> ImageProcessor:
    return ImageProcessor(theirs)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_vlm.model()


def scores(model: Any, ours: ImageProcessor, ids: Sequence[int], urls: Sequence[str]) -> torch.Tensor:
    """Log-probabilities of all ids but the first, `[tokens - 1]`."""
    row = torch.tensor([list(ids)])
    kinds = (row == ours.image_token_id).int()
    with torch.no_grad():
        logits = model(input_ids=row, mm_token_type_ids=kinds, **ours.pixel_inputs(urls)).logits[0]
    return logits[:-1].log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]


@tool
def draw(seed: int) -> ToolResult:
    """Draw."""
    return ToolResult(f"picture {seed} {PAD}", images=[image(png(seed))])


[SCHEMA] = ToolEnv([draw], [Task((user("q"),))]).tool_schemas


def asked(*seeds: int) -> Task:
    parts = [part for seed in seeds for part in (text_part(f"Look {PAD}: "), image(png(seed, 112)))]
    return Task((user([*parts, text_part("Draw.")]),), id="q")


async def played(
    model: Any, ours: ImageProcessor, monkeypatch: pytest.MonkeyPatch, replies: Sequence[str], **config: Any
) -> Trajectory:
    tokenizer = ours.processor.tokenizer
    left = iter(replies)

    async def generate(request: Any) -> Generation:
        ids = tokenizer(next(left) + "<|im_end|>", add_special_tokens=False)["input_ids"]
        urls = [each.url for each in request.images]
        values = scores(model, ours, [*request.prompt_ids, *ids], urls)[-len(ids) :].tolist()
        return Generation(tuple(ids), tuple(values), FinishReason.STOP, ("0",) * len(ids))

    engine = CallableEngine(generate, tokenizer=tokenizer, context_length=4096, takes_images=True)
    task = asked(1, 3)
    config.setdefault("sampling", SamplingParams(max_new_tokens=200))
    [trajectory] = await rollout(
        lambda: ToolEnv([draw], [task]), engine, [task], config=RunConfig(processor=ours, **config)
    )
    assert trajectory.error is None, trajectory.error
    return trajectory


def exact(trajectory: Trajectory, model: Any, ours: ImageProcessor, messages: Sequence[Any]) -> None:
    """The ids are the processor's for the whole text, and the log-probabilities those of a pass over them."""
    sequence = trajectory.sequences[-1]
    ids = [*sequence.prompt_ids.tolist(), *sequence.response_ids.tolist()]
    urls = [url for message in messages for url in images_of(message["content"])]
    assert [placed.url for placed in sequence.images] == urls
    for placed in sequence.images:
        assert tuple(ids[placed.start : placed.start + placed.tokens]) == ours.expansion(placed.url)
    assert ids.count(ours.image_token_id) == sum(placed.tokens for placed in sequence.images)
    mask = torch.tensor(sequence.response_mask.tolist()).bool()
    passed = scores(model, ours, ids, urls)[-len(mask) :][mask]
    reported = torch.tensor(sequence.logprobs.tolist())[mask]
    assert torch.allclose(passed, reported.float(), atol=1e-4)
    others = [image(png(9, *picture(url).size))["image_url"]["url"] for url in urls]
    assert not torch.allclose(scores(model, ours, ids, others)[-len(mask) :][mask], passed, atol=1e-2)


@pytest.mark.parametrize(
    ("history", "spaced", "sequences"), [("append", " ", 1), ("template", "\n", 1), ("template", " ", 2)]
)
async def test_an_episode_has_the_ids_of_the_processor(model, ours, monkeypatch, history, spaced, sequences) -> None:
    replies = [CALL, f"Again.{spaced}{CALL}", "Done."]
    trajectory = await played(model, ours, monkeypatch, replies, history=history)
    assert len(trajectory.turns) == 3
    assert len(trajectory.sequences) == sequences
    exact(trajectory, model, ours, trajectory.messages)
    sequence = trajectory.sequences[-1]
    text = ours.processor.tokenizer.decode([*sequence.prompt_ids, *sequence.response_ids])
    assert f"Look {PAD}: " in text
    assert text.count("<|vision_start|>") == 4


async def test_the_ids_are_those_of_the_whole_conversation(ours, theirs, monkeypatch) -> None:
    renderer = ChatRenderer(theirs.tokenizer, [SCHEMA], processor=ours)
    messages = [user([text_part("Look: "), image(png(1)), image(png(2, 112)), text_part("Draw.")])]
    ids = renderer.prompt(messages)
    for seed in (3, 4):
        turn = theirs.tokenizer(f"{CALL}<|im_end|>", add_special_tokens=False)["input_ids"]
        new = [result_of([text_part("There: "), image(png(seed))], tool_call_id="call_0", name="draw")]
        ids = [*ids, *turn, *renderer.extend(new, turn, earlier=messages)]
        messages = [*messages, assistant(CALL), *new]
    content = [
        {**message, "content": [{"type": "image"} if part["type"] == "image_url" else part for part in parts]}
        if isinstance(parts := message["content"], list)
        else message
        for message in messages
    ]
    text = theirs.tokenizer.apply_chat_template(
        content, tools=[SCHEMA.to_openai()], tokenize=False, add_generation_prompt=True
    )
    pictures = [picture(url) for message in messages for url in images_of(message["content"])]
    assert ids == theirs(text=[text], images=pictures)["input_ids"][0]


@pytest.mark.parametrize("content", ["''", "message.content | string", "message.content[0].text"])
def test_a_template_that_drops_images_is_refused(content) -> None:
    processor = QwenProcessor()
    old = 'message.content if message.content is string else ""'
    text = (tiny_policy_path() / "chat_template.jinja").read_text()
    processor.tokenizer.chat_template = text.replace(
        old, f"message.content if message.content is string else {content}"
    )
    renderer = ChatRenderer(processor.tokenizer, processor=ImageProcessor(processor))
    with pytest.raises(TemplateError, match="drops images of such messages"):
        renderer.prompt([user([text_part("Look: "), image(png(1))])])


def test_without_a_processor_images_are_refused(theirs) -> None:
    with pytest.raises(TemplateError, match="there is no processor of images beside the tokenizer"):
        ChatRenderer(theirs.tokenizer).prompt([user([image(png(1))])])


def test_an_image_that_cannot_be_read_or_has_no_room_is_refused(theirs, ours) -> None:
    renderer = ChatRenderer(theirs.tokenizer, processor=ours)
    broken = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n").decode()
    with pytest.raises(TemplateError, match="no image that can be read"):
        renderer.prompt([user([{"type": "image_url", "image_url": {"url": broken}}])])
    message = user([image(png(1))])
    with pytest.raises(TooManyTokensError):
        renderer.prompt([message], most=len(renderer.prompt([message])) - 1)


def test_a_policy_that_wrote_a_placeholder_is_not_rendered_again(theirs, ours) -> None:
    renderer = ChatRenderer(theirs.tokenizer, processor=ours)
    with pytest.raises(TemplateError, match="the messages have 1 images, and the chat template writes 2 times"):
        renderer.prompt([user([image(png(1))]), assistant(PAD), user("Go on.")])


async def test_a_file_keeps_the_places(model, ours, monkeypatch) -> None:
    trajectory = await played(model, ours, monkeypatch, [CALL, "Done."])
    assert Trajectory.from_json(trajectory.to_json()).sequences == trajectory.sequences
    assert all(isinstance(each, PlacedImage) for each in trajectory.sequences[0].images)


def jpeg(length: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)).save(data, "JPEG")
    return data.getvalue()[:length]


@pytest.mark.parametrize("with_others", [False, True])
async def test_an_image_of_which_only_the_header_can_be_read_becomes_a_note(
    model, ours, monkeypatch, with_others
) -> None:
    @tool
    def draw(seed: int) -> ToolResult:
        """Draw."""
        return ToolResult("picture", images=[image(jpeg(700)), *([image(png(seed))] if with_others else [])])

    monkeypatch.setitem(globals(), "draw", draw)
    trajectory = await played(model, ours, monkeypatch, [CALL, "Done."])
    assert len(trajectory.turns) == 2
    content = trajectory.messages[-2]["content"]
    assert text_of(content) == "picture\n[An image left out: it cannot be read]"
    assert len(images_of(content)) == with_others
    exact(trajectory, model, ours, trajectory.messages)


def test_images_that_a_processor_refuses_altogether_are_kept_for_its_error(ours, monkeypatch) -> None:
    renderer = ChatRenderer(ours.processor.tokenizer, processor=ours)
    messages = [result_of([image(png(1))], tool_call_id="call_0", name="draw")]
    assert renderer.readable(messages) == messages
    monkeypatch.setattr(renderer, "reads_image", lambda url: False)
    assert renderer.readable(messages) == messages
