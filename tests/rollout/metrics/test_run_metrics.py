"""The figures of a run, of its tools and of its env, and what they are measured from."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
import urllib.request
from functools import partial

import pytest

from tests.actors import call
from toolgym.envs import Task, ToolEnv
from toolgym.envs.types import StopReason
from toolgym.rollout import RunConfig, RunMetrics, Runner
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.episode import Episode
from toolgym.rollout.episode.observer import EpisodeObserver, Phase, observed_run
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.models.token_ids import TokenIds
from toolgym.rollout.runner import Branching, at_turns
from toolgym.rollout.runner.metrics import MetricsServer
from toolgym.rollout.tokens import ChatRenderer
from toolgym.tools import tool
from toolgym.tools.concurrency.deadline import own_deadline
from toolgym.tools.errors import ConfigError
from toolgym.tools.http.retries import AttemptError, Retries, repeat


@tool
async def echo(text: str) -> str:
    """Return the text.

    Args:
        text: any.
    """
    return text


@tool
async def hang() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


@tool
async def break_down() -> str:
    """Raise."""
    raise ValueError("broken")


@tool
async def shaky() -> str:
    """Ask a server that answers the third time."""
    left = [AttemptError("no", sent=False)] * 2

    async def attempt():
        if left:
            raise left.pop()
        return "at last"

    with own_deadline():  # the env's is short, for `hang`; the pauses here may be long on a busy machine
        return await repeat(attempt, Retries(first_delay=0.001, max_delay=0.002), repeatable=True)


def task(text):
    return Task(({"role": "user", "content": text},), id=text)


TURNS = [
    call("echo", text="x" * 50) + call("shaky"),
    call("hang"),
    call("break_down") + call("no_such_tool"),
    "<tool_call>\n{\n</tool_call>",
    "done",
]


def make_env():
    return ToolEnv([echo, hang, break_down, shaky], [task("x")], max_turns=9, tool_timeout=0.05)


def turn_by_turn(prompt, request_id):
    return TURNS[int(request_id.split("-")[1])]


async def test_figures_of_tools_turns_and_episodes(scripted):
    metrics = RunMetrics()
    runner = Runner(make_env, scripted(turn_by_turn), observers=[metrics], config=RunConfig(seed=0, group_size=2))
    trajectories = await runner.run([task("a"), task("b")])
    found = metrics.metrics("")
    turns = [turn for one in trajectories for turn in one.turns]
    assert found["episodes/finished"] == found["stop_reason/answered"] == 4
    assert found["turns/count"] == found["engine/requests"] == found["env_steps/count"] == len(turns) == 20
    assert found["tokens/generated"] == sum(turn.generated_tokens for turn in turns)
    assert found["tokens/prompt"] == sum(turn.prompt_tokens for turn in turns)
    assert found["engine/prefix_cache_hit_rate"] == pytest.approx(20 * 3 / found["tokens/prompt"])
    assert found["tools/echo/calls"] == found["tools/echo/status/ok"] == 4
    assert found["tools/echo/characters/p50"] == pytest.approx(50, rel=0.02)
    assert found["tools/echo/errors"] == found["tools/echo/retries"] == 0
    assert found["tools/hang/timeouts"] == found["tools/hang/errors"] == found["tools/hang/status/timeout"] == 4
    assert found["tools/hang/seconds/p50"] >= 0.05 * 0.98
    assert found["tools/break_down/status/error"] == 4
    assert found["tools/shaky/retries"] == found["envs/make_env/retries"] == 8
    assert found["envs/make_env/timeouts"] == 4
    assert found["envs/make_env/steps"] == 20
    assert found["tool_calls/not_run/unknown_tool"] == found["tool_calls/not_run/malformed_json"] == 4
    assert "tools/no_such_tool/calls" not in found
    assert found["groups/count"] == 2
    assert found["groups/equal_rewards"] == 1.0
    assert found["episodes/running"] == 0
    outside = sum(one.seconds - one.engine_seconds for one in trajectories)
    assert found["process/worker_hours_per_million_actions"] == pytest.approx(outside / 20 * 1e6 / 3600)
    assert found["process/cpu_seconds_per_turn"] > 0
    assert found["engine/tokens_per_second"] == pytest.approx(found["tokens/generated"] / found["process/seconds"])
    again = RunMetrics()
    for one in trajectories:
        again.write(one)
    same = again.metrics("")
    assert {name: found[name] for name in same if name in found} == same
    assert found.keys() - same.keys() >= {"engine/prefix_drift", "engine/requests", "process/seconds"}


async def test_failures_and_an_env_that_cannot_be_made_are_counted(scripted):
    made = []

    def env():
        made.append(None)
        if len(made) == 2:
            raise OSError("no room")
        return make_env()

    metrics = RunMetrics()
    runner = Runner(env, scripted(lambda p, r: RuntimeError("broke")), observers=[metrics], config=RunConfig(seed=0))
    trajectories = await runner.run([task("a"), task("b"), task("c")])
    reasons = sorted(one.stop_reason for one in trajectories)
    assert reasons == [StopReason.ENGINE_FAILED, StopReason.ENGINE_FAILED, StopReason.ENV_CREATE_FAILED]
    found = metrics.metrics("")
    assert found["episodes/failed"] == found["envs/env/failures"] == 3
    assert found["stop_reason/engine_failed"] == found["envs/env/failure/engine_failed"] == 2
    assert found["stop_reason/env_create_failed"] == 1
    assert "reward/mean" not in found
    assert found["engine/requests"] == 2  # which failed, so no turn came of them
    assert found["turns/count"] == 0


async def test_groups_with_and_without_a_signal(scripted):
    metrics = RunMetrics()
    runner = Runner(make_env, scripted(lambda p, r: "done"), config=RunConfig(seed=0, group_size=2))
    trajectories = await runner.run([task("a"), task("b")])
    for one, reward in zip(trajectories, [0.0, 1.0, 1.0, 1.0], strict=True):
        metrics.write(dataclasses.replace(one, reward=reward))
    found = metrics.metrics("")
    assert (found["groups/count"], found["groups/equal_rewards"]) == (2, 0.5)
    assert found["groups/reward_std"] == pytest.approx(0.5**0.5 / 2)
    assert (found["reward/mean"], found["reward/min"], found["reward/max"]) == (0.75, 0, 1)


async def test_an_aborted_turn_goes_on_without_drift(scripted):
    def script(prompt, request_id):
        return ("par", FinishReason.ABORT) if request_id.count("-") == 1 else "tial"

    metrics = RunMetrics()
    runner = Runner(make_env, scripted(script), observers=[metrics], config=RunConfig(seed=0))
    await runner.run([task("a")])
    found = metrics.metrics("")
    assert (found["turns/resumes"], found["engine/requests"], found["engine/prefix_drift"]) == (1, 2, 0)


async def test_drift_is_seen_in_what_is_sent(scripted, monkeypatch):
    """An episode that sends the engine something else than what it had is caught, whatever its records say."""
    from toolgym.rollout.tokens.conversation import Conversation

    extended = Conversation.apply

    def damaged(self, extension, observation):
        extended(self, extension, observation)
        ids = list(self.context)
        ids[5] += 1
        self.context = TokenIds(ids)

    monkeypatch.setattr(Conversation, "apply", damaged)
    metrics = RunMetrics()
    script = lambda prompt, request_id: call("echo", text="a") if request_id.endswith("-0") else "done"  # noqa: E731
    runner = Runner(make_env, scripted(script), observers=[metrics], config=RunConfig(seed=0))
    await runner.run([task("a")])
    assert metrics.metrics("")["engine/prefix_drift"] == 1


async def test_a_context_that_begins_anew_is_no_drift(scripted):
    from toolgym.rollout.tokens import KeepToolResults

    metrics = RunMetrics()
    config = RunConfig(seed=0, context=[KeepToolResults(1)])
    script = lambda prompt, request_id: (  # noqa: E731
        "done" if request_id.endswith("-3") else call("echo", text="result " * 5)
    )
    runner = Runner(make_env, scripted(script), observers=[metrics], config=config)
    [trajectory] = await runner.run([task("a")])
    found = metrics.metrics("")
    assert found["context/rewritten"] == len(trajectory.sequences) - 1 > 0
    assert found["engine/prefix_drift"] == 0


async def test_running_episodes_are_seen_and_forgotten_when_the_run_is_closed(scripted):
    metrics, there = RunMetrics(), asyncio.Event()

    class Waits(EpisodeObserver):
        def waits(self, job, phase, what=""):
            if phase is Phase.ENV:
                there.set()

    def env():
        return ToolEnv([hang], [task("x")], tool_timeout=60)

    runner = Runner(env, scripted(lambda p, r: call("hang")), observers=[metrics, Waits()], config=RunConfig(seed=0))
    playing = asyncio.create_task(runner.run([task("a")]))
    await asyncio.wait_for(there.wait(), 60)
    found = metrics.metrics("")
    assert (found["episodes/running"], found["episodes/waiting/env"]) == (1, 1)
    playing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await playing
    assert metrics.metrics("")["episodes/running"] == 0
    assert metrics.running == {}


async def test_a_reset_begins_anew(scripted):
    metrics = RunMetrics()
    runner = Runner(make_env, scripted(lambda p, r: "done"), observers=[metrics], config=RunConfig(seed=0))
    await runner.run([task("a")])
    metrics.reset()
    assert metrics.metrics("")["episodes/finished"] == 0
    assert "process/seconds" not in metrics.metrics("")
    await runner.run([task("a")])
    assert metrics.metrics("x/")["x/episodes/finished"] == 1


async def test_as_observer_and_sink_it_would_count_twice(scripted):
    metrics = RunMetrics()
    runner = Runner(make_env, scripted(lambda p, r: "done"), observers=[metrics], sinks=[metrics])
    with pytest.raises(ConfigError, match="as an observer or as a sink, not as both"):
        await runner.run([task("a")])


async def test_the_page_for_prometheus_agrees_with_the_figures(scripted):
    metrics = RunMetrics()
    runner = Runner(make_env, scripted(turn_by_turn), observers=[metrics], config=RunConfig(seed=0))
    await runner.run([task("a")])
    with MetricsServer(metrics, 0) as server:
        page = urllib.request.urlopen(server.url, timeout=60).read().decode()
        with pytest.raises(ConfigError, match="cannot serve metrics at"):
            MetricsServer(metrics, int(server.url.split(":")[2].split("/")[0]))
    samples = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert samples['toolgym_rollout_tool_calls_total{status="timeout",tool="hang"}'] == "1.0"
    assert samples['toolgym_rollout_tool_retries_total{tool="shaky"}'] == "2.0"
    assert samples['toolgym_rollout_tool_seconds_count{tool="hang"}'] == "1.0"
    assert samples['toolgym_rollout_tool_seconds_bucket{le="0.025",tool="hang"}'] == "0.0"
    assert samples['toolgym_rollout_tool_seconds_bucket{le="120.0",tool="hang"}'] == "1.0"
    assert samples["toolgym_rollout_prefix_drift_total"] == "0.0"
    assert samples['toolgym_rollout_episodes_total{stop_reason="answered"}'] == "1.0"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(server.url, timeout=60)


def test_names_are_what_every_logger_takes(scripted):
    from toolgym.rollout.runner.metrics.figures import _name

    assert _name("TextArena/Sudoku-v0") == "TextArena/Sudoku-v0"
    assert _name("a\nb:é") == "a_b__"
    assert _name("") == "unnamed"


def test_made_up_names_do_not_fill_the_memory():
    from toolgym.envs.types import ToolCallRecord
    from toolgym.rollout.runner.metrics.counts import MOST_NAMES, OTHER, EventCounts
    from toolgym.rollout.trajectory.trajectory import Turn

    counts = EventCounts()
    for number in range(3 * MOST_NAMES):
        record = ToolCallRecord("1", f"tool{number % 2}", {}, f"status{number}", "")
        counts.add_turn(Turn("", "stop", 1, 1, tool_calls=(record,), reward=0.0))
    assert len(counts.tools["tool0"].statuses) == MOST_NAMES + 1
    assert counts.tools["tool0"].statuses[OTHER] == 50


async def test_the_turns_that_branches_share_count_once(scripted):
    def script(prompt, request_id):
        return "done" if prompt.count("<tool_response>") == 2 else call("echo", text=request_id)

    engine, metrics = scripted(script), RunMetrics()
    config = RunConfig(seed=0, branching=Branching(at_turns(1, continuations=3)))
    done = await Runner(make_env, engine, observers=[metrics], config=config).run([task("a")])
    found, again = metrics.metrics(""), RunMetrics()
    for one in done:
        again.write(one)
    for figures in (found, again.metrics("")):
        assert figures["episodes/finished"] == len(done) == 3
        assert figures["turns/count"] == figures["envs/make_env/steps"] == len(engine.given) == 7
        assert figures["tools/echo/calls"] == 4
    assert (found["engine/requests"], found["engine/prefix_drift"]) == (7, 0)


async def test_an_episode_that_stands_still_goes_on_in_another_run(scripted, tokenizer):
    there, free = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        """Wait."""
        there.set()
        await asyncio.wait_for(free.wait(), 60)
        return "free"

    metrics = RunMetrics()
    engine = scripted(lambda prompt, request_id: "done" if "free" in prompt else call("hold"))
    job = Job(task("a"), EpisodeKey(0, 0), "g", 0)
    renderer = partial(ChatRenderer, tokenizer)
    episode = Episode(job, RunConfig(), ToolEnv([hold], [task("a")]), engine, renderer, observers=[metrics])
    with observed_run([metrics]):
        playing = asyncio.create_task(episode.run())
        await asyncio.wait_for(there.wait(), 60)
        episode.suspend()
        free.set()
        assert await asyncio.wait_for(playing, 60) is None
    assert metrics.running == {Phase.SUSPENDED: 1}
    with observed_run([metrics]):
        trajectory = await asyncio.wait_for(episode.run(), 60)
    assert len(trajectory.turns) == 2
    found = metrics.metrics("")
    assert (found["turns/count"], found["engine/requests"], found["engine/prefix_drift"]) == (2, 2, 0)
    assert found["tools/hold/calls"] == found["episodes/finished"] == 1
    assert metrics.running == {}
    await episode.env.close()


async def test_the_lag_of_the_loop_is_among_the_figures(scripted):
    @tool
    async def block() -> str:
        """Block the loop, as no tool should."""
        time.sleep(0.3)
        return "x"

    metrics = RunMetrics()
    engine = scripted(lambda prompt, request_id: "done" if "response" in prompt else call("block"))
    runner = Runner(
        lambda: ToolEnv([block], [task("a")]), engine, observers=[metrics], config=RunConfig(seed=0, max_concurrent=1)
    )
    await runner.run([task("a"), task("b")])
    assert metrics.metrics("")["process/loop_lag/max"] > 0.15
    assert metrics.metrics("")["engine/queue_seconds/p99"] == 0


async def test_the_wait_for_a_place_is_counted_apart_from_the_engine(scripted):
    metrics = RunMetrics()
    config = RunConfig(seed=0, max_generations=1)
    runner = Runner(make_env, scripted(lambda p, r: 0.01), observers=[metrics], config=config)
    await runner.run([task(str(number)) for number in range(20)])
    found = metrics.metrics("")
    assert found["engine/queue_seconds/p99"] > 0.1
    # Each waits for all before it. The middle ones are compared, since a single request may be slow for any reason.
    assert found["engine/seconds/p50"] < found["engine/queue_seconds/p50"]


async def test_prefix_drift_is_not_claimed_where_no_request_was_heard_of(scripted):
    """As of a runner whose episodes are played in other processes, which tells of their beginning and their end."""
    [trajectory] = await Runner(make_env, scripted(turn_by_turn), config=RunConfig(seed=0)).run([task("a")])
    metrics, job = RunMetrics(), Job(task("a"), EpisodeKey(0, 0), "g")
    metrics.began(job)
    assert metrics.metrics("")["episodes/running"] == 1
    metrics.ended(job, trajectory)
    found = metrics.metrics("")
    assert found["turns/count"] == 5
    assert found["episodes/running"] == 0
    assert "engine/prefix_drift" not in found
