"""`ToolgymWorkflow`: an env as AReaL's `RolloutWorkflow`."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError
from toolgym.rollout.adapters.areal.tensors import to_tensors
from toolgym.rollout.adapters.episode_settings import EpisodeSettings, require_same_temperature, sampling_from
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.engines.base import FinishReason, Generation, GenerationRequest
from toolgym.rollout.episode.config import require_one_sequence
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.rollout.runner.run_episode import run_episode
from toolgym.rollout.trajectory.failures import not_trainable_error
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, shorten

with needs("areal", "A workflow of AReaL"):
    from areal import workflow_context
    from areal.api.io_struct import ModelRequest
    from areal.api.workflow_api import RolloutWorkflow

if TYPE_CHECKING:
    from areal.api.cli_args import GenerationHyperparameters
    from areal.api.engine_api import InferenceEngine
    from transformers import PreTrainedTokenizerBase


class ToolgymWorkflow(RolloutWorkflow):  # type: ignore[misc]  # AReaL has no types
    """Plays one episode of an env with AReaL's engine, tokens in and tokens out.

    AReaL normalizes rewards over `group_size` rows at a time, so a missing row would shift all groups behind it: an
    episode that something broke off ends its whole group. With `several_rows` (see `to_tensors`), or if
    `gconfig.n_samples` is 1, only the episode is left out.

    `env` is an env id, with its `env_kwargs`, or a function that makes an env. `max_new_tokens` of `gconfig` bounds one
    turn, `max_tokens` prompt and response together. Further settings are those of `EpisodeSettings`. `temperature` is
    AReaL's `actor.temperature`, by which it divides logits, and must be that of `gconfig`; None is for a workflow that
    only evaluates. Raises ConfigError for what does not go with exact tokens.
    """

    def __init__(
        self,
        env: Any,
        *,
        gconfig: GenerationHyperparameters,
        tokenizer: PreTrainedTokenizerBase | str,
        env_kwargs: Mapping[str, Any] | None = None,
        several_rows: bool = False,
        temperature: float | None = 1.0,
        **settings: Any,
    ) -> None:
        for name in ("use_beam_search", "ignore_eos"):
            if getattr(gconfig, name):
                raise ConfigError(
                    f"gconfig.{name} must be left out, got {getattr(gconfig, name)!r}: a turn ends with a stop token"
                )
        sampling = sampling_from(gconfig, gconfig.max_new_tokens)
        if gconfig.greedy:
            sampling = replace(sampling, temperature=0.0)
        require_same_temperature("AReaL", sampling, temperature, "gconfig.temperature", "actor.temperature")
        self._config = replace(EpisodeSettings(**settings).run_config(), sampling=sampling)
        if not several_rows:
            require_one_sequence(self._config, "AReaL without several_rows")
        self._factory = EnvFactory.of(env, env_kwargs)
        self._gconfig = gconfig
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self._several_rows, self._temperature = several_rows, temperature
        self._groups: defaultdict[Any, set[asyncio.Task[Any]]] = defaultdict(set)

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> dict[str, Any] | None:
        """Play a row in verl's shape, or in that of AReaL's own data sets; see `to_tensors`.

        Raises EpisodeFailedError if something broke the episode off: AReaL logs it, and leaves the group out.
        """
        members = self._groups[group := workflow_context.get()]  # equal in all episodes of a group
        current = asyncio.current_task()
        assert current is not None
        members.add(current)
        try:
            return await self._play(engine, _task(data))
        except EpisodeFailedError:
            if group.task_id is not None:
                for member in members - {current}:  # once AReaL has this error, it waits for none of them
                    asyncio.get_running_loop().call_soon(member.cancel)
            raise
        finally:
            members.discard(current)
            if not members:
                self._groups.pop(group, None)

    async def _play(self, engine: InferenceEngine, task: Task) -> dict[str, Any] | None:
        trajectory = await run_episode(
            self._factory,
            task,
            partial(self._generate, engine, uuid.uuid4().hex),
            tokenizer=self._tokenizer,
            context_length=self._gconfig.max_tokens,
            config=self._config,
        )
        _log(trajectory)
        # the lists of a long trajectory are not to hold up the engine's answers
        several, temperature = self._several_rows, self._temperature
        rows = await in_thread(partial(to_tensors, trajectory, several_rows=several, temperature=temperature))
        if rows is None and self._gconfig.n_samples > 1 and not self._several_rows:
            failure = not_trainable_error(trajectory)
            raise EpisodeFailedError(failure.stop_reason, f"a group is left out, because of one episode: {failure}")
        return rows

    async def _generate(self, engine: InferenceEngine, rid: str, request: GenerationRequest) -> Generation:
        """Generate a turn. One `rid` for all turns of an episode keeps them on one server, for its prefix cache."""
        answer = await engine.agenerate(
            ModelRequest(
                rid=rid,
                input_ids=list(request.prompt_ids),
                gconfig=self._gconfig.new(
                    n_samples=1,
                    max_new_tokens=request.params.max_new_tokens,
                    stop_token_ids=list(request.params.stop_token_ids),
                ),
                tokenizer=self._tokenizer,
            )
        )
        return Generation(
            token_ids=tuple(answer.output_tokens),
            logprobs=tuple(answer.output_logprobs),
            finish_reason=FinishReason.STOP if answer.stop_reason == "tool_calls" else FinishReason(answer.stop_reason),
            weight_versions=tuple(map(str, answer.output_versions)),
        )


def _task(data: Mapping[str, Any]) -> Task:
    if not isinstance(data, Mapping):
        raise ConfigError(f"a row of AReaL's data set must be a mapping, got {shorten(repr(data))}")
    row = dict(data)
    if "prompt" not in row and "messages" in row:
        row["prompt"] = row["messages"]
    if "reward_model" not in row and "answer" in row:
        row["reward_model"] = {"ground_truth": row["answer"]}
    return Task.from_row(row)


def _log(trajectory: Trajectory) -> None:
    from areal.utils import stats_tracker

    tracker = stats_tracker.get(workflow_context.stat_scope())
    tracker.scalar(num_turns=len(trajectory.turns), broken_off=float(not trajectory.in_group_statistics))
    if trajectory.in_group_statistics:
        tracker.scalar(reward=trajectory.reward)
