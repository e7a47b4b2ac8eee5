"""`ToolgymGenerator`: envs as SkyRL's `GeneratorInterface`, sampled by SkyRL's inference client."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toolgym.envs.base import require_growing_context
from toolgym.rollout.adapters.episode_settings import EpisodeSettings, sampling_from
from toolgym.rollout.adapters.skyrl.output import BROKEN_OFF, to_generator_output
from toolgym.rollout.adapters.task_rows import task_of_row
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.engines.base import FinishReason, Generation, GenerationRequest
from toolgym.rollout.engines.sglang.aligned import SAMPLING_MASK
from toolgym.rollout.episode.config import require_one_sequence
from toolgym.rollout.episode.env_lifecycle import close_env
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.run_episode import run_episode
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.context_routing import ContextRouting
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import together, with_deadline
from toolgym.tools.errors import ConfigError, EngineError, shorten

with needs("skyrl", "A generator of SkyRL"):
    from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
    from skyrl.train.generators.base import GeneratorInterface, TrajectoryID
    from skyrl.train.generators.utils import (
        apply_overlong_filtering,
        build_vllm_cache_salt,
        get_rollout_metrics,
        slice_generator_output,
    )

if TYPE_CHECKING:
    from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface
    from skyrl.train.config import GeneratorConfig
    from skyrl.train.generators.base import GeneratorInput, GeneratorOutput
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("toolgym.rollout.adapters.skyrl")

FINISH_TIMEOUT = 30.0
"""Seconds that SkyRL's router gets to note that an episode is over."""


class EvaluationScore(NamedTuple):
    """The worth of an episode of an evaluation; `rewards` are those of the last response's tokens."""

    uid: str
    source: str | None
    rewards: list[float]
    usable: bool


class ToolgymGenerator(GeneratorInterface):  # type: ignore[misc]  # SkyRL has no types
    """Plays the episodes of a batch with SkyRL's inference engines, tokens in and tokens out.

    `env_class` of a row is an env id, and the row's further columns are the task's (see `task_of_row`).
    `generator.sampling_params` holds for each turn, `generator.max_input_length` and `max_generate_length` together
    bound prompt and response, and `generator.max_turns`, if it is above 1, is the env's.

    The engine knows the policy by `policy_model_name`. Of `EpisodeSettings` `env` and `max_new_tokens` are not used,
    and history or context that may give several sequences needs `generator.step_wise_trajectories`. Raises ConfigError
    for what does not go with exact tokens.
    """

    def __init__(
        self,
        generator_cfg: GeneratorConfig,
        inference_engine_client: InferenceEngineInterface,
        tokenizer: PreTrainedTokenizerBase,
        *,
        policy_model_name: str | None = None,
        **settings: Any,
    ) -> None:
        _require_usable(generator_cfg)
        turns = {"max_turns": generator_cfg.max_turns} if generator_cfg.max_turns > 1 else {}
        episode = EpisodeSettings(**settings)
        self._env_kwargs = {**turns, **episode.env_kwargs}
        self._cfg, self._client, self._tokenizer = generator_cfg, inference_engine_client, tokenizer
        self._model = policy_model_name
        self._config = episode.run_config(template_kwargs=generator_cfg.chat_template_kwargs)
        if not generator_cfg.step_wise_trajectories:
            require_one_sequence(self._config, "SkyRL without generator.step_wise_trajectories")
        self._factories: dict[str, EnvFactory] = {}
        self._scores: list[EvaluationScore] | None = None

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """Play a batch; raises ConfigError if a row is no task of an env, and see `to_generator_output`."""
        prompts = input_batch["prompts"]
        sampling = input_batch.get("sampling_params") or get_sampling_params_for_backend(
            self._cfg.inference_engine.backend, self._cfg.sampling_params
        )
        names = input_batch.get("trajectory_ids") or [TrajectoryID(uuid.uuid4().hex, 0) for _ in prompts]
        extras = input_batch.get("env_extras") or [{}] * len(prompts)
        batch = _Batch(self, input_batch, sampling)
        factories = [await self._factory(env_class) for env_class in input_batch["env_classes"]]
        tasks = [task_of_row({**extra, "raw_prompt": prompt}) for prompt, extra in zip(prompts, extras, strict=True)]
        results = await together(batch.play(*row) for row in zip(factories, tasks, names, strict=True))
        output = await in_thread(self._output, results, names)  # the event loop has other answers to read
        if self._scores is not None:
            sources = [extra.get("data_source") for extra in extras]
            self._scores += _scores(output, dict(zip([name.to_string() for name in names], sources, strict=True)))
        return output

    @contextmanager
    def scores(self) -> Iterator[list[EvaluationScore]]:
        """Collect the worth of the episodes that are played in the block, of unusable ones too."""
        scores: list[EvaluationScore] = []
        self._scores = scores
        try:
            yield scores
        finally:
            self._scores = None

    def _output(
        self, results: Sequence[tuple[Trajectory, ContextRouting | None]], names: Sequence[TrajectoryID]
    ) -> GeneratorOutput:
        output = to_generator_output(
            [trajectory for trajectory, _ in results],
            filler_id=self._tokenizer.eos_token_id or 0,
            step_wise=self._cfg.step_wise_trajectories,
            trajectory_ids=names,
            routing=[routing for _, routing in results if routing is not None] or None,
            temperature=float(self._cfg.sampling_params.temperature),
        )
        output["rollout_metrics"] = _rollout_metrics(output)
        if self._cfg.zero_reward_on_non_stop:
            output["rewards"] = [
                rewards if reason == "stop" else [0.0] * len(rewards)
                for rewards, reason in zip(output["rewards"], output["stop_reasons"], strict=True)
            ]
        if self._cfg.apply_overlong_filtering:
            output["loss_masks"] = apply_overlong_filtering(output["loss_masks"], output["stop_reasons"])
        return output

    async def _factory(self, env_class: str) -> EnvFactory:
        """Make the env once, so that an error in its arguments stops SkyRL; later ones are those of their episodes."""
        if env_class not in self._factories:
            factory = EnvFactory.of(env_class, self._env_kwargs)
            env = factory()
            try:
                if not self._cfg.step_wise_trajectories:
                    require_growing_context(env, "SkyRL without generator.step_wise_trajectories")
                template_kwargs, parser = self._config.template_kwargs, self._config.parser
                ChatRenderer(self._tokenizer, env.tool_schemas, template_kwargs, parser=parser).require_parser()
            finally:
                await close_env(env)
            self._factories[env_class] = factory
        return self._factories[env_class]


