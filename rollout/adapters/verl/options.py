"""`LoopOptions` and `ManagerOptions`: our settings in verl's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolgym.rollout.adapters.episode_settings import EpisodeSettings
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.keywords import named_fields


@named_fields
@dataclass(frozen=True, kw_only=True)
class LoopOptions(EpisodeSettings):
    """Settings of the agent loop, beside `EpisodeSettings`.

    `limits` are deadlines and `max_resumes`: the numbers of tokens are verl's `rollout.prompt_length` and
    `rollout.response_length`. Only the V1 trainer takes several sequences of a trajectory. An episode that `failed` is
    a row whose mask is 0 (`mask`), or, for the V1 trainer, no row (`drop`).
    """

    env: str = "CodeInterpreter-v0"
    failed: Literal["mask", "drop"] = "mask"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.failed not in ("mask", "drop"):
            raise ConfigError(f"failed must be 'mask' or 'drop', got {self.failed!r}")
        for name in ("max_prompt_tokens", "max_response_tokens"):
            if name in self.limits:
                raise ConfigError(
                    f"limits: {name} is verl's to say, as rollout.{name.split('_')[1]}_length; take it out"
                )

    @property
    def several_sequences(self) -> bool:
        return not self.run_config().one_sequence


@named_fields
@dataclass(frozen=True, kw_only=True)
class ManagerOptions:
    """Settings of `ToolgymManager`.

    Each of `workers_per_node` processes has a sandbox of its own, and plays `max_concurrent` episodes at once. An
    episode that fails is played `attempts` times in all.
    """

    workers_per_node: int = 1
    max_concurrent: int = 256
    attempts: int = 2

    def __post_init__(self) -> None:
        for name in ("workers_per_node", "max_concurrent", "attempts"):
            require_whole_number(name, getattr(self, name), at_least=1)
