"""Schedulers, limits, streams and sinks: what a runner is made of, and what a run may be made of besides."""

from __future__ import annotations

import asyncio

import pytest

from tests.actors import tasks
from toolgym.envs import ToolEnv
from toolgym.rollout import RunConfig, Runner, SamplingParams, read_trajectories
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.runner import EnvFactory, Scheduler
from toolgym.rollout.runner.scheduling.group_scheduler import GroupScheduler
from toolgym.rollout.runner.stream import BoundedStream
from toolgym.rollout.trajectory import TrajectoryWriter
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ConfigError, EngineError


def env():
    return ToolEnv([], tasks("unused"))


def config(**kwargs):
    return RunConfig(**{"seed": 1, "sampling": SamplingParams(max_new_tokens=50), **kwargs})


def question(prompt):
    return prompt.rpartition("user\n")[2].partition("<")[0]


# ---------------------------------------------------------------------- groups in order


async def all_jobs(scheduler):
    jobs = []
    while (job := await scheduler.next()) is not None:
        jobs.append(job)
    return jobs


async def test_each_task_is_played_as_often_as_its_group_is_large_and_no_two_runs_share_a_group():
    a, b = tasks("a", "b")
    first, second = [await all_jobs(GroupScheduler([a, b], config(group_size=2))) for _ in range(2)]
    assert [(job.task, job.key, job.seed) for job in first] == [
        (a, EpisodeKey(0, 0), 1), (a, EpisodeKey(0, 1), 1), (b, EpisodeKey(1, 0), 1), (b, EpisodeKey(1, 1), 1),
    ]  # fmt: skip
    groups = [[job.group_id for job in jobs] for jobs in (first, second)]
    assert [len(set(group)) for group in groups] == [2, 2]
    assert groups[0][0] == groups[0][1] != groups[0][2] == groups[0][3]
    assert set(groups[0]).isdisjoint(groups[1])


@pytest.mark.parametrize("wrong", ["a task", 3, None, ["a task"], [{"prompt": []}]])
async def test_what_is_no_list_of_tasks_is_refused(scripted, wrong):
    with pytest.raises(ConfigError, match="tasks must"):
        await Runner(env, scripted(lambda *_: "")).run(wrong)


# ---------------------------------------------------------------------- other schedulers, the same runner


class FirstGroups(Scheduler):
    """Over-samples: gives out every group, wants the first few that are whole, and ends the run with them."""

    def __init__(self, tasks, config, wanted):
        self._inner, self._size, self._wanted = GroupScheduler(tasks, config), config.group_size, wanted
        self._groups = {}

    async def next(self):
        return await self._inner.next()

    def finished(self, job, trajectory):
        group = self._groups.setdefault(job.group_id, [])
        group.append(trajectory)
        if len(group) < self._size or self.over:
            return ()
        self._wanted -= 1
        return group

    @property
    def over(self):
        return self._wanted == 0


async def test_a_scheduler_may_end_the_run_with_the_groups_that_are_first(scripted, tokenizer):
    engine = scripted(lambda prompt, _: 60 if "slow" in question(prompt) else "done")
    config_ = config(group_size=2)
    scheduler = FirstGroups(tasks("slow", "a", "b", "slow too"), config_, wanted=2)
    async with asyncio.timeout(30):
        done = await Runner(env, engine, config=config_).run(scheduler)
    assert [one.task_id for one in done] == ["a", "a", "b", "b"]
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


class Refilling(Scheduler):
    """Plays a failed episode again; gives no further job before the last one is back."""

    def __init__(self, jobs):
        self._waiting, self._back = list(jobs), asyncio.Event()
        self._back.set()
        self.played = []

    async def next(self):
        await self._back.wait()
        self._back.clear()
        return self._waiting.pop(0) if self._waiting else None

    def finished(self, job, trajectory):
        self.played.append(job.key)
        if trajectory.failed:
            self._waiting.insert(0, job)
        self._back.set()
        return () if trajectory.failed else (trajectory,)


async def test_a_scheduler_may_wait_for_results_and_play_an_episode_again(scripted):
    answers = iter([EngineError("gone"), EngineError("gone again"), "done", "done"])
    a, b = tasks("a", "b")
    scheduler = Refilling([Job(a, EpisodeKey(0, 0), "x"), Job(b, EpisodeKey(7, 0), "y")])
    done = await Runner(env, scripted(lambda *_: next(answers)), config=config()).run(scheduler)
    assert [one.failed for one in done] == [False, False]
    assert scheduler.played == [(0, 0), (0, 0), (0, 0), (7, 0)]