class _Batch:
    """Common facts of the episodes of one call of `generate`."""

    def __init__(self, generator: ToolgymGenerator, input_batch: GeneratorInput, sampling: Mapping[str, Any]) -> None:
        self._generator, self.sampling = generator, dict(sampling)
        cfg, client, metadata = generator._cfg, generator._client, input_batch.get("batch_metadata")
        evaluation = metadata is not None and metadata.training_phase == "eval"
        engine = cfg.inference_engine
        self.routed = engine.enable_return_routed_experts and not evaluation
        self.supported = engine.enable_return_sample_support_set and not evaluation
        version = getattr(client, "weight_version", None)
        salted = cfg.use_cache_salt and version is not None
        self.salt = build_vllm_cache_salt(version, generator._model) if salted else None
        self._group = f"{'eval' if evaluation else 'train'}-{(metadata and metadata.global_step) or 0}"
        bounds = [engine.engine_init_kwargs.get("max_model_len")]
        if cfg.max_input_length is not None:
            bounds.append(self.sampling["max_tokens"] + cfg.max_input_length)
        self._context_length = min((bound for bound in bounds if bound is not None), default=None)
        self._config = replace(
            generator._config,
            sampling=sampling_from(self.sampling, self.sampling["max_tokens"]),
            training_step=(metadata and metadata.global_step) or 0,
            validate=evaluation,
        )

    async def play(
        self, factory: EnvFactory, task: Any, name: TrajectoryID
    ) -> tuple[Trajectory, ContextRouting | None]:
        generator = self._generator
        session, routing = name.to_string(), ContextRouting() if self.routed else None
        try:
            trajectory = await run_episode(
                factory,
                task,
                partial(self._generate, session, routing),
                tokenizer=generator._tokenizer,
                context_length=self._context_length,
                config=self._config,
                task_index=int(name.instance_id) if name.instance_id.isdecimal() else 0,
                sample_index=name.repetition_id,
                group_id=f"{self._group}-{name.instance_id}",
            )
        finally:
            await with_deadline(generator._client.finish_session(session), FINISH_TIMEOUT)
        if trajectory.error is not None:
            log.warning("%s: %s: %s", session, trajectory.stop_reason.value, shorten(trajectory.error.message))
        return trajectory, routing

    async def _generate(self, session: str, routing: ContextRouting | None, request: GenerationRequest) -> Generation:
        """Generate a turn. One session for all turns keeps them on one server, for its prefix cache."""
        client, prompt_ids = self._generator._client, list(request.prompt_ids)
        sampling = {
            **self.sampling,
            "max_tokens": request.params.max_new_tokens,
            "stop_token_ids": list(request.params.stop_token_ids),
            "logprobs": self.sampling.get("logprobs") or 0,
        }
        start = routing.covered(prompt_ids) if routing is not None else 0
        version = str(getattr(client, "weight_version", 0))
        answer = await client.generate(
            {
                "prompt_token_ids": [prompt_ids],
                "session_ids": [session],
                "sampling_params": sampling,
                "cache_salt": self.salt,
                "routed_experts_prompt_starts": None if routing is None else [start],
                "return_sample_support": self.supported,
            },
            model=self._generator._model,
        )
        ids = answer["response_ids"][0]
        aligned = {}
        if self.supported:
            support = _sent(answer, "rollout_sample_support")
            aligned[SAMPLING_MASK] = np.asarray(support, np.int32).reshape(len(ids), -1)
        if routing is not None and len(ids):
            routing.add(prompt_ids, ids, np.asarray(_sent(answer, "rollout_expert_indices")), start=start)
        return Generation(
            token_ids=tuple(ids),
            logprobs=tuple(_sent(answer, "response_logprobs")),
            finish_reason=FinishReason(answer["stop_reasons"][0]),
            weight_versions=(version,) * len(ids),
            aligned=aligned,
        )


