"""The figures of trajectories, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.actors import echo
from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import Blame, StopReason
from toolgym.rollout import RunConfig, SamplingParams, rollout, summarize
from toolgym.rollout.engines.base import FinishReason
from toolgym.tools.errors import EngineError

CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "x"}}\n</tool_call>'
BAD = '<tool_call>\n{"name": "ehco", "arguments": {}}\n</tool_call>'


def score(text, task):
    return float(text == "right")


async def played(scripted, *questions, **kwargs):
    def script(prompt, request_id):
        if "broken" in prompt:
            return EngineError("gone")
        if "long" in prompt:
            return ("la la", FinishReason.LENGTH)
        if "<tool_response>" not in prompt and "please" in prompt:
            return f"{CALL}\n{BAD}"
        return "right" if "right" in prompt else "wrong"

    tasks = [Task(({"role": "user", "content": text},), id=text) for text in questions]
    config = RunConfig(seed=1, sampling=SamplingParams(max_new_tokens=200), **kwargs)
    return await rollout(lambda: ToolEnv([echo], tasks, scorer=score), scripted(script), tasks, config=config)


async def test_rewards_are_of_the_episodes_that_count(scripted):
    figures = summarize(await played(scripted, "right", "wrong", "broken", group_size=2))
    assert figures["episodes"] == 6
    assert figures["groups"] == 3
    assert figures["reward/mean"] == figures["success/mean"] == figures["metrics/score/mean"] == 0.5
    assert figures["reward/std"] == pytest.approx((1 / 3) ** 0.5)
    assert (figures["reward/min"], figures["reward/max"]) == (0, 1)
    assert figures["failed/rate"] == figures["failed/engine"] == pytest.approx(1 / 3)
    assert figures["failed/sandbox"] == 0


async def test_stop_reasons_are_rates_of_a_closed_list(scripted):
    figures = summarize(await played(scripted, "right", "long", "broken", "wrong"))
    rates = {name: value for name, value in figures.items() if name.startswith("stop_reason/")}
    assert set(rates) == {f"stop_reason/{reason.value}" for reason in StopReason}
    assert sum(rates.values()) == 1
    assert rates["stop_reason/answered"] == 0.5
    assert rates["stop_reason/length"] == rates["stop_reason/engine_failed"] == figures["truncated/rate"] == 0.25
    assert {f"failed/{blame.value}" for blame in Blame if blame is not Blame.POLICY} <= set(figures)


async def test_turns_calls_and_tokens(scripted):
    trajectories = await played(scripted, "please", "right")
    figures = summarize(trajectories)
    assert (figures["turns/mean"], figures["turns/max"]) == (1.5, 2)
    assert figures["tool_calls/mean"] == figures["tool_calls/bad"] == 1
    assert figures["tool_calls/status/ok"] == figures["tool_calls/status/unknown_tool"] == 1
    assert figures["tokens/policy"] == sum(one.policy_tokens for one in trajectories)
    assert figures["response_length/max"] == trajectories[0].policy_tokens
    assert figures["prompt_length/mean"] > 10


async def test_every_figure_is_a_float_that_json_holds(scripted):
    trajectories = await played(scripted, "right", "please", "broken")
    for some in (trajectories, trajectories[:1], trajectories[2:], []):
        figures = summarize(iter(some))
        assert {type(value) for value in figures.values()} == {float}
        json.dumps(figures, allow_nan=False)
    assert "reward/mean" not in summarize(trajectories[2:])


def test_the_page_names_every_figure():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text().partition("## Figures of trajectories")[2]
    for name in ("reward/std", "failed/rate", "turns/truncated", "tool_calls/infra_failures", "env_seconds/mean"):
        assert f"`{name}`" in page
