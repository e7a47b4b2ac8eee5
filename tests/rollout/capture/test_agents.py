"""Agents that play the episodes of a run: the same runner as for envs, and the same tokens."""

from __future__ import annotations

import asyncio
import contextvars
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from tests.actors import until
from toolgym.envs.rewards.base import Score
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import (
    EpisodeLimits,
    GroupPlan,
    RolloutQueue,
    RunConfig,
    Runner,
    SamplingParams,
    open_engine,
    rollout,
)
from toolgym.rollout.capture import AgentCommand, CaptureRules, agent_env
from toolgym.rollout.endpoint import make_run
from toolgym.rollout.job import EpisodeKey, current_episode
from toolgym.rollout.runner.envs.env_factory import EnvFactory
from toolgym.tools.errors import ConfigError, EngineError

ENV = "CodeInterpreter-v0"
TASKS = [Task(({"role": "user", "content": f"{n}*7?"},), id=f"t{n}", ground_truth=str(n * 7)) for n in range(3)]


@pytest.fixture
async def engine():
    async with open_engine("tiny") as engine:
        yield engine


async def ask(base_url, api_key, *messages, **body):
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {api_key}"}) as http:
        request = {"model": "m", "messages": list(messages), **body}
        async with http.post(f"{base_url}/chat/completions", json=request) as response:
            return response.status, await response.json()


async def asks_once(task, *, base_url, api_key):
    status, answer = await ask(base_url, api_key, *task.messages)
    assert status == 200
    return len(answer["choices"][0]["message"]["content"] or "")


def config(**settings):
    return RunConfig(**{"sampling": SamplingParams(max_new_tokens=24), "seed": 3, **settings})


def ids(trajectories):
    return [
        (each.task_index, each.sample_index, each.prompt_ids.tolist(), each.response_ids.tolist(), each.reward)
        for each in trajectories
    ]


async def test_an_env_behind_an_address_has_the_tokens_of_a_rollout(engine):
    tasks = (await EnvFactory.of(ENV).tasks()).take(3, seed=5, training_step=0)
    usual = config(group_size=2, sampling=SamplingParams(max_new_tokens=128))
    expected = await rollout(ENV, engine, tasks, config=usual)
    played = await rollout(agent_env(make_run(ENV)), engine, tasks, config=usual)
    assert sum(len(trajectory.turns) for trajectory in expected) > 6, "some call their tool"
    assert ids(played) == ids(expected)
    assert [each.response_mask.tolist() for each in played] == [each.response_mask.tolist() for each in expected]
    assert {each.env_id for each in played} == {"EndpointRun"}
    assert sum(turn.reward or 0.0 for turn in played[0].turns) == played[0].reward


async def test_groups_come_whole_and_an_agent_that_raises_is_one_failed_trajectory(engine):
    async def agent(task, *, base_url, api_key):
        if task.id == "t1":
            raise ValueError("no such file")
        return await asks_once(task, base_url=base_url, api_key=api_key)

    runner = Runner(agent_env(agent), engine, config=config(group_size=2))
    groups = [group async for group in runner.stream_groups(TASKS)]
    by_task = {group[0].task_id: group for group in groups}
    assert sorted(by_task) == ["t0", "t1", "t2"]
    assert all(len(group) == 2 for group in groups)
    for trajectory in by_task["t1"]:
        assert trajectory.stop_reason is StopReason.ENV_FAILED
        assert trajectory.error.message == "ValueError: no such file"
    assert all(each.trainable and each.reward > 0 for task in ("t0", "t2") for each in by_task[task])
    first, second = by_task["t0"]
    assert first.response_ids.tolist() != second.response_ids.tolist(), "each has seeds of its own"


