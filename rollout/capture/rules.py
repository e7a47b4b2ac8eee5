"""`CaptureRules`: rules of a captured episode that no other episode has."""

from __future__ import annotations

from dataclasses import dataclass

from toolgym.tools.errors import ConfigError
from toolgym.tools.keywords import named_fields

AGENTS_SAMPLING = ("temperature", "top_p", "top_k")


@named_fields
@dataclass(frozen=True, kw_only=True)
class CaptureRules:
    """Rules of a captured episode.

    Attributes:
        max_calls: most calls that are answered; None: any number. The next one gets 410.
        agents_sampling: of `temperature`, `top_p` and `top_k` those that the agent may set. Others of its wishes are
            counted and not followed.
        untrained: causes of sequences (`side_call`, `compaction`, `sub_agent`, ...) and states of answers (`retracted`)
            that are left out of the trajectory, and counted.
        refuse_long_prompts: a prompt that is too long gets 400, upon which many agents compact their context; else an
            empty answer that was cut by its length.
    """

    max_calls: int | None = None
    agents_sampling: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ("side_call",)
    refuse_long_prompts: bool = False

    def __post_init__(self) -> None:
        if self.max_calls is not None and not self.max_calls > 0:
            raise ConfigError(f"max_calls must be at least 1 or None, got {self.max_calls!r}")
        for name in self.agents_sampling:
            if name not in AGENTS_SAMPLING:
                raise ConfigError(f"agents_sampling may name {', '.join(AGENTS_SAMPLING)}, got {name!r}")
