"""Sizes that a model's `config.json` tells and no endpoint of a server does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class ModelConfig(NamedTuple):
    """Sizes of a model; None where its files do not tell them, or are not on this machine.

    Attributes:
        vocab_size: number of token ids.
        layers: number of layers.
        experts_per_token: experts that a mixture-of-experts layer sends each token to.
    """

    vocab_size: int | None = None
    layers: int | None = None
    experts_per_token: int | None = None


def read_model_config(folder: str | Path | None) -> ModelConfig:
    """Read the sizes of a model from its folder. Never raises: a hub name or a folder elsewhere tells nothing."""
    if folder is None:
        return ModelConfig()
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ModelConfig()
    inner = config.get("text_config") if isinstance(config, Mapping) else None
    return ModelConfig(
        vocab_size=_size(config, inner, "vocab_size"),
        layers=_size(config, inner, "num_hidden_layers"),
        experts_per_token=_size(config, inner, "num_experts_per_tok"),
    )


def _size(config: Any, inner: Any, name: str) -> int | None:
    for sizes in (config, inner):
        value = sizes.get(name) if isinstance(sizes, Mapping) else None
        if isinstance(value, int) and value > 0:
            return value
    return None
