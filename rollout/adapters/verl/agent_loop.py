"""`ToolgymAgentLoop`: verl's agent loop that plays any env of toolgym's, with verl's LLM servers as its engine."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from toolgym.rollout.adapters.task_rows import task_of_row
from toolgym.rollout.adapters.verl.generation import VerlGenerate
from toolgym.rollout.adapters.verl.options import LoopOptions
from toolgym.rollout.adapters.verl.plugin import ADVANTAGE_NAME
from toolgym.rollout.adapters.verl.rows import VerlRow, metrics, rows_of
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.models.images import ImageProcessor, picture
from toolgym.rollout.runner.run_episode import run_episode
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, on_one_line

with needs("verl", "An agent loop of verl"):
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

_log = logging.getLogger("toolgym.rollout.adapters.verl")

_VERLS = ("trainer_config", "server_manager", "tokenizer", "processor", "dataset_cls", "data_config", "hf_model_type")
"""What verl gives to every agent loop, beside what the loop's own entry in the configuration says."""

_NO_MISTAKE = (ADVANTAGE_NAME, "gae", "reinforce_plus_plus", "remax")
"""Estimators that keep failed episodes out of a group's mean, or have no groups."""


class ToolgymAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl has no types
    """Plays one episode of an env for verl.

    Options come from `actor_rollout_ref.rollout.custom.toolgym`, and from the loop's entry in the file
    `actor_rollout_ref.rollout.agent.agent_loop_config_path`, which has the last word; see `LoopOptions`.
    """

    def __init__(
        self, trainer_config: Any, server_manager: Any, tokenizer: Any, data_config: Any = None, **options: Any
    ) -> None:
        # Not AgentLoopBase.__init__: it makes verl's own token builder, which knows some model families and no others.
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        theirs = options.get("processor")  # verl has one of sounds, too
        self.processor = ImageProcessor(theirs) if getattr(theirs, "image_processor", None) is not None else None
        pad = tokenizer.pad_token_id
        self.pad_token_id: int = tokenizer.eos_token_id if pad is None else pad
        data = data_config.config if data_config is not None else {}
        options = {name: plain(value) for name, value in options.items() if name not in (*_VERLS, "tools", "name")}
        custom = plain(self.rollout_config.get("custom") or {}).get("toolgym") or {}
        self.options = LoopOptions(**{**custom, **options})
        _warn(self.config.algorithm.adv_estimator, self.options.failed, self.options.several_sequences)
        self._template_kwargs = plain(data.get("apply_chat_template_kwargs") or {})

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play one row, see `task_of_row`; a row of the V1 trainer has a `session_id`.

        For that trainer it returns a list if the trajectory has several sequences, or an empty one if it failed and
        `failed="drop"`. Raises ConfigError if the trainer takes one row and the options may give more or fewer.
        """
        several = "session_id" in row
        if not several and (self.options.failed == "drop" or self.options.several_sequences):
            raise ConfigError(
                "failed='drop', history='template' and a context policy that revises messages need verl's V1 trainer "
                "(trainer.use_v1): the other wants a row for each episode"
            )
        trajectory, generate = await self.play(sampling_params, row)
        if not trajectory.usable and self.options.failed == "drop":
            return []
        outputs = self._outputs(trajectory, generate, row)
        if len(outputs) == 1:
            return outputs[0]
        if not several:
            raise ConfigError(
                f"trajectory {trajectory.id} (task {trajectory.task_id!r}) has {len(outputs)} token sequences, and "
                "only verl's V1 trainer takes several: use history='append'"
            )
        return outputs

    async def play(self, sampling_params: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[Trajectory, VerlGenerate]:
        """Play one row, see `run`; log a failure."""
        options, rollout = self.options, self.rollout_config
        # The same for all turns; under `full_determinism` also in the next run, as in verl's own loops.
        request_id = f"det-{row.get('priority', 0)}" if rollout.get("full_determinism") else uuid4().hex
        # verl's number of the row in its batch, by which vLLM orders requests; 0 is what it takes without.
        priority = {"priority": int(row["priority"])} if row.get("priority") else {}
        generate = VerlGenerate(self.server_manager, sampling_params, request_id, priority)
        trajectory = await run_episode(
            options.env,
            task_of_row(row),
            generate,
            tokenizer=self.tokenizer,
            config=options.run_config(
                sampling_params,
                response_tokens=rollout.response_length,
                limits={"max_prompt_tokens": rollout.prompt_length},
                template_kwargs=self._template_kwargs,
                training_step=_count(row.get("global_steps")),
                processor=self.processor,
            ),
            env_kwargs=options.env_kwargs,
            context_length=rollout.get("max_model_len") or rollout.prompt_length + rollout.response_length,
            task_index=_count(row.get("index")),
            sample_index=_count(row.get("session_id")),
            group_id=str(row["uid"]) if "uid" in row else None,
        )
        if trajectory.error is not None:
            place = f"task {trajectory.task_id!r}, turn {trajectory.error.turn}"
            reason, message = trajectory.stop_reason.value, trajectory.error.message
            _log.warning(
                "an episode of %s failed with %s: %s: %s", trajectory.env_id, reason, place, on_one_line(message)
            )
        return trajectory, generate

    def _outputs(
        self, trajectory: Trajectory, generate: VerlGenerate, columns: Mapping[str, Any]
    ) -> list[AgentLoopOutput]:
        rollout = self.rollout_config
        rows = rows_of(
            trajectory,
            prompt_length=None if "session_id" in columns else rollout.prompt_length,
            response_length=rollout.response_length,
            pad_token_id=self.pad_token_id,
            global_steps=generate.steps(columns.get("global_steps")),
            processor=self.processor,
            temperature=None,  # verl samples and trains at its one `rollout.temperature`
        )
        loop_metrics = AgentLoopMetrics(**metrics(trajectory, generate.num_preempted))
        experts = generate.routed_experts if len(rows) == 1 else None
        return [
            to_output(row, loop_metrics, logprobs=bool(rollout.calculate_log_probs), experts=experts) for row in rows
        ]


def to_output(
    row: VerlRow, metrics: AgentLoopMetrics | None = None, *, logprobs: bool = True, experts: Any = None
) -> AgentLoopOutput:
    """Return a row as verl's `AgentLoopOutput`.

    verl wants log-probs of all rows of a batch, or of none. `experts` are `[tokens, layers, experts]`, from the
    prompt's first token on.
    """
    sequence = row.sequence
    tokens = len(sequence.prompt_ids) + sequence.response_tokens
    return AgentLoopOutput(
        prompt_ids=sequence.prompt_ids.tolist(),
        response_ids=sequence.response_ids.tolist(),
        response_mask=sequence.response_mask.tolist(),
        response_logprobs=sequence.logprobs.tolist() if logprobs else None,
        routed_experts=None if experts is None else experts[:tokens],
        multi_modal_data={"images": [picture(i.url) for i in sequence.images]} if sequence.images else None,
        reward_score=row.reward,
        num_turns=row.num_turns,
        metrics=metrics or AgentLoopMetrics(),
        extra_fields=row.extra_fields,
    )


@functools.cache
def _warn(estimator: str, failed: str, several_sequences: bool) -> None:
    """Warn, once in a process, of an estimator of verl's that mistakes our rows in its group's mean."""
    if estimator in _NO_MISTAKE:
        return
    if failed == "mask":
        _log.warning(
            "algorithm.adv_estimator=%s: the 0 of a failed episode enters its group's mean. Set "
            "algorithm.adv_estimator=toolgym_grpo, or, for verl's V1 trainer, failed=drop",
            estimator,
        )
    if several_sequences and estimator != "grpo":
        _log.warning(
            "algorithm.adv_estimator=%s: an episode of several token sequences enters its group's mean with each of "
            "them. Set algorithm.adv_estimator=toolgym_grpo",
            estimator,
        )


def _count(value: Any) -> int:
    """Return a number of verl's, or 0 if it has none or another name (an `index` may be a text)."""
    try:
        return max(int(value), 0)
    except (TypeError, ValueError):
        return 0


def plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
