"""`CaptureSession`: one episode of an agent that calls a chat API, with the exact tokens of every call.

A call goes on from the tokens of the call whose answer it holds: only what is new is rendered. What was sampled stays
as it was sampled.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.capture.agent_call import AgentCall, CallRefusedError, Reply, ReplyCall, SampledToken
from toolgym.rollout.capture.canonical import new_reply_id
from toolgym.rollout.capture.conversations import Conversations
from toolgym.rollout.capture.forest import CapturedCall, Forest, State
from toolgym.rollout.capture.journal import NotWrittenError, SavedSession, SessionJournal, restore_forest
from toolgym.rollout.capture.prompts import (
    Renderers,
    readable_images,
)
from toolgym.rollout.capture.rows import CapturedRows, captured_rows
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.engines.base import Engine, FinishReason, Generation, SamplingParams
from toolgym.rollout.engines.stop_texts import stop_in
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.episode.context import EpisodeBudget
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.episode.record import EpisodeRecord
from toolgym.rollout.episode.turn_sampling import TurnSampler
from toolgym.rollout.job import Job
from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.seeds import step_seed, stream_seed
from toolgym.rollout.tokens.conversation import Conversation
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, Turn, plain
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, MissingLogprobsError, TemplateError
from toolgym.tools.message import assistant, text_of

_JSON = json.JSONEncoder(ensure_ascii=False).encode

_UNSCORED = "without_logprobs"
"""Reason for which a turn is left out that the engine sampled and gave no log-probabilities for."""

_UNWRITTEN = "not_written"
"""Reason for which a sampled turn is left out because the journal could not be written, so it was not sent."""


class _Parts(EpisodeObserver):
    """Keeps the generations of a turn."""

    def __init__(self) -> None:
        self.generations: list[Generation] = []

    def generated(self, job: Job, generation: Generation) -> None:
        self.generations.append(generation)


class CaptureSession:
    """An episode whose agent asks for one turn after the other, several at once if it likes.

    Args:
        engine: where turns come from. It was started.
        renderers: those of the engine's tokenizer.
        job: the task, and the episode's place in its run.
        config: how to sample, and the limits; it holds for the agent's whole episode. `history` is `append`.
        rules: what else holds.
        env_id: the env's name in the trajectory.
        settings: its run's, see `run_settings`.
    """

    def __init__(
        self,
        engine: Engine,
        renderers: Renderers,
        job: Job,
        config: EpisodeConfig,
        *,
        rules: CaptureRules | None = None,
        env_id: str = "capture",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if not config.one_sequence:
            raise ConfigError("a captured episode keeps what was sampled: history must be 'append', without `context`")
        self._engine, self._renderers, self.job, self._config = engine, renderers, job, config
        self._rules = rules or CaptureRules()
        self._budget = EpisodeBudget(engine, config.limits)
        self.id = uuid.uuid4().hex
        self._record = EpisodeRecord(job, config, self.id, env_id, settings or {})
        self._record.started_at, self._began = time.time(), time.monotonic()
        self._seed = step_seed(stream_seed(job.seed, validate=config.validate), config.training_step)
        self._forest = Forest()
        self._counts: Counter[str] = Counter()
        self._unscored: Counter[str] = Counter()
        self._calls = 0
        self._reason: StopReason | None = None  # why the episode is over, if a limit ended it
        self.broken: StopReason | None = None
        """The failure of the engine that the newest call met; None if it was answered."""
        self._running: set[TurnSampler] = set()
        self._readable: dict[str, bool] = {}  # whether the policy can see the image of a data URL
        self._conversations = Conversations(self._forest, self._budget)
        self._trajectory: Trajectory | None = None
        self.journal: SessionJournal | None = None
        """Where answered calls are written before their answers are sent."""

    # ------------------------------------------------------------------ a call

    @property
    def rules(self) -> CaptureRules:
        return self._rules

    def note(self, request: AgentCall) -> None:
        """Count what a request asks for in vain, whatever comes of it: the next one does not name it again."""
        self._counts.update(f"ignored_{name}" for name in {*request.left_out})

    async def answer(self, request: AgentCall) -> Reply:
        """Sample the turn that an agent asks for. Cancelling the call aborts it.

        Raises CallRefusedError: 410 once the episode is over, or has had its calls; 400 for messages that the chat
        template refuses; 502 or 504 if the engine failed. Then the agent may send the request again.
        """
        self._require_open()
        renderer = await self._renderers.of(request.tools)
        request = await self._with_readable_images(request, renderer)
        self._require_open()
        if self._rules.max_calls is not None and self._calls >= self._rules.max_calls:
            self._reason = StopReason.MAX_TURNS
            self._note_state()
            raise CallRefusedError(410, "max_turns", f"the episode has had its {self._rules.max_calls} calls")
        call = self._forest.attach(self._calls, request, renderer)
        self._calls += 1
        kept = False
        try:
            reply = await self._reply(request, call)
            kept = call.state is not State.GENERATING
            if kept and self.journal is not None:
                await self.journal.flush()
            return reply
        except asyncio.CancelledError:
            self._counts["undelivered"] += 1
            raise
        except EpisodeFailedError as error:
            self._counts[error.stop_reason.value] += 1
            self.broken = error.stop_reason
            if isinstance(error.cause, MissingLogprobsError):
                self._unscored.update({_UNSCORED: 1, f"{_UNSCORED}_tokens": error.cause.tokens})
            late = error.stop_reason is StopReason.ENGINE_TIMEOUT
            raise CallRefusedError(504 if late else 502, error.stop_reason.value, str(error)) from error
        except TemplateError as error:
            self._counts["refused_by_template"] += 1
            raise CallRefusedError(400, "invalid_messages", str(error)) from error
        finally:
            if not kept and self._trajectory is None:
                self._forest.drop(call)
                self._note_state()

    async def count_tokens(self, request: AgentCall) -> int:
        """The tokens of the prompt that a call with this request would have. Raises CallRefusedError as `answer`."""
        self._require_open()
        renderer = await self._renderers.of(request.tools)
        request = await self._with_readable_images(request, renderer)
        call = self._forest.attach(self._calls, request, renderer, counting=True)
        try:
            return len((await self._conversations.of(request, call, bounded=False)).context)
        except TemplateError as error:
            raise CallRefusedError(400, "invalid_messages", str(error)) from error

    async def _with_readable_images(self, request: AgentCall, renderer: ChatRenderer) -> AgentCall:
        """Return the request with notes in the place of images that the engine's model cannot see."""
        urls = {url for message in request.messages for url in message.images}
        for url in urls - self._readable.keys():
            self._readable[url] = self._engine.takes_images and await in_thread(renderer.reads_image, url)
            if not self._readable[url]:
                self._counts["ignored_content.image"] += 1
        if all(map(self._readable.get, urls)):
            return request
        messages = tuple(readable_images(message, self._readable) for message in request.messages)
        return replace_fields(request, messages=messages)

    def undelivered(self, reply_id: str) -> None:
        """Note that an answer did not reach the agent."""
        if self._trajectory is None:
            self._forest.undelivered(reply_id)
            self._note_state()

    def _require_open(self) -> None:
        if self._trajectory is not None:
            raise CallRefusedError(410, "episode_ended", "the episode is over: begin another one")

    async def _reply(self, request: AgentCall, call: CapturedCall) -> Reply:
        try:
            conversation = await self._conversations.of(request, call)
            prompt_tokens = len(conversation.context)
            room = self._budget.room(conversation)
        except TooManyTokensError as error:
            prompt_tokens, room = error.least, 0
        if room < 1:
            return self._too_long(prompt_tokens)
        sampling = self._sampling(request)
        most = room if request.max_tokens is None else min(room, request.max_tokens)
        if most < 1:
            raise CallRefusedError(
                400, "invalid_max_tokens", f"max_tokens must be at least 1, got {request.max_tokens}"
            )
        if request.max_tokens is not None and request.max_tokens > min(room, sampling.max_new_tokens):
            self._counts["clamped"] += 1
        self._require_open()
        starts_open = call.renderer.leaves_thinking_open(conversation.context)
        turn = await self._sampled(call, conversation, most, sampling)
        self._require_open()
        if turn is None:
            self._counts["aborted"] += 1
            raise CallRefusedError(503, "engine_aborted", "the engine aborted the turn: send the request again")
        if not turn.generated_tokens:
            self._counts["empty"] += 1
            return _empty(prompt_tokens)
        call.prompt, call.plain = request.messages, request.plain
        call.constrained = request.grammar is not None
        stopped = stop_in(turn.text, sampling.stop)
        call.end, stop_text = stopped or (None, None)
        reply = self._keep(call, conversation, turn, starts_open, stop_text)
        return replace(reply, tokens=_sampled_tokens(call)) if request.logprobs else reply

    def _sampling(self, request: AgentCall) -> SamplingParams:
        sampling = self._config.sampling_in_use
        wishes = {name: value for name, value in request.sampling.items() if value is not None}
        followed = {*self._rules.agents_sampling, "stop"}
        for name in set(wishes) - followed:
            self._counts[f"ignored_{name}"] += 1
        wishes = {name: value for name, value in wishes.items() if name in followed}
        if "stop" in wishes:
            wishes["stop"] = (*sampling.stop, *wishes["stop"])
        if request.grammar is not None:
            if not self._engine.takes_grammars:
                text = "the engine samples without a grammar; open the session with rules={'formats': 'ignore'}"
                raise CallRefusedError(400, "unsupported_parameter", text)
            wishes["grammar"] = request.grammar
        try:
            return replace(sampling, **wishes) if wishes else sampling
        except ConfigError as error:
            raise CallRefusedError(400, "invalid_sampling", str(error)) from error

    async def _sampled(
        self, call: CapturedCall, conversation: Conversation, most: int, sampling: SamplingParams
    ) -> Turn | None:
        """Sample a turn into the conversation; None if the engine, or the end of the episode, cut it off."""
        parts = _Parts()
        config = self._config
        if sampling is not config.sampling_in_use:
            config = replace_fields(config, sampling=sampling, validation_sampling=None)
        sampler = TurnSampler(self._engine, config, self.job, self._seed, episode_id=self.id, observers=(parts,))
        open_turn = sampler.open(call.number, most, len(conversation.context))
        self._running.add(sampler)
        try:
            is_over = await sampler.sample(open_turn, conversation, call.renderer)
        finally:
            self._running.discard(sampler)
        if not is_over or open_turn.finish_reason is FinishReason.ABORT:
            return None
        call.parts = tuple(parts.generations)
        turn = open_turn.close(conversation, call.renderer)
        differing = _differing_sampling(self._config.sampling_in_use, sampling)
        return replace_fields(turn, sampling=differing) if differing else turn

    def _too_long(self, tokens: int) -> Reply:
        self._counts["over_budget"] += 1
        self._reason = StopReason.BUDGET
        if self._rules.refuse_long_prompts:
            text = f"prompt is too long: {tokens} tokens leave no room for an answer within the episode's budget"
            raise CallRefusedError(400, "context_length_exceeded", text)
        return _empty(tokens)

    # ------------------------------------------------------------------ its answer

    def _keep(
        self, call: CapturedCall, conversation: Conversation, turn: Turn, starts_open: bool, stop_text: str | None
    ) -> Reply:
        parsed = self._conversations.read(call, conversation)
        well_formed = parsed is not None and not parsed.errors
        message = parsed.message if parsed is not None else assistant(turn.text[: call.end])
        reading = call.renderer.part_reasoning(message, starts_open=starts_open)
        if call.plain:
            self._counts["ignored_calls"] += _written_calls(call, turn.text[: call.end], starts_open)
        elif not well_formed:
            self._counts["ill_formed"] += 1
        reply_id = new_reply_id()
        calls = tuple(
            ReplyCall(f"call_{reply_id}_{place}", each.name, _JSON(each.arguments))
            for place, each in enumerate(parsed.calls if parsed is not None and well_formed else ())
        )
        if parsed is not None and calls:
            call.requests = tuple((sent.id, each.id, each.name) for sent, each in zip(calls, parsed.calls, strict=True))
        reasoning = reading.get("reasoning_content")
        reply = Reply(
            reply_id,
            text_of(reading["content"]),
            reasoning,
            calls,
            "length" if turn.truncated else "tool_calls" if calls else "stop",
            turn.prompt_tokens,
            turn.cached_tokens,
            turn.generated_tokens,
            _thinking_tokens(call, reasoning),
            int(time.time()),
            stop_text,
        )
        call.turn, call.message = turn, conversation.messages[-1]
        self._write(call, reply)
        self._reason = self.broken = None
        self._forest.keep(call, reply)
        self._conversations.remember(call, conversation)
        return reply

    # ------------------------------------------------------------------ its journal

    def _write(self, call: CapturedCall, reply: Reply) -> None:
        """Append an answered call to the journal. Raises NotWrittenError, and then the call is not kept."""
        if self.journal is None:
            return
        try:
            self.journal.keep(call, reply, self._forest, {**self._state(), "reason": None, "broken": None})
        except NotWrittenError:
            tokens = sum(len(part.token_ids) for part in call.parts)
            self._unscored.update({_UNWRITTEN: 1, f"{_UNWRITTEN}_tokens": tokens})
            raise

    def _note_state(self) -> None:
        if self.journal is not None:
            self.journal.note(self._forest, self._state())

    def _state(self) -> dict[str, Any]:
        counts = {"counts": self._counts, "left_out": self._unscored, "forest": self._forest.counts}
        return {"calls": self._calls, "reason": self._reason, "broken": self.broken, **counts}

    async def restore(self, saved: SavedSession) -> None:
        """Continue a session of an earlier process, from its journal. Nothing has been asked of this one yet."""
        renderers = [await self._renderers.of(tools) for tools in saved.tools]
        restore_forest(saved, renderers, self._forest)
        if self.journal is not None:
            self.journal.follow(self._forest)
        opening, state = saved.opening, saved.state
        self.id = opening["id"]
        self._record = EpisodeRecord(self.job, self._config, self.id, opening["env_id"], opening["settings"])
        self._record.started_at = opening["started_at"]
        self._began = time.monotonic() - max(0.0, time.time() - opening["started_at"])
        self._calls = max([state.get("calls", 0), *(call.number + 1 for call in self._forest)])
        self._reason = None if state.get("reason") is None else StopReason(state["reason"])
        self.broken = None if state.get("broken") is None else StopReason(state["broken"])
        self._counts.update(state.get("counts", {}))
        self._unscored.update(state.get("left_out", {}))
        self._forest.counts = Counter(state.get("forest", {}))

    def opening(self) -> dict[str, Any]:
        """The facts about this session that its journal begins with."""
        record = self._record
        return {
            "id": self.id,
            "env_id": record.env_id,
            "settings": record.settings,
            "started_at": record.started_at,
            "task": plain(self.job.task.to_json_row()),
            "task_id": self.job.task.id,
            "key": self.job.key,
            "group_id": self.job.group_id,
            "seed": self.job.seed,
            "sampling": asdict(self._config.sampling),
            "limits": asdict(self._config.limits),
            "training_step": self._config.training_step,
            "rules": asdict(self._rules),
        }

    # ------------------------------------------------------------------ the end

    def figures(self) -> dict[str, Any]:
        """Numbers of the episode so far: calls, and sequences by cause, as they would be now."""
        rows = captured_rows(self._forest, self._rules.untrained, 0.0)
        return {**self._metrics(rows), "calls": self._calls}

    def finish(
        self,
        reward: float,
        metrics: Mapping[str, Any] | None = None,
        stop_reason: StopReason | None = None,
        error: Failure | None = None,
    ) -> Trajectory:
        """End the episode, and return its trajectory; the same one if it is over already. Calls that are under way are
        aborted, and they and later ones get 410. `stop_reason` defaults to the limit that the episode met, to the
        engine's failure if that answered no call, or to `answered`."""
        if self._trajectory is None:
            self.close(self.draft(reward, metrics, stop_reason, error))
        assert self._trajectory is not None
        return self._trajectory

    def close(self, trajectory: Trajectory) -> None:
        """End the episode with a trajectory that `draft` made a moment ago. Calls that are under way are aborted."""
        self._trajectory = trajectory
        for sampler in self._running:
            sampler.interrupt()

    def draft(
        self,
        reward: float,
        metrics: Mapping[str, Any] | None = None,
        stop_reason: StopReason | None = None,
        error: Failure | None = None,
    ) -> Trajectory:
        """Return the trajectory that `finish` would return now. The episode stays open."""
        if self._trajectory is not None:
            return self._trajectory
        rows = captured_rows(self._forest, self._rules.untrained, reward)
        reason = self._end_of(rows) if stop_reason in (None, StopReason.ANSWERED) else stop_reason
        assert reason is not None
        if reason.failed and error is None:
            reward, error = 0.0, Failure("the engine answered no call of the agent", 0)
        record, main = self._record, rows.main
        record.turns, record.messages, record.reward = rows.turns, rows.messages or record.messages, reward
        record.metrics = {**self._metrics(rows), **(metrics or {})}
        record.seconds = time.monotonic() - self._began
        renderer = None if main is None else main.renderer
        trajectory = record.trajectory(reason, error, renderer, None)
        if rows.sequences and renderer is not None:
            last = rows.sequences[-1]
            trajectory = replace(
                trajectory,
                sequences=rows.sequences,
                prompt_text=partial(renderer.decode, last.prompt_ids.tolist()),
                response_text=partial(renderer.decode, last.response_ids.tolist()),
            )
        return trajectory

    def _end_of(self, rows: CapturedRows) -> StopReason:
        if self._reason is not None:
            return self._reason
        if self.broken is not None and rows.main is None:
            return self.broken
        last = next((turn for turn in reversed(rows.turns) if turn.reward is not None), None)
        return StopReason.LENGTH if last is not None and last.truncated else StopReason.ANSWERED

    def _metrics(self, rows: CapturedRows) -> dict[str, int]:
        causes = Counter(f"sequences_{sequence.start_reason}" for sequence in rows.sequences)
        left_out = {f"left_out_{name}": count for name, count in sorted((rows.left_out + self._unscored).items())}
        unanswered = {f"calls_{name}": count for name, count in sorted((self._counts + self._forest.counts).items())}
        running = {"calls_unfinished": len(self._running)} if self._running else {}
        return {"calls": self._calls, "sequences": len(rows.sequences), **causes, **left_out, **unanswered, **running}