class Broken(GroupScheduler):
    async def next(self):
        job = await super().next()
        if job is not None and job.key.task_index == 1:
            raise RuntimeError("a bug of the scheduler")
        return job


class BrokenLater(GroupScheduler):
    def finished(self, job, trajectory):
        raise RuntimeError("a bug of the scheduler")


@pytest.mark.parametrize("kind", [Broken, BrokenLater])
async def test_a_scheduler_that_breaks_ends_the_run_and_does_not_hang_it(scripted, kind):
    engine = scripted(lambda prompt, _: 60 if question(prompt) == "slow" else "done")
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="a bug of the scheduler"):
            await Runner(env, engine, config=config()).run(kind(tasks("a", "slow", "slow"), config()))
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


# ---------------------------------------------------------------------- cancelled from outside


async def test_an_episode_that_is_cancelled_from_outside_does_not_hang_the_run(scripted):
    engine = scripted(lambda prompt, _: 60 if question(prompt) == "slow" else "done")
    stream = Runner(env, engine, config=config()).stream(tasks("a", "slow", "b"))
    finished = [await anext(stream), await anext(stream)]
    assert {one.task_id for one in finished} == {"a", "b"}
    [episode] = [task for task in asyncio.all_tasks() if task.get_name() == "toolgym episode of task 1, sample 0"]
    episode.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(EngineError, match="cancelled from outside"):
            await anext(stream)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


# ---------------------------------------------------------------------- backpressure


async def test_a_consumer_that_is_slow_slows_the_run(scripted):
    engine = scripted(lambda *_: "done")
    stream = Runner(env, engine, config=config(max_concurrent=2)).stream(tasks(*map(str, range(40))))
    await anext(stream)
    for _ in range(1000):  # ample: one episode takes far fewer turns of the event loop
        await asyncio.sleep(0)
    assert len(engine.seen) <= 1 + 2 + 2  # consumed, waiting in the stream, waiting for room in it
    rest = [one async for one in stream]
    assert len(rest) == 39


async def test_a_stream_is_bounded_and_gives_what_waits_before_its_error():
    stream = BoundedStream(2)
    sending = asyncio.create_task(send_all(stream, range(5)))
    await asyncio.sleep(0.01)
    assert not sending.done()
    assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
    await sending
    stream.end(ValueError("first"))
    stream.end(ValueError("second"))
    await stream.send(5)  # too late: dropped
    assert [await anext(stream), await anext(stream)] == [3, 4]
    with pytest.raises(ValueError, match="first"):
        await anext(stream)


async def test_a_stream_that_ends_wakes_its_consumer():
    stream = BoundedStream(1)
    consuming = asyncio.create_task(anext(stream, "nothing"))
    await asyncio.sleep(0.01)
    stream.end()
    assert await consuming == "nothing"


async def send_all(stream, items):
    for item in items:
        await stream.send(item)


async def test_a_lease_goes_back_exactly_once():
    limit = LocalRateLimiter(1)
    lease = await limit.acquire()
    assert limit.in_use == 1
    waiting = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    lease.release()
    other = await waiting
    lease.release()
    assert limit.in_use == 1  # the other's
    other.release()
    assert limit.in_use == 0


async def test_no_more_episodes_run_than_are_admitted(scripted):
    running = most = 0
    full = asyncio.Event()  # as many have come as may: making their envs takes long on a busy machine

    class Counting(type(scripted(None))):
        async def _generate(self, request):
            nonlocal running, most
            running += 1
            most = max(most, running)
            if most == 3:
                full.set()
            await full.wait()
            await asyncio.sleep(0.005)
            running -= 1
            return await super()._generate(request)

    engine = Counting(scripted(None).tokenizer, lambda *_: "done")
    made = []

    def counted():
        made.append(env())
        return made[-1]

    async with asyncio.timeout(50):
        done = await Runner(counted, engine, config=config(max_concurrent=3)).run(tasks(*map(str, range(12))))
    assert (len(done), most, len(made)) == (12, 3, 3)


# ---------------------------------------------------------------------- sinks


async def test_every_sink_gets_each_trajectory_before_the_consumer(scripted, tmp_path):
    class Collecting:
        def __init__(self):
            self.got = []

        def write(self, trajectory):
            self.got.append(trajectory)

    collecting = Collecting()
    with TrajectoryWriter(tmp_path / "t.jsonl") as writer:
        runner = Runner(env, scripted(lambda *_: "done"), sinks=[writer, collecting], config=config(group_size=3))
        async for trajectory in runner.stream(tasks("a", "b")):
            assert collecting.got[-1] is trajectory
            assert writer.count == len(collecting.got)
    assert [one.id for one in read_trajectories(tmp_path / "t.jsonl")] == [one.id for one in collecting.got]


