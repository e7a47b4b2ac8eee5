"""`RunConfig`: how a run is played."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from toolgym.rollout.episode_config import EpisodeConfig
from toolgym.tools.errors import ConfigError, named_fields, require_whole_number
from toolgym.tools.parsers import Parser, get_parser


@named_fields
@dataclass(frozen=True, kw_only=True)
class RunConfig(EpisodeConfig):
    """How a run is played, beside what `EpisodeConfig` says of each of its episodes.

    Attributes:
        group_size: episodes per task.
        max_concurrent: most episodes in flight; each has an env of its own.
        seed: the same seed and `training_step` give the same tasks, envs and sampling seeds, another step gives others.
            None draws a seed for each run. The seed of the run and that of each turn are in the trajectory
            (`sampling["seed"]`, `Turn.seed`), so that the run can be repeated; an engine may honour them or not.
        template_kwargs: further variables for the chat template.
        parser: how the model writes tool calls, by name (see `toolgym.tools.parsers.get_parser`) or as a function; None
            for what the chat template shows.

    Raises:
        ConfigError: an argument is of the wrong kind or out of range, or a name is unknown.
        UnknownNameError: no parser or no argument has that name; names the nearest one.
    """

    group_size: int = 1
    max_concurrent: int = 64
    seed: int | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    parser: str | Parser | None = None

    def seeded(self) -> Self:
        """This config with a seed: where it has none, with one that is drawn now."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(63))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling.seed is not None:
            raise ConfigError(
                "sampling.seed belongs to one request, and a run derives one for each from its own: give "
                f"RunConfig(seed={self.sampling.seed!r}) instead"
            )
        require_whole_number("group_size", self.group_size, at_least=1)
        require_whole_number("max_concurrent", self.max_concurrent, at_least=1)
        if not isinstance(self.seed, int | None) or isinstance(self.seed, bool):
            raise ConfigError(f"seed must be a whole number or None, got {self.seed!r}")
        if not isinstance(self.template_kwargs, Mapping):
            raise ConfigError(f"template_kwargs must map names to values, got {self.template_kwargs!r}")
        if isinstance(self.parser, str):
            get_parser(self.parser)
        elif self.parser is not None and not callable(self.parser):
            raise ConfigError(f"parser must be a parser's name or a function, got {self.parser!r}")
