"""A random Qwen2-VL of a few thousand parameters, its processor, and an engine over both."""

from __future__ import annotations

import functools
import io

import torch
from PIL import Image
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from tests.rollout.qwen_processor import QwenProcessor
from toolgym.rollout.engines.base import FinishReason, Generation
from toolgym.rollout.engines.callable import CallableEngine
from toolgym.rollout.engines.embedded.transformers import TransformersEngine
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.tokens.placed_ids import images_in
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools.message import image, user

PLAIN = '{%- set content = message.content if message.content is string else "" -%}'
PARTS = """{%- set content -%}
{%- if message.content is string -%}{{ message.content }}{%- else -%}{%- for part in message.content -%}
{%- if part.type == "image" -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}{%- endset -%}"""


def processor():
    """Qwen's kind, with a chat template that shows images wherever they are."""
    qwen = QwenProcessor()
    assert PLAIN in qwen.tokenizer.chat_template
    qwen.tokenizer.chat_template = qwen.tokenizer.chat_template.replace(PLAIN, PARTS)
    return ImageProcessor(qwen)


@functools.cache
def model():
    qwen = QwenProcessor()
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    config = Qwen2VLConfig(
        text_config={
            **text,
            "vocab_size": len(qwen.tokenizer),
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": rope,
        },
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2},
        vision_start_token_id=qwen.vision_start_token_id,
        vision_end_token_id=qwen.vision_end_token_id,
        image_token_id=qwen.image_token_id,
        video_token_id=qwen.video_token_id,
    )
    torch.manual_seed(0)
    network = Qwen2VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return network


@torch.no_grad()
def logprobs(ids, images, processor):
    """Log-probabilities `[tokens, vocabulary]` behind each id."""
    inputs = processor.pixel_inputs([image.url for image in images])
    row = torch.tensor([ids])
    logits = model()(input_ids=row, mm_token_type_ids=(row == processor.image_token_id).long(), **inputs).logits
    return logits[0].float().log_softmax(-1)


def embedded():
    """An engine of that model in this process."""
    return TransformersEngine(model(), processor=processor())


def shown(*colors):
    """A prompt with a picture of each color, and its images."""
    seeing = processor()
    parts = []
    for color in colors:
        data = io.BytesIO()
        Image.new("RGB", (64, 48), color).save(data, "PNG")
        parts.append(image(data.getvalue()))
    ids = ChatRenderer(seeing.processor.tokenizer, processor=seeing).prompt([user(parts)])
    return ids, images_in(ids)


class TinyVlm(CallableEngine):
    """Writes a script's turns, with the log-probabilities of the model. `requests` are those it got."""

    def __init__(self, processor, script):
        tokenizer = processor.processor.tokenizer
        super().__init__(self._written, tokenizer=tokenizer, context_length=4096, takes_images=True)
        self.processor, self.script, self.requests = processor, iter(script), []

    async def _written(self, request):
        self.requests.append(request)
        ids = [*self.tokenizer.encode(next(self.script), add_special_tokens=False), self.tokenizer.eos_token_id]
        context = [*request.prompt_ids, *ids]
        chances = logprobs(context, request.images, self.processor)[len(request.prompt_ids) - 1 : -1]
        written = tuple(float(row[token]) for row, token in zip(chances, ids, strict=True))
        return Generation(tuple(ids), written, FinishReason.STOP, ("0",) * len(ids))
