"""Whether a chat template can be used turn by turn, case by case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from toolgym.tools.errors import missing_extra

try:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
except ImportError as error:
    raise missing_extra("rollout", "Checking a chat template", error) from error

_SPECIAL = re.compile(
    r"<\|\"\|>|<\|[^<>|\s'\"]+\|?>|<[^<>|\s'\"]+\|>|<｜[^<>\s]+｜>|<(?:start|end)_of_\w+>|\[gMASK\]|<sop>"
)
"""How special tokens are written in the templates that we know."""

_MARKERS = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
"""Tokens of their own as well, but not special ones."""


def byte_tokenizer(template: str, special: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer for a chat template that came without one: a token per byte, and one per marker in the template.

    Args:
        template: the chat template's text.
        special: further special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    found = dict.fromkeys(["<bos>", "<eos>", *special, *_SPECIAL.findall(template)])
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in found])
    markers = dict.fromkeys(_MARKERS.findall(template))
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in markers])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = template
    return tokenizer
