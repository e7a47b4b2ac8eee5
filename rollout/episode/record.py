from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import Job
from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.tokens.conversation import Conversation
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, Turn, plain
from toolgym.tools.errors import error_text
from toolgym.tools.message import Message

_NONE: Mapping[str, Any] = {}


class EpisodeRecord:
    """The facts of one episode so far; `messages` are the conversation as long as it has no tokens."""

    __slots__ = (
        "_config", "_id", "env_id", "job", "messages", "metrics", "reward", "seconds", "settings", "started_at",
        "turns",
    )  # fmt: skip

    def __init__(
        self, job: Job, config: EpisodeConfig, episode_id: str, env_id: str, settings: Mapping[str, str]
    ) -> None:
        self.job, self._config, self._id, self.env_id, self.settings = job, config, episode_id, env_id, settings
        self.messages: list[Message] = list(job.task.messages)
        self.turns: list[Turn] = []
        self.reward = 0.0
        self.metrics: Mapping[str, Any] = _NONE
        self.started_at = self.seconds = 0.0

    def go_on_from(self, other: EpisodeRecord, seconds: float) -> None:
        self.messages, self.turns = [*other.messages], [*other.turns]
        self.reward, self.metrics = other.reward, dict(other.metrics)
        self.started_at, self.seconds = other.started_at, seconds

    def trajectory(
        self,
        reason: StopReason,
        error: Failure | None,
        renderer: ChatRenderer | None,
        conversation: Conversation | None,
    ) -> Trajectory:
        job = self.job
        messages: Sequence[Message] = self.messages
        sequences: tuple[TokenSequence, ...] = ()
        prompt_text: str | Callable[[], str] = ""
        response_text: str | Callable[[], str] = ""
        if conversation is not None and renderer is not None:
            messages, sequences = conversation.messages, conversation.sequences
            last, decode = sequences[-1], renderer.decode
            prompt_text = lambda: decode(last.prompt_ids.tolist())  # noqa: E731
            response_text = lambda: decode(last.response_ids.tolist())  # noqa: E731
        sampling = self._config.sampling_in_use
        return Trajectory(
            id=self._id,
            env_id=self.env_id,
            task_id=job.task.id,
            source=job.task.source,
            level=job.task.level,
            group_id=job.group_id,
            task_index=job.key.task_index,
            sample_index=job.key.sample_index,
            messages=tuple(messages),
            tools=tuple(renderer.tools) if renderer is not None else (),
            sequences=sequences,
            reward=self.reward,
            stop_reason=reason,
            turns=tuple(self.turns),
            ground_truth=job.task.ground_truth,
            error=error,
            sampling={
                **vars(sampling),
                "stop_token_ids": list(sampling.stop_token_ids),
                "stop": list(sampling.stop),
                "grammar": None if sampling.grammar is None else list(sampling.grammar),
                "seed": job.seed,
            },
            metrics=dict(self.metrics),
            prompt_text=prompt_text,
            response_text=response_text,
            started_at=self.started_at,
            seconds=self.seconds,
            training_step=self._config.training_step,
            validate=self._config.validate,
            role=job.role,
            parent=job.parent,
            branch_turn=job.branch_turn,
            settings={**self.settings, "task": task_label(job.task)} if self.settings else {},
        )


def never_played(
    job: Job, config: EpisodeConfig, env_id: str, error: Exception, settings: Mapping[str, str] | None = None
) -> Trajectory:
    """The trajectory of an episode whose env could not be made."""
    record = EpisodeRecord(job, config, f"{job.group_id}-{job.key.sample_index}-not-made", env_id, settings or {})
    trajectory = record.trajectory(StopReason.ENV_CREATE_FAILED, Failure(error_text(error), 0), None, None)
    return replace_fields(trajectory, sampling={})


def task_label(task: Task) -> str:
    """A short text that tells apart tasks of other messages or tool arguments."""
    text = json.dumps(plain([task.messages, task.tools_kwargs]), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
