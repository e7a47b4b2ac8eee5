"""`LoopOptions` and `ManagerOptions`: our settings in verl's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.tokens.context_policies import read_context
from toolgym.tools.errors import ConfigError, named_fields, require_whole_number


@named_fields
@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Settings of the agent loop.

    Attributes:
        env: the env's id; `"package.module:MyEnv-v0"` imports the module that registers it.
        env_kwargs: for `toolgym.make`.
        max_turn_tokens: most tokens of one turn; None: verl's `rollout.response_length`.
        history: what the policy sees of its earlier turns, `append` or `template`; see `HistoryMode`. `template` may
            give a trajectory several sequences, which only the V1 trainer can take.
        context: a context policy or several, by their names, see `read_context`. One that revises messages
            may give a trajectory several sequences, too.
        on_truncated_turn: what becomes of a turn that was cut, `end` or `close`; see `TruncationPolicy`.
        limits: deadlines and `max_resumes` of `EpisodeLimits`. The numbers of tokens are verl's `rollout.prompt_length`
            and `rollout.response_length`.
        parser: how the model writes tool calls; None: what the chat template shows. `open_thinking:hermes` runs calls
            in thinking that never closes, as verl's own parser does.
        template_kwargs: further variables for the chat template, beside `data.apply_chat_template_kwargs`.
        failed: what becomes of an episode that failed: `mask` (a row whose mask is 0), or `drop` (no row; the V1
            trainer only).

    Raises:
        ConfigError: a value is of the wrong kind or unknown.
        UnknownArgumentError: there is no such option; names the nearest one.
    """

    env: str = "CodeInterpreter-v0"
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_turn_tokens: int | None = None
    history: Literal["append", "template"] = "append"
    context: Any = ()
    on_truncated_turn: str = "end"
    limits: Mapping[str, Any] = field(default_factory=dict)
    parser: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    failed: Literal["mask", "drop"] = "mask"

    def __post_init__(self) -> None:
        if not isinstance(self.env, str):
            raise ConfigError(f"env must be an env's id, got {self.env!r}")
        for name in ("env_kwargs", "limits", "template_kwargs"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"{name} must map names to values, got {getattr(self, name)!r}")
        if self.max_turn_tokens is not None:
            require_whole_number("max_turn_tokens", self.max_turn_tokens, at_least=1)
        if self.failed not in ("mask", "drop"):
            raise ConfigError(f"failed must be 'mask' or 'drop', got {self.failed!r}")
        for name in ("max_prompt_tokens", "max_response_tokens"):
            if name in self.limits:
                raise ConfigError(
                    f"limits: {name} is verl's to say, as rollout.{name.split('_')[1]}_length; take it out"
                )
        EpisodeLimits(**self.limits)
        object.__setattr__(self, "context", read_context(self.context))

    @property
    def several_sequences(self) -> bool:
        """Whether an episode may have several token sequences."""
        return not EpisodeConfig(history=self.history, context=self.context).one_sequence


@named_fields
@dataclass(frozen=True, kw_only=True)
class ManagerOptions:
    """Settings of `ToolgymManager`.

    Attributes:
        workers_per_node: processes that play episodes on each node. Each has a sandbox of its own.
        max_concurrent: most episodes that one of them plays at once; the others wait for their turn.
        attempts: how often an episode is played, in all, while it fails.

    Raises:
        ConfigError: a number is not a whole one of at least 1.
        UnknownArgumentError: there is no such option; names the nearest one.
    """

    workers_per_node: int = 1
    max_concurrent: int = 256
    attempts: int = 2

    def __post_init__(self) -> None:
        for name in ("workers_per_node", "max_concurrent", "attempts"):
            require_whole_number(name, getattr(self, name), at_least=1)
