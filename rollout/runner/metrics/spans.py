"""Spans of a run for OpenTelemetry, if the application has set it up: the run, its episodes, their turns and calls.

Attributes are `gen_ai.*` if OpenTelemetry's conventions for generative AI have a name, and `rollout.*` otherwise; what
the proposed conventions for reinforcement learning name, see `RL_NAMES`, has that name as well. No text of a prompt, a
turn or a tool's result is in a span.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from toolgym.envs.tool_instances import encodable
from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.rollout.job import Job

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from toolgym.rollout.engines.base import Generation, SamplingParams
    from toolgym.rollout.models.token_ids import TokenIds
    from toolgym.rollout.runner.envs.env_factory import EnvFactory
    from toolgym.rollout.tokens.conversation import Conversation
    from toolgym.rollout.trajectory.trajectory import Trajectory, Turn

MAX_NAME = 100
"""Characters of a call's name and id, which the policy wrote, that a span has."""

RL_NAMES = {
    "rollout.env.id": "rl.environment.name",
    "rollout.step": "rl.loop.iteration",
    "rollout.reward": "rl.reward.score",
    "rollout.task.id": "rl.sample.task.id",
    "rollout.turns": "rl.sample.turns",
    "gen_ai.request.model": "rl.model.name",
}
"""Names of attributes that are proposed, and are not yet a convention
(https://github.com/open-telemetry/semantic-conventions-genai/issues/88,
https://github.com/alibaba/loongsuite-semantic-conventions-genai/issues/27)."""

_Values = Mapping[str, "str | int | float"]


def named(attributes: _Values) -> _Values:
    """Return attributes, and once more, under the proposed names, those that have one."""
    return {**attributes, **{RL_NAMES[name]: value for name, value in attributes.items() if name in RL_NAMES}}


def spans_of_run(env: EnvFactory | str, model: str, provider: str) -> Sequence[EpisodeObserver]:
    """The observer that makes a run's spans; none if the application has set up no tracer provider."""
    trace = sys.modules.get("opentelemetry.trace")  # without a provider, nothing is imported
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return ()
    return (RunSpans(env, model, provider),)


