"""One episode as a state machine: `PENDING → GENERATING → CALLING_TOOLS → GENERATING → … → FINISHED`.

`Episode.run` always returns a trajectory. Whatever breaks (the engine raises, the env raises, a deadline passes)
ends in the trajectory's `error`, with everything that happened before it. Only cancellation passes through.

A turn that the engine aborts, as it does when its weights are updated, is resumed: the same turn goes on from prompt
and partial, under whatever weights the engine then has. Each token keeps the version that it was sampled with.
"""

from __future__ import annotations

import asyncio
import copy
import enum
import hashlib
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from toolgym.envs.base import BaseEnv, StepResult, StopReason
from toolgym.envs.task import Task
from toolgym.rollout.chat import Chat
from toolgym.rollout.context import ContextPolicy, ContextState, checked_messages
from toolgym.rollout.engines.base import Engine, FinishReason, Generation, SamplingParams
from toolgym.rollout.playing import playing
from toolgym.rollout.rules import History, Limits, TruncatedTurn
from toolgym.rollout.trajectory import Failure, TokenSequence, Trajectory, Turn
from toolgym.rollout.transcript import Step, Transcript
from toolgym.tools.deadline import DeadlineError, with_deadline
from toolgym.tools.errors import ConfigError, EngineError, TemplateError
from toolgym.tools.message import Message
from toolgym.tools.schema import ToolSchema

