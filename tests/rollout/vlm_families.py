"""Processors of vision-language families, transformers' own classes over a tiny tokenizer, and tiny models of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from tokenizers import AddedToken
from transformers.models.smolvlm import processing_smolvlm

from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer

PLAIN = 'message.content if message.content is string else ""'
SHOWN = """{%%- macro shown(content) -%%}{%%- if content is string -%%}{{- content -}}{%%- else -%%}
{%%- for part in content -%%}{{- %s if part.type == "image" else part.text -}}{%%- endfor -%%}{%%- endif -%%}
{%%- endmacro -%%}"""


def template(image: str) -> str:
    """That of the tiny policy, with a text for each image wherever it stands."""
    text = (tiny_policy_path() / "chat_template.jinja").read_text()
    assert PLAIN in text
    return SHOWN % repr(image) + text.replace(PLAIN, "shown(message.content)").replace(
        "messages[0].content", "shown(messages[0].content)"
    )


def tokenizer(image: str, names: dict[str, str], more: tuple[str, ...] = (), plain: tuple[str, ...] = ()) -> Any:
    """The tiny policy's, with tokens of images: `names` are attributes of it, `plain` are words of the vocabulary."""
    base = load_tokenizer(tiny_policy_path())
    tokens = [*names.values(), *more]
    base.add_special_tokens({"additional_special_tokens": list(dict.fromkeys(tokens))})
    base.add_tokens([AddedToken(word, special=False, normalized=False) for word in plain])
    for name, token in names.items():
        setattr(base, name, token)
        setattr(base, f"{name}_id", base.convert_tokens_to_ids(token))
    base.chat_template = template(image)
    return base


def without_videos(kind: type, *parts: Any, **options: Any) -> Any:
    """A processor whose part for videos, which needs torchvision, is None."""

    def check(self: Any, name: str, part: Any) -> Any:
        return None if name == "video_processor" else kind.check_argument_for_proper_class(self, name, part)

    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})(*parts, **options)


def qwen(kind: str) -> Any:
    names = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    text = "<|vision_start|><|image_pad|><|vision_end|>"
    sizes = {"patch_size": 16} if kind == "Qwen3VLProcessor" else {}
    images = transformers.Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=112 * 112, **sizes)
    return without_videos(getattr(transformers, kind), images, tokenizer(text, {}, names), None)


def gemma3() -> Any:
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    newlines = tuple("\n" * count for count in range(2, 6))
    made = tokenizer("<start_of_image>", names, plain=newlines)
    size = {"height": 56, "width": 56}
    images = transformers.Gemma3ImageProcessorPil(size=size, image_seq_length=4)
    return transformers.Gemma3Processor(images, made, image_seq_length=4)


def llava(kind: str) -> Any:
    size = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    options = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    made = tokenizer("<image>\n", {}, ("<image>",))
    if kind == "LlavaProcessor":
        return transformers.LlavaProcessor(transformers.CLIPImageProcessorPil(**size), made, **options)
    grid = [[28, 56], [56, 28], [56, 56]]
    if kind == "LlavaNextProcessor":
        images = transformers.LlavaNextImageProcessorPil(**size, image_grid_pinpoints=grid)
        return transformers.LlavaNextProcessor(images, made, **options)
    images = transformers.LlavaOnevisionImageProcessorPil(size={"height": 28, "width": 28}, image_grid_pinpoints=grid)
    made.add_special_tokens({"additional_special_tokens": ["<video>"]})
    return without_videos(
        transformers.LlavaOnevisionProcessor, images, made, None,
        num_image_tokens=4, vision_feature_select_strategy="full", patch_size=14,
    )  # fmt: skip


def internvl() -> Any:
    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    images = transformers.GotOcr2ImageProcessorPil(
        size={"height": 28, "width": 28}, min_patches=1, max_patches=4, crop_to_patches=True
    )
    made = tokenizer("<IMG_CONTEXT>\n", names)
    return without_videos(transformers.InternVLProcessor, images, made, None, image_seq_length=4)


def idefics(kind: str) -> Any:
    rows = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
    names = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<video>", *rows)
    made = tokenizer("<image>", {}, names, plain=("\n\n",))
    images = getattr(transformers, f"{kind}ImageProcessorPil")(
        size={"longest_edge": 56}, max_image_size={"longest_edge": 28}
    )
    if kind == "Idefics3":
        return transformers.Idefics3Processor(images, made, image_seq_len=4)
    processing_smolvlm.num2words = processing_smolvlm.num2words or str  # for videos
    return without_videos(transformers.SmolVLMProcessor, images, made, None, image_seq_len=4)


