from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.runner.adaptive import Adaptive
from toolgym.rollout.runner.branching import Branching
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.keywords import named_fields
from toolgym.tools.parsers import Parser, get_parser


@named_fields
@dataclass(frozen=True, kw_only=True)
class RunConfig(EpisodeConfig):
    """The settings of a run, beside those of each of its episodes.

    Attributes:
        group_size: episodes per task.
        refills: how often an episode that the infrastructure broke off (its `stop_reason` is a failure that neither the
            policy nor the user is to blame for) is played again, with other sampling seeds. The failed attempts are in
            the log, in what observers hear, and in `RunCounts`.
        branching: where episodes branch into several continuations; None: nowhere. A branch is a member of its group on
            top of `group_size`.
        max_concurrent: most episodes in flight; each has an env of its own. A number, or `Adaptive`: then it follows
            how full the engine's KV cache is, if the engine tells it (SGLang does), and is 64 otherwise.
        max_generations: most requests that the engine works for at once. None: as many as the engine says that it
            generates at once, or any number.
        max_tool_calls: most tool calls at once, those of all episodes together. None: 1,024 for each processor.
        seed: the same seed and `training_step` give the same tasks, envs and sampling seeds. The members of a group
            have the same seed for their envs and different sampling seeds. None draws a seed for each run. The
            trajectories have it (`sampling["seed"]`) and that of each turn (`Turn.seed`), so that the run can be
            repeated; an engine may honour them or not.
        template_kwargs: further variables for the chat template.
        parser: how the model writes tool calls, by name (see `toolgym.tools.parsers.get_parser`) or as a function; None
            for what the chat template shows. `open_thinking:hermes` runs calls in thinking that never closes.
        processor: of images, for a vision-language model (`load_processor`); None: that beside the tokenizer.

    Raises:
        ConfigError: an argument is of the wrong kind or out of range, or a name is unknown.
        UnknownNameError: no parser or no argument has that name; names the nearest one.
    """

    group_size: int = 1
    refills: int = 0
    branching: Branching | None = None
    max_concurrent: int | Adaptive = field(default_factory=Adaptive)
    max_generations: int | None = None
    max_tool_calls: int | None = None
    seed: int | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    parser: str | Parser | None = None
    processor: ImageProcessor | None = None

    def seeded(self) -> Self:
        """Return this config with a seed: if it has none, with one that is drawn now."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(63))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sampling", "validation_sampling"):
            sampling = getattr(self, name)
            if sampling is not None and sampling.seed is not None:
                raise ConfigError(
                    f"{name}.seed belongs to one request, and a run derives one for each from its own: give "
                    f"RunConfig(seed={sampling.seed!r}) instead"
                )
        require_whole_number("group_size", self.group_size, at_least=1)
        require_whole_number("refills", self.refills, at_least=0)
        if not isinstance(self.branching, Branching | None):
            raise ConfigError(f"branching must be a Branching, such as Branching(at_turns(1)), got {self.branching!r}")
        if self.max_concurrent is None:
            raise ConfigError("max_concurrent must be Adaptive() or a whole number, at least 1, got None")
        if not isinstance(self.max_concurrent, Adaptive):
            require_whole_number("max_concurrent", self.max_concurrent, at_least=1)
        for name in ("max_generations", "max_tool_calls"):
            if getattr(self, name) is not None:
                require_whole_number(name, getattr(self, name), at_least=1)
        if not isinstance(self.seed, int | None) or isinstance(self.seed, bool):
            raise ConfigError(f"seed must be a whole number or None, got {self.seed!r}")
        if not isinstance(self.template_kwargs, Mapping):
            raise ConfigError(f"template_kwargs must map names to values, got {self.template_kwargs!r}")
        if isinstance(self.parser, str):
            get_parser(self.parser)
        elif self.parser is not None and not callable(self.parser):
            raise ConfigError(f"parser must be a parser's name or a function, got {self.parser!r}")
        if not isinstance(self.processor, ImageProcessor | None):
            raise ConfigError(f"processor must be an ImageProcessor, as load_processor gives, got {self.processor!r}")
