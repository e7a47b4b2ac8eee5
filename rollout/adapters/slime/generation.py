"""`generate`: one episode of an env for slime's `--custom-generate-function-path`.

slime sends the turns: its own HTTP client, with its retries and its distribution over nodes, to its own router. What
slime aborts is not resumed here, for slime wants the sample back.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.episode_settings import EpisodeSettings
from toolgym.rollout.adapters.slime.samples import ADDRESS, Payloads, fill
from toolgym.rollout.adapters.task_rows import labelled_task
from toolgym.rollout.adapters.versions import needs_sources
from toolgym.rollout.endpoint import ENV_VARIABLE
from toolgym.rollout.engines.base import FinishReason, Generation, GenerationRequest
from toolgym.rollout.engines.sglang.aligned import RETURN_WEIGHTS, ROUTING_WEIGHTS
from toolgym.rollout.engines.sglang.messages import read_generation
from toolgym.rollout.episode.env_lifecycle import close_env
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.run_episode import run_episode
from toolgym.tools.errors import ConfigError, shorten

if TYPE_CHECKING:
    from argparse import Namespace

    from slime.utils.types import Sample

log = logging.getLogger("toolgym.rollout.adapters.slime")

_GROUP_ESTIMATORS = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_HOOKS = "toolgym.rollout.adapters.slime"
_checked: dict[tuple[str, str], bool] = {}


async def generate(
    args: Namespace, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play one episode, and return its sample. The env is `args.toolgym` (see `settings_of`).

    If episodes may have several token sequences, each gives a list of samples with one `rollout_id`: slime looks at the
    first element to see what all are. Otherwise none is a list, for slime's filters and partial rollouts look only into
    samples. A sample that the infrastructure broke off, or that slime aborted, comes back masked, with status
    `ABORTED`; the next call plays it from its beginning, for an env has no half episodes. `max_new_tokens` of
    `sampling_params` bounds the whole response. Raises ConfigError if the arguments, the sample or the env cannot be
    used.
    """
    with needs_sources("slime", ADDRESS, "an episode for slime"):
        from slime.rollout.sglang_rollout import GenerateState
    require_usable(args, evaluation)
    if not evaluation:
        require_groups(args)
    settings = settings_of(args, sample)
    config = settings.run_config(
        sampling_params,
        response_tokens=sampling_params["max_new_tokens"],
        limits={"max_resumes": 0},  # what slime aborts, it wants back
        template_kwargs=getattr(args, "apply_chat_template_kwargs", None),
        seed=getattr(args, "rollout_seed", None),
        validate=evaluation,
    )
    task = task_of(args, sample)
    factory = EnvFactory.of(settings.env, settings.env_kwargs)
    several = not config.one_sequence or await _replaces_context(factory, settings)
    if not evaluation:
        require_same_shape(args, several, settings.env)
    state = GenerateState(args)
    router = _Router(args, state, sample, sampling_params)
    trajectory = await run_episode(
        factory,
        task,
        router,
        tokenizer=state.tokenizer,
        context_length=_context_length(args, evaluation),
        config=config,
        task_index=sample.group_index or 0,
        sample_index=sample.index or 0,
        group_id=f"{'eval' if evaluation else 'train'}-{sample.group_index}",
    )
    if trajectory.error is not None:
        log.warning(
            "sample %s: %s: %s", sample.index, trajectory.stop_reason.value, shorten(trajectory.error.message)
        )  # fmt: skip
    samples = fill(
        sample,
        trajectory,
        state.tokenizer,
        router.payloads,
        temperature=None if evaluation else getattr(args, "rollout_temperature", None),
    )
    for meta in router.metas:
        sample.prefix_cache_info.add(meta)
        if getattr(args, "sglang_speculative_algorithm", None):
            sample.spec_info.add(meta)
    return samples if several else samples[0]