def _sent(answer: Mapping[str, Any], name: str) -> Any:
    values = answer.get(name)
    if values is None or values[0] is None:
        raise EngineError(f"SkyRL's inference client sent no {name}")
    return values[0]


def _scores(output: GeneratorOutput, sources: Mapping[str, str | None]) -> list[EvaluationScore]:
    last = output["is_last_step"] or [True] * len(output["response_ids"])
    return [
        EvaluationScore(name.instance_id, sources[name.to_string()], output["rewards"][row], reason != BROKEN_OFF)
        for row, (name, reason) in enumerate(zip(output["trajectory_ids"], output["stop_reasons"], strict=True))
        if last[row]
    ]


def _rollout_metrics(output: GeneratorOutput) -> dict[str, Any]:
    """SkyRL's metrics of the usable episodes, and ours; SkyRL adds up over batches what has no "mean" in its name."""
    reasons, last = output["stop_reasons"], output["is_last_step"] or [True] * len(output["response_ids"])
    broken = reasons.count(BROKEN_OFF)
    kept = [row for row, reason in enumerate(reasons) if reason != BROKEN_OFF]
    counted = slice_generator_output(output, kept) if kept else output
    ends = [row for row in kept if last[row]] or [row for row, is_last in enumerate(last) if is_last]
    metrics: dict[str, Any] = get_rollout_metrics(
        counted["response_ids"],
        counted["rewards"],
        loss_masks=counted["loss_masks"],
        trajectory_completion_times=[output["trajectory_generation_times"][row] for row in ends],
        trajectory_time_splits={
            name: [times[row] for row in ends] for name, times in output["trajectory_time_splits"].items()
        },
    )
    for name in ("turns", "tool_calls", "tool_errors"):
        metrics[f"environment/mean_{name}"] = float(np.mean([output["env_metrics"][row][name] for row in ends]))
    metrics["environment/broken_off"] = broken
    return metrics


def _require_usable(cfg: GeneratorConfig) -> None:
    for name, wrong, why in (
        ("batched", cfg.batched, "episodes have several turns"),
        ("vision_language_generator", cfg.vision_language_generator, "envs play texts only"),
        ("use_conversation_multi_turn", not cfg.use_conversation_multi_turn, "turns are messages of their own"),
        ("chat_template.name_or_path", cfg.chat_template.name_or_path, "the tokenizer's own chat template is used"),
    ):
        if wrong:
            raise ConfigError(f"leave generator.{name} at its default: {why}")