def _empty(prompt_tokens: int) -> Reply:
    """An answer without a token; nothing goes on from it."""
    return Reply(new_reply_id(), "", finish="length", prompt_tokens=prompt_tokens, created=int(time.time()))


def _written_calls(call: CapturedCall, text: str, starts_open: bool) -> int:
    """The number of tool calls in a turn that was asked to have none."""
    try:
        return len(call.renderer.parse_text(text, starts_open=starts_open).requests)
    except Exception:  # noqa: BLE001  a parser of the user's own
        return 0


def _sampled_tokens(call: CapturedCall) -> tuple[SampledToken, ...]:
    """The tokens of a turn with their log-probabilities."""
    decode = call.renderer.decode
    return tuple(
        SampledToken(decode([token]), float(logprob))
        for part in call.parts
        for token, logprob in zip(part.token_ids, part.logprobs, strict=True)
    )


def _differing_sampling(configured: SamplingParams, used: SamplingParams) -> dict[str, Any]:
    """Return the parameters of a call, by name, by which its tokens have another distribution than the session's."""
    names = ("temperature", "top_p", "top_k", "min_p", "grammar")
    return {name: plain(getattr(used, name)) for name in names if getattr(used, name) != getattr(configured, name)}


def _thinking_tokens(call: CapturedCall, reasoning: str | None) -> int:
    """The tokens up to the end of thinking."""
    if not reasoning:
        return 0
    ids, decode, closes = call.token_ids, call.renderer.decode, call.renderer.thinking.closes
    return bisect.bisect_left(range(len(ids)), True, key=lambda count: closes in decode(ids[:count]))