class _Router:
    """Generates an episode's turns by slime's router, and keeps the payloads and the counters of each answer."""

    def __init__(self, args: Namespace, state: Any, sample: Sample, sampling_params: dict[str, Any]) -> None:
        self._state = state
        self._sampling = sampling_params
        self._url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
        self._headers = None
        if sample.session_id and getattr(args, "router_policy", None) == "consistent_hashing":
            self._headers = {"X-SMG-Routing-Key": sample.session_id}
        self._seeded = bool(getattr(args, "sglang_enable_deterministic_inference", False))
        routed = getattr(args, "use_rollout_routing_replay", False)
        custom = sampling_params.get("custom_params") or {}
        weighted = wants_weights(args)
        self.payloads = Payloads(
            routing_shape=(args.num_layers, args.moe_router_topk) if routed else None,
            top_p=bool(custom.get("return_top_p_token_ids")),
            weighted=weighted,
        )
        self.metas: list[dict[str, Any]] = []

    async def __call__(self, request: GenerationRequest) -> Generation:
        from slime.utils.http_utils import post

        if self._state.aborted:
            return Generation((), (), FinishReason.ABORT, ())
        answer = await post(self._url, self._body(request), headers=self._headers)
        generation = read_generation(answer, request.params)
        meta = answer["meta_info"]
        if generation.finish_reason is not FinishReason.ABORT:
            self.payloads.add(request.prompt_ids, generation, meta)
            self.metas.append({name: value for name, value in meta.items() if type(value) is int})
        return generation

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        params = request.params
        sampling = {
            **self._sampling,
            "max_new_tokens": params.max_new_tokens,
            "stop_token_ids": list(params.stop_token_ids),
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        sampling.pop("sampling_seed", None)  # the same in all turns; each has one of its own, derived from the run's
        if self._seeded and params.seed is not None:
            sampling["sampling_seed"] = params.seed
        body = {"input_ids": list(request.prompt_ids), "sampling_params": sampling, "return_logprob": True}
        if self.payloads.routing_shape is not None:
            body["return_routed_experts"] = True
        if self.payloads.weighted:
            body[RETURN_WEIGHTS] = True
        return body


def _context_length(args: Namespace, evaluation: bool) -> int | None:
    name = "eval_max_context_len" if evaluation else "rollout_max_context_len"
    bounds = [getattr(args, name, None), getattr(args, "sglang_context_length", None)]
    return min((bound for bound in bounds if bound is not None), default=None)


async def _replaces_context(factory: EnvFactory, settings: EpisodeSettings) -> bool:
    """Ask an env, which is made once for that, so that an error in its arguments stops slime."""
    key = (settings.env, json.dumps(settings.env_kwargs, sort_keys=True, default=repr))
    if key not in _checked:
        _checked[key] = False
        for member in factory.each:
            env = member()
            _checked[key] |= env.replaces_context
            await close_env(env)
    return _checked[key]


def settings_of(args: Namespace, sample: Sample) -> EpisodeSettings:
    """Read the settings `toolgym` of the file that `--custom-config-path` names.

    The sample's metadata `env_id` and `env_kwargs` come before `args.toolgym`, and that before `TOOLGYM_ENV`.
    """
    settings = getattr(args, "toolgym", None) or {}
    if isinstance(settings, str):
        settings = {"env": settings}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"args.toolgym must be an env id or a mapping of settings, got {shorten(repr(settings))}")
    settings = {name: value for name, value in settings.items() if name != ROUTING_WEIGHTS}
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


def wants_weights(args: Namespace) -> bool:
    """Read the setting `routing_weights` of `args.toolgym`: whether samples get the weights of routed experts, too."""
    settings = getattr(args, "toolgym", None)
    weighted = settings.get(ROUTING_WEIGHTS, False) if isinstance(settings, Mapping) else False
    if not isinstance(weighted, bool):
        raise ConfigError(f"the setting {ROUTING_WEIGHTS} must be true or false, got {weighted!r}")
    if weighted and not getattr(args, "use_rollout_routing_replay", False):
        raise ConfigError(f"{ROUTING_WEIGHTS} belong to replayed experts: add --use-rollout-routing-replay")
    return weighted


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


def require_groups(args: Namespace) -> None:
    """Raise ConfigError if slime would compare each episode with itself alone, so that all advantages are 0."""
    grouped = getattr(args, "advantage_estimator", None) in _GROUP_ESTIMATORS
    if grouped and getattr(args, "rewards_normalization", False) and getattr(args, "n_samples_per_prompt", None) == 1:
        raise ConfigError(
            f"--advantage-estimator {args.advantage_estimator} compares the episodes of a prompt, and there is one of "
            "each (--n-samples-per-prompt 1): all advantages would be 0 and nothing would be trained. Sample more, or "
            "add --disable-rewards-normalization"
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