@pytest.mark.parametrize(
    ("agent", "reason", "text"),
    [
        ("hangs", StopReason.EPISODE_TIMEOUT, "did not finish within 4 seconds"),
        ("makes_no_call", StopReason.ENV_FAILED, "made no call that was answered"),
        ("returns_a_text", StopReason.ENV_FAILED, "the agent must return a Score or a finite number, got 'good'"),
        ("returns_nan", StopReason.ENV_FAILED, "a finite number, got nan"),
        ("is_not_async", StopReason.ENV_FAILED, "made no call that was answered"),
        ("exits", StopReason.ENV_FAILED, "SystemExit"),
    ],
)
async def test_an_agent_that_breaks_is_named(engine, agent, reason, text):
    async def hangs(task, *, base_url, api_key):
        await asks_once(task, base_url=base_url, api_key=api_key)
        await asyncio.sleep(60)

    async def makes_no_call(task, *, base_url, api_key):
        return 1.0

    async def returns_a_text(task, *, base_url, api_key):
        await asks_once(task, base_url=base_url, api_key=api_key)
        return "good"

    async def returns_nan(task, *, base_url, api_key):
        await asks_once(task, base_url=base_url, api_key=api_key)
        return float("nan")

    def is_not_async(task, *, base_url, api_key):
        return 1.0

    async def exits(task, *, base_url, api_key):
        sys.exit(3)

    limits = EpisodeLimits(episode_timeout=4.0 if agent == "hangs" else 20.0)
    runner = Runner(agent_env(locals()[agent]), engine, config=config(limits=limits))
    [trajectory] = await runner.run(TASKS[:1])
    assert (trajectory.stop_reason, trajectory.reward) == (reason, 0.0)
    assert text in trajectory.error.message
    assert bool(trajectory.policy_tokens) == (agent in ("hangs", "returns_a_text", "returns_nan"))


SCRIPT = """
import json, os, sys, time, urllib.request
task = json.load(open("task.json"))
how = sys.argv[1]
if how == "hang":
    if os.fork() == 0:
        open(os.environ["PIDS"], "w").write(str(os.getpid()))
    time.sleep(60)
body = json.dumps({"model": "m", "messages": task["prompt"]}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
request.add_header("Content-Type", "application/json")
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"] or ""
open("answer.txt", "w").write(sys.argv[2] + "|" + answer)
if how == "fail":
    sys.exit("it broke here")
"""


def command(how, **options):
    files = {"agent.py": SCRIPT.encode()}
    words = [sys.executable, "agent.py", how, "asked: {prompt}"]
    return AgentCommand(words, files=files, fetch_files=("answer.txt",), **options)


async def test_a_command_plays_and_a_scorer_sees_its_files_and_its_last_turn(engine):
    outcomes = []

    async def scorer(outcome):
        outcomes.append(outcome)
        return Score(2.0, {"calls": 1.0})

    [trajectory] = await rollout(
        agent_env(command("play"), scorer=scorer, name="mine"), engine, TASKS[:1], config=config()
    )
    assert (trajectory.stop_reason.failed, trajectory.reward, trajectory.env_id) == (False, 2.0, "mine")
    assert trajectory.metrics["score/calls"] == 1.0
    assert trajectory.turns[-1].reward == 2.0
    [outcome] = outcomes
    asked, _, answer = outcome.session("agent").files["answer.txt"].decode().partition("|")
    assert asked == "asked: 0*7?"
    assert outcome.final_text == answer == trajectory.messages[-1]["content"]
    assert outcome.session("trajectory").id == trajectory.id


async def test_a_command_that_fails_or_hangs_is_named_and_leaves_no_process(engine, tmp_path):
    pids = tmp_path / "pids"
    hanging = command("hang", env={"PIDS": str(pids)})
    [failed] = await Runner(agent_env(command("fail")), engine, config=config()).run(TASKS[:1])
    assert failed.stop_reason is StopReason.ENV_FAILED
    assert failed.error.message == "the command ended with error (1): it broke here"
    for runner in (
        Runner(agent_env(hanging), engine, config=config(limits=EpisodeLimits(episode_timeout=1.0))),
        Runner(agent_env(replace(hanging, timeout=1.0)), engine, config=config()),
    ):
        [trajectory] = await runner.run(TASKS[:1])
        assert trajectory.stop_reason is StopReason.EPISODE_TIMEOUT
        await until(lambda: not alive(int(pids.read_text())))


