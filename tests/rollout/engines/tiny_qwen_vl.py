"""Write a random Qwen2-VL of a few thousand parameters and its processor: `python tiny_qwen_vl.py FOLDER TOKENIZER`.

Its processor needs torchvision, which SGLang's environment has and that of the tests has not.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
)
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}"
    "{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main(folder: str, tokenizer_folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    parts = ("vision_start", "vision_end", "image_pad", "video_pad")
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{part}|>" for part in parts]})
    ids: dict[str, Any] = {part: tokenizer.convert_tokens_to_ids(f"<|{part}|>") for part in parts}
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": len(tokenizer) + 12,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        },
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "num_heads": 2,
            "mlp_ratio": 2,
            "in_chans": 3,  # SGLang reads this name, as the published models have it
        },
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    model.save_pretrained(folder)
    images = Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=112 * 112)
    processor = Qwen2VLProcessor(images, tokenizer, Qwen2VLVideoProcessor(), chat_template=TEMPLATE)
    processor.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
