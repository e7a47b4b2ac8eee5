"""One episode as a state machine: `PENDING → GENERATING → CALLING_TOOLS → GENERATING → … → FINISHED`.

`Episode.run` always returns a trajectory. Whatever breaks (the engine raises, the env raises, a deadline passes)
ends in the trajectory's `error`, with everything that happened before it. Only cancellation passes through.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from toolgym.envs.base import BaseEnv, StepResult, StopReason
from toolgym.envs.task import Task
from toolgym.rollout.chat import Chat
from toolgym.rollout.engines.base import Engine, FinishReason, Generation, SamplingParams
from toolgym.rollout.playing import playing
from toolgym.rollout.trajectory import Failure, Segment, Trajectory, Turn
from toolgym.tools.deadline import DeadlineError, with_deadline
from toolgym.tools.errors import ConfigError, EngineError
from toolgym.tools.message import Message
from toolgym.tools.schema import ToolSchema


class EpisodeState(enum.StrEnum):
    """Where an episode is."""

    PENDING = "pending"
    """Not begun, or being reset."""
    GENERATING = "generating"
    """Waiting for the engine."""
    CALLING_TOOLS = "calling_tools"
    """Waiting for the env's step."""
    FINISHED = "finished"
    """Over; the trajectory is there."""


@dataclass(frozen=True)
class Limits:
    """Budgets and deadlines of an episode.

    Attributes:
        max_prompt_tokens: most tokens of the first prompt; None: what the engine's context holds. A longer prompt is
            refused, never cut.
        max_response_tokens: most tokens behind the prompt, the env's included; None: what the context holds.
        engine_timeout: wall seconds for one generation.
        env_timeout: wall seconds for one `reset` or `step` of the env.
        episode_timeout: wall seconds for the whole episode.

    Raises:
        ConfigError: a number is not positive.
    """

    max_prompt_tokens: int | None = None
    max_response_tokens: int | None = None
    engine_timeout: float = 600.0
    env_timeout: float = 600.0
    episode_timeout: float = 3600.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be positive, got {value!r}")


_BLAMED = {
    EpisodeState.PENDING: "reset",
    EpisodeState.GENERATING: "engine",
    EpisodeState.CALLING_TOOLS: "env",
}
"""Who is to blame for an error that comes up in a state, as the `kind` of the failure."""

ChatFactory = Callable[[Sequence[ToolSchema]], Chat]
"""From an env's tools to the chat that renders them; the runner keeps one per set of tools."""


