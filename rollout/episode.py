"""One episode: reset, then turns of the policy and steps of the env in alternation, then the record.

`Episode.run` always returns a trajectory. Whatever breaks (the engine raises, the env raises, a deadline passes)
ends in the trajectory's `error`, with everything that happened before it. Only cancellation passes through.

A turn that the engine aborts, as it does when its weights are updated, is resumed: the same turn goes on from prompt
and partial, under the weights that the engine then has. Each token keeps the version that it was sampled with.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.engines.base import Engine, FinishReason
from toolgym.rollout.episode_config import EpisodeConfig
from toolgym.rollout.episode_key import episode_scope
from toolgym.rollout.job import Job
from toolgym.rollout.limits import HistoryMode, TruncationPolicy
from toolgym.rollout.token_sequence import TokenSequence
from toolgym.rollout.tokens.context_policies import ContextPolicy, ContextState, checked_messages
from toolgym.rollout.tokens.conversation import Conversation, Extension
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.safe_encoder import LONG
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.rollout.trajectory import Failure, Trajectory, Turn
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.errors import ConfigError, EpisodeError, SandboxError, TemplateError, error_text
from toolgym.tools.message import Message
from toolgym.tools.schema import ToolSchema

T = TypeVar("T")

RESUME_WAIT = (0.05, 5.0)
"""Seconds to wait before a turn is resumed that got no token since the last time: at first, and at most. It doubles
each time."""


RendererFactory = Callable[[Sequence[ToolSchema]], ChatRenderer]
"""From an env's tools to their renderer; the runner keeps one per set of tools."""


