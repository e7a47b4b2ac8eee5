"""One episode: reset, then turns of the policy and steps of the env in alternation, then the record. Whatever breaks is
in the trajectory's `error`, with everything that happened before it. Only cancellation passes through."""

from __future__ import annotations

import asyncio
import enum
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from toolgym.envs.base import BaseEnv, StepResult
from toolgym.envs.failure import BROKEN_BY_POLICY, failing, finite_reward, is_programs_time, reason_to_end
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.engines.base import Engine, FinishReason
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.episode.context import EpisodeBudget, EpisodeContext, encoded_apart, long_prompt_error
from toolgym.rollout.episode.env_lifecycle import close_env, episode_deadline, fork_env, too_late
from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.episode.record import EpisodeRecord
from toolgym.rollout.episode.turn_sampling import OpenTurn, TurnSampler
from toolgym.rollout.job import Job
from toolgym.rollout.limits import HistoryMode, TruncationPolicy
from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.seeds import step_seed, stream_seed
from toolgym.rollout.tokens.conversation import Conversation
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, Turn
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.errors import EpisodeError, error_text
from toolgym.tools.schema import ToolSchema

SUSPEND_GRACE = 30.0
"""Seconds that an episode has, when it is asked to stand still, to come to the end of what its env does."""

T = TypeVar("T")

_ENV_FAILS = failing(StopReason.ENV_FAILED, StopReason.ENV_TIMEOUT)

BetweenTurns: TypeAlias = "Callable[[Episode], Awaitable[None]]"

RendererFactory = Callable[[Sequence[ToolSchema]], ChatRenderer]


class Stage(enum.Enum):
    NEW = enum.auto()
    """Before the end of `reset`."""
    BETWEEN = enum.auto()
    """A turn and its observation are in the conversation, or the first prompt, and the next turn has not begun."""
    SAMPLING = enum.auto()
    STEPPING = enum.auto()
    """The turn is over, and its observation is not in the conversation yet."""
    SCORING = enum.auto()
    """A limit ended the episode, and the env scores it."""
    OVER = enum.auto()

    @property
    def failure(self) -> StopReason:
        """The end of the episode if something unforeseen breaks now."""
        if self is Stage.NEW:
            return StopReason.RESET_FAILED
        return StopReason.ENGINE_FAILED if self in (Stage.BETWEEN, Stage.SAMPLING) else StopReason.ENV_FAILED


class Asked(enum.Enum):
    CUT = enum.auto()
    SUSPEND = enum.auto()


