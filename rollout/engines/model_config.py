"""Sizes that a model's `config.json` tells and no endpoint of a server does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class ModelConfig(NamedTuple):
    """Sizes of a model; None if its files do not tell them, or are not on this machine."""

    vocab_size: int | None = None
    layers: int | None = None
    experts_per_token: int | None = None


def read_model_config(folder: str | Path | None) -> ModelConfig:
    """Read the sizes of a model from its folder. Never raises: a hub name or a folder elsewhere tells nothing."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError):
        config = {}
    config = config if isinstance(config, Mapping) else {}
    inner = config.get("text_config")
    inner = inner if isinstance(inner, Mapping) else {}

    def size(name: str) -> int | None:
        values = (config.get(name), inner.get(name))
        return next((value for value in values if isinstance(value, int) and value > 0), None)

    return ModelConfig(size("vocab_size"), size("num_hidden_layers"), size("num_experts_per_tok"))
