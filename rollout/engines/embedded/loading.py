"""Loading a causal language model, and what the embedded engine must know of one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from toolgym.tools.errors import ConfigError, missing_extra

try:
    import torch
    from torch import nn
    from transformers import AutoModelForCausalLM
except ImportError as error:
    raise missing_extra("rollout", "The embedded engine", error) from error


class ModelFacts(NamedTuple):
    """Rows of the input embedding, most tokens of prompt and generation together, and where the model is."""

    vocab_size: int
    context_length: int
    device: torch.device


def load_model(source: str | Path, dtype: torch.dtype | str | None, device: torch.device | None) -> nn.Module:
    """Load a model, in evaluation mode.

    Args:
        source: a folder or a hub name.
        dtype: None takes the checkpoint's.
        device: None is the CPU.

    Raises:
        ConfigError: it cannot be loaded, or lacks weights.
    """
    try:
        model: nn.Module
        model, loaded = AutoModelForCausalLM.from_pretrained(source, dtype=dtype or "auto", output_loading_info=True)
    except Exception as error:  # each broken file breaks something else in there
        why = " ".join(str(error).split()) or type(error).__name__
        if "ignore_mismatched_sizes" in why:  # it says only that a report above says more
            why = "its weights have other shapes than its config.json says"
        raise ConfigError(f"the model {str(source)!r} cannot be loaded: {why}") from error
    missing = loaded["missing_keys"]
    if missing:
        raise ConfigError(
            f"the model {str(source)!r} lacks {len(missing)} weights, {min(missing)!r} among them: they would be "
            "random numbers"
        )
    return model.to(device or "cpu").eval()


def inspect_model(model: nn.Module, device: torch.device | None, context_length: int | None) -> ModelFacts:
    """Look at a module.

    Args:
        model: what should be a causal LM of transformers.
        device: where the user says that it is; None says nothing.
        context_length: None takes the config's `max_position_embeddings`.

    Raises:
        ConfigError: it is no such model, is elsewhere, or does not tell its context.
    """
    config = getattr(model, "config", None)
    embedding = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    if config is None or not isinstance(embedding, nn.Module):
        raise ConfigError(f"a model must be a causal LM of transformers, or a path to one, got {type(model).__name__}")
    found = next(model.parameters()).device
    if device is not None and device.type != found.type:
        raise ConfigError(f"the module is on {found}, not on {device}: move it before passing it")
    longest = context_length or getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if not isinstance(longest, int):
        raise ConfigError(f"the config of {type(model).__name__} has no max_position_embeddings: pass context_length")
    return ModelFacts(int(embedding.weight.shape[0]), longest, found)
