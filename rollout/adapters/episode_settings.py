"""A trainer's configuration of an episode as a `RunConfig`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.tokens.context_policies import read_context
from toolgym.rollout.trajectory.distribution import SamplingDistribution
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


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "repetition_penalty": (1, 1.0),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "logit_bias": ({},),
    "min_tokens": (0, 1),  # vLLM's name; every turn has a token
    "min_new_tokens": (0, 1),  # SGLang's
    "ignore_eos": (False,),
    "bad_words": ([], ()),
    "allowed_token_ids": (),
    "logits_processors": ([], ()),
    "typical_p": (1, 1.0),
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
}
"""Further sampling parameters of trainers, each with the values that change nothing. None changes nothing either.

Others would change the distribution after the logits, so that neither `SamplingParams` nor a trainer's loss could know
the log-probabilities; or they would end turns where no turn ends.
"""


def require_neutral(values: object) -> None:
    """Raise ConfigError if sampling parameters change the distribution in a way that no loss accounts for."""
    for name, neutral in NEUTRAL.items():
        setting = _setting(values, name)
        if setting is not None and setting not in neutral:
            raise ConfigError(
                f"the trainer's sampling has {name}={setting!r}, which its loss does not account for, so importance "
                f"ratios would not begin at 1 or turns would not end: leave {name} out. An episode is sampled by "
                "temperature, top_p, top_k and min_p"
            )


def _setting(values: object, name: str) -> Any:
    return values.get(name) if isinstance(values, Mapping) else getattr(values, name, None)


def require_same_temperature(
    trainer: str, sampling: SamplingParams, temperature: float | None, sampled_by: str, trained_by: str
) -> None:
    """Raise ConfigError if a trainer samples at one temperature and divides logits by another.

    Args:
        trainer: name of the trainer, for the error.
        sampling: how episodes are sampled.
        temperature: what the trainer divides logits by; None if nothing is trained.
        sampled_by: name of the setting of the sampling.
        trained_by: name of the setting of the training.
    """
    scale = SamplingDistribution(sampling.temperature).scale
    if temperature is not None and not math.isclose(scale, temperature, rel_tol=1e-6):
        raise ConfigError(
            f"{trainer} samples at {sampled_by}={sampling.temperature:g} and computes log-probabilities at "
            f"{trained_by}={temperature:g}, so importance ratios would not begin at 1: set both to one value, and give "
            "it here as temperature=..."
        )


def sampling_from(values: object, max_new_tokens: int) -> SamplingParams:
    """Read a trainer's sampling parameters: a mapping or an object with the names of vLLM and SGLang.

    A `top_k` of 0 or of AReaL's 10^8 keeps all tokens. Raises ConfigError if a value is out of range, or a parameter
    such as a penalty is set that changes the distribution in another way, see `NEUTRAL`.
    """
    require_neutral(values)

    def value(name: str, default: Any) -> Any:
        setting = _setting(values, name)
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
