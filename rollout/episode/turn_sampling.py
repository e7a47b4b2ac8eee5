"""`TurnSampler`: one turn of the policy. If the engine aborts it, as when its weights are updated, the turn goes on
from prompt and partial under the new weights; each token keeps the version that it was sampled with."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from toolgym.envs.failure import failing
from toolgym.envs.types import StopReason
from toolgym.rollout.engines.base import Engine, FinishReason, Generation
from toolgym.rollout.engines.stop_texts import stop_length
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.job import Job
from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.seeds import derive_seed
from toolgym.rollout.tokens.conversation import Conversation
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.trajectory import Turn
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.concurrency.rate_limit import Lease
from toolgym.tools.concurrency.run_limits import GENERATIONS

RESUME_WAIT = (0.05, 5.0)
"""Seconds before a turn is resumed that got no token since the last time: at first (it doubles), and at most."""

ABORT_GRACE = 5.0
"""Seconds that an engine gets to abort a request and to give back what it has. Then the request is cancelled."""

_log = logging.getLogger("toolgym.rollout")


@dataclass
class OpenTurn:
    """A turn that is being sampled: `most` is the tokens that it may have, `budget` those that the episode had left for
    it. `parts` counts requests, however they ended, `idle` those in a row without a token; `seconds` contain
    `queue_seconds`."""

    number: int
    budget: int
    most: int
    prompt_tokens: int
    seed: int | None
    finish_reason: FinishReason = FinishReason.ABORT
    tokens: int = 0
    parts: int = 0
    aborts: int = 0
    cached_tokens: int = 0
    idle: int = 0
    seconds: float = 0.0
    queue_seconds: float = 0.0
    over: bool = False

    def close(self, conversation: Conversation, renderer: ChatRenderer) -> Turn:
        return Turn(
            text=conversation.add_turn(),
            finish_reason=self.finish_reason.value,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.tokens,
            cached_tokens=self.cached_tokens,
            engine_seconds=self.seconds - self.queue_seconds,
            sequence=conversation.number,
            resumes=max(0, self.parts - 1),
            truncated=self.finish_reason is not FinishReason.STOP and not renderer.ends_turn(conversation.turn_ids),
            seed=self.seed,
            queue_seconds=self.queue_seconds,
        )


class TurnSampler:
    """Samples the turns of one episode, one after the other. Each request has a seed that derives from `seed`."""

    __slots__ = (
        "_aborting", "_clock", "_engine", "_id", "_interrupted", "_job", "_limits", "_observers", "_request_id",
        "_sampling", "_seed", "affinity",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        config: EpisodeConfig,
        job: Job,
        seed: int | None,
        *,
        episode_id: str,
        observers: Sequence[EpisodeObserver],
    ) -> None:
        self._engine, self._sampling, self._limits = engine, config.sampling_in_use, config.limits
        self._job, self._seed, self._observers = job, seed, observers
        self._id = self.affinity = episode_id
        self._clock: asyncio.Timeout | None = None  # while a turn is sampled
        self._request_id: str | None = None  # while the engine has a request
        self._interrupted = False
        self._aborting: asyncio.Task[None] | None = None

    def _seed_of(self, *parts: int) -> int | None:
        """The seed of a request: by its turn's number, and behind it that of the part if it is not the first."""
        return self._sampling.seed if self._seed is None else derive_seed(self._seed, *self._job.seed_parts, *parts)

    def open(self, number: int, budget: int, prompt_tokens: int) -> OpenTurn:
        most = min(budget, self._sampling.max_new_tokens)
        return OpenTurn(number, budget, most, prompt_tokens, self._seed_of(number))

    async def sample(self, turn: OpenTurn, conversation: Conversation, renderer: ChatRenderer) -> bool:
        """Sample a turn, or go on with one that was interrupted; its tokens go to the conversation part by part.
        Returns whether the turn is over; else `interrupt` ended the call, and it may go on."""
        stop_token_ids = tuple(sorted({*self._sampling.stop_token_ids, *renderer.stop_token_ids}))
        started, self._interrupted = time.monotonic(), False
        try:
            async with asyncio.timeout(None) as self._clock:
                while not turn.over and not self._interrupted:
                    if turn.idle:
                        first, longest = RESUME_WAIT
                        await asyncio.sleep(min(longest, first * 2.0 ** min(turn.idle - 1, 30)))
                    generation = await self._generate(turn, conversation, stop_token_ids, renderer.forbidden_ids)
                    if self._sampling.stop:
                        generation = self._cut_at_stop(generation, turn, conversation, renderer)
                    for observer in self._observers:
                        observer.generated(self._job, generation)
                    conversation.add_generation(generation)
                    turn.over = self._is_over(turn, conversation, generation, stop_token_ids)
        except TimeoutError:  # of `interrupt`: what the engine raises is an EpisodeFailedError
            pass
        finally:
            turn.seconds += time.monotonic() - started
            self._clock = self._request_id = None
            await self._end_aborting()
        return turn.over

    def _cut_at_stop(
        self, generation: Generation, turn: OpenTurn, conversation: Conversation, renderer: ChatRenderer
    ) -> Generation:
        """Leave out what was sampled after a stop text, which may have begun in an earlier part of the turn."""
        before = list(conversation.context[turn.prompt_tokens :])
        length = stop_length([*before, *generation.token_ids], self._sampling.stop, renderer.decode)
        return generation if length is None else generation.stopped_at(max(0, length - len(before)))

    def interrupt(self) -> bool:
        """End `sample` soon, and return whether a turn is being sampled. The engine is asked to abort the request, and
        what it gives back is kept. A request that does not come back within `ABORT_GRACE` seconds is cancelled, and its
        tokens are lost."""
        if self._clock is None:
            return False
        if self._interrupted:
            return True
        self._interrupted = True
        loop = asyncio.get_running_loop()
        if self._request_id is None:  # between two parts
            self._clock.reschedule(loop.time())
        else:
            self._clock.reschedule(loop.time() + ABORT_GRACE)
            self._aborting = loop.create_task(self._abort(self._request_id, self._clock))
        return True

    def _is_over(
        self, turn: OpenTurn, conversation: Conversation, generation: Generation, stop_token_ids: tuple[int, ...]
    ) -> bool:
        """Count a part of a turn, and say whether it was the last one."""
        turn.tokens = len(conversation.context) - turn.prompt_tokens
        if turn.parts == 1:
            turn.cached_tokens = generation.cached_tokens
        reason = generation.finish_reason
        if reason is FinishReason.ABORT and turn.tokens:  # it may have come at the end by itself
            if conversation.context[-1] in stop_token_ids:
                reason = FinishReason.STOP
            elif turn.tokens == turn.most:
                reason = FinishReason.LENGTH
        turn.finish_reason = reason
        if reason is not FinishReason.ABORT:
            return True
        if self._interrupted:
            return False
        turn.aborts += 1
        turn.idle = 0 if generation.token_ids else turn.idle + 1
        return turn.aborts > self._limits.max_resumes

    async def _generate(
        self,
        turn: OpenTurn,
        conversation: Conversation,
        stop_token_ids: tuple[int, ...],
        forbidden_ids: tuple[int, ...],
    ) -> Generation:
        parts = (turn.number, turn.parts) if turn.parts else (turn.number,)
        params = replace_fields(
            self._sampling,
            max_new_tokens=turn.most - turn.tokens,
            stop_token_ids=stop_token_ids,
            seed=self._seed_of(*parts) if turn.parts else turn.seed,
            stop=self._sampling.stop if self._engine.stops_at_texts else (),
        )
        place = GENERATIONS.limiter.try_acquire() or await _place(turn)
        self._request_id = request_id = "-".join([self._id, *map(str, parts)])
        for observer in self._observers:
            observer.asked(self._job, conversation.context, params)
        try:
            with failing(StopReason.ENGINE_FAILED, StopReason.ENGINE_TIMEOUT):
                call = self._engine.generate(
                    conversation.context,
                    params,
                    request_id=request_id,
                    affinity=self.affinity,
                    images=conversation.images,
                    forbidden_ids=forbidden_ids,
                )
                return await with_deadline(call, self._limits.engine_timeout)
        finally:
            self._request_id = None
            place.release()
            turn.parts += 1  # one that was cancelled had an id and a seed, too

    async def _abort(self, request_id: str, clock: asyncio.Timeout) -> None:
        try:
            await with_deadline(self._engine.abort(request_id), ABORT_GRACE)
        except Exception as error:  # noqa: BLE001  cancelling it ends it, too
            _log.debug("request %s is cancelled, for it could not be aborted: %s", request_id, error)
            if self._clock is clock and not clock.expired():
                clock.reschedule(asyncio.get_running_loop().time())

    async def _end_aborting(self) -> None:
        """Let no call of the engine outlive the turn."""
        aborting, self._aborting = self._aborting, None
        if aborting is not None:
            aborting.cancel()
            await asyncio.wait({aborting})


async def _place(turn: OpenTurn) -> Lease:
    arrived = time.monotonic()
    try:
        return await GENERATIONS.limiter.acquire_in_turn()
    finally:
        turn.queue_seconds += time.monotonic() - arrived