async def test_a_prompt_that_is_too_long_for_a_command_is_named(engine):
    task = Task(({"role": "user", "content": "x" * 140_000},))
    [trajectory] = await Runner(agent_env(command("play")), engine, config=config()).run([task])
    assert "has 140007 bytes, and Linux takes at most 131071" in trajectory.error.message


def alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def test_an_agent_that_breaks_off_at_its_limit_is_scored(engine):
    async def agent(task, *, base_url, api_key):
        for _ in range(3):
            status, answer = await ask(base_url, api_key, *task.messages)
            if status != 200:
                raise RuntimeError(answer)

    limited = agent_env(agent, scorer=lambda outcome: outcome.turns, rules=CaptureRules(max_calls=2, untrained=()))
    [trajectory] = await Runner(limited, engine, config=config()).run(TASKS[:1])
    assert (trajectory.stop_reason, trajectory.error, trajectory.reward) == (StopReason.MAX_TURNS, None, 2.0)


@pytest.mark.parametrize("asks_again", [False, True])
async def test_an_engine_that_breaks_is_to_blame_unless_the_agent_went_on(scripted, asks_again):
    async def agent(task, *, base_url, api_key):
        status, answer = await ask(base_url, api_key, *task.messages)
        if asks_again:
            assert status == 502
            status, answer = await ask(base_url, api_key, *task.messages)
            raise RuntimeError(f"no tool named {answer['choices'][0]['message']['content']}")
        assert status == 200, answer

    turns = iter([EngineError("out of memory"), "run"])
    [trajectory] = await Runner(agent_env(agent), scripted(lambda *_: next(turns)), config=config()).run(TASKS[:1])
    assert trajectory.stop_reason is (StopReason.ENV_FAILED if asks_again else StopReason.ENGINE_FAILED)
    assert len(trajectory.turns) == asks_again


async def test_a_run_goes_on_where_it_ended(engine, tmp_path):
    calls = []

    async def agent(task, *, base_url, api_key):
        calls.append(task.id)
        return await asks_once(task, base_url=base_url, api_key=api_key)

    out, whole = tmp_path / "part.jsonl", tmp_path / "whole.jsonl"
    expected = await rollout(agent_env(agent), engine, TASKS, config=config(group_size=2), out=whole)
    out.write_text("".join(whole.read_text().splitlines(keepends=True)[:3]))
    calls.clear()
    resumed = await rollout(agent_env(agent), engine, TASKS, config=config(group_size=2), out=out, resume=True)
    assert len(calls) == 3
    assert ids(resumed) == ids(expected)
    other = agent_env(agent, scorer=lambda outcome: 1.0)
    with pytest.raises(ConfigError, match="is of another run"):
        await rollout(other, engine, TASKS, config=config(group_size=2), out=out, resume=True)


async def test_the_limits_of_a_run_hold_for_the_calls_of_its_agents(scripted):
    running, most = 0, 0

    class Counting(type(scripted(lambda *_: "x"))):
        async def _generate(self, request):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            return await super()._generate(request)

    engine = Counting(scripted(lambda *_: "x").tokenizer, lambda *_: "#### 1")
    played = await Runner(agent_env(asks_once), engine, config=config(group_size=3, max_generations=2)).run(TASKS)
    assert (len(played), most) == (9, 2)


async def test_a_queue_gives_batches_of_groups(engine):
    runner = Runner(agent_env(asks_once), engine, config=config(group_size=2))
    async with RolloutQueue(runner, TASKS, batch_size=2, max_staleness=0) as queue:
        batch = await anext(aiter(queue))
    assert len({trajectory.group_id for trajectory in batch}) * 2 == len(batch)


async def test_a_straggler_is_cut_and_keeps_its_tokens(engine):
    answered = asyncio.Event()

    async def agent(task, *, base_url, api_key):
        await asks_once(task, base_url=base_url, api_key=api_key)
        if task.id == "t2":
            answered.set()
            await asyncio.sleep(60)
        await answered.wait()
        return 1.0

    started = time.monotonic()
    plan = GroupPlan(groups=2, spare_groups=1, stragglers="keep")
    sharing = agent_env(agent, own_thread=False)  # they wait for the same event
    played = await Runner(sharing, engine, config=config()).run(TASKS, plan=plan)
    assert time.monotonic() - started < 20
    stragglers = [each.task_id for each in played if each.stop_reason is StopReason.STRAGGLER]
    assert (len(played), stragglers) == (3, ["t2"])
    assert all(each.policy_tokens for each in played)


