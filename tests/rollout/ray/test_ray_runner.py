"""`RayRunner` on a cluster of two nodes: workers, nodes and engines die, consumers are slow or leave."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from contextlib import aclosing
from functools import partial
from weakref import WeakKeyDictionary

import pytest

from tests.ray_cluster import cluster, until
from tests.rollout import tiny_vlm
from tests.rollout.ray.parts import Instant, Slow, make_coding_env, make_env, task
from toolgym.rollout import EpisodeLimits, GroupPlan, RunConfig, Runner, open_engine
from toolgym.rollout.capture import agent_env
from toolgym.rollout.endpoint import make_run
from toolgym.rollout.engines.base import EngineLoad, PauseMode, SamplingParams
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.runner.branching import Branching, at_turns
from toolgym.rollout.runner.metrics import run_history
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError

pytestmark = pytest.mark.ray

ANY_NODE = {"num_cpus": 0}


@pytest.fixture(scope="module")
def nodes():
    with cluster(1, 1) as made:
        yield made


@pytest.fixture(scope="module")
def kept(nodes):
    """A runner whose two workers stay for all tests; each changes its config as it needs."""
    from toolgym.rollout import RayRunner

    runner = RayRunner(make_env, partial(Instant, 3), num_workers=2, ray_options=ANY_NODE)
    asyncio.run(runner.__aenter__())
    yield runner
    asyncio.run(runner.close())


@pytest.fixture
def runner(kept):
    kept.config, kept.observers, kept.sinks = RunConfig(seed=7, max_concurrent=8), (), ()
    return kept


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def places(trajectories):
    return [(one.task_index, one.sample_index) for one in trajectories]


def shape(trajectory):
    """What of an episode does not depend on when and where it was played, nor on the process that its tool names."""
    return (
        [segment.token_ids.tolist() for segment in trajectory.sequence.policy_segments],
        [segment.logprobs.tolist() for segment in trajectory.sequence.policy_segments],
        [turn.seed for turn in trajectory.turns],
        trajectory.prompt_text,
        trajectory.reward,
        trajectory.stop_reason,
        trajectory.tools,
    )


def test_episodes_are_those_that_a_runner_of_this_process_plays(runner):
    tasks, config = [task(at) for at in range(6)], RunConfig(seed=7, group_size=2)
    runner.config = config
    there = asyncio.run(runner.run(tasks))
    here = asyncio.run(Runner(make_env, Instant(3), config=config).run(tasks))
    assert places(there) == places(here)
    assert list(map(shape, there)) == list(map(shape, here))
    assert all(one.response_text.endswith("<|im_end|>") for one in there)
    assert sum(one["episodes"] for one in runner.worker_metrics.values()) == 12
    assert all(one["cpu_seconds"] > 0 for one in runner.worker_metrics.values())


def test_two_thousand_episodes_each_once(runner):
    runner.config = RunConfig(seed=1, group_size=8, max_concurrent=64)
    made = asyncio.run(runner.run([task(at) for at in range(250)]))
    assert places(made) == [(at, sample) for at in range(250) for sample in range(8)]
    assert len({one.id for one in made}) == 2000
    assert {one.stop_reason.value for one in made} == {"answered"}
    assert all(one["episodes"] > 0 for one in runner.worker_metrics.values())


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost_or_comes_twice(runner, tmp_path):
    tasks = [task(at, seconds=0.02, kill=str(tmp_path / "killed") if at == 9 else "") for at in range(60)]
    made = asyncio.run(runner.run(tasks))
    assert places(made) == [(at, 0) for at in range(60)]
    assert {one.stop_reason.value for one in made} == {"answered"}
    assert (tmp_path / "killed").exists()
    here = asyncio.run(Runner(make_env, Instant(3), config=runner.config).run([task(at) for at in range(60)]))
    assert list(map(shape, made)) == list(map(shape, here))


def test_of_jobs_that_share_a_worker_only_the_one_that_kills_it_fails(runner, tmp_path, caplog):
    note = tmp_path / "note"
    tasks = [task(at, kill="always" if at == 3 else "", note=str(note) if at == 3 else "") for at in range(12)]
    with caplog.at_level(logging.WARNING, logger="toolgym.rollout"):
        made = asyncio.run(runner.run(tasks))
    assert places(made) == [(at, 0) for at in range(12)]
    assert [one.task_index for one in made if one.failed] == [3]
    assert made[3].stop_reason.value == "worker_died"
    assert "its worker died 3 times" in made[3].error.message
    assert len(set(lines(note))) == 3
    assert "1 of 12 episodes failed with worker_died" in caplog.text


def test_two_steps_without_a_signal_say_why(runner, caplog, monkeypatch):
    monkeypatch.setattr(run_history, "_histories", WeakKeyDictionary())
    with caplog.at_level(logging.WARNING, logger="toolgym.rollout"):
        for step in range(2):
            assert "Nothing can be learnt" not in caplog.text
            runner.config = RunConfig(seed=7, group_size=2, training_step=step)
            asyncio.run(runner.run([task(0)]))
    assert "Nothing can be learnt from 2 steps with 4 episodes" in caplog.text


def test_an_observer_hears_of_the_run_and_of_its_episodes(runner):
    class Hears(EpisodeObserver):
        def __init__(self):
            self.heard = []

        def run_began(self):
            self.heard.append("run began")

        def run_ended(self):
            self.heard.append("run ended")

        def began(self, job):
            self.heard.append("began")

        def ended(self, job, trajectory):
            self.heard.append("ended")

    hears = Hears()
    runner.observers = (hears,)
    asyncio.run(runner.run([task(at) for at in range(3)]))
    assert [hears.heard[0], *sorted(hears.heard[1:-1]), hears.heard[-1]] == [
        "run began",
        *["began"] * 3,
        *["ended"] * 3,
        "run ended",
    ]


def test_a_slow_consumer_slows_the_workers(runner):
    class Began(EpisodeObserver):
        count = runs = over = 0

        def run_began(self):
            self.runs += 1

        def run_ended(self):
            self.over += 1

        def began(self, job):
            self.count += 1

    began = Began()
    runner.observers, runner.config = (began,), RunConfig(seed=1, max_concurrent=4)

    async def play():
        taken = 0
        async with aclosing(runner.stream(task(at) for at in range(10**9))) as stream:
            async for _ in stream:
                taken += 1
                if taken == 50:
                    await asyncio.sleep(1.0)  # the workers could play hundreds
                    assert began.count <= 50 + 4 + 2 * 5 + 1  # what the stream holds, and what two workers do
                if taken == 60:
                    break
        return taken

    assert asyncio.run(play()) == 60
    assert (began.runs, began.over) == (1, 1)


def test_closing_the_stream_cancels_the_episodes_and_waits_for_their_clean_up(runner, tmp_path):
    note = tmp_path / "note"

    async def play():
        tasks = [task(0), *(task(at, seconds=300, note=str(note)) for at in range(1, 9))]
        async with aclosing(runner.stream(tasks)) as stream:
            async for _ in stream:
                async with asyncio.timeout(120):
                    while len(lines(note)) < 8:
                        await asyncio.sleep(0.01)
                break

    asyncio.run(play())
    assert sum(line.startswith("cancelled") for line in lines(note)) == 8
    assert len(asyncio.run(runner.run([task(0)]))) == 1  # and the workers play on


def test_stragglers_of_a_plan_are_cut_in_their_workers(runner, tmp_path):
    note = tmp_path / "note"
    tasks = [task(at, seconds=300 if at == 1 else 0, note=str(note) if at == 1 else "") for at in range(3)]
    plan = GroupPlan(groups=2, spare_groups=1, stragglers="keep")
    made = asyncio.run(runner.run(tasks, plan=plan))
    assert {one.task_index: one.stop_reason.value for one in made} == {0: "answered", 1: "straggler", 2: "answered"}
    assert runner.counts.episodes_cut == 1
    with pytest.raises(ConfigError, match="goes with a Runner"):
        asyncio.run(runner.run(tasks, plan=GroupPlan(groups=1, stragglers="carry")))
    runner.config = RunConfig(branching=Branching(at_turns(1), max_branches=1))
    with pytest.raises(ConfigError, match="cannot branch"):
        asyncio.run(runner.run(tasks))


def test_an_error_of_a_sink_reaches_the_caller_when_what_plays_has_ended(runner):
    class Full:
        def write(self, trajectory):
            raise OSError("the disk is full")

    runner.sinks = (Full(),)
    with pytest.raises(OSError, match="the disk is full"):
        asyncio.run(runner.run([task(at) for at in range(20)]))


def test_mistakes_are_raised_as_they_are_here(runner, tmp_path):
    from toolgym.rollout import RayRunner

    async def play(**changed):
        arguments = {"env": make_env, "engine": Instant, "num_workers": 1, "ray_options": ANY_NODE, **changed}
        return await RayRunner(**arguments).run([task(0)])

    with pytest.raises(EngineUnavailableError):
        asyncio.run(play(engine="http://127.0.0.1:9"))
    with pytest.raises(ConfigError, match="ray_options cannot have max_restarts"):
        asyncio.run(play(ray_options={"max_restarts": 3}))
    with pytest.raises(ConfigError, match="must be made in each worker"):
        asyncio.run(play(engine=Instant()))
    open_file = (tmp_path / "open").open("w")
    with pytest.raises(ConfigError, match="one of them cannot"):
        asyncio.run(play(env=lambda: open_file))
    open_file.close()


def restarted_host(make):
    """An actor of an engine that Ray restarts, and that says which process it is."""
    import ray

    from toolgym.rollout.runner.ray import EngineActor

    class Host(EngineActor):
        async def pid(self):
            return os.getpid()

    return ray.remote(Host).options(num_cpus=0, max_restarts=-1).remote(make)


@pytest.mark.parametrize("others", [0, 1])
def test_an_actor_that_ray_restarts_is_waited_for(nodes, caplog, others):
    import ray

    from toolgym.rollout import RayRunner
    from toolgym.rollout.runner.ray import EngineActor

    make = partial(Slow, 3)
    host = restarted_host(make)
    dead = [ray.remote(EngineActor).options(num_cpus=0, max_restarts=0).remote(make) for _ in range(others)]
    config = RunConfig(seed=2, max_concurrent=16, limits=EpisodeLimits(engine_timeout=120))

    async def play():
        async with RayRunner(make_env, [host, *dead], num_workers=1, ray_options=ANY_NODE, config=config) as runner:
            trajectories = []
            async for trajectory in runner.stream([task(at) for at in range(80)]):
                trajectories.append(trajectory)
                if len(trajectories) == 5:
                    for other in dead:
                        ray.kill(other)
                    os.kill(await host.pid.remote(), signal.SIGKILL)
            return trajectories

    played = asyncio.run(asyncio.wait_for(play(), 240))
    assert [trajectory.error for trajectory in played] == [None] * 80
    assert {trajectory.stop_reason.value for trajectory in played} == {"answered"}
    assert ("1 of 2 actors of the engine are dead" in caplog.text) is bool(others)


def test_an_actor_that_stays_away_is_given_up(nodes):
    from toolgym.rollout.runner.ray import RayEngine

    host = restarted_host(partial(Slow, 1))
    engine = RayEngine(host, unavailable_timeout=0.01)

    async def play():
        await engine.start()
        os.kill(await host.pid.remote(), signal.SIGKILL)
        for number in range(100):
            await engine.generate([1], SamplingParams(max_new_tokens=64), request_id=f"{number}-0")

    with pytest.raises(EngineUnavailableError, match="no actor of the engine answers"):
        asyncio.run(asyncio.wait_for(play(), 60))
    with pytest.raises(ConfigError, match="unavailable_timeout"):
        RayEngine(host, unavailable_timeout=0)


def test_an_engine_is_an_actor_and_another_one_takes_over_when_it_dies(nodes):
    import ray

    from toolgym.rollout import RayRunner
    from toolgym.rollout.runner.ray import EngineActor, RayEngine

    hosts = [ray.remote(EngineActor).options(num_cpus=0, max_restarts=0).remote(partial(Instant, 3)) for _ in range(2)]
    config = RunConfig(seed=2, limits=EpisodeLimits(engine_timeout=60))

    async def play():
        async with RayRunner(make_env, hosts, num_workers=1, ray_options=ANY_NODE, config=config) as runner:
            first = await runner.run([task(at) for at in range(20)])
            ray.kill(hosts[0])
            return first, await runner.run([task(at) for at in range(20)])

    first, second = asyncio.run(play())
    assert {one.stop_reason.value for one in (*first, *second)} == {"answered"}
    here = asyncio.run(Runner(make_env, Instant(3), config=config).run([task(at) for at in range(20)]))
    assert list(map(shape, first)) == list(map(shape, here))
    engine = RayEngine(*hosts)
    assert asyncio.run(engine.load()) == EngineLoad(0.25, running=3, queued=1, max_running=8), "of the one that lives"

    async def update(version):
        await engine.start()
        await engine.pause(PauseMode.RETRACT)
        await engine.update_weights("/weights", version=version)
        await engine.abort("a request")
        await engine.resume()

    asyncio.run(update("new"))
    assert (engine.context_length, engine.weight_version) == (4096, "new")
    assert ray.get(hosts[1].about.remote())["weight_version"] == "new"
    with pytest.raises(EngineError, match="no such weights"):
        asyncio.run(update(""))
    assert engine.weight_version == "new"
    ray.kill(hosts[1])
    with pytest.raises(EngineUnavailableError, match="no actor"):
        asyncio.run(engine.load())
    for call in (engine.start(), engine.pause(), engine.resume()):
        with pytest.raises(EngineUnavailableError, match="does not answer"):
            asyncio.run(call)


def test_an_actor_sees_the_images_of_a_request(nodes):
    import ray

    from toolgym.rollout.runner.ray import EngineActor, RayEngine

    ids, images = tiny_vlm.shown("red")
    params = SamplingParams(max_new_tokens=4, seed=1)

    async def generate(engine):
        async with engine:
            return await engine.generate(ids, params, request_id="a", images=images, forbidden_ids=(ids[-1],))

    host = ray.remote(EngineActor).options(num_cpus=0).remote(tiny_vlm.embedded)
    engine = RayEngine(host)
    assert not engine.takes_images, "before it has started, it knows nothing of its actor"
    there = asyncio.run(asyncio.wait_for(generate(engine), 120))
    assert there == asyncio.run(generate(tiny_vlm.embedded()))


def test_an_actor_that_cannot_pause_leaves_the_others_going(nodes):
    import ray

    from toolgym.rollout.runner.ray import EngineActor, RayEngine

    makes = partial(Instant, 1), partial(Instant, 1, pauses=False)
    hosts = [ray.remote(EngineActor).options(num_cpus=0, max_restarts=0).remote(make) for make in makes]
    engine = RayEngine(*hosts)

    async def play():
        await engine.start()
        with pytest.raises(EngineError, match="cannot pause"):
            await engine.pause()
        first = RayEngine(hosts[0])
        await first.start()
        async with asyncio.timeout(60):
            await first.generate([1], SamplingParams(max_new_tokens=64), request_id="a-0")
            await first.pause()
            waits = asyncio.create_task(first.generate([1], SamplingParams(max_new_tokens=64), request_id="b-0"))
            assert not (await asyncio.wait({waits}, timeout=0.5))[0], "it does pause"
            await first.resume()
            await waits

    asyncio.run(play())


def test_sandbox_servers_serve_the_workers_and_end_with_them(nodes):
    import ray

    from toolgym.rollout import RayRunner

    async def play():
        runner = RayRunner(
            make_coding_env,
            partial(Instant, 3, "code_interpreter", {"code": "print(6 * 7)"}),
            num_workers=1,
            ray_options=ANY_NODE,
            config=RunConfig(limits=EpisodeLimits(env_timeout=120)),
            sandbox={"preload": ["json"], "workers": 1},
        )
        async with runner:
            first = await runner.run([task(at) for at in range(6)])
            urls = runner._setup.variables["TOOLGYM_SANDBOX_URLS"].split(",")
            ray.kill(runner._servers._hosts[0])  # as when its machine dies
            return first, urls, await runner.run([task(at) for at in range(6)])

    first, urls, second = asyncio.run(play())
    assert len(urls) == sum(node["Alive"] for node in ray.nodes())
    for one in (*first, *second):
        assert [call.text for call in one.tool_calls] == ["42", "42"]
        assert one.reward == len(urls)
    until(lambda: not any(_serves(url) for url in urls), 120)


def _serves(url):
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_node_that_dies_takes_no_episode_with_it(nodes, tmp_path):
    from toolgym.rollout import RayRunner

    there = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "resources": {"victim": 1}}
    victim, note, drawn = nodes.add_node(**there), tmp_path / "note", []
    options = {"num_cpus": 0, "resources": {"victim": 1}}
    config = RunConfig(seed=3, max_concurrent=8)

    def tasks():
        """Until a second process plays them."""
        while len(set(lines(note))) < 2 and len(drawn) < 6000:
            drawn.append(len(drawn))
            yield task(drawn[-1], seconds=0.05, note=str(note))

    async def play():
        made = []
        elsewhere = RayRunner(make_env, partial(Instant, 3), num_workers=1, ray_options=options, config=config)
        async with aclosing(elsewhere.stream(tasks())) as stream:
            async for trajectory in stream:
                made.append(trajectory)
                if len(made) == 5:
                    nodes.remove_node(victim, allow_graceful=False)
                    nodes.add_node(**there)
        return made

    made = asyncio.run(play())
    assert sorted(places(made)) == [(at, 0) for at in drawn]
    assert {one.stop_reason.value for one in made} == {"answered"}
    assert len(set(lines(note))) == 2


async def test_agents_in_workers_get_the_tokens_that_they_get_here(nodes):
    from toolgym.rollout import RayRunner

    env, tasks = agent_env(make_run("CodeInterpreter-v0")), [task(0), task(1)]
    config = RunConfig(seed=7, group_size=2, sampling=SamplingParams(max_new_tokens=32))
    async with RayRunner(env, "tiny", num_workers=1, ray_options=ANY_NODE, config=config) as runner:
        played = await runner.run(tasks)
    async with open_engine("tiny") as engine:
        expected = await Runner(env, engine, config=config).run(tasks)
    rows = [
        sorted((*place, each.response_ids.tolist()) for each, place in zip(run, places(run), strict=True))
        for run in (played, expected)
    ]
    assert rows[0] == rows[1]
    assert all(each.policy_tokens and not each.stop_reason.failed for each in played)