async def test_a_sink_that_fails_ends_the_run_and_says_why(scripted):
    class Full:
        def write(self, trajectory):
            raise ConfigError("the disk is full")

    closed = []

    class Closing(ToolEnv):
        async def close(self):
            await super().close()
            closed.append(self)

    runner = Runner(lambda: Closing([], tasks("x")), scripted(lambda *_: "done"), sinks=[Full()], config=config())
    with pytest.raises(ConfigError, match="the disk is full"):
        await runner.run(tasks("a", "b"))
    assert len(closed) == 2


# ---------------------------------------------------------------------- what a runner takes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": "tiny"}, "engine must be an Engine .*got 'tiny'"),
        ({"engine": None}, "engine must be an Engine"),
        ({"tokenizer": "gpt2"}, "tokenizer must be a Hugging Face tokenizer .*got 'gpt2'"),
        ({"config": {"group_size": 4}}, "config must be a RunConfig"),
        ({"config": SamplingParams(max_new_tokens=4)}, "config must be a RunConfig"),
        ({"sinks": [print]}, "a sink must have a method"),
        ({"env": 3}, "expected an env id or a function that makes an env, got 3"),
        ({"env": ToolEnv([], tasks("a"))}, "need an env each"),
        ({"env": "CodeInterpretr-v0"}, "did you mean 'CodeInterpreter-v0'"),
        ({"env_kwargs": {"max_turns": 2}}, "env_kwargs go with an env id"),
        ({"env": "CodeInterpreter-v0", "env_kwargs": ["max_turns"]}, "env_kwargs must map names"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_at_once(scripted, change, said):
    arguments = {"env": env, "engine": scripted(lambda *_: ""), **change}
    with pytest.raises(ConfigError, match=said):
        Runner(arguments.pop("env"), arguments.pop("engine"), **arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"group_size": 2.0}, "group_size must be a whole number"),
        ({"group_size": True}, "group_size must be a whole number"),
        ({"max_concurrent": "8"}, "max_concurrent must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"sampling": 512}, "sampling must be of type SamplingParams"),
        ({"sampling": {"max_new_tokens": 4}}, "sampling must be of type SamplingParams"),
        ({"limits": None}, "limits must be of type EpisodeLimits"),
        ({"context": 3}, "context must be"),
        ({"template_kwargs": ["enable_thinking"]}, "template_kwargs must map names"),
        ({"parser": 3}, "parser must be a parser's name or a function"),
        ({"training_step": -1}, "training_step must be a whole number"),
        ({"validate": "yes"}, "validate must be of type bool"),
    ],
)
def test_a_run_config_of_the_wrong_kind_is_refused_at_once(arguments, said):
    with pytest.raises(ConfigError, match=said):
        RunConfig(**arguments)


async def test_an_engine_without_a_tokenizer_needs_one_by_hand(scripted, tokenizer):
    engine = scripted(lambda *_: "done")
    engine.tokenizer = None
    with pytest.raises(ConfigError, match="knows no tokenizer: give the model's with tokenizer="):
        Runner(env, engine)


async def async_env():
    return env()


@pytest.mark.parametrize(("made", "said"), [(lambda: 3, "it gave 3"), (async_env, "must make a toolgym BaseEnv")])
async def test_a_function_that_makes_no_env_is_the_callers_error(scripted, made, said):
    with pytest.raises(ConfigError, match=said):
        await Runner(made, scripted(lambda *_: "done")).run(tasks("a"))


async def test_arguments_that_an_env_does_not_know_are_the_callers_error(scripted):
    runner = Runner("CodeInterpreter-v0", scripted(lambda *_: ""), env_kwargs={"max_turn": 3})
    with pytest.raises(ConfigError, match="takes no argument 'max_turn', did you mean 'max_turns'"):
        await runner.run(tasks("a"))


async def test_a_factory_names_the_env_of_the_trajectories(scripted):
    factory = EnvFactory("my-env", env)
    [one] = await Runner(factory, scripted(lambda *_: "done"), config=config()).run(tasks("a"))
    assert one.env_id == "my-env"
    with pytest.raises(ConfigError, match="a name and a function"):
        EnvFactory(env, "my-env")
