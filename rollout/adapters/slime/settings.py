"""Settings of an episode from slime's arguments and a sample, and their checks, which raise ConfigError."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.episode_settings import EpisodeSettings
from toolgym.rollout.adapters.task_rows import labelled_task
from toolgym.rollout.endpoint import ENV_VARIABLE
from toolgym.rollout.runner.config import RunConfig
from toolgym.tools.errors import ConfigError, shorten

if TYPE_CHECKING:
    from argparse import Namespace

    from slime.utils.types import Sample

_GROUP_ESTIMATORS = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_HOOKS = "toolgym.rollout.adapters.slime"


def settings_of(args: Namespace, sample: Sample) -> EpisodeSettings:
    """Read the settings `toolgym` of the file that `--custom-config-path` names.

    The sample's metadata `env_id` and `env_kwargs` come before `args.toolgym`, and that before `TOOLGYM_ENV`.
    """
    settings = getattr(args, "toolgym", None) or {}
    if isinstance(settings, str):
        settings = {"env": settings}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"args.toolgym must be an env id or a mapping of settings, got {shorten(repr(settings))}")
    metadata = sample.metadata or {}
    if metadata.get("env_id") is not None:
        settings = {**settings, "env": metadata["env_id"], "env_kwargs": metadata.get("env_kwargs") or {}}
    elif "env" not in settings and ENV_VARIABLE in os.environ:
        settings = {**settings, "env": os.environ[ENV_VARIABLE]}
    if "env" not in settings:
        raise ConfigError(
            "which env? Write `toolgym: {env: CodeInterpreter-v0}` into the file of --custom-config-path, set "
            f"{ENV_VARIABLE}, or give each row's metadata an env_id"
        )
    return EpisodeSettings(**settings)


def run_config(
    settings: EpisodeSettings, args: Namespace, sampling_params: Mapping[str, Any], evaluation: bool
) -> RunConfig:
    return settings.run_config(
        sampling_params,
        response_tokens=sampling_params["max_new_tokens"],
        limits={"max_resumes": 0},  # what slime aborts, it wants back
        template_kwargs=getattr(args, "apply_chat_template_kwargs", None),
        seed=getattr(args, "rollout_seed", None),
        validate=evaluation,
    )


def task_of(args: Namespace, sample: Sample) -> Task:
    """Return the task of a sample: its prompt, its label (see `labelled_task`), and its metadata as `extra_info`."""
    if getattr(args, "apply_chat_template", False):
        raise ConfigError(
            "leave --apply-chat-template out: the prompt is rendered here, with the env's tools, and slime would have "
            "rendered it before"
        )
    if any(value is not None for value in (sample.multimodal_inputs or {}).values()):
        raise ConfigError(f"sample {sample.index} has images or other media, which the episode would not see")
    metadata = sample.metadata or {}
    return labelled_task(
        sample.prompt,
        sample.label,
        data_source=metadata.get("data_source") or "",
        extra_info={name: value for name, value in metadata.items() if name != "toolgym"},
    )


def require_usable(args: Namespace, evaluation: bool) -> None:
    """Check the arguments that would make slime score a failed episode, or a reward twice."""
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
    """Check that slime can take lists of samples if episodes may have several, and that all episodes of a run do."""
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