class RunSpans(EpisodeObserver):
    """Makes the spans of one run, below the span that is current when it begins. While an episode waits for the engine,
    its turn's span is current in its task, and otherwise the episode's own: the spans of HTTP clients and tools hang
    below them."""

    def __init__(self, env: EnvFactory | str, model: str = "", provider: str = "") -> None:
        from opentelemetry import context, trace

        self._trace, self._context = trace, context
        self._tracer = trace.get_tracer("toolgym")
        self._env, self._env_id = env, env if isinstance(env, str) else env.env_id
        self._provider = provider
        self._model = PurePath(model).name if PurePath(model).is_absolute() else model
        self._run: Span | None = None
        self._episodes: dict[int, _EpisodeSpans] = {}

    def run_began(self) -> None:
        about = {"rl.system": "toolgym", "rollout.env.id": self._env_id, "gen_ai.request.model": self._model}
        self._run = self._tracer.start_span(f"rollout {self._env_id}", attributes=named(about))

    def run_ended(self) -> None:
        for key, spans in list(self._episodes.items()):
            if not spans.suspended:  # another run may go on with it
                spans.end_turn()
                self._fail(spans.span, "cancelled", "the run ended before the episode")
                spans.span.end()
                del self._episodes[key]
        if self._run is not None:
            self._run.end()

    def began(self, job: Job) -> None:
        below = None if self._run is None else self._trace.set_span_in_context(self._run)
        env_id = self._env if isinstance(self._env, str) else self._env.member(job.task).env_id
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": env_id,
            "rollout.env.id": env_id,
            "rollout.task.id": job.task.id,
            "rollout.task.index": job.key.task_index,
            "rollout.sample.index": job.key.sample_index,
            "rollout.group.id": job.group_id,
            "rollout.role": job.role,
        }
        span = self._tracer.start_span(f"invoke_agent {env_id}", context=below, attributes=named(attributes))
        self._episodes[id(job)] = _EpisodeSpans(job, span, self._context.get_current())
        self._make_current(span)

    def waits(self, job: Job, phase: Phase, what: str = "") -> None:
        spans = self._episodes[id(job)]
        spans.end_turn()
        spans.suspended = phase is Phase.SUSPENDED
        if phase is Phase.ENGINE:
            spans.turn = self._tracer.start_span(
                f"chat {self._model}".strip(),
                context=self._trace.set_span_in_context(spans.span),
                kind=self._trace.SpanKind.CLIENT,
                attributes={
                    "gen_ai.operation.name": "chat",
                    "gen_ai.provider.name": self._provider,
                    "gen_ai.request.model": self._model,
                },
            )
            spans.requests = spans.output_tokens = 0
        elif phase is Phase.OTHER_ROLE:
            below = self._trace.set_span_in_context(spans.span)
            spans.turn = self._tracer.start_span("wait for another role", context=below)
        elif phase is Phase.ENV:
            spans.stepped_at = time.time_ns()
        self._make_current(spans.turn or spans.span)

    def asked(self, job: Job, prompt_ids: TokenIds, params: SamplingParams) -> None:
        spans = self._episodes[id(job)]
        spans.requests += 1
        if spans.turn is not None and spans.requests == 1:
            spans.turn.set_attributes(
                {
                    "gen_ai.request.max_tokens": params.max_new_tokens,
                    "gen_ai.request.temperature": params.temperature,
                    "gen_ai.request.top_p": params.top_p,
                    "gen_ai.usage.input_tokens": len(prompt_ids),
                    **({"gen_ai.request.seed": params.seed} if params.seed is not None else {}),
                }
            )

    def generated(self, job: Job, generation: Generation) -> None:
        spans = self._episodes[id(job)]
        spans.output_tokens += len(generation.token_ids)
        if spans.turn is not None:
            if spans.requests == 1:
                spans.turn.set_attribute("gen_ai.usage.cache_read.input_tokens", generation.cached_tokens)
            spans.turn.set_attributes(
                {
                    "gen_ai.usage.output_tokens": spans.output_tokens,
                    "gen_ai.response.finish_reasons": [generation.finish_reason.value],
                    "rollout.turn.requests": spans.requests,
                }
            )

    def turned(self, job: Job, turn: Turn, conversation: Conversation) -> None:
        spans = self._episodes[id(job)]
        spans.turns += 1
        self._calls(spans, turn)

    def ended(self, job: Job, trajectory: Trajectory) -> None:
        spans = self._episodes.pop(id(job), None)
        if spans is None:  # its env could not be made
            self.began(job)
            spans = self._episodes.pop(id(job))
        for turn in trajectory.turns[spans.turns :]:
            self._calls(spans, turn)
        if spans.turn is not None and trajectory.failed:
            self._fail(spans.turn, trajectory.stop_reason.value, "")
        spans.end_turn()
        about: dict[str, str | int | float] = {
            "gen_ai.conversation.id": trajectory.id,
            "rollout.step": trajectory.training_step,
            "rollout.stop_reason": trajectory.stop_reason.value,
            "rollout.reward": trajectory.reward,
            "rollout.turns": len(trajectory.turns),
            "rl.sample.input_tokens": sum(turn.prompt_tokens for turn in trajectory.turns),
            "rl.sample.output_tokens": sum(turn.generated_tokens for turn in trajectory.turns),
        }
        spans.span.set_attributes(named(about))
        if trajectory.error is not None:
            self._fail(spans.span, trajectory.stop_reason.value, trajectory.error.message)
        spans.span.end()
        self._context.attach(spans.outer)

    def _calls(self, spans: _EpisodeSpans, turn: Turn) -> None:
        """The spans of a turn's calls, all from the time when the env was stepped."""
        for record in turn.tool_calls:
            name, call_id = (encodable(text[:MAX_NAME]) for text in (record.name, record.id))  # the policy's text
            span = self._tracer.start_span(
                f"execute_tool {name}",
                context=self._trace.set_span_in_context(spans.span),
                start_time=spans.stepped_at,
                attributes={
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": name,
                    "gen_ai.tool.call.id": call_id,
                    "gen_ai.tool.type": "function",
                    "rollout.tool.status": record.status,
                    "rollout.tool.retries": record.retries,
                    "rollout.tool.characters": len(record.text),
                },
            )
            if record.status != "ok":
                self._fail(span, record.status, "")
            span.end(spans.stepped_at + int(record.seconds * 1e9))

    def _make_current(self, span: Span) -> None:
        self._context.attach(self._trace.set_span_in_context(span))

    def _fail(self, span: Span, kind: str, text: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))


class _EpisodeSpans:
    """The spans of an episode that runs, with its job, so that `id(job)` stays its own. `turn` is that of the engine's
    turn, or of another role's that it waits for; `turns` have the spans of their calls."""

    def __init__(self, job: Job, span: Span, outer: Context) -> None:
        self.job, self.span, self.outer = job, span, outer
        self.turn: Span | None = None
        self.turns, self.requests, self.output_tokens = job.branch_turn or 0, 0, 0
        self.stepped_at = time.time_ns()
        self.suspended = False

    def end_turn(self) -> None:
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.end()
