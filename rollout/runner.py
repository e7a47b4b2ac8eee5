"""Many episodes at once.

`Runner.stream` yields trajectories as they finish; one failing episode is one failed trajectory, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from toolgym.envs.base import BaseEnv, StopReason
from toolgym.envs.registry import make
from toolgym.envs.task import Task, TaskSource
from toolgym.rollout.chat import Chat
from toolgym.rollout.context import ContextPolicy
from toolgym.rollout.engines.base import Engine, SamplingParams
from toolgym.rollout.episode import Episode
from toolgym.rollout.rules import History, Limits, TruncatedTurn
from toolgym.rollout.trajectory import Failure, Trajectory
from toolgym.tools.deadline import shielded, with_deadline
from toolgym.tools.errors import ConfigError, EngineError
from toolgym.tools.schema import ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLOSE_TIMEOUT = 30.0
"""Seconds that an env gets to close."""

_log = logging.getLogger("toolgym.rollout")


@dataclass(frozen=True)
class RunConfig:
    """How to run.

    Attributes:
        group_size: episodes per task.
        max_concurrent: episodes in flight; each has an env of its own.
        sampling: how to sample each turn.
        limits: budgets and deadlines of an episode.
        history: what the policy sees of its earlier turns, a `History` or its name: `append` (what it generated) or
            `template` (what the chat template makes of it).
        on_truncated_turn: what becomes of a turn that was cut, a `TruncatedTurn` or its name: `end` (the episode) or
            `close` (the turn, and the episode goes on).
        context: a context policy or several, asked in this order; see `toolgym.rollout.context`.
        seed: makes tasks, envs and (where the engine can) sampling reproducible; None does not.
        step: training step, for the record.
        template_kwargs: further variables for the chat template.

    Raises:
        ConfigError: a number is out of range, or a name is unknown.
    """

    group_size: int = 1
    max_concurrent: int = 64
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(max_new_tokens=512))
    limits: Limits = field(default_factory=Limits)
    history: History | Literal["append", "template"] = History.APPEND
    on_truncated_turn: TruncatedTurn | Literal["end", "close"] = TruncatedTurn.END
    context: ContextPolicy | Sequence[ContextPolicy] = ()
    seed: int | None = None
    step: int = 0
    template_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("group_size", "max_concurrent"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        for name, kind in (("history", History), ("on_truncated_turn", TruncatedTurn)):
            if getattr(self, name) not in list(kind):
                names = ", ".join(repr(one.value) for one in kind)
                raise ConfigError(f"{name} must be one of {names}, got {getattr(self, name)!r}")
        for policy in self.context_policies:
            if not isinstance(policy, ContextPolicy):
                raise ConfigError(f"context must be context policies, got {policy!r}")

    @property
    def context_policies(self) -> tuple[ContextPolicy, ...]:
        """`context` as a tuple."""
        return (self.context,) if isinstance(self.context, ContextPolicy) else tuple(self.context)


@dataclass(frozen=True)
class _Job:
    task: Task
    group_id: int
    sample: int


class Runner:
    """Plays many episodes at once, each worker with an env of its own.

    Args:
        env: an env id, or a function that makes an env.
        engine: started; it stays the caller's to close.
        tokenizer: of the model that the engine serves; a fast tokenizer with a chat template.
        config: see `RunConfig`.
        env_kwargs: for `toolgym.make`, when `env` is an id.

    Raises:
        UnknownNameError: no env has that id.
        ConfigError: `env_kwargs` were given with a function.
    """

    def __init__(
        self,
        env: str | Callable[[], BaseEnv],
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        config: RunConfig | None = None,
        *,
        env_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(env, str) and env_kwargs:
            raise ConfigError("env_kwargs go with an env id; a function that makes envs knows its own")
        self.config = config or RunConfig()
        self._engine, self._tokenizer = engine, tokenizer
        self._make_env: Callable[[], BaseEnv] = (
            (lambda: make(env, **(env_kwargs or {}))) if isinstance(env, str) else env
        )
        self._env_id = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
        self._chats: dict[str, Chat] = {}

    async def run(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """Play every task `group_size` times.

        Returns:
            All trajectories, ordered by task and sample.
        """
        done = [trajectory async for trajectory in self.stream(tasks)]
        return sorted(done, key=lambda one: (one.group_id, one.sample))

    async def stream(self, tasks: Sequence[Task]) -> AsyncGenerator[Trajectory, None]:
        """Play every task `group_size` times, and yield each trajectory as it finishes.

        Closing the iterator early cancels what runs, and waits until it has cleaned up.
        """
        jobs = self._jobs(tasks)
        total = len(tasks) * self.config.group_size
        if total == 0:
            return
        # The first env is made here, and its chat: what is wrong with them is the caller's error, not an episode's.
        first = self._make_env()
        try:
            self._chat(first.tool_schemas)
        except BaseException:
            await self._close(first)
            raise
        envs: list[BaseEnv | None] = [first]
        envs += [None] * (min(self.config.max_concurrent, total) - 1)
        results: asyncio.Queue[Trajectory | BaseException] = asyncio.Queue()
        workers = [asyncio.create_task(self._work(env, jobs, results)) for env in envs]
        try:
            for _ in range(total):
                result = await results.get()
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _jobs(self, tasks: Sequence[Task]) -> Iterator[_Job]:
        for group_id, task in enumerate(tasks):
            for sample in range(self.config.group_size):
                yield _Job(task, group_id, sample)

    async def _work(
        self, env: BaseEnv | None, jobs: Iterator[_Job], results: asyncio.Queue[Trajectory | BaseException]
    ) -> None:
        """Take jobs until there are none. Owns one env at a time."""
        try:
            for job in jobs:
                if env is None:
                    try:
                        env = self._make_env()
                    except Exception as error:  # noqa: BLE001  one env that cannot be made is one failed trajectory
                        _log.debug("making an env failed", exc_info=True)
                        results.put_nowait(self._not_made(job, error))
                        continue
                trajectory = await self._episode(env, job).run()
                results.put_nowait(trajectory)
                if trajectory.failed:  # its state is unknown: the next episode gets a fresh one
                    await self._close(env)
                    env = None
        except asyncio.CancelledError:
            # Nobody listens any more, unless it was not the runner who cancelled; then the run must not wait for ever.
            results.put_nowait(EngineError("a worker of the run was cancelled from outside"))
            raise
        except BaseException as error:  # noqa: BLE001  a bug of ours must reach the caller, not hang the run
            results.put_nowait(error)
        finally:
            if env is not None:
                await self._close(env)

    def _episode(self, env: BaseEnv, job: _Job) -> Episode:
        return Episode(
            env,
            self._engine,
            self._chat,
            job.task,
            self.config.sampling,
            self.config.limits,
            history=History(self.config.history),
            on_truncated_turn=TruncatedTurn(self.config.on_truncated_turn),
            context=self.config.context_policies,
            env_id=self._env_id,
            group_id=job.group_id,
            sample=job.sample,
            seed=self.config.seed,
            step=self.config.step,
        )

    def _chat(self, schemas: Sequence[ToolSchema]) -> Chat:
        key = json.dumps([schema.to_openai() for schema in schemas], sort_keys=True)
        if key not in self._chats:
            self._chats[key] = Chat(self._tokenizer, schemas, self.config.template_kwargs)
        return self._chats[key]

    def _not_made(self, job: _Job, error: Exception) -> Trajectory:
        return Trajectory(
            id=f"{job.group_id}-{job.sample}-not-made",
            env_id=self._env_id,
            task_id=job.task.id,
            source=job.task.source,
            group_id=job.group_id,
            sample=job.sample,
            messages=job.task.messages,
            tools=(),
            sequences=(),
            reward=0.0,
            stop_reason=StopReason.ERROR,
            ground_truth=job.task.ground_truth,
            error=Failure("env_create", f"{type(error).__name__}: {error}", 0),
            step=self.config.step,
        )

    async def _close(self, env: BaseEnv) -> None:
        try:
            # Shielded: when the last trajectory has come, workers that are closing their envs are cancelled.
            await shielded(with_deadline(env.close(), CLOSE_TIMEOUT))
        except Exception as error:  # noqa: BLE001  the episodes' results are worth more
            _log.warning("closing an env failed: %s: %s", type(error).__name__, error)


async def rollout(
    env: str | Callable[[], BaseEnv],
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[Task] | TaskSource,
    *,
    num_tasks: int | None = None,
    config: RunConfig | None = None,
    env_kwargs: dict[str, Any] | None = None,
) -> list[Trajectory]:
    """Play tasks and return the trajectories, ordered by task and sample.

    Args:
        env: an env id, or a function that makes an env.
        engine: started; it stays the caller's to close.
        tokenizer: of the model that the engine serves.
        tasks: the tasks, or a source to draw `num_tasks` from with the config's seed.
        num_tasks: how many tasks to draw from a source; None with a sequence.
        config: see `RunConfig`.
        env_kwargs: for `toolgym.make`, when `env` is an id.

    Raises:
        ConfigError: `num_tasks` is missing for a source.
    """
    config = config or RunConfig()
    if isinstance(tasks, TaskSource):
        if num_tasks is None or num_tasks < 1:
            raise ConfigError(f"num_tasks must say how many tasks to draw from a source, got {num_tasks!r}")
        tasks = tasks.take(num_tasks, seed=config.seed or 0)
    elif num_tasks is not None:
        tasks = tasks[:num_tasks]
    return await Runner(env, engine, tokenizer, config, env_kwargs=env_kwargs).run(tasks)