def blocking_ask(task, base_url, api_key):
    body = json.dumps({"model": "m", "messages": list(task.messages)}).encode()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{base_url}/chat/completions", body, headers)) as response:
            return json.load(response)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        error.close()
        raise


def plain_agent(task, *, base_url, api_key):
    return float(len(blocking_ask(task, base_url, api_key)))


async def async_agent_that_blocks(task, *, base_url, api_key):
    await asyncio.sleep(0)
    return float(len(blocking_ask(task, base_url, api_key)))


@pytest.mark.parametrize("agent", [plain_agent, async_agent_that_blocks])
async def test_agents_that_block_play_side_by_side(scripted, agent):
    together = asyncio.Barrier(6)

    class Meeting(type(scripted(lambda *_: "x"))):
        async def _generate(self, request):
            await together.wait()  # all agents are in a blocking call at once
            return await super()._generate(request)

    engine = Meeting(scripted(lambda *_: "x").tokenizer, lambda *_: "four")
    played = await Runner(agent_env(agent), engine, config=config(group_size=2)).run(TASKS)
    assert [(each.reward, each.error) for each in played] == [(4.0, None)] * 6


@pytest.mark.parametrize("blocks", ["for ever", "in a call"])
async def test_an_agent_that_blocks_ends_at_its_deadline(scripted, blocks):
    release, hanging = threading.Event(), asyncio.Event()

    async def agent(task, *, base_url, api_key):
        blocking_ask(task, base_url, api_key)
        if blocks == "for ever":
            release.wait()
            return
        blocking_ask(task, base_url, api_key)

    class Slow(type(scripted(lambda *_: "x"))):
        async def _generate(self, request):
            if self.given and blocks == "in a call":
                await hanging.wait()
            return await super()._generate(request)

        async def abort(self, request_id):
            hanging.set()

    engine = Slow(scripted(lambda *_: "x").tokenizer, lambda *_: "four")
    limited = config(limits=EpisodeLimits(episode_timeout=1.0))
    [trajectory] = await Runner(agent_env(agent), engine, config=limited).run(TASKS[:1])
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.EPISODE_TIMEOUT, 1)
    # The call under way was refused, so that thread has ended; the other thread cannot be stopped.
    assert trajectory.metrics.get("agent_left_behind", 0) == (blocks == "for ever")
    release.set()


async def test_context_variables_reach_the_thread_of_an_agent(engine):
    seen = contextvars.ContextVar("seen", default="")
    episodes = []

    def agent(task, *, base_url, api_key):
        episodes.append((seen.get(), current_episode()))
        return plain_agent(task, base_url=base_url, api_key=api_key)

    seen.set("here")
    await Runner(agent_env(agent), engine, config=config()).run(TASKS[:1])
    assert episodes == [("here", EpisodeKey(0, 0))]


async def test_what_an_agents_loop_is_bound_to_is_not_shared_unless_asked_for(engine):
    def agent_of(lock):
        async def agent(task, *, base_url, api_key):
            async with lock:
                return await asks_once(task, base_url=base_url, api_key=api_key)

        return agent

    shared = agent_env(agent_of(asyncio.Lock()), own_thread=False)
    assert all(each.error is None for each in await Runner(shared, engine, config=config()).run(TASKS))
    with pytest.raises(ConfigError, match="own_thread=False needs an async function"):
        agent_env(plain_agent, own_thread=False)


async def test_what_does_not_fit_is_an_error_of_one_line(engine):
    for words in ("claude -p x", [], [1]):
        with pytest.raises(ConfigError, match="must be a list of words"):
            agent_env(words)
    with pytest.raises(ConfigError, match="leave out history"):
        await Runner(agent_env(asks_once), engine, config=config(history="template")).run(TASKS)
    env = agent_env(asks_once)()
    with pytest.raises(ConfigError, match="an agent plays this env as a whole"):
        await env.reset()
