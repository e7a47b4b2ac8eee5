"""Loading a causal language model, and what the embedded engine must know of one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from toolgym.rollout.models.hub import require_on_hub, why_not_loaded
from toolgym.tools.errors import ConfigError, nearest
from toolgym.tools.lazy import missing_extra

try:
    import torch
    from torch import nn
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
except ImportError as error:
    raise missing_extra("rollout", "The embedded engine", error) from error


class ModelFacts(NamedTuple):
    vocab_size: int
    context_length: int
    device: torch.device


def read_device(device: str | torch.device | None) -> torch.device | None:
    if device is None:
        return None
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device must be one of torch's, such as 'cpu', 'cuda' or 'cuda:1', got {device!r}"
            f"{nearest(str(device), ['cpu', 'cuda', 'mps', 'xpu'])}"
        ) from error


def read_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or dtype == "auto":
        return None
    torch_dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        names = ["bfloat16", "float16", "float32", "float64"]
        raise ConfigError(
            f"dtype must be 'auto' (the checkpoint's) or one of torch's, such as {', '.join(names)}, got "
            f"{dtype!r}{nearest(str(dtype), names)}"
        )
    return torch_dtype


def _require_there(device: torch.device) -> None:
    """Find out before gigabytes are loaded."""
    try:
        torch.empty(0, device=device)
    except Exception as error:  # each backend has errors of its own
        why = str(error).partition("\n")[0]
        count = torch.cuda.device_count()
        gpus = f"sees {count} CUDA {'GPU' if count == 1 else 'GPUs'}" if count else "sees no CUDA GPU"
        raise ConfigError(
            f"the device {str(device)!r} cannot be used here, where torch {torch.__version__} {gpus}: {why}"
        ) from error


def load_model(source: str | Path, dtype: torch.dtype | None, device: torch.device | None) -> nn.Module:
    if device is not None:
        _require_there(device)
    require_on_hub(source)
    try:
        model: nn.Module
        sees = type(AutoConfig.from_pretrained(source)) in AutoModelForImageTextToText._model_mapping
        kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        model, loaded = kind.from_pretrained(source, dtype=dtype or "auto", output_loading_info=True)
    except Exception as error:  # each broken file breaks something else in there
        why = why_not_loaded(source, error)
        if "ignore_mismatched_sizes" in why:  # it says only that a report above says more
            why = "its weights have other shapes than its config.json says"
        raise ConfigError(f"the model {str(source)!r} cannot be loaded: {why}") from error
    missing = loaded["missing_keys"]
    if missing:
        raise ConfigError(
            f"the model {str(source)!r} lacks {len(missing)} weights, {min(missing)!r} among them: they would be "
            "random numbers"
        )
    try:
        return model.to(device or "cpu").eval()
    except RuntimeError as error:  # its memory is too small
        raise ConfigError(f"the model {str(source)!r} cannot be put on {str(device)!r}: {error}") from error


def inspect_model(model: nn.Module, device: torch.device | None, context_length: int | None) -> ModelFacts:
    config = getattr(model, "config", None)
    embedding = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    if config is None or not isinstance(embedding, nn.Module):
        raise ConfigError(f"a model must be a causal LM of transformers, or a path to one, got {type(model).__name__}")
    model_device = next(model.parameters()).device
    if device is not None and device.type != model_device.type:
        raise ConfigError(f"the module is on {model_device}, not on {device}: move it before passing it")
    longest = context_length or getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if not isinstance(longest, int):
        raise ConfigError(f"the config of {type(model).__name__} has no max_position_embeddings: pass context_length")
    return ModelFacts(int(embedding.weight.shape[0]), longest, model_device)
