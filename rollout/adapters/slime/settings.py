"""What slime's arguments and a sample say about the episode to play."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolgym.envs.tasks.task import Task
from toolgym.rollout.endpoint import ENV_VARIABLE
from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.tokens.context_policies import read_context
from toolgym.tools.errors import ConfigError, named_fields, require_whole_number, shorten

if TYPE_CHECKING:
    from argparse import Namespace

    from slime.utils.types import Sample

_GROUP_ESTIMATORS = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_HOOKS = "toolgym.rollout.adapters.slime"


@named_fields
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The mapping `toolgym` in the file that `--custom-config-path` names.

    Attributes:
        env: an env id.
        env_kwargs: for `toolgym.make`.
        max_new_tokens: most tokens of one turn; None: all that `--rollout-max-response-len` leaves, which is the bound
            of the whole response, the env's tokens included.
        limits: further `EpisodeLimits`, by name.
        history: see `EpisodeConfig`.
        context: context policies, see `read_context`.
        on_truncated_turn: see `EpisodeConfig`.
        template_kwargs: further variables for the chat template, beside slime's `--apply-chat-template-kwargs`.
        parser: see `RunConfig`.

    Raises:
        ConfigError: a value is of the wrong kind.
        UnknownArgumentError: there is no such setting; names the nearest one.
    """

    env: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    history: Any = "append"
    context: Any = ()
    on_truncated_turn: Any = "end"
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

    @classmethod
    def of(cls, args: Namespace, sample: Sample) -> Settings:
        """Read them: the sample's metadata `env_id` and `env_kwargs`, before `args.toolgym`, before `TOOLGYM_ENV`.

        Raises:
            ConfigError: none of them names an env, or one is of the wrong kind.
        """
        given = getattr(args, "toolgym", None) or {}
        if isinstance(given, str):
            given = {"env": given}
        if not isinstance(given, Mapping):
            raise ConfigError(f"args.toolgym must be an env id or a mapping of settings, got {shorten(repr(given))}")
        metadata = sample.metadata or {}
        if metadata.get("env_id") is not None:
            given = {**given, "env": metadata["env_id"], "env_kwargs": metadata.get("env_kwargs") or {}}
        elif "env" not in given and ENV_VARIABLE in os.environ:
            given = {**given, "env": os.environ[ENV_VARIABLE]}
        if "env" not in given:
            raise ConfigError(
                "which env? Write `toolgym: {env: CodeInterpreter-v0}` into the file of --custom-config-path, set "
                f"{ENV_VARIABLE}, or give each row's metadata an env_id"
            )
        return cls(**given)

    def run_config(self, args: Namespace, sampling_params: Mapping[str, Any], evaluation: bool) -> RunConfig:
        """How the episode is played.

        Raises:
            ConfigError: a value is of the wrong kind or out of range, or slime asks for stop strings.
        """
        if sampling_params.get("stop"):
            raise ConfigError(
                f"stop strings end a turn in the middle of its tokens, got {sampling_params['stop']!r}: leave "
                "--rollout-stop and the eval set's stop out, or use token ids (--rollout-stop-token-ids)"
            )
        budget = sampling_params["max_new_tokens"]
        own = dict(self.limits)
        own["max_response_tokens"] = min(budget, own.get("max_response_tokens") or budget)
        own["max_resumes"] = 0  # what slime aborts, it wants back
        top_k = sampling_params.get("top_k")
        return RunConfig(
            sampling=SamplingParams(
                max_new_tokens=min(budget, self.max_new_tokens or budget),
                temperature=sampling_params.get("temperature", 1.0),
                top_p=sampling_params.get("top_p", 1.0),
                top_k=-1 if top_k is None else top_k,
                min_p=sampling_params.get("min_p") or 0.0,
                stop_token_ids=tuple(sampling_params.get("stop_token_ids") or ()),
            ),
            limits=EpisodeLimits(**own),
            history=self.history,
            context=read_context(self.context),
            on_truncated_turn=self.on_truncated_turn,
            template_kwargs={**(getattr(args, "apply_chat_template_kwargs", None) or {}), **self.template_kwargs},
            parser=self.parser,
            seed=getattr(args, "rollout_seed", None),
            validate=evaluation,
        )


def task_of(args: Namespace, sample: Sample) -> Task:
    """The task of a sample: its prompt's messages, its label as the ground truth, its metadata as `extra_info`.

    A label that is a mapping with a `ground_truth` is verl's `reward_model`.

    Raises:
        ConfigError: the prompt was rendered by slime already, has images, or is no task.
    """
    if getattr(args, "apply_chat_template", False):
        raise ConfigError(
            "leave --apply-chat-template out: the prompt is rendered here, with the env's tools, and slime would have "
            "rendered it before"
        )
    if any(value is not None for value in (sample.multimodal_inputs or {}).values()):
        raise ConfigError(f"sample {sample.index} has images or other media, which the episode would not see")
    prompt = sample.prompt
    label = sample.label
    scored = isinstance(label, Mapping) and "ground_truth" in label
    metadata = sample.metadata or {}
    return Task.from_row(
        {
            "prompt": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt,
            "reward_model": label if scored else {"ground_truth": label},
            "data_source": metadata.get("data_source") or "",
            "extra_info": {name: value for name, value in metadata.items() if name != "toolgym"},
        }
    )


def require_usable(args: Namespace, evaluation: bool) -> None:
    """Check the arguments that would make slime score a failed episode, or a reward twice.

    Raises:
        ConfigError: one is missing or does not go with rewards of the env.
    """
    for name in ("group_rm", "reward_key", "eval_reward_key" if evaluation else "reward_key"):
        if getattr(args, name, None):
            raise ConfigError(f"the env gives the reward, one number: leave --{name.replace('_', '-')} out")
    if evaluation:
        if getattr(args, "custom_eval_rollout_log_function_path", None) is None:
            raise ConfigError(
                "slime would count an episode that the infrastructure broke off as one with the reward 0: evaluate "
                f"with --custom-eval-rollout-log-function-path {_HOOKS}.log_eval_rollout, or a function of your own"
            )
    elif (
        getattr(args, "custom_reward_post_process_path", None) is None
        and getattr(args, "advantage_estimator", None) in _GROUP_ESTIMATORS
        and getattr(args, "rewards_normalization", False)
    ):
        raise ConfigError(
            "slime would count an episode that the infrastructure broke off, and one of several samples several times: "
            f"train with --custom-reward-post-process-path {_HOOKS}.post_process_rewards, or a function of your own"
        )


def require_same_shape(args: Namespace, several: bool, env: str) -> None:
    """Check that slime can take lists of samples where episodes may have several, and that all episodes of a run do.

    Raises:
        ConfigError: an argument lets slime look into such lists, or another episode gave no list where this one gives
            one.
    """
    if vars(args).setdefault("toolgym_several", several) != several:
        raise ConfigError(
            f"slime takes all episodes for what the first one is: {env!r} {'may' if several else 'cannot'} give "
            "several samples, other envs of this run not so: let all of them begin the context anew, or none"
        )
    if not several:
        return
    wanted = "episodes may have several samples (history, context, or an env that begins the context anew), and"
    if getattr(args, "partial_rollout", False):
        raise ConfigError(f"{wanted} slime keeps no half group of such: leave --partial-rollout out")
    name = getattr(args, "dynamic_sampling_filter_path", None)
    if name is not None and name.startswith("slime."):
        raise ConfigError(
            f"{wanted} {name} takes each for one sample: leave --dynamic-sampling-filter-path out, or give a function "
            "of your own, which gets a list of samples for each episode"
        )