def derive_seed(run_seed: int, *parts: str | int) -> int:
    """A seed of 63 bits that depends on every part and on nothing else."""
    text = "\x1f".join([str(run_seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def step_seed(run_seed: int | None, training_step: int) -> int | None:
    """The seed of one training step, which its episodes' seeds derive from; at step 0 the run's own."""
    return run_seed if run_seed is None or not training_step else derive_seed(run_seed, "step", training_step)


class _FailedError(Exception):
    def __init__(self, reason: StopReason, cause: BaseException) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cause = cause


class Episode:
    """Plays one job.

    Args:
        job: the task, and the episode's place in its run.
        config: how to play it.
        env: the env; reset here, closed by its owner.
        engine: where turns come from.
        renderer_factory: see `RendererFactory`.
        env_id: what the trajectory calls the env.
    """

    def __init__(
        self,
        job: Job,
        config: EpisodeConfig,
        env: BaseEnv,
        engine: Engine,
        renderer_factory: RendererFactory,
        *,
        env_id: str = "",
    ) -> None:
        self._phase = StopReason.RESET_FAILED  # how the episode ends if something unforeseen breaks now
        self._job, self._config, self._env_id = job, config, env_id
        self._env, self._engine, self._make_renderer = env, engine, renderer_factory
        self._task, self._key = job.task, job.key
        self._seed = step_seed(job.seed, config.training_step)
        self._sampling, self._limits, self._context = config.sampling, config.limits, config.context_policies
        self._history = HistoryMode(config.history)
        self._on_truncated_turn = TruncationPolicy(config.on_truncated_turn)
        self._id = uuid.uuid4().hex
        self._renderer: ChatRenderer | None = None
        self._messages: list[Message] = list(job.task.messages)
        self._conversation: Conversation | None = None
        self._turns: list[Turn] = []
        self._number = 0
        self._reward = 0.0
        self._metrics: Mapping[str, Any] = {}

    async def run(self) -> Trajectory:
        """Play to the end. Never raises, except for cancellation."""
        started_at, started = time.time(), time.monotonic()
        error: Failure | None = None
        try:
            with episode_scope(self._key):
                async with asyncio.timeout(self._limits.episode_timeout):
                    reason = await self._play()
        except TimeoutError as cause:  # the whole episode's; the others arrive wrapped
            reason = StopReason.EPISODE_TIMEOUT
            error = self._failure(reason, cause)
        except _FailedError as failed:
            reason, error = failed.reason, self._failure(failed.reason, failed.cause)
        except Exception as cause:  # noqa: BLE001  what an engine or env gave could not even be read
            reason, error = self._phase, self._failure(self._phase, cause)
        return self._record(reason, error, started_at, time.monotonic() - started)

    # ------------------------------------------------------------------ the road

    async def _play(self) -> StopReason:
        renderer, conversation = await self._begin()
        while True:
            self._number = len(self._turns)
            budget = self._room(len(conversation.context), conversation.response_tokens)
            if budget < 1:
                return StopReason.BUDGET
            finish_reason = await self._sample_turn(renderer, conversation, budget)
            reason = self._close_turn(renderer, conversation, finish_reason, budget)
            if reason is not None:
                return reason
            result = await self._step_env(conversation)
            reason = result.stop_reason
            if reason is not None and reason.failed:
                raise _FailedError(reason, EpisodeError("the env ended the episode with this reason"))
            if reason is not None:
                return reason
            try:
                observation, extension = await self._observe(renderer, conversation, result.obs)
            except TooManyTokensError:
                return StopReason.BUDGET  # as below, found out without encoding it
            added = len(extension.added or ())
            response_tokens = 0 if extension.begins_sequence else conversation.response_tokens + added
            if self._room(extension.tokens, response_tokens) < 1:
                return StopReason.BUDGET  # the observation would leave no room for a turn that could read it
            conversation.apply(extension, observation)
            self._turns[-1] = replace(self._turns[-1], observation_tokens=added)

    async def _begin(self) -> tuple[ChatRenderer, Conversation]:
        seed = None if self._seed is None else derive_seed(self._seed, *self._key)
        with _failing(StopReason.RESET_FAILED, StopReason.ENV_TIMEOUT):
            call = self._env.reset(seed=seed, options={"task": self._task})
            obs, _ = await with_deadline(call, self._limits.env_timeout)
        self._messages = list(obs)
        with _failing(StopReason.PROMPT_REFUSED):
            self._renderer = renderer = self._make_renderer(self._env.tool_schemas)
            most = self._longest_prompt()
            try:
                conversation = await _apart(partial(Conversation, renderer, self._history, obs, most=most), obs)
            except TooManyTokensError as error:
                raise _long_prompt(f"at least {error.least}", most) from error
            self._conversation = conversation
            if len(conversation.context) > most:
                raise _long_prompt(str(len(conversation.context)), most)
        return renderer, conversation

    async def _step_env(self, conversation: Conversation) -> StepResult:
        self._phase = StopReason.ENV_FAILED
        turn, parsed = self._turns[-1], conversation.parse_turn()
        started = time.monotonic()
        with _failing(StopReason.ENV_FAILED, StopReason.ENV_TIMEOUT):
            result = await with_deadline(self._env.step(parsed), self._limits.env_timeout)
        env_seconds = time.monotonic() - started
        if not math.isfinite(result.reward):
            raise ConfigError(f"the env gave a reward that is not finite: {result.reward!r}")
        self._reward += result.reward
        self._metrics = result.info.get("metrics", {})
        conversation.set_message(result.info.get("message") or parsed.message)
        self._turns[-1] = replace(
            turn, tool_calls=tuple(result.info.get("tool_calls", ())), reward=result.reward, env_seconds=env_seconds
        )
        return result

    # ------------------------------------------------------------------ the policy's turn

    async def _sample_turn(self, renderer: ChatRenderer, conversation: Conversation, budget: int) -> FinishReason:
        """Sample one turn, in several parts where the engine aborts it. What was sampled becomes a `Turn`."""
        self._phase = StopReason.ENGINE_FAILED
        stop_token_ids = tuple(sorted({*self._sampling.stop_token_ids, *renderer.stop_token_ids}))
        most = min(budget, self._sampling.max_new_tokens)
        prompt_tokens, started = len(conversation.context), time.monotonic()
        reason, seed = FinishReason.ABORT, self._sampling_seed(self._number)
        resumes = cached_tokens = idle = tokens = 0
        over = False
        try:
            while not over:
                parts = (self._number, resumes) if resumes else (self._number,)
                params = replace(
                    self._sampling,
                    max_new_tokens=most - tokens,
                    stop_token_ids=stop_token_ids,
                    seed=self._sampling_seed(*parts) if resumes else seed,
                )
                request_id = "-".join([self._id, *map(str, parts)])
                with _failing(StopReason.ENGINE_FAILED, StopReason.ENGINE_TIMEOUT):
                    call = self._engine.generate(conversation.context, params, request_id=request_id, affinity=self._id)
                    generation = await with_deadline(call, self._limits.engine_timeout)
                conversation.add_generation(generation)
                tokens = len(conversation.context) - prompt_tokens
                if resumes == 0:
                    cached_tokens = generation.cached_tokens
                reason = generation.finish_reason
                if reason is FinishReason.ABORT and tokens:  # it may have come at the end by itself
                    if conversation.context[-1] in stop_token_ids:
                        reason = FinishReason.STOP
                    elif tokens == most:
                        reason = FinishReason.LENGTH
                over = reason is not FinishReason.ABORT or resumes == self._limits.max_resumes
                if not over:
                    resumes += 1
                    idle = 0 if generation.token_ids else idle + 1
                    if idle:
                        first, longest = RESUME_WAIT
                        await asyncio.sleep(min(longest, first * 2.0 ** min(idle - 1, 30)))
        finally:
            if over or tokens:
                turn = Turn(
                    text=conversation.add_turn(),
                    finish_reason=reason.value,
                    prompt_tokens=prompt_tokens,
                    generated_tokens=tokens,
                    cached_tokens=cached_tokens,
                    engine_seconds=time.monotonic() - started,
                    sequence=conversation.number,
                    resumes=resumes,
                    truncated=reason is not FinishReason.STOP and not renderer.ends_turn(conversation.turn_ids),
                    seed=seed,
                )
                self._turns.append(turn)
        return reason

    def _sampling_seed(self, *parts: int) -> int | None:
        """The seed of one request: by its turn's number, and behind it that of the part if it is not the first."""
        return self._sampling.seed if self._seed is None else derive_seed(self._seed, *self._key, *parts)

    def _close_turn(
        self, renderer: ChatRenderer, conversation: Conversation, reason: FinishReason, budget: int
    ) -> StopReason | None:
        """See to it that the turn has an end. Returns why the episode is over, if it is. See `TruncationPolicy`."""
        if renderer.ends_turn(conversation.turn_ids):
            return None
        if reason is not FinishReason.STOP and self._on_truncated_turn is TruncationPolicy.END:
            if reason is FinishReason.ABORT:
                return StopReason.ABORTED
            return StopReason.BUDGET if budget < self._sampling.max_new_tokens else StopReason.LENGTH
        with _failing(StopReason.PROMPT_REFUSED):
            closing = conversation.missing_end()
        if self._room(len(conversation.context), conversation.response_tokens) < len(closing):
            return StopReason.BUDGET
        conversation.add_env_tokens(closing)
        self._turns[-1] = replace(self._turns[-1], closing_tokens=len(closing))
        return None

    # ------------------------------------------------------------------ the env's answer

    async def _observe(
        self, renderer: ChatRenderer, conversation: Conversation, obs: Sequence[Message]
    ) -> tuple[list[Message], Extension]:
        """New messages as the context policies let them through, and how the conversation goes on with them."""
        admitted = list(obs)
        with _failing(StopReason.CONTEXT_FAILED):
            for policy in self._context:
                for index, message in enumerate(admitted):
                    admit = partial(policy.admit, message, renderer)
                    admitted[index] = await _apart(admit, [message]) if policy.tokenizes else admit()
        # A context policy gets the conversation's length, and may shorten one that is too long.
        most = None if any(map(_revises, self._context)) else self._longest() - 1
        with _failing(StopReason.PROMPT_REFUSED):
            extend = partial(conversation.extended_with, admitted, most=most)
            extension = await _apart(extend, conversation.to_encode(admitted))
        for policy in self._context:
            # A copy, so that a policy that changes a message in place gives another conversation, and not another past.
            messages, state = copy.deepcopy(extension.messages), ContextState(extension.tokens, self._longest())
            with _failing(StopReason.CONTEXT_FAILED, StopReason.CONTEXT_TIMEOUT):
                revised = await with_deadline(_revise(policy, messages, state), self._limits.context_timeout)
            with _failing(StopReason.CONTEXT_FAILED):
                try:
                    if (messages := checked_messages(policy, revised)) != extension.messages:
                        rewrite = partial(conversation.rewritten, messages, policy.name)
                        extension = await _apart(rewrite, messages)
                except TemplateError:
                    # What the model wrote may be what the template refuses; then nothing is changed, and it goes on.
                    if conversation.renders(extension.messages):
                        raise
        return admitted, extension

    # ------------------------------------------------------------------ budgets

    def _longest(self) -> int:
        """Most tokens that the present sequence, or the next one, may have, the prompt included."""
        longest = self._engine.context_length
        if self._limits.max_response_tokens is not None:
            assert self._conversation is not None
            longest = min(longest, self._conversation.first_prompt_tokens + self._limits.max_response_tokens)
        return longest

    def _room(self, tokens: int, response_tokens: int) -> int:
        """How many more tokens a sequence of so many tokens, so many of them behind its prompt, may take."""
        room = self._longest() - tokens
        if self._limits.max_response_tokens is not None:
            room = min(room, self._limits.max_response_tokens - response_tokens)
        return room

    def _longest_prompt(self) -> int:
        """Most tokens that the prompt may have."""
        most = self._engine.context_length - 1
        return most if self._limits.max_prompt_tokens is None else min(most, self._limits.max_prompt_tokens)

    # ------------------------------------------------------------------ the record

    def _failure(self, reason: StopReason, cause: BaseException) -> Failure:
        if reason is StopReason.EPISODE_TIMEOUT:
            message = f"the episode did not finish within {self._limits.episode_timeout:g} seconds"
        else:
            message = error_text(cause)
        return Failure(message, self._number)

    def _record(self, reason: StopReason, error: Failure | None, started_at: float, seconds: float) -> Trajectory:
        messages: Sequence[Message] = self._messages
        sequences: tuple[TokenSequence, ...] = ()
        prompt_text: str | Callable[[], str] = ""
        response_text: str | Callable[[], str] = ""
        if self._conversation is not None and self._renderer is not None:
            messages, sequences = self._conversation.messages, self._conversation.sequences
            last, decode = sequences[-1], self._renderer.decode
            prompt_text = lambda: decode(last.prompt_ids.tolist())  # noqa: E731
            response_text = lambda: decode(last.response_ids.tolist())  # noqa: E731
        return Trajectory(
            id=self._id,
            env_id=self._env_id,
            task_id=self._task.id,
            source=self._task.source,
            group_id=self._job.group_id,
            task_index=self._key.task_index,
            sample_index=self._key.sample_index,
            messages=tuple(messages),
            tools=tuple(self._renderer.tools) if self._renderer is not None else (),
            sequences=sequences,
            reward=self._reward,
            stop_reason=reason,
            turns=tuple(self._turns),
            ground_truth=self._task.ground_truth,
            error=error,
            sampling={
                **asdict(self._sampling),
                "stop_token_ids": list(self._sampling.stop_token_ids),
                "seed": self._job.seed,
            },
            metrics=dict(self._metrics),
            prompt_text=prompt_text,
            response_text=response_text,
            started_at=started_at,
            seconds=seconds,
            training_step=self._config.training_step,
            validate=self._config.validate,
        )


def never_played(job: Job, config: EpisodeConfig, env_id: str, error: Exception) -> Trajectory:
    """The trajectory of an episode whose env could not be made, because of `error`."""
    return Trajectory(
        id=f"{job.group_id}-{job.key.sample_index}-not-made",
        env_id=env_id,
        task_id=job.task.id,
        source=job.task.source,
        group_id=job.group_id,
        task_index=job.key.task_index,
        sample_index=job.key.sample_index,
        messages=job.task.messages,
        tools=(),
        sequences=(),
        reward=0.0,
        stop_reason=StopReason.ENV_CREATE_FAILED,
        ground_truth=job.task.ground_truth,
        error=Failure(error_text(error), 0),
        training_step=config.training_step,
        validate=config.validate,
    )


@contextlib.contextmanager
def _failing(failed: StopReason, timed_out: StopReason | None = None) -> Iterator[None]:
    """Say how the episode ends if the block raises: with `failed`, unless the error knows the reason better."""
    try:
        yield
    except DeadlineError as cause:
        raise _FailedError(timed_out or failed, cause) from cause
    except TooManyTokensError:
        raise
    except EpisodeFailedError as cause:
        raise _FailedError(cause.stop_reason, cause) from cause
    except SandboxError as cause:
        raise _FailedError(StopReason.SANDBOX_FAILED, cause) from cause
    except Exception as cause:
        raise _FailedError(failed, cause) from cause


def _long_prompt(tokens: str, most: int) -> ConfigError:
    return ConfigError(
        f"the prompt has {tokens} tokens, more than the {most} allowed; it is not cut, "
        "because the policy would see another task: shorten the task, or raise max_prompt_tokens"
    )


async def _apart(encode: Callable[[], T], messages: Sequence[Message]) -> T:
    """Call what encodes messages; in a thread where they are long, so that other episodes go on meanwhile."""
    contents = (message.get("content") for message in messages)
    if sum(len(content) for content in contents if isinstance(content, str)) < LONG:
        return encode()
    return await in_thread(encode)


def _revises(policy: ContextPolicy) -> bool:
    return type(policy).revise is not ContextPolicy.revise


async def _revise(policy: ContextPolicy, messages: list[Message], state: ContextState) -> Sequence[Message]:
    return await policy.revise(messages, state)