class Episode:
    """Plays one job.

    Args:
        job: the task, and the episode's place in its run; `parent` is set if it is a branch.
        config: how to play it.
        env: reset here, closed by its owner.
        engine: where turns come from.
        renderer_factory: from an env's tools to their renderer; the runner keeps one per set of tools.
        env_id: the env's name in the trajectory.
        observers: hear of it, in this order.
        settings: its run's, see `run_settings`; None for an episode outside of a run.
    """

    __slots__ = (
        "_asked", "_began", "_branches", "_budget", "_config", "_conversation", "_deadline", "_engine", "_env_seed",
        "_limits", "_make_renderer", "_observers", "_open_turn", "_patience", "_record", "_renderer", "_sampler",
        "_stage", "_started", "branches_left", "env", "id", "job",
    )  # fmt: skip

    def __init__(
        self,
        job: Job,
        config: EpisodeConfig,
        env: BaseEnv,
        engine: Engine,
        renderer_factory: RendererFactory,
        *,
        env_id: str = "",
        observers: Sequence[EpisodeObserver] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.job, self._config = job, config
        self.env, self._engine, self._make_renderer = env, engine, renderer_factory
        self._limits = config.limits
        self._budget = EpisodeBudget(engine, config.limits)
        self._observers = tuple(observers)
        self.branches_left: int | None = None
        self.id = uuid.uuid4().hex
        self._record = EpisodeRecord(job, config, self.id, env_id, settings or {})
        seed = step_seed(stream_seed(job.seed, validate=config.validate), config.training_step)
        self._env_seed = job.env_seed(seed)
        self._sampler = TurnSampler(engine, config, job, seed, episode_id=self.id, observers=self._observers)
        self._renderer: ChatRenderer | None = None
        self._conversation: Conversation | None = None
        self._stage = Stage.NEW
        self._open_turn: OpenTurn | None = None  # it is being sampled
        self._asked: Asked | None = None
        self._branches = 0
        self._began = False  # the observers heard of the beginning
        self._started: float | None = None  # while it runs
        self._deadline: episode_deadline | None = None  # while it runs
        self._patience: asyncio.TimerHandle | None = None

    async def run(self, *, between_turns: BetweenTurns | None = None) -> Trajectory | None:
        """Play to the end, or from where the episode stands still; return the trajectory, or None if it was asked to
        (`suspend`).

        `between_turns` is called with the episode after each turn that another one follows, and may fork it. What it
        raises ends the episode and passes through. Raises `EpisodeError` if the episode is over, or runs already.
        """
        if self._stage is Stage.OVER or self._started is not None:
            raise EpisodeError(f"the episode {'is over' if self._stage is Stage.OVER else 'runs already'}: run it once")
        self._started = time.monotonic()
        reason: StopReason | None = None
        failure: Failure | None = None
        callers_error: Exception | None = None
        try:
            if not self._began:
                self._began = True
                self._record.started_at = self._record.started_at or time.time()
                for observer in self._observers:
                    observer.began(self.job)
            try:
                async with episode_deadline(self._limits, self._record.seconds, self.job.key) as self._deadline:
                    if self._stage is Stage.NEW and self._asked is None:
                        await self._reset()
                    while reason is None and self._asked is None:
                        reason = await self._in_time(self._turn(self.conversation))
                        if between_turns is not None and reason is None and self._stage is Stage.BETWEEN:
                            try:
                                await between_turns(self)
                            except Exception as error:  # noqa: BLE001  raised below: no failure of the episode
                                callers_error = error
                                break
            except Exception as error:  # noqa: BLE001  it is in the trajectory
                reason, failure = self._broken_off(error)
            if callers_error is not None and failure is None:
                raise callers_error
        except BaseException:  # cancelled, an observer's error, or that of `between_turns`: it cannot go on from here
            self._stage = Stage.OVER
            raise
        finally:
            self._record.seconds = self._seconds()
            self._started = self._deadline = None
            if self._patience is not None:
                self._patience.cancel()
        if reason is None and self._asked is Asked.CUT:
            reason = StopReason.STRAGGLER
        if reason is None:
            self._asked = None
            self._waits(Phase.SUSPENDED)
            return None
        self._stage = Stage.OVER
        self._close_open_turn()
        trajectory = self._record.trajectory(reason, failure, self._renderer, self._conversation)
        for observer in self._observers:
            observer.ended(self.job, trajectory)
        return trajectory

    def cut(self) -> None:
        """Ask the episode to end now, or at its next `run`, with `StopReason.STRAGGLER`, unless it ends by itself. What
        the engine has sampled is kept; what the env, its scorer or a context policy does is cancelled. Call it from the
        event loop."""
        if self._stage is Stage.OVER or self._asked is Asked.CUT:
            return
        self._asked = Asked.CUT
        if self._deadline is not None and not self._sampler.interrupt():
            self._deadline.end()

    def suspend(self, *, grace: float = SUSPEND_GRACE) -> None:
        """Ask the episode to stand still now, or at its next `run`, unless it ends by itself; a later `run` goes on,
        also in the middle of a turn. What the engine has sampled is kept, and what the env does is waited for: `grace`
        wall seconds, then the episode is cut. Call it from the event loop."""
        if self._stage is Stage.OVER or self._asked is not None:
            return
        self._asked = Asked.SUSPEND
        if self._deadline is not None:
            self._patience = asyncio.get_running_loop().call_later(grace, self.cut)
            self._sampler.interrupt()

    async def fork(self, job: Job | Callable[[], Job]) -> Episode:
        """Return a branch: an episode that goes on from here by itself, once it is run. This one goes on, too.

        The branch has an id, seeds and a fork of the env, which is the caller's to close. If this episode is asked to
        stand still during the fork, so is the branch. `job` is its place in the run, or a function that gives it after
        the fork. Raises `EpisodeError` if the episode does not stand between two turns, `ForkNotSupportedError` if the
        env or a tool cannot be forked, and `DeadlineError` after `env_timeout`.
        """
        if self._stage is not Stage.BETWEEN:
            raise EpisodeError(
                "an episode can be forked between two turns only: from `between_turns`, or once it is suspended"
            )
        assert self._conversation is not None
        turns = len(self._record.turns)
        self._waits(Phase.FORK)
        env = await fork_env(self.env, self._limits.env_timeout)
        try:
            if self._stage is not Stage.BETWEEN or len(self._record.turns) != turns or self._asked is Asked.CUT:
                raise EpisodeError("the episode went on, or was cut, while it was forked")
            return self._branch(job() if callable(job) else job, env, self._conversation.fork())
        except BaseException:  # no branch owns the env yet
            await close_env(env)
            raise

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(self._record.turns)

    @property
    def reward(self) -> float:
        return self._record.reward

    @property
    def conversation(self) -> Conversation:
        """Messages and tokens so far; do not change it. Raises `EpisodeError` before the end of `reset`."""
        if self._conversation is None:
            raise EpisodeError("the episode has not begun")
        return self._conversation

    def _branch(self, job: Job, env: BaseEnv, conversation: Conversation) -> Episode:
        turn = len(self._record.turns)
        path = (*self.job.seed_parts, "branch", turn, self._branches)
        self._branches += 1
        twin = Episode(
            replace(job, parent=self.id, branch_turn=turn, seed_path=path),
            self._config,
            env,
            self._engine,
            self._make_renderer,
            env_id=self._record.env_id,
            observers=self._observers,
            settings=self._record.settings,
        )
        twin._asked = self._asked  # if this one is to stand still, so is the branch
        twin._record.go_on_from(self._record, self._seconds())
        twin._renderer, twin._conversation, twin._stage = self._renderer, conversation, Stage.BETWEEN
        twin._sampler.affinity = self._sampler.affinity  # its prefix is in that replica's cache
        return twin

    @property
    def _number(self) -> int:
        return self._open_turn.number if self._open_turn is not None else max(0, len(self._record.turns) - 1)

    def _seconds(self) -> float:
        return self._record.seconds + (time.monotonic() - self._started if self._started is not None else 0.0)

    @contextmanager
    def waits_for_role(self) -> Iterator[None]:
        """Tell the observers that the env waits for another role in the block, and works again behind it."""
        self._waits(Phase.OTHER_ROLE)
        try:
            yield
        finally:
            self._waits(Phase.RESET if self._stage is Stage.NEW else Phase.ENV)

    def _waits(self, phase: Phase, what: str = "") -> None:
        for observer in self._observers:
            observer.waits(self.job, phase, what)

    def _stops(self) -> bool:
        return self._asked is not None

    # ------------------------------------------------------------------ from stage to stage

    def _broken_off(self, error: Exception) -> tuple[StopReason, Failure | None]:
        """The end of an episode that an error ended, and what broke it off, if something did."""
        if isinstance(error, TimeoutError):  # the whole episode's; the others arrive as an `EpisodeFailedError`
            if self._asked is Asked.CUT:
                return StopReason.STRAGGLER, None
            if is_programs_time(self.env.program_seconds, self._limits.episode_timeout):
                self._record.metrics = {**self._record.metrics, f"score/{BROKEN_BY_POLICY}": 1.0}
                return StopReason.PROGRAM_TIME, None
            return StopReason.EPISODE_TIMEOUT, Failure(str(too_late(self._limits)), self._number)
        if not isinstance(error, EpisodeFailedError):  # what an engine or env gave could not even be read
            return self._stage.failure, Failure(error_text(error), self._number)
        if not error.stop_reason.failed:  # the env could not go on, and nothing broke
            return error.stop_reason, None
        return error.stop_reason, Failure(error_text(error.cause or error), self._number)

    def _in_time(self, turn: Coroutine[Any, Any, StopReason | None]) -> Coroutine[Any, Any, StopReason | None]:
        return turn if self._limits.turn_timeout is None else self._timed(turn, self._limits.turn_timeout)

    async def _timed(self, turn: Coroutine[Any, Any, StopReason | None], seconds: float) -> StopReason | None:
        before = self.env.program_seconds
        try:
            return await with_deadline(turn, seconds, queue=math.inf)
        except DeadlineError as cause:
            if is_programs_time(self.env.program_seconds - before, seconds):
                self._record.metrics = {**self._record.metrics, f"score/{BROKEN_BY_POLICY}": 1.0}
                raise EpisodeFailedError(StopReason.PROGRAM_TIME, "the policy's programs ran too long") from cause
            text = f"the turn did not finish within {seconds:g} seconds"
            raise EpisodeFailedError(StopReason.TURN_TIMEOUT, text) from cause

    async def _reset(self) -> None:
        self._waits(Phase.RESET)
        with failing(StopReason.RESET_FAILED, StopReason.ENV_TIMEOUT):
            obs, _ = await self._env_call(self.env.reset(seed=self._env_seed, options={"task": self.job.task}))
        self._record.messages = list(obs)
        with failing(StopReason.PROMPT_REFUSED):
            self._renderer = renderer = self._make_renderer(self.env.tool_schemas)
            most = self._budget.prompt
            try:
                history = HistoryMode(self._config.history)
                conversation = await encoded_apart(partial(Conversation, renderer, history, obs, most=most), obs)
            except TooManyTokensError as error:
                raise long_prompt_error(f"at least {error.least}", most) from error
            self._conversation = conversation
            self._record.messages = conversation.messages
            if len(conversation.context) > most:
                raise long_prompt_error(str(len(conversation.context)), most)
        self._stage = Stage.BETWEEN

    async def _turn(self, conversation: Conversation) -> StopReason | None:
        """Play one turn, or the rest of one, as far as the episode is not asked to stop. Returns why it is over."""
        if self._stage is not Stage.STEPPING:
            reason = await self._sample(conversation)
            if reason is not None:
                return await self._cut_off(conversation, reason)
            if self._stops():
                return None
        parsed = conversation.parse_turn()
        started = self._env_begins(", ".join(call.name for call in parsed.calls) if self._observers else "")
        with _ENV_FAILS:
            result = await self._env_call(self.env.step(parsed))
        self._env_ended(result, started)
        self._record.metrics = result.info.get("metrics", {})
        conversation.set_message(result.info.get("message") or parsed.message)
        turns = self._record.turns
        turns[-1] = replace_fields(turns[-1], tool_calls=tuple(result.info.get("tool_calls", ())))
        reason = reason_to_end(result)
        if reason is not None:
            return reason
        return await self._observe(conversation, result)

    async def _observe(self, conversation: Conversation, result: StepResult) -> StopReason | None:
        """Put what the env answered into the conversation. Returns why the episode is over."""
        self._waits(Phase.CONTEXT)
        assert self._renderer is not None
        try:
            context = EpisodeContext(self._config.context_policies, self._limits.context_timeout, self._budget)
            observation, extension = await context.extended(self._renderer, conversation, result)
        except TooManyTokensError:
            return await self._cut_off(conversation, StopReason.BUDGET)  # as below, found out without encoding it
        added = len(extension.added or ())
        response_tokens = 0 if extension.begins_sequence else conversation.response_tokens + added
        if self._budget.room(conversation, extension.tokens, response_tokens) < 1:  # for a turn that could read it
            return await self._cut_off(conversation, StopReason.BUDGET)
        conversation.apply(extension, observation)
        turns = self._record.turns
        turns[-1] = replace_fields(turns[-1], observation_tokens=added)
        self._stage = Stage.BETWEEN
        for observer in self._observers:
            observer.turned(self.job, turns[-1], conversation)
        return None

    async def _cut_off(self, conversation: Conversation, reason: StopReason) -> StopReason:
        """Have the env score the episode that a limit ends here, unless the engine aborted it, with the turn that it
        has not seen. Returns `reason`."""
        if not reason.in_group_statistics or not self._record.turns:
            return reason
        if self._asked is Asked.CUT:
            return StopReason.STRAGGLER
        is_unseen, self._stage = self._stage is Stage.SAMPLING, Stage.SCORING
        unseen = conversation.parse_turn() if is_unseen else None
        started = self._env_begins()
        with _ENV_FAILS:
            result = await self._env_call(self.env.truncate(reason, unseen))
        self._env_ended(result, started)
        self._record.metrics = {**self._record.metrics, **result.info.get("metrics", {})}
        reason_to_end(result)
        return reason

    def _env_call(self, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """A call of the env, with a deadline if the env keeps none itself."""
        return call if self.env.keeps_deadlines else with_deadline(call, self._limits.env_timeout)

    def _env_begins(self, what: str = "") -> float:
        self._waits(Phase.ENV, what)
        return time.monotonic()

    def _env_ended(self, result: StepResult, started: float) -> None:
        """Add the reward for the last turn to those of turn and episode."""
        self._record.reward += finite_reward(result.reward)
        turns = self._record.turns
        reward = (turns[-1].reward or 0.0) + result.reward
        seconds = turns[-1].env_seconds + time.monotonic() - started - result.info.get("wait_seconds", 0.0)
        turns[-1] = replace_fields(turns[-1], reward=reward, env_seconds=seconds)

    # ------------------------------------------------------------------ the policy's turn

    async def _sample(self, conversation: Conversation) -> StopReason | None:
        """Sample the next turn, or the rest of it, and close it at its end. Returns why the episode is over."""
        if self._open_turn is None:
            budget = self._budget.room(conversation)
            if budget < 1:
                return StopReason.BUDGET
            self._open_turn = self._sampler.open(len(self._record.turns), budget, len(conversation.context))
            self._stage = Stage.SAMPLING
        self._waits(Phase.ENGINE)
        if self._stops():  # an observer may ask
            return None
        assert self._renderer is not None
        turn = self._open_turn
        if not await self._sampler.sample(turn, conversation, self._renderer) and self._stops():
            return None
        self._close_open_turn()
        reason = self._close_turn(self._renderer, conversation, turn)
        if reason is None:
            self._stage = Stage.STEPPING
        return reason

    def _close_open_turn(self) -> None:
        """Make a `Turn` of what was sampled, unless nothing was and the engine did not end it."""
        turn, self._open_turn = self._open_turn, None
        if turn is not None and (turn.tokens or turn.over):
            assert self._conversation is not None
            assert self._renderer is not None
            self._record.turns.append(turn.close(self._conversation, self._renderer))

    def _close_turn(self, renderer: ChatRenderer, conversation: Conversation, turn: OpenTurn) -> StopReason | None:
        """See to it that the turn has an end, see `TruncationPolicy`. Returns why the episode is over, if it is."""
        if renderer.ends_turn(conversation.turn_ids):
            return None
        reason = turn.finish_reason
        if reason is not FinishReason.STOP and self._config.on_truncated_turn == TruncationPolicy.END:
            if reason is FinishReason.ABORT:
                return StopReason.ABORTED
            return StopReason.BUDGET if turn.budget < self._config.sampling_in_use.max_new_tokens else StopReason.LENGTH
        with failing(StopReason.PROMPT_REFUSED):
            closing = conversation.missing_end()
        if self._budget.room(conversation) < len(closing):
            return StopReason.BUDGET
        conversation.add_env_tokens(closing)
        turns = self._record.turns
        turns[-1] = replace_fields(turns[-1], closing_tokens=len(closing))
        return None
