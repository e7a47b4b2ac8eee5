"""rLLM: an env as an agent and an evaluator, found by the entry points `rllm.agents` and `rllm.evaluators`.

In its sources of August 2026 (`rllm/engine/agentflow_engine.py`) the agent plays against a session of rLLM's gateway,
which keeps the tokens of every request, and rLLM puts them into the steps that the agent names, one for each turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.versions import needs_sources
from toolgym.rollout.endpoint import run
from toolgym.rollout.limits import EpisodeLimits
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    from rllm.eval.types import EvalOutput
    from rllm.types import AgentConfig, Episode
    from rllm.types import Task as RllmTask

_ADDRESS = "github.com/rllm-org/rllm"

FULL_MARKS = 1.0
"""A reward of so much or more is a correct answer for rLLM."""

_GRACE = 60.0
"""Seconds beyond the episode's deadline for the env to be closed."""


class ToolgymAgent:
    """rLLM's `AgentFlow` that plays one episode of an env. `--agent toolgym` makes one without arguments.

    `env` is an env id, with its `env_kwargs`, or a function that makes an env; None: the row's column `env_id`, or the
    variable `TOOLGYM_ENV`. The deadlines of `limits` hold; tokens are bounded by rLLM.
    """

    name = "toolgym"

    @named_keywords
    def __init__(
        self,
        env: str | Callable[[], BaseEnv] | EnvFactory | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        limits: EpisodeLimits | None = None,
    ) -> None:
        if env is None and env_kwargs:
            raise ConfigError("env_kwargs go with an env id")
        self._env = None if env is None else EnvFactory.of(env, env_kwargs)
        self._limits = limits or EpisodeLimits()

    async def arun(self, task: RllmTask, config: AgentConfig) -> Episode:
        """Play one episode; raises EpisodeFailedError if something broke it off, which rLLM plays again.

        The task's `metadata` are a row in verl's shape (see `Task.from_row`), or any row: then `instruction` is the
        user's message, and the column `ground_truth` or `answer` the ground truth.
        """
        with needs_sources("rLLM", _ADDRESS, "an agent of rLLM"):
            import rllm.types as types
        rewards: list[float] = []
        reward = await run(
            _task(task),
            base_url=config.base_url,
            model=config.model,
            env=self._env,
            limits=self._limits,
            on_turn=rewards.append,
        )
        if rewards:  # what the end of a context that is full added
            rewards[-1] += reward - sum(rewards)
        steps = [
            types.Step(reward=earned, done=number == len(rewards)) for number, earned in enumerate(rewards, start=1)
        ]
        trajectory = types.Trajectory(name=self.name, task=task.metadata, steps=steps, reward=reward)
        episode: Episode = types.Episode(id=config.session_uid, task=task.metadata, trajectories=[trajectory])
        return episode

    def run(self, task: RllmTask, config: AgentConfig) -> Episode:
        """Do as `arun`, for a caller without an event loop."""
        longest = self._limits.episode_timeout + self._limits.score_grace
        with contextlib.closing(EventLoopThread(name="toolgym-rllm")) as bridge:
            return bridge.run(self.arun(task, config), longest + _GRACE)


class ToolgymEvaluator:
    """rLLM's `Evaluator` for episodes of `ToolgymAgent`: the reward is the env's. `--evaluator toolgym` makes one."""

    def evaluate(self, task: RllmTask, episode: Episode) -> EvalOutput:
        """Return the env's reward; raises ConfigError if another agent played the episode."""
        with needs_sources("rLLM", _ADDRESS, "an evaluator of rLLM"):
            import rllm.eval.types as types
        rewards = [played.reward for played in episode.trajectories if played.name == ToolgymAgent.name]
        if len(rewards) != 1 or rewards[0] is None:
            names = [(played.name, played.reward) for played in episode.trajectories]
            raise ConfigError(
                "the evaluator 'toolgym' reads the reward that the agent 'toolgym' left in its one trajectory, got "
                f"{shorten(repr(names))}: give --agent toolgym"
            )
        [reward] = rewards
        signals = [types.Signal("reward", reward)]
        output: EvalOutput = types.EvalOutput(reward=reward, is_correct=reward >= FULL_MARKS, signals=signals)
        return output


def _task(task: RllmTask) -> Task:
    row = getattr(task, "metadata", None)
    if not isinstance(row, Mapping):
        raise ConfigError(f"a task of rLLM has its row in metadata, got {shorten(repr(task))}")
    row = dict(row)
    if "prompt" not in row:
        if not isinstance(task.instruction, str) or not task.instruction:
            raise ConfigError(
                "a task needs a text as its instruction, or a row in verl's shape; got "
                f"instruction={shorten(repr(task.instruction))}"
            )
        row["prompt"] = [{"role": "user", "content": task.instruction}]
    if "reward_model" not in row:
        row["reward_model"] = {"ground_truth": row.get("ground_truth", row.get("answer"))}
    return Task.from_row(row, id=str(task.id))
