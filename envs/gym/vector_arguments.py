"""Checks of a vector env's arguments, which raise `ConfigError`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from toolgym.tools.errors import ConfigError

Flags: TypeAlias = npt.NDArray[np.bool_]


def seeds_of(seed: int | Sequence[int | None] | None, num_envs: int) -> Sequence[int | None]:
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + index for index in range(num_envs)]
    value: object = seed
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"seed must be a whole number, a sequence of one per env, or None, got {seed!r}")
    if len(seed) != num_envs:
        raise ConfigError(f"expected one seed per env, {num_envs}, got {len(seed)}")
    return seed


def reset_mask_of(mask: object, num_envs: int) -> Flags:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ConfigError(
            f"options['reset_mask'] must be a NumPy array of bool with shape ({num_envs},) and at least one True, "
            f"got {mask!r}"
        )
    return mask


def actions_of(actions: Iterable[str], count: int) -> list[str]:
    if isinstance(actions, str) or not isinstance(actions, Iterable):
        raise ConfigError(f"expected {count} actions, one text per env, got {actions!r}")
    texts = list(actions)
    if len(texts) != count:
        raise ConfigError(f"expected {count} actions, one text per env, got {len(texts)}")
    return texts


def env_ids_of(env_ids: npt.ArrayLike, num_envs: int) -> list[int]:
    ids = np.asarray(env_ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids) or ids.min() < 0 or ids.max() >= num_envs:
        raise ConfigError(f"env_ids must be whole numbers from 0 to {num_envs - 1}, at least one, got {env_ids!r}")
    if len(set(ids.tolist())) < len(ids):
        raise ConfigError(f"env_ids must each come once, got {env_ids!r}")
    return list(map(int, ids))