def derive_seed(run_seed: int, *parts: str | int) -> int:
    """A seed of 63 bits that depends on every part and on nothing else."""
    text = "\x1f".join([str(run_seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class _FailedError(Exception):
    def __init__(self, kind: str, cause: BaseException) -> None:
        super().__init__(kind)
        self.kind = kind
        self.cause = cause


class Episode:
    """Plays one task once.

    Args:
        env: the env; reset here, closed by whoever made it.
        engine: where turns come from.
        chat_factory: see `ChatFactory`.
        task: the task.
        sampling: how to sample each turn; `max_new_tokens` is the bound for one turn, the stop tokens are added here.
        limits: budgets and deadlines.
        env_id: name for the record.
        group_id: number of the task in the run.
        sample: number of the episode in its group.
        seed: the run's seed, or None for no reproducibility.
        step: the training step, for the record.
    """

    def __init__(
        self,
        env: BaseEnv,
        engine: Engine,
        chat_factory: ChatFactory,
        task: Task,
        sampling: SamplingParams,
        limits: Limits,
        *,
        env_id: str = "",
        group_id: int = 0,
        sample: int = 0,
        seed: int | None = None,
        step: int = 0,
    ) -> None:
        self.state = EpisodeState.PENDING
        self._env, self._engine, self._chat_factory = env, engine, chat_factory
        self._task, self._sampling, self._limits = task, sampling, limits
        self._env_id, self._group_id, self._sample = env_id, group_id, sample
        self._seed, self._step = seed, step
        self._id = uuid.uuid4().hex
        self._chat: Chat | None = None
        self._messages: list[Message] = list(task.messages)
        self._prompt_ids: list[int] = []
        self._context: list[int] = []
        self._segments: list[Segment] = []
        self._turns: list[Turn] = []
        self._reward = 0.0
        self._metrics: Mapping[str, Any] = {}

    async def run(self) -> Trajectory:
        """Play to the end. Never raises, except for cancellation."""
        with playing(self._group_id, self._sample):
            return await self._run()

    async def _run(self) -> Trajectory:
        started_at, started = time.time(), time.monotonic()
        error: Failure | None = None
        try:
            async with asyncio.timeout(self._limits.episode_timeout):
                reason = await self._play()
        except TimeoutError as cause:  # the whole episode's; the others arrive wrapped
            reason, error = StopReason.TIMEOUT, self._failure("episode_timeout", cause)
        except _FailedError as failed:
            timed_out = failed.kind.endswith("_timeout")
            reason = StopReason.TIMEOUT if timed_out else StopReason.ERROR
            error = self._failure(failed.kind, failed.cause)
        except Exception as cause:  # noqa: BLE001  what an engine or env gave could not even be read
            reason, error = StopReason.ERROR, self._failure(_BLAMED[self.state], cause)
        self.state = EpisodeState.FINISHED
        return self._record(reason, error, started_at, time.monotonic() - started)

    # ------------------------------------------------------------------ the road

    async def _play(self) -> StopReason:
        obs, _ = await self._guard("reset", self._reset(), self._limits.env_timeout)
        self._messages = list(obs)
        try:
            self._chat = chat = self._chat_factory(self._env.tool_schemas)
            self._prompt_ids = chat.prompt(obs)
            self._refuse_long_prompt()
        except Exception as cause:
            raise _FailedError("prompt", cause) from cause
        self._context = list(self._prompt_ids)
        while True:
            budget = self._budget()
            if budget < 1:
                return StopReason.BUDGET
            generation, engine_seconds = await self._generate(chat, budget)
            text = chat.text(generation.token_ids)
            turn = Turn(
                text=text,
                finish_reason=generation.finish_reason.value,
                prompt_tokens=len(self._context),
                generated_tokens=len(generation.token_ids),
                cached_tokens=generation.cached_tokens,
                engine_seconds=engine_seconds,
            )
            self._append(generation)
            self._turns.append(turn)
            self._messages.append({"role": "assistant", "content": text})
            if generation.finish_reason is FinishReason.ABORT or not chat.ends_turn(generation.token_ids):
                # A turn without its end is no action: the policy never said it was done. The env is not asked.
                cut_by_budget = budget < self._sampling.max_new_tokens
                if generation.finish_reason is FinishReason.ABORT:
                    return StopReason.ABORTED
                return StopReason.BUDGET if cut_by_budget else StopReason.LENGTH
            self.state = EpisodeState.CALLING_TOOLS
            started = time.monotonic()
            result: StepResult = await self._guard("env", self._env.step(text), self._limits.env_timeout)
            env_seconds = time.monotonic() - started
            if not math.isfinite(result.reward):
                raise ConfigError(f"the env gave a reward that is not finite: {result.reward!r}")
            self._reward += result.reward
            self._metrics = result.info.get("metrics", {})
            message: Message = result.info.get("message") or {"role": "assistant", "content": text}
            self._messages[-1] = chat.exact_message(text, message)
            turn = replace(
                turn,
                tool_calls=tuple(result.info.get("tool_calls", ())),
                reward=result.reward,
                env_seconds=env_seconds,
            )
            self._turns[-1] = turn
            if result.done:
                return StopReason(result.info.get("stop_reason") or StopReason.ANSWERED)
            delta = self._delta(chat, result.obs)
            if self._budget() - len(delta) < 1:
                return StopReason.BUDGET  # the observation would leave no room for a turn, so nobody would see it
            self._messages.extend(result.obs)
            self._segments.append(Segment(tuple(delta), is_policy=False))
            self._context += delta
            self._turns[-1] = replace(turn, observation_tokens=len(delta))

    async def _reset(self) -> tuple[list[Message], dict[str, Any]]:
        seed = None if self._seed is None else derive_seed(self._seed, self._group_id, self._sample)
        return await self._env.reset(seed=seed, options={"task": self._task})

    async def _generate(self, chat: Chat, budget: int) -> tuple[Generation, float]:
        self.state = EpisodeState.GENERATING
        number = len(self._turns)
        seed = None
        if self._seed is not None:
            seed = derive_seed(self._seed, self._group_id, self._sample, number)
        params = replace(
            self._sampling,
            max_new_tokens=min(budget, self._sampling.max_new_tokens),
            stop_token_ids=tuple({*self._sampling.stop_token_ids, *chat.stop_token_ids}),
            seed=seed,
        )
        started = time.monotonic()
        call = self._engine.generate(list(self._context), params, request_id=f"{self._id}-{number}")
        generation = await self._guard("engine", call, self._limits.engine_timeout)
        if not all(map(math.isfinite, generation.logprobs)):
            cause = EngineError("the engine gave a log-probability that is not finite (NaN in the model?)")
            raise _FailedError("engine", cause)
        return generation, time.monotonic() - started

    def _delta(self, chat: Chat, obs: Sequence[Message]) -> list[int]:
        try:
            return chat.extend(obs)
        except Exception as cause:
            raise _FailedError("prompt", cause) from cause

    def _append(self, generation: Generation) -> None:
        if generation.token_ids:
            self._segments.append(Segment(generation.token_ids, True, generation.logprobs, generation.weight_versions))
            self._context += generation.token_ids

    def _budget(self) -> int:
        """How many more tokens the context and the response may take."""
        room = self._engine.context_length - len(self._context)
        if self._limits.max_response_tokens is not None:
            used = len(self._context) - len(self._prompt_ids)
            room = min(room, self._limits.max_response_tokens - used)
        return room

    def _refuse_long_prompt(self) -> None:
        most = self._engine.context_length - 1
        if self._limits.max_prompt_tokens is not None:
            most = min(most, self._limits.max_prompt_tokens)
        if len(self._prompt_ids) > most:
            raise ConfigError(
                f"the prompt has {len(self._prompt_ids)} tokens, more than the {most} allowed; it is not cut, "
                "because the policy would see another task: shorten the task, or raise max_prompt_tokens"
            )

    async def _guard(self, kind: str, call: Any, seconds: float) -> Any:
        try:
            return await with_deadline(call, seconds)
        except DeadlineError as cause:
            raise _FailedError("env_timeout" if kind == "reset" else f"{kind}_timeout", cause) from cause
        except Exception as cause:
            raise _FailedError(kind, cause) from cause

    # ------------------------------------------------------------------ the record

    def _failure(self, kind: str, cause: BaseException) -> Failure:
        if kind == "episode_timeout":
            message = f"the episode did not finish within {self._limits.episode_timeout:g} seconds"
        else:
            message = f"{type(cause).__name__}: {cause}"
        return Failure(kind, message, len(self._turns))

    def _record(self, reason: StopReason, error: Failure | None, started_at: float, seconds: float) -> Trajectory:
        response = self._context[len(self._prompt_ids) :]
        return Trajectory(
            id=self._id,
            env_id=self._env_id,
            task_id=self._task.id,
            source=self._task.source,
            group_id=self._group_id,
            sample=self._sample,
            messages=tuple(self._messages),
            tools=tuple(self._chat.tools) if self._chat is not None else (),
            prompt_ids=tuple(self._prompt_ids),
            segments=tuple(self._segments),
            reward=self._reward,
            stop_reason=reason,
            turns=tuple(self._turns),
            ground_truth=self._task.ground_truth,
            error=error,
            sampling={
                **asdict(self._sampling),
                "stop_token_ids": list(self._sampling.stop_token_ids),
                "seed": self._seed,
            },
            metrics=dict(self._metrics),
            prompt_text=self._chat.decode(self._prompt_ids) if self._chat is not None else "",
            response_text=self._chat.decode(response) if self._chat is not None else "",
            started_at=started_at,
            seconds=seconds,
            step=self._step,
        )
