from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.limits import EpisodeLimits, HistoryMode, TruncationPolicy
from toolgym.rollout.tokens.context_policies import ContextPolicy
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.keywords import named_fields


@named_fields
@dataclass(frozen=True, kw_only=True)
class EpisodeConfig:
    """The settings of an episode.

    Attributes:
        sampling: how to sample each turn; `max_new_tokens` is the bound of one turn. The template's stop tokens are
            added to `stop_token_ids`.
        limits: budgets and deadlines.
        history: what the policy sees of its earlier turns, a `HistoryMode` or its name: `append` (what it generated) or
            `template` (what the chat template makes of it).
        on_truncated_turn: what becomes of a turn that was cut, a `TruncationPolicy` or its name: `end` (the episode) or
            `close` (the turn, and the episode goes on).
        context: a context policy or several, asked in this order; see `toolgym.rollout.tokens.context_policies`.
        training_step: recorded in the trajectories, counted from 0. Tasks and sampling seeds depend on it, so count it
            up in training.
        validate: whether the trajectories are recorded as validation, not as training.
        validation_sampling: in place of `sampling` if `validate` is set, such as a temperature of 0; None: `sampling`
            holds for both.

    Raises:
        ConfigError: an argument is of the wrong kind or out of range, or a name is unknown.
    """

    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(max_new_tokens=512))
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    history: HistoryMode | Literal["append", "template"] = HistoryMode.APPEND
    on_truncated_turn: TruncationPolicy | Literal["end", "close"] = TruncationPolicy.END
    context: ContextPolicy | Sequence[ContextPolicy] = ()
    training_step: int = 0
    validate: bool = False
    validation_sampling: SamplingParams | None = None

    def __post_init__(self) -> None:
        for name, kind in {"sampling": SamplingParams, "limits": EpisodeLimits, "validate": bool}.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name} must be of type {kind.__name__}, got {getattr(self, name)!r}")
        if not isinstance(self.validation_sampling, SamplingParams | None):
            raise ConfigError(f"validation_sampling must be SamplingParams or None, got {self.validation_sampling!r}")
        for name, names in (("history", HistoryMode), ("on_truncated_turn", TruncationPolicy)):
            if getattr(self, name) not in list(names):
                known = ", ".join(repr(member.value) for member in names)
                raise ConfigError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        if not isinstance(self.context, ContextPolicy | Sequence):
            raise ConfigError(f"context must be a context policy or a list of them, got {self.context!r}")
        for policy in self.context_policies:
            if not isinstance(policy, ContextPolicy):
                raise ConfigError(f"context must be context policies, got {policy!r}")
        require_whole_number("training_step", self.training_step, at_least=0)

    @property
    def sampling_in_use(self) -> SamplingParams:
        return self.validation_sampling if self.validate and self.validation_sampling is not None else self.sampling

    @property
    def context_policies(self) -> tuple[ContextPolicy, ...]:
        return (self.context,) if isinstance(self.context, ContextPolicy) else tuple(self.context)

    @property
    def one_sequence(self) -> bool:
        """Whether each episode has one token sequence, unless its env begins the context again."""
        return self.history == HistoryMode.APPEND and not any(policy.revises for policy in self.context_policies)


def require_one_sequence(config: EpisodeConfig, trainer: str) -> None:
    """Raise `ConfigError` if episodes may have several token sequences: the trainer takes one row of each."""
    if not config.one_sequence:
        revising = ", ".join(policy.name for policy in config.context_policies if policy.revises)
        raise ConfigError(
            f"{trainer} takes one row for each episode, so config.history must be 'append' and no policy of "
            f"config.context may rewrite what was read: got history={str(config.history)!r} and "
            f"context=[{revising}]"
        )