RESUME_WAIT = (0.05, 5.0)
"""Seconds to wait before a turn is resumed that got no token since the last time: at first, and at most. It doubles
each time."""


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
        history: what the policy sees of its earlier turns.
        on_truncated_turn: what becomes of a turn that was cut.
        context: context policies, asked in this order.
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
        history: History = History.APPEND,
        on_truncated_turn: TruncatedTurn = TruncatedTurn.END,
        context: Sequence[ContextPolicy] = (),
        env_id: str = "",
        group_id: int = 0,
        sample: int = 0,
        seed: int | None = None,
        step: int = 0,
    ) -> None:
        self.state = EpisodeState.PENDING
        self._env, self._engine, self._chat_factory = env, engine, chat_factory
        self._task, self._sampling, self._limits = task, sampling, limits
        self._history, self._on_truncated_turn, self._context = history, on_truncated_turn, context
        self._env_id, self._group_id, self._sample = env_id, group_id, sample
        self._seed, self._step = seed, step
        self._id = uuid.uuid4().hex
        self._chat: Chat | None = None
        self._messages: list[Message] = list(task.messages)
        self._transcript: Transcript | None = None
        self._turns: list[Turn] = []
        self._number = 0
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
        chat, transcript = await self._begin()
        while True:
            self._number = len(self._turns)
            budget = self._room(len(transcript.context), transcript.response_tokens)
            if budget < 1:
                return StopReason.BUDGET
            token_ids, finish_reason = await self._sample_turn(chat, transcript, budget)
            reason = self._close_turn(chat, transcript, token_ids, finish_reason, budget)
            if reason is not None:
                return reason
            result = await self._step_env(transcript)
            if result.done:
                return StopReason(result.info.get("stop_reason") or StopReason.ANSWERED)
            observation, step = await self._observe(chat, transcript, result.obs)
            response_tokens = 0 if step.begins else transcript.response_tokens + len(step.added or ())
            if self._room(step.tokens, response_tokens) < 1:
                return StopReason.BUDGET  # the observation would leave no room for a turn, so nobody would see it
            transcript.take(step, observation)
            self._turns[-1] = replace(self._turns[-1], observation_tokens=len(step.added or ()))

    async def _begin(self) -> tuple[Chat, Transcript]:
        seed = None if self._seed is None else derive_seed(self._seed, self._group_id, self._sample)
        call = self._env.reset(seed=seed, options={"task": self._task})
        obs, _ = await self._guard("reset", call, self._limits.env_timeout)
        self._messages = list(obs)
        try:
            self._chat = chat = self._chat_factory(self._env.tool_schemas)
            self._transcript = transcript = Transcript(chat, self._history, obs)
            self._refuse_long_prompt(len(transcript.context))
        except Exception as cause:
            raise _FailedError("prompt", cause) from cause
        return chat, transcript

    async def _step_env(self, transcript: Transcript) -> StepResult:
        self.state = EpisodeState.CALLING_TOOLS
        turn = self._turns[-1]
        started = time.monotonic()
        result: StepResult = await self._guard("env", self._env.step(turn.text), self._limits.env_timeout)
        env_seconds = time.monotonic() - started
        if not math.isfinite(result.reward):
            raise ConfigError(f"the env gave a reward that is not finite: {result.reward!r}")
        self._reward += result.reward
        self._metrics = result.info.get("metrics", {})
        transcript.read(turn.text, result.info.get("message") or {"role": "assistant", "content": turn.text})
        self._turns[-1] = replace(
            turn, tool_calls=tuple(result.info.get("tool_calls", ())), reward=result.reward, env_seconds=env_seconds
        )
        return result

    # ------------------------------------------------------------------ the policy's turn

    async def _sample_turn(self, chat: Chat, transcript: Transcript, budget: int) -> tuple[list[int], FinishReason]:
        """Sample one turn, in several parts where the engine aborts it. Whatever was sampled becomes a `Turn`."""
        self.state = EpisodeState.GENERATING
        stop_token_ids = tuple(sorted({*self._sampling.stop_token_ids, *chat.stop_token_ids}))
        most = min(budget, self._sampling.max_new_tokens)
        prompt_tokens, started = len(transcript.context), time.monotonic()
        token_ids: list[int] = []
        reason = FinishReason.ABORT
        resumes = cached_tokens = idle = 0
        over = False
        try:
            while not over:
                params = replace(self._sampling, max_new_tokens=most - len(token_ids), stop_token_ids=stop_token_ids)
                generation = await self._generate(transcript.context, params, resumes)
                transcript.sampled(generation)
                token_ids += generation.token_ids
                if resumes == 0:
                    cached_tokens = generation.cached_tokens
                reason = generation.finish_reason
                if reason is FinishReason.ABORT and token_ids:  # it may have come at the end by itself
                    if token_ids[-1] in stop_token_ids:
                        reason = FinishReason.STOP
                    elif len(token_ids) == most:
                        reason = FinishReason.LENGTH
                over = reason is not FinishReason.ABORT or resumes == self._limits.max_resumes
                if not over:
                    resumes += 1
                    idle = 0 if generation.token_ids else idle + 1
                    if idle:
                        first, longest = RESUME_WAIT
                        await asyncio.sleep(min(longest, first * 2.0 ** min(idle - 1, 30)))
        finally:
            if over or token_ids:
                turn = Turn(
                    text=chat.text(token_ids),
                    finish_reason=reason.value,
                    prompt_tokens=prompt_tokens,
                    generated_tokens=len(token_ids),
                    cached_tokens=cached_tokens,
                    engine_seconds=time.monotonic() - started,
                    sequence=transcript.number,
                    resumes=resumes,
                    truncated=reason is not FinishReason.STOP and not chat.ends_turn(token_ids),
                )
                self._turns.append(turn)
                transcript.said({"role": "assistant", "content": turn.text})
        return token_ids, reason

    async def _generate(self, context: Sequence[int], params: SamplingParams, part: int) -> Generation:
        """Send one request: the turn's first part, or with `part` above 0 what goes on from the parts before."""
        parts = (self._number, part) if part else (self._number,)
        if self._seed is not None:
            params = replace(params, seed=derive_seed(self._seed, self._group_id, self._sample, *parts))
        call = self._engine.generate(
            list(context), params, request_id="-".join([self._id, *map(str, parts)]), affinity=self._id
        )
        generation: Generation = await self._guard("engine", call, self._limits.engine_timeout)
        problem = ""
        if not all(map(math.isfinite, generation.logprobs)):
            problem = "the engine gave a log-probability that is not finite (NaN in the model?)"
        elif len(generation.token_ids) > params.max_new_tokens:
            problem = f"the engine gave {len(generation.token_ids)} tokens for max_new_tokens={params.max_new_tokens}"
        elif not all(0 <= token_id < self._engine.vocab_size for token_id in generation.token_ids):
            problem = f"the engine gave a token id outside its vocabulary of {self._engine.vocab_size} ids"
        if problem:
            raise _FailedError("engine", EngineError(problem))
        return generation

    def _close_turn(
        self, chat: Chat, transcript: Transcript, token_ids: Sequence[int], reason: FinishReason, budget: int
    ) -> StopReason | None:
        """See to it that the turn has an end. Returns why the episode is over, if it is. See `TruncatedTurn`."""
        if chat.ends_turn(token_ids):
            return None
        if reason is not FinishReason.STOP and self._on_truncated_turn is TruncatedTurn.END:
            if reason is FinishReason.ABORT:
                return StopReason.ABORTED
            return StopReason.BUDGET if budget < self._sampling.max_new_tokens else StopReason.LENGTH
        try:
            closing = chat.close_turn(token_ids)
        except Exception as cause:
            raise _FailedError("prompt", cause) from cause
        if self._room(len(transcript.context), transcript.response_tokens) < len(closing):
            return StopReason.BUDGET
        transcript.closed(closing)
        self._turns[-1] = replace(self._turns[-1], closing_tokens=len(closing))
        return None

    # ------------------------------------------------------------------ the env's answer

    async def _observe(self, chat: Chat, transcript: Transcript, obs: Sequence[Message]) -> tuple[list[Message], Step]:
        """New messages as the context policies let them through, and how the conversation goes on with them."""
        admitted = list(obs)
        try:
            for policy in self._context:
                admitted = [policy.admit(message, chat) for message in admitted]
        except Exception as cause:
            raise _FailedError("context", cause) from cause
        try:
            step = transcript.observed(admitted)
        except Exception as cause:
            raise _FailedError("prompt", cause) from cause
        for policy in self._context:
            # A copy, so that a policy that changes a message in place gives another conversation, and not another past.
            call = _revise(policy, copy.deepcopy(step.messages), ContextState(step.tokens, self._longest()))
            revised = await self._guard("context", call, self._limits.context_timeout)
            try:
                if (messages := checked_messages(policy, revised)) != step.messages:
                    step = transcript.rewritten(messages, policy.name)
            except TemplateError as cause:
                # What the model wrote may be what the template refuses; then nothing is changed, and it goes on.
                if transcript.renders(step.messages):
                    raise _FailedError("context", cause) from cause
            except Exception as cause:
                raise _FailedError("context", cause) from cause
        return admitted, step

    # ------------------------------------------------------------------ budgets

    def _longest(self) -> int:
        """Most tokens that the present sequence, or the next one, may have, the prompt included."""
        longest = self._engine.context_length
        if self._limits.max_response_tokens is not None:
            assert self._transcript is not None
            longest = min(longest, self._transcript.first_prompt_tokens + self._limits.max_response_tokens)
        return longest

    def _room(self, tokens: int, response_tokens: int) -> int:
        """How many more tokens a sequence of so many tokens, so many of them behind its prompt, may take."""
        room = self._longest() - tokens
        if self._limits.max_response_tokens is not None:
            room = min(room, self._limits.max_response_tokens - response_tokens)
        return room

    def _refuse_long_prompt(self, tokens: int) -> None:
        most = self._engine.context_length - 1
        if self._limits.max_prompt_tokens is not None:
            most = min(most, self._limits.max_prompt_tokens)
        if tokens > most:
            raise ConfigError(
                f"the prompt has {tokens} tokens, more than the {most} allowed; it is not cut, "
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
        return Failure(kind, message, self._number)

    def _record(self, reason: StopReason, error: Failure | None, started_at: float, seconds: float) -> Trajectory:
        messages: Sequence[Message] = self._messages
        sequences: tuple[TokenSequence, ...] = ()
        prompt_text = response_text = ""
        if self._transcript is not None and self._chat is not None:
            messages, sequences = self._transcript.messages, self._transcript.sequences
            prompt_text = self._chat.decode(sequences[-1].prompt_ids)
            response_text = self._chat.decode(sequences[-1].response_ids)
        return Trajectory(
            id=self._id,
            env_id=self._env_id,
            task_id=self._task.id,
            source=self._task.source,
            group_id=self._group_id,
            sample=self._sample,
            messages=tuple(messages),
            tools=tuple(self._chat.tools) if self._chat is not None else (),
            sequences=sequences,
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
            prompt_text=prompt_text,
            response_text=response_text,
            started_at=started_at,
            seconds=seconds,
            step=self._step,
        )


async def _revise(policy: ContextPolicy, messages: list[Message], state: ContextState) -> Sequence[Message]:
    return await policy.revise(messages, state)
