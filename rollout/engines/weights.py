"""Loading new weights into a module, all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from toolgym.tools.errors import ConfigError, nearest
from toolgym.tools.lazy import missing_extra

try:
    import torch
    from torch import nn
except ImportError as error:
    raise missing_extra("rollout", "The embedded engine", error) from error

SHOWN = 5


def collect_weights(source: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Read a whole source, so that a source that fails half-way changes nothing."""
    weights: dict[str, torch.Tensor] = {}
    for entry in source.items() if isinstance(source, Mapping) else source:
        if not (
            isinstance(entry, tuple)
            and len(entry) == 2
            and isinstance(entry[0], str)
            and isinstance(entry[1], torch.Tensor)
        ):
            raise ConfigError(f"weights must be (name, tensor) pairs, got {entry!r:.80}")
        name, tensor = entry
        if name in weights:
            raise ConfigError(f"weight {name!r} comes twice")
        weights[name] = tensor
    return weights


def check_weights(module: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Make sure that `weights` are exactly the module's parameters and persistent buffers. Of tied tensors (an
    embedding that is also the output layer) one name is enough, as in saved checkpoints."""
    current: dict[str, torch.Tensor] = module.state_dict()
    unknown = [name for name in weights if name not in current]
    if unknown:
        hint = nearest(unknown[0], current)
        raise ConfigError(f"the model has no weight {_listed(unknown)}{hint}")
    tied: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in current.items():
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else (name,)
        tied.setdefault(identity, []).append(name)
    missing = [names[0] for names in tied.values() if not any(name in weights for name in names)]
    if missing:
        raise ConfigError(f"the new weights lack {_listed(missing)}")
    for name, tensor in weights.items():
        if tensor.shape != current[name].shape:
            raise ConfigError(f"weight {name!r} must have shape {list(current[name].shape)}, got {list(tensor.shape)}")
        if tensor.is_meta:
            raise ConfigError(f"weight {name!r} is a meta tensor: it has no data")
        if tensor.is_floating_point() != current[name].is_floating_point():
            raise ConfigError(f"weight {name!r} must be of a kind with {current[name].dtype}, got {tensor.dtype}")
    for names in tied.values():
        first, *others = (name for name in names if name in weights)
        for other in others:
            tensor, tied_one = weights[first], weights[other]
            if tensor is not tied_one and not torch.equal(tensor, tied_one.to(tensor)):
                raise ConfigError(f"weights {first!r} and {other!r} are one tensor in the model, but differ here")


def load_weights(module: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy checked weights into the module, in place: a learner that shares its tensors sees them too."""
    current: dict[str, torch.Tensor] = module.state_dict()
    with torch.no_grad():
        for name, tensor in weights.items():
            current[name].copy_(tensor)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(repr(name) for name in names[:SHOWN]) + more
