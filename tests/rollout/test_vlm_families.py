"""Families of vision-language models: ids of their own processors, log-probabilities of their own forward passes."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import trl

from tests.rollout.test_images_in_episodes import png
from tests.rollout.vlm_families import FAMILIES, mllama, model_of
from toolgym.rollout.engines.base import GenerationRequest, SamplingParams
from toolgym.rollout.engines.embedded.transformers import TransformersEngine
from toolgym.rollout.engines.sglang.messages import one_id_each
from toolgym.rollout.models.images import ImageProcessor, picture
from toolgym.rollout.tokens.placed_ids import images_in, moved
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.template_check import Status, check_template
from toolgym.tools.errors import EngineError, TemplateError
from toolgym.tools.message import assistant, image, images_of, text_part, user

WIDE, HIGH, SMALL = image(png(1, 96, 32)), image(png(2, 40, 60)), image(png(3, 28, 28))
ASKED = user([WIDE, text_part("Two: "), HIGH, SMALL, text_part("\nWhat?")])
FURTHER = user([text_part("And this?\n"), SMALL])
PUBLISHED: dict[str, tuple[str, list[str], list[str]]] = {
    "SmolVLM": ("smolvlm", [], []),
    "Idefics3": ("idefics3", [], []),
    "LLaVA-NeXT": ("llava_next", ["</s>"], ["image in a result"]),
    "Gemma 3": ("gemma3", ["<start_of_turn>", "<end_of_turn>"], ["image in a result"]),
    "Qwen2.5-VL": ("qwen2_5_vl", [], []),
    "Qwen3-VL": ("qwen3_vl", [], []),
}
"""The name of a family's published template, further tokens of it, and the cases that it refuses."""
PAGE = Path(__file__).parents[2] / "docs/images.md"


def theirs(processor: Any, messages: Any) -> list[int]:
    """The ids that the processor gives for the whole conversation."""
    shown = [
        {**message, "content": [{"type": "image"} if part["type"] != "text" else part for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]
    text = processor.tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
    pictures = [picture(url) for message in messages for url in images_of(message["content"])]
    return list(processor(text=[text], images=pictures, add_special_tokens=False)["input_ids"][0])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ids_of_a_conversation_are_the_processors(family: str) -> None:
    processor = FAMILIES[family]()
    ours = ImageProcessor(processor)
    renderer = ChatRenderer(processor.tokenizer, processor=ours)
    first = renderer.prompt([ASKED])
    assert first == theirs(processor, [ASKED])
    turn = processor.tokenizer.encode("It is.<|im_end|>", add_special_tokens=False)
    added = renderer.extend([FURTHER], turn, earlier=[ASKED])
    whole = [*first, *turn, *added]
    messages = [ASKED, assistant("It is."), FURTHER]
    assert whole == theirs(processor, messages) == renderer.prompt(messages)
    placed = (*images_in(first), *moved(images_in(added), len(first) + len(turn)))
    assert placed == images_in(renderer.prompt(messages))
    assert len(placed) == 4
    for shown in placed:
        assert tuple(whole[shown.start : shown.start + shown.tokens]) == ours.expansion(shown.url)
    assert whole.count(ours.image_token_id) == sum(
        ours.expansion(shown.url).count(ours.image_token_id) for shown in placed
    )
    try:
        one_id_each(GenerationRequest(tuple(whole), SamplingParams(max_new_tokens=1), "a", images=placed))
        sent = "yes"
    except EngineError:
        sent = "refused"
    token = ours.image_token.replace("|", "\\|")
    row = f"| {family} | `{type(processor).__name__}` | `{token}` | exact | {sent} | exact |"
    assert row in PAGE.read_text(), row


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_model_generates_with_what_it_is_shown(family: str) -> None:
    processor = FAMILIES[family]()
    ours = ImageProcessor(processor)
    renderer, model = ChatRenderer(processor.tokenizer, processor=ours), model_of(family, processor)
    prompts = [renderer.prompt([message]) for message in (ASKED, FURTHER, user("Hello there, how are you?"))]
    params = SamplingParams(max_new_tokens=6, seed=1)
    async with TransformersEngine(model, processor=ours) as engine:
        calls = [
            engine.generate(
                ids, params, request_id=str(at), images=images_in(ids), forbidden_ids=renderer.forbidden_ids
            )
            for at, ids in enumerate(prompts)
        ]
        generations = await asyncio.gather(*calls)
    for prompt, generation in zip(prompts, generations, strict=True):
        urls = [shown.url for shown in images_in(prompt)]
        assert forward(model, ours, prompt, generation.token_ids, urls) == pytest.approx(generation.logprobs, abs=1e-4)
    [shown] = images_in(prompts[1])
    other = [image(png(4, 28, 28))["image_url"]["url"]]
    assert ours.expansion(shown.url) == ours.expansion(other[0])
    assert forward(model, ours, prompts[1], generations[1].token_ids, other) != pytest.approx(
        generations[1].logprobs, abs=1e-4
    ), "the model looks at its images"


@torch.no_grad()
def forward(model: Any, ours: ImageProcessor, prompt: Any, ids: Any, urls: Any) -> list[float]:
    """Log-probabilities of ids by one plain pass of the model over the whole, without what a policy may not sample."""
    row = torch.tensor([[*prompt, *ids]])
    types = (row == ours.image_token_id).long()
    names = {"mm_token_type_ids", "token_type_ids"} & inspect.signature(model.forward).parameters.keys()
    further = {**ours.pixel_inputs(urls), **(dict.fromkeys(names, types) if urls else {})}
    logits = model(input_ids=row, attention_mask=torch.ones_like(row), **further).logits[0, len(prompt) - 1 : -1]
    logits[:, list(ours.forbidden_ids)] = -torch.inf
    return [float(chances[token]) for chances, token in zip(logits.float().log_softmax(-1), ids, strict=True)]


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_published_template_keeps_images(family: str) -> None:
    processor = FAMILIES[family]()
    name, ends, refused = PUBLISHED[family]
    processor.tokenizer.add_special_tokens({"additional_special_tokens": ends})
    processor.tokenizer.chat_template = (Path(trl.__file__).parent / f"chat_templates/{name}.jinja").read_text()
    report = check_template(processor.tokenizer, processor=ImageProcessor(processor))
    statuses = {case.name: case.status for case in report.cases if case.name.startswith("image ")}
    assert len(statuses) == 3
    assert [name for name, status in statuses.items() if status is not Status.APPEND_ONLY] == refused
    assert all(case.status is not Status.WRONG for case in report.cases)
    assert report.exact is not bool(refused)


def test_pixel_inputs_of_the_whole_text_are_refused_by_name() -> None:
    processor = mllama()
    with pytest.raises(TemplateError, match="the processor makes cross_attention_mask of the whole text"):
        ChatRenderer(processor.tokenizer, processor=ImageProcessor(processor)).prompt([FURTHER])
