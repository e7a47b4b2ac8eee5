"""The players of the roles of an env in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolgym.envs.roles.base import RolesEnv, require_roles
from toolgym.rollout.engines.base import Engine, SamplingParams, require_tokenizer
from toolgym.rollout.limits import EpisodeLimits
from toolgym.tools.errors import ConfigError
from toolgym.tools.keywords import named_fields

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from toolgym.rollout.episode.config import EpisodeConfig


@named_fields
@dataclass(frozen=True, kw_only=True)
class RolePlan:
    """The player of a role in a run.

    Attributes:
        engine: samples its turns; started, and the caller's to close. For a `RayRunner` what that takes as its engine,
            of which each worker makes its own. None: the run's.
        tokenizer: of the model that `engine` serves; None: the engine's.
        sampling: how to sample them, also when the run validates; None: as the run's config says.
        limits: budgets and deadlines of its episode; None: the config's.
        train: whether a run gives out its trajectory. One that is not trained is an opponent: neither the consumer nor
            the sinks nor observers hear of it.

    Raises:
        ConfigError: an argument is of the wrong kind.
    """

    engine: Engine | Any = None
    tokenizer: PreTrainedTokenizerBase | None = None
    sampling: SamplingParams | None = None
    limits: EpisodeLimits | None = None
    train: bool = True

    def __post_init__(self) -> None:
        kinds = {"sampling": SamplingParams, "limits": EpisodeLimits}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind | None):
                raise ConfigError(f"{name} of a RolePlan must be {kind.__name__} or None, got {getattr(self, name)!r}")
        if not isinstance(self.train, bool):
            raise ConfigError(f"train of a RolePlan must be True or False, got {self.train!r}")
        if isinstance(self.engine, Engine):
            require_tokenizer(self.tokenizer, self.engine)
        elif self.engine is None and self.tokenizer is not None:
            raise ConfigError("tokenizer of a RolePlan belongs to its engine: give both, or neither")

    def tokenizer_in_use(self, default: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        return default if self.engine is None else require_tokenizer(self.tokenizer, self.engine)

    def config(self, config: EpisodeConfig) -> EpisodeConfig:
        """The config of a run as it holds for this role."""
        if self.sampling is not None:
            config = replace(config, sampling=self.sampling, validation_sampling=None)
        return config if self.limits is None else replace(config, limits=self.limits)


def plan_of(role: str, plans: Mapping[str, RolePlan]) -> RolePlan:
    return plans.get(role, _DEFAULT)


def roles_label(roles: Sequence[str]) -> dict[str, str]:
    """Return the trained roles of a run as one of its settings (see `run_settings`); none of an env without roles."""
    return {"roles": " ".join(roles)} if roles else {}


def labelled_roles(settings: Mapping[str, str]) -> set[str]:
    """Return the roles that a trajectory's settings name."""
    return {*settings.get("roles", "").split()}


def trained_roles(env: RolesEnv, plans: Mapping[str, RolePlan]) -> tuple[str, ...]:
    """Return the roles of which each job gives a trajectory. Raises `ConfigError` if plans and env do not fit."""
    roles = require_roles(env)
    if unknown := sorted({*plans} - {*roles}):
        raise ConfigError(f"there is no role {unknown[0]!r} to plan for; the env's roles are {', '.join(roles)}")
    trained = tuple(role for role in roles if plan_of(role, plans).train)
    if not trained:
        raise ConfigError("no role is trained, so a run would give out nothing: leave train=False away from one")
    return trained


_DEFAULT = RolePlan()
