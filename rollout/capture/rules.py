"""`CaptureRules`: rules of a captured episode that no other episode has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from toolgym.rollout.capture.request_fields import TABLES
from toolgym.tools.errors import ConfigError, nearest
from toolgym.tools.keywords import named_fields

AGENTS_SAMPLING = ("temperature", "top_p", "top_k", "stop")

Formats = Literal["refuse", "follow", "ignore"]


@named_fields
@dataclass(frozen=True, kw_only=True)
class CaptureRules:
    """Rules of a captured episode.

    Attributes:
        max_calls: most calls that are answered; None for any number. The next call gets 410.
        agents_sampling: which of `temperature`, `top_p` and `top_k` the agent may set. Other sampling that it asks for
            is counted and not followed. Stop texts are always followed, unless `ignored` names them.
        formats: what becomes of a request for a format of the answer (`response_format`, `text.format`,
            `output_config.format`): `refuse` answers 400, `follow` samples under a grammar if the engine can, `ignore`
            counts it. A turn under a grammar is not sampled from the policy's own distribution, see `untrained`.
        ignored: names of request fields that are ignored and counted, where the gateway would follow or refuse them.
            The tables are in docs/capture.md.
        refused: names of request fields that are refused, where the gateway would ignore and count them, such as
            `tool_choice`.
        untrained: causes of sequences (`side_call`, `compaction`, `sub_agent`, ...) and states of answers (`retracted`,
            `constrained` for turns under a grammar) that are left out of the trajectory, and counted.
        refuse_long_prompts: answer 400 to a prompt that is too long, upon which many agents compact their context;
            otherwise the answer is empty and was cut by its length.
    """

    max_calls: int | None = None
    agents_sampling: tuple[str, ...] = ()
    formats: Formats = "refuse"
    ignored: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ("side_call", "constrained")
    refuse_long_prompts: bool = False

    def __post_init__(self) -> None:
        if self.max_calls is not None and not self.max_calls > 0:
            raise ConfigError(f"max_calls must be at least 1 or None, got {self.max_calls!r}")
        if self.formats not in get_args(Formats):
            raise ConfigError(f"formats must be one of {', '.join(get_args(Formats))}, got {self.formats!r}")
        for name in self.agents_sampling:
            if name not in AGENTS_SAMPLING:
                raise ConfigError(f"agents_sampling may name {', '.join(AGENTS_SAMPLING)}, got {name!r}")
        known = {name for table in TABLES.values() for name in table}
        for rule in ("ignored", "refused"):
            for name in getattr(self, rule):
                if name not in known:
                    raise ConfigError(f"{rule} names an unknown request field {name!r}{nearest(name, known)}")
