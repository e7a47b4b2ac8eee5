"""A processor of Qwen-VL's kind for tests: transformers' own takes videos too, for which it needs torchvision."""

from __future__ import annotations

from typing import Any

from transformers import BatchFeature, Qwen2VLImageProcessorPil

from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer

NAMES = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


class QwenProcessor:
    """Writes as many `<|image_pad|>` for each one as its image has merged patches."""

    image_token, video_token = NAMES[2:]

    def __init__(self) -> None:
        self.tokenizer = load_tokenizer(tiny_policy_path())
        self.tokenizer.add_special_tokens({"additional_special_tokens": list(NAMES)})
        self.image_processor = Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=112 * 112)
        ids = self.tokenizer.convert_tokens_to_ids(list(NAMES))
        self.vision_start_token_id, self.vision_end_token_id, self.image_token_id, self.video_token_id = ids

    def __call__(self, text: Any = None, images: Any = None, return_tensors: str | None = None, **_: Any) -> Any:
        texts = [text] if isinstance(text, str) else list(text)
        pixels = self.image_processor(images=images, return_tensors="pt") if images else {}
        counts = iter([int(grid.prod()) // 4 for grid in pixels.get("image_grid_thw", ())])
        whole = []
        for each in texts:
            first, *rest = each.split(self.image_token)
            whole.append(first + "".join(self.image_token * next(counts) + part for part in rest))
        tokens = self.tokenizer(whole, add_special_tokens=False, return_tensors=return_tensors)
        parts = [[int(token == self.image_token_id) for token in row] for row in tokens["input_ids"]]
        return BatchFeature({**tokens, **pixels, "mm_token_type_ids": parts}, tensor_type=return_tensors)
