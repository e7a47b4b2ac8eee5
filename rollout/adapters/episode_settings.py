"""A trainer's configuration of an episode as a `RunConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.tokens.context_policies import read_context
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.keywords import named_fields

_ALL_TOKENS = 10**8
"""From this on AReaL's `top_k` keeps all tokens."""


@named_fields
@dataclass(frozen=True, kw_only=True)
class EpisodeSettings:
    """Settings of episodes, for trainers whose settings are plain data; raises ConfigError if one cannot be used.

    Attributes:
        env: the env's id; `"package.module:MyEnv-v0"` imports the module that registers it.
        env_kwargs: for `toolgym.make`.
        max_new_tokens: most tokens of one turn; None: as many as the trainer allows a whole response.
        limits: further `EpisodeLimits`, by name.
        history: see `HistoryMode`; `template` may give a trajectory several sequences.
        context: see `read_context`; a policy that revises messages may give several sequences, too.
        on_truncated_turn: see `TruncationPolicy`.
        template_kwargs: further variables for the chat template, beside the trainer's own.
        parser: how the model writes tool calls; None: as the chat template shows. `open_thinking:hermes` runs calls in
            thinking that never closes, as verl's own parser does.
    """

    env: str = ""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    history: Literal["append", "template"] = "append"
    context: Any = ()
    on_truncated_turn: Literal["end", "close"] = "end"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    parser: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.env, str):
            raise ConfigError(f"the setting env must be an env id, got {self.env!r}")
        for name in ("env_kwargs", "limits", "template_kwargs"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"the setting {name} must map names to values, got {getattr(self, name)!r}")
        if self.max_new_tokens is not None:
            require_whole_number("max_new_tokens", self.max_new_tokens, at_least=1)
        object.__setattr__(self, "context", read_context(self.context))
        self.run_config()

    def run_config(
        self,
        sampling: Mapping[str, Any] | None = None,
        *,
        response_tokens: int | None = None,
        limits: Mapping[str, Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **further: Any,
    ) -> RunConfig:
        """Return the configuration of an episode; raises ConfigError if a value is out of range.

        `response_tokens` bounds all behind the prompt, and the trainer's own `limits` take precedence. `further` is
        `RunConfig`'s.
        """
        bounds = {**self.limits, **(limits or {})}
        if response_tokens is not None:
            bounds["max_response_tokens"] = min(response_tokens, bounds.get("max_response_tokens") or response_tokens)
            turn_tokens = min(response_tokens, self.max_new_tokens or response_tokens)
            further["sampling"] = sampling_from(sampling or {}, turn_tokens)
        return RunConfig(
            limits=EpisodeLimits(**bounds),
            history=self.history,
            context=self.context,
            on_truncated_turn=self.on_truncated_turn,
            template_kwargs={**(template_kwargs or {}), **self.template_kwargs},
            parser=self.parser,
            **further,
        )


def sampling_from(values: object, max_new_tokens: int) -> SamplingParams:
    """Read a trainer's sampling parameters: a mapping or an object with the names of vLLM and SGLang.

    A `top_k` of 0 or of AReaL's 10^8 keeps all tokens. Raises ConfigError if a value is out of range.
    """

    def value(name: str, default: Any) -> Any:
        setting = values.get(name) if isinstance(values, Mapping) else getattr(values, name, None)
        return default if setting is None else setting

    stop = value("stop", ())
    top_k = value("top_k", -1)
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=value("temperature", 1.0),
        top_p=value("top_p", 1.0),
        top_k=top_k if 0 < top_k < _ALL_TOKENS else -1,
        min_p=value("min_p", 0.0),
        stop_token_ids=tuple(value("stop_token_ids", ())),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )
