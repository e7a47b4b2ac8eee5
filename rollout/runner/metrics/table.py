"""The table of a run's figures: the views, a dict and a page for Prometheus, are made from it."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from toolgym.rollout.runner.metrics.counts import EnvCounts, EventCounts, Sketch, ToolCounts
from toolgym.tools.serving.metrics import BUCKETS

SIZES = tuple(float(4**power) for power in range(2, 11))
"""Upper bounds of the buckets of sizes: 16 to about a million."""

C = TypeVar("C")


class Count(NamedTuple, Generic[C]):
    """A number that grows: its name in the dict and its family on the page, if it is there, and how it is read."""

    figure: str | None
    family: str | None
    meaning: str
    value: Callable[[C], float]


class Distribution(NamedTuple, Generic[C]):
    """Many numbers: percentiles in the dict, a histogram with these bounds on the page."""

    figure: str
    family: str
    meaning: str
    sketch: Callable[[C], Sketch]
    bounds: tuple[float, ...] = BUCKETS


RUN: tuple[Count[EventCounts], ...] = (
    Count("episodes/finished", None, "", attrgetter("episodes")),
    Count("episodes/failed", None, "", attrgetter("failed")),
    Count("turns/count", "turns", "Turns of the policy.", attrgetter("turns")),
    Count("turns/truncated", None, "", attrgetter("truncated_turns")),
    Count("turns/resumes", None, "", attrgetter("resumes")),
    Count("env_steps/count", "env_steps", "Steps of the env.", attrgetter("steps")),
    Count("tokens/prompt", "prompt_tokens", "Tokens of the contexts that were sent.", attrgetter("prompt_tokens")),
    Count("tokens/cached", "cached_tokens", "Those of them in the engine's prefix cache.", attrgetter("cached_tokens")),
    Count("tokens/generated", "generated_tokens", "Tokens of the policy.", attrgetter("generated_tokens")),
    Count("tokens/observations", None, "", attrgetter("observation_tokens")),
    Count(None, "outside_seconds", "Seconds of finished episodes outside the engine.", attrgetter("outside_seconds")),
)

REQUESTS: tuple[Count[EventCounts], ...] = (
    Count("engine/requests", "requests", "Requests to the engine.", attrgetter("requests")),
    Count("engine/prefix_drift", "prefix_drift", "Requests without the prefix before: 0.", attrgetter("drifted")),
    Count("context/rewritten", "context_rewritten", "Times that a context began again.", attrgetter("rewritten")),
)
"""In the dict only if requests were heard of, since else nothing was compared."""

RUN_DISTRIBUTIONS: tuple[Distribution[EventCounts], ...] = (
    Distribution("episodes/seconds", "episode_seconds", "Seconds of an episode.", attrgetter("episode_seconds")),
    Distribution("engine/seconds", "engine_seconds", "Seconds of a turn of the engine.", attrgetter("engine_seconds")),
    Distribution(
        "engine/queue_seconds",
        "queue_seconds",
        "Seconds that a turn waited for its permit.",
        attrgetter("queue_seconds"),
    ),
)

TOOL: tuple[Count[ToolCounts], ...] = (
    Count("calls", None, "", attrgetter("seconds.count")),
    Count("errors", None, "", attrgetter("errors")),
    Count("timeouts", None, "", lambda tool: tool.statuses.get("timeout", 0)),
    Count("retries", "tool_retries", "Requests of a tool that were sent again.", attrgetter("retries")),
    Count(
        "infra_failures",
        "tool_infra_failures",
        "Calls that the tool's infrastructure failed.",
        attrgetter("infra_failures"),
    ),
)

TOOL_DISTRIBUTIONS: tuple[Distribution[ToolCounts], ...] = (
    Distribution("seconds", "tool_seconds", "Seconds of a call.", attrgetter("seconds")),
    Distribution("characters", "tool_characters", "Characters of a call's result.", attrgetter("characters"), SIZES),
)

ENV: tuple[Count[EnvCounts], ...] = (
    Count("episodes", "env_episodes", "Episodes that are over.", attrgetter("episodes")),
    Count("steps", None, "", attrgetter("seconds.count")),
    Count("failures", None, "", lambda env: sum(env.failures.values())),
    Count("timeouts", "env_timeouts", "Steps, scorers and tool calls over their deadline.", attrgetter("timeouts")),
    Count("retries", "env_retries", "Requests of its tools that were sent again.", attrgetter("retries")),
)

ENV_DISTRIBUTIONS: tuple[Distribution[EnvCounts], ...] = (
    Distribution("seconds", "env_seconds", "Seconds of a step.", attrgetter("seconds")),
    Distribution(
        "observation_tokens",
        "env_observation_tokens",
        "Tokens of an observation.",
        attrgetter("observation_tokens"),
        SIZES,
    ),
)
