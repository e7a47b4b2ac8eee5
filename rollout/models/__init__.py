"""Tokenizers, models of the hub, and the tiny policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.models.tiny import tiny_policy_path as tiny_policy_path
    from toolgym.rollout.models.tokenizer import load_tokenizer as load_tokenizer
else:
    __getattr__, __dir__ = lazy_names(__name__)