def mllama() -> Any:
    made = tokenizer("<|image|>", {}, ("<|image|>", "<bos>"))
    made.bos_token = "<bos>"
    images = transformers.MllamaImageProcessorPil(size={"height": 28, "width": 28}, max_image_tiles=4)
    return transformers.MllamaProcessor(images, made)


FAMILIES: dict[str, Callable[[], Any]] = {
    "Qwen2-VL": functools.partial(qwen, "Qwen2VLProcessor"),
    "Qwen2.5-VL": functools.partial(qwen, "Qwen2_5_VLProcessor"),
    "Qwen3-VL": functools.partial(qwen, "Qwen3VLProcessor"),
    "Gemma 3": gemma3,
    "LLaVA 1.5": functools.partial(llava, "LlavaProcessor"),
    "LLaVA-NeXT": functools.partial(llava, "LlavaNextProcessor"),
    "LLaVA-OneVision": functools.partial(llava, "LlavaOnevisionProcessor"),
    "InternVL": internvl,
    "Idefics3": functools.partial(idefics, "Idefics3"),
    "SmolVLM": functools.partial(idefics, "SmolVLM"),
}  # fmt: skip


def model_of(family: str, processor: Any) -> Any:
    """A random model of a few thousand parameters."""
    made = processor.tokenizer
    text = {
        "vocab_size": len(made), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 4096,
        "pad_token_id": 0, "bos_token_id": None, "eos_token_id": made.eos_token_id,
    }  # fmt: skip
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    part = ImageProcessor(processor).image_token_id
    if family.startswith("Qwen"):
        kind = {"Qwen2-VL": "Qwen2VL", "Qwen2.5-VL": "Qwen2_5_VL", "Qwen3-VL": "Qwen3VL"}[family]
        vision: dict[str, Any] = {"depth": 2, "num_heads": 2, "hidden_size": 16, "intermediate_size": 32}
        if kind == "Qwen2VL":
            vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2}
        else:
            vision["out_hidden_size"] = 32
        if kind == "Qwen3VL":
            vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
        ids = dict(
            zip(
                ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
                made.convert_tokens_to_ids(["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]),
                strict=True,
            )
        )
        config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **ids)
    elif family == "Gemma 3":
        vision = {**tower, "image_size": 56, "patch_size": 14}
        text |= {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
        config = transformers.Gemma3Config(
            text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=part,
            boi_token_index=made.boi_token_id, eoi_token_index=made.eoi_token_id,
        )  # fmt: skip
    elif family.startswith("LLaVA"):
        vision = {"model_type": "clip_vision_model", **tower, "image_size": 28, "patch_size": 14, "projection_dim": 16}
        further: dict[str, Any] = {"image_token_index": part}
        kind = {"LLaVA 1.5": "Llava", "LLaVA-NeXT": "LlavaNext", "LLaVA-OneVision": "LlavaOnevision"}[family]
        if kind != "Llava":
            further["image_grid_pinpoints"] = processor.image_processor.image_grid_pinpoints
        if kind == "LlavaOnevision":
            vision["model_type"] = "siglip_vision_model"
            further |= {"vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9"}
            further["video_token_index"] = made.convert_tokens_to_ids("<video>")
        config = getattr(transformers, f"{kind}Config")(
            text_config={"model_type": "llama", **text}, vision_config=vision, vision_feature_layer=-1, **further
        )
    elif family == "InternVL":
        vision = {**tower, "image_size": [28, 28], "patch_size": [7, 7]}
        config = transformers.InternVLConfig(
            text_config={"model_type": "qwen2", **text}, vision_config=vision, image_token_id=part, downsample_ratio=0.5
        )
    else:
        vision = {**tower, "image_size": 28, "patch_size": 7}
        kind = "Idefics3" if family == "Idefics3" else "SmolVLM"
        config = getattr(transformers, f"{kind}Config")(
            text_config={"model_type": "llama", **text}, vision_config=vision, image_token_id=part, scale_factor=2
        )
    torch.manual_seed(0)
    network = transformers.AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.2)  # some are made of zeros, which no image gets through
    return network
