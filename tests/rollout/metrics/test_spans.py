"""The spans of a run: one tree, with the conventions' names, and nothing where no application wants them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.envs.library.nim import NimEnv, nim_task
from toolgym.rollout import RunConfig, Runner
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.runner.metrics.spans import RL_NAMES, RunSpans, spans_of_run
from toolgym.tools import tool

trace = pytest.importorskip("opentelemetry.sdk.trace")
exports = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


@pytest.fixture
def exporter(monkeypatch):
    """What an application sets up, for the length of a test: the real provider can be set only once in a process."""
    import opentelemetry.trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    made = exports.InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    return made


@tool
async def look() -> str:
    """Ask what is looked at."""
    from opentelemetry import trace

    with trace.get_tracer("a tool").start_as_current_span("inner"):
        return "seen"


TASKS = [Task(({"role": "user", "content": "x"},), id="t")]
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


def script(prompt, request_id):
    number = request_id.split("-", 1)[1]
    return {"0": ("<tool", FinishReason.ABORT), "0-1": CALL.removeprefix("<tool")}.get(number, "done")


def env():
    return ToolEnv([look], TASKS)


async def test_a_run_is_a_tree_of_spans(scripted, exporter):
    import opentelemetry.trace

    with opentelemetry.trace.get_tracer("trainer").start_as_current_span("training step"):
        runner = Runner(env, scripted(script), config=RunConfig(seed=0))
        [trajectory] = await runner.run(TASKS)
        assert opentelemetry.trace.get_current_span().name == "training step"
    spans = exporter.get_finished_spans()
    by_id = {one.context.span_id: one for one in spans}
    tree = [(one.name, by_id[one.parent.span_id].name if one.parent else None) for one in spans]
    assert tree == [
        ("chat tiny_policy", "invoke_agent env"),
        ("inner", "invoke_agent env"),
        ("execute_tool look", "invoke_agent env"),
        ("chat tiny_policy", "invoke_agent env"),
        ("invoke_agent env", "rollout env"),
        ("rollout env", "training step"),
        ("training step", None),
    ]
    turn, _, call, _, episode = spans[:5]
    first = trajectory.turns[0]
    assert turn.attributes["gen_ai.usage.input_tokens"] == first.prompt_tokens
    assert turn.attributes["gen_ai.usage.output_tokens"] == first.generated_tokens
    assert turn.attributes["gen_ai.usage.cache_read.input_tokens"] == first.cached_tokens == 3
    assert turn.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert turn.attributes["gen_ai.request.seed"] == first.seed
    assert turn.attributes["rollout.turn.requests"] == 2
    assert call.attributes["gen_ai.tool.call.id"] == first.tool_calls[0].id
    assert call.status.is_ok
    assert turn.end_time <= call.start_time <= call.end_time <= episode.end_time
    assert episode.attributes["gen_ai.conversation.id"] == trajectory.id
    assert episode.attributes["rollout.task.id"] == "t"
    assert episode.attributes["rollout.stop_reason"] == "answered"


async def test_a_role_that_waits_for_another_has_a_span_for_it(scripted, exporter):
    await Runner(NimEnv, scripted(lambda *_: "2"), config=RunConfig(seed=0)).run([nim_task(4)])
    spans = exporter.get_finished_spans()
    roles = {one.context.span_id: one.attributes.get("rollout.role") for one in spans}
    below = {(roles.get(one.parent.span_id), one.name): one for one in spans if one.parent}
    assert {key for key in below if key[0]} == {
        (role, name) for role in NimEnv.roles for name in ("chat tiny_policy", "wait for another role")
    }
    turn, wait = below["second", "chat tiny_policy"], below["first", "wait for another role"]
    assert wait.start_time <= turn.start_time < turn.end_time <= wait.end_time


async def test_the_proposed_names_for_reinforcement_learning_stand_beside(scripted, exporter):
    runner = Runner(env, scripted(script), config=RunConfig(seed=0, training_step=7))
    [trajectory] = await runner.run(TASKS)
    *_, episode, run = exporter.get_finished_spans()
    proposed = {name: value for name, value in episode.attributes.items() if name.startswith("rl.")}
    assert proposed == {
        "rl.environment.name": "env",
        "rl.loop.iteration": 7,
        "rl.reward.score": trajectory.reward,
        "rl.sample.task.id": "t",
        "rl.sample.turns": 2,
        "rl.sample.input_tokens": sum(turn.prompt_tokens for turn in trajectory.turns),
        "rl.sample.output_tokens": trajectory.policy_tokens,
    }
    assert {name: run.attributes[name] for name in run.attributes if name.startswith("rl.")} == {
        "rl.system": "toolgym",
        "rl.environment.name": "env",
        "rl.model.name": "tiny_policy",
    }
    for span in (episode, run):
        for name, other in RL_NAMES.items():
            assert span.attributes.get(name) == span.attributes.get(other)


async def test_failures_are_marked(scripted, exporter):
    made = []

    def flaky():
        made.append(None)
        if len(made) == 2:
            raise OSError("no room")
        return env()

    engine = scripted(lambda p, r: RuntimeError("the engine broke"))
    trajectories = await Runner(flaky, engine, config=RunConfig(seed=0, group_size=2)).run(TASKS)
    assert sorted(one.stop_reason for one in trajectories) == ["engine_failed", "env_create_failed"]
    episodes = {one.attributes["error.type"]: one for one in exporter.get_finished_spans() if "invoke" in one.name}
    assert set(episodes) == {"engine_failed", "env_create_failed"}
    assert "the engine broke" in episodes["engine_failed"].status.description
    [turn] = [one for one in exporter.get_finished_spans() if "chat" in one.name]
    assert turn.attributes["error.type"] == "engine_failed"
    assert not turn.status.is_ok


async def test_a_run_that_is_closed_ends_its_spans(scripted, exporter):
    seconds = iter([0, 600, 600])
    engine = scripted(lambda p, r: next(seconds))
    runner = Runner(env, engine, config=RunConfig(seed=0, group_size=3))
    stream = runner.stream(TASKS)
    await anext(stream)
    async with asyncio.timeout(60):
        while len(engine.seen) < 3:
            await asyncio.sleep(0.01)
    await stream.aclose()
    spans = exporter.get_finished_spans()
    assert [one.name for one in spans].count("invoke_agent env") == 3
    assert [one.attributes.get("error.type") for one in spans if "invoke" in one.name] == [None, *["cancelled"] * 2]
    assert spans[-1].name == "rollout env"


def test_the_names_are_the_conventions():
    import inspect
    import re

    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv.attributes import error_attributes

    known = {value for where in (gen_ai_attributes, error_attributes) for value in vars(where).values()
             if isinstance(value, str)}  # fmt: skip
    module = sys.modules[RunSpans.__module__]
    used = set(re.findall(r'"((?:gen_ai|error)\.[\w.]+)"', inspect.getsource(module)))
    assert len(used) > 15
    assert used <= known


def test_nothing_is_loaded_or_made_without_a_provider():
    code = (
        "import sys, json\n"
        "from toolgym.rollout.runner.metrics.spans import spans_of_run\n"
        "before = spans_of_run('a', 'b', 'c'), any(name.startswith('opentelemetry') for name in sys.modules)\n"
        "import opentelemetry.trace\n"
        "print(json.dumps([*before, spans_of_run('a', 'b', 'c')]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout) == [[], False, []]


def test_a_folder_is_named_without_its_path(exporter):
    [made] = spans_of_run("e", "/models/Qwen3-8B", "SGLangServer")
    assert made._model == "Qwen3-8B"
    [made] = spans_of_run("e", "Qwen/Qwen3-8B", "SGLangServer")
    assert made._model == "Qwen/Qwen3-8B"
