"""`Runner.stream`, `stream_groups` and `run`: tasks from anywhere, whole groups, slow consumers, early ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tests.actors import tasks, until
from tests.rollout.held_engine import Envs, config, endless, held_engine, others
from toolgym.rollout import GroupPlan, Runner
from toolgym.rollout.runner import Scheduler
from toolgym.tools.concurrency.deadline import SelfCancelledError
from toolgym.tools.errors import ConfigError


@pytest.fixture
def held(scripted_engine, tokenizer):
    return lambda script: held_engine(scripted_engine, tokenizer, script)


# ---------------------------------------------------------------------- tasks from anywhere


async def drawn_asynchronously(items):
    for item in items:
        await asyncio.sleep(0)
        yield item


SOURCES = {
    "list": lambda *names: tasks(*names),
    "tuple": lambda *names: tuple(tasks(*names)),
    "generator": lambda *names: (task for task in tasks(*names)),
    "values": lambda *names: {task.id: task for task in tasks(*names)}.values(),
    "async generator": lambda *names: drawn_asynchronously(tasks(*names)),
}


@pytest.mark.parametrize("source", SOURCES)
async def test_tasks_come_from_anything_to_iterate_over(held, source):
    runner = Runner(Envs(), held(lambda *_: "#### 1"), config=config())
    done = await runner.run(SOURCES[source]("a", "b"), group_size=2)
    assert [(one.task_id, one.sample_index) for one in done] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert await runner.run(SOURCES[source]()) == []
    assert others() == []


@pytest.mark.parametrize("wrong", ["a task", {"a": 1}, 3, None, ["a task"], tasks("a")[0]])
async def test_what_holds_no_tasks_is_refused(held, wrong):
    with pytest.raises(ConfigError, match="tasks must"):
        await Runner(Envs(), held(lambda *_: "")).run(wrong)


@pytest.mark.parametrize("wrap", [lambda items: (one for one in items), drawn_asynchronously])
async def test_an_item_that_is_no_task_ends_the_run_behind_those_that_finished(held, wrap):
    runner = Runner(Envs(), held(lambda *_: "#### 1"), config=config(max_concurrent=1))
    with pytest.raises(ConfigError, match="must hold toolgym Tasks .*got 'b' at 1") as caught:
        await runner.run(wrap([*tasks("a"), "b"]))
    assert [one.task_id for one in caught.value.trajectories] == ["a"]


async def test_tasks_without_an_end_are_drawn_as_episodes_begin(held):
    drawn, envs = [], Envs()
    runner = Runner(envs, held(lambda *_: "#### 1"), config=config(max_concurrent=2))
    async with aclosing(runner.stream(endless(drawn))) as stream:
        for _ in range(5):
            await anext(stream)
    assert len(drawn) <= 5 + 2 + 2 + 1
    assert envs.all_closed
    assert others() == []


class Live:
    """Tasks that come one by one, as from a queue; says whether it was closed."""

    def __init__(self, error=None):
        self.queue, self.closed, self.error = asyncio.Queue(), False, error

    async def tasks(self):
        try:
            async with asyncio.timeout(60):  # its exit must run in the task that entered it
                while (task := await self.queue.get()) is not None:
                    yield task
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


async def test_an_async_generator_may_wait_for_its_next_task_and_is_closed_at_the_end(held):
    live, runner = Live(), Runner(Envs(), held(lambda *_: "#### 1"), config=config())
    stream = runner.stream(live.tasks())
    for name in ("a", "b"):
        live.queue.put_nowait(tasks(name)[0])
        assert (await anext(stream)).task_id == name
    live.queue.put_nowait(None)
    assert [one async for one in stream] == []
    assert live.closed
    assert others() == []


async def test_an_async_generator_that_waits_is_closed_with_the_stream(held):
    live, envs = Live(), Envs()
    live.queue.put_nowait(tasks("a")[0])
    async with aclosing(Runner(envs, held(lambda *_: "#### 1"), config=config()).stream(live.tasks())) as stream:
        await anext(stream)
    assert live.closed
    assert envs.all_closed
    assert others() == []


async def test_what_an_async_generator_raises_reaches_the_consumer(held):
    live = Live(error=OSError("the data set is gone"))
    for task in [*tasks("a"), None]:
        live.queue.put_nowait(task)
    with pytest.raises(OSError, match="the data set is gone") as caught:
        await Runner(Envs(), held(lambda *_: "#### 1"), config=config(max_concurrent=1)).run(live.tasks())
    assert [one.task_id for one in caught.value.trajectories] == ["a"]
    assert live.closed


async def test_an_async_iterator_that_raises_stop_iteration_ends_the_run_and_does_not_hang_it(held):
    class Plain:
        def __aiter__(self):
            return self

        def __anext__(self):
            raise StopIteration("no more")

    async with asyncio.timeout(50):
        with pytest.raises(RuntimeError, match="the iterable of tasks raised StopIteration"):
            await Runner(Envs(), held(lambda *_: "#### 1"), config=config()).run(Plain())


async def test_an_async_generator_that_awaits_what_was_cancelled_ends_the_run_and_does_not_hang_it(held):
    live = Live(error=asyncio.CancelledError())
    for task in [*tasks("a"), None]:
        live.queue.put_nowait(task)
    async with asyncio.timeout(50):
        with pytest.raises(SelfCancelledError, match="the async iterable of tasks was cancelled from within"):
            await Runner(Envs(), held(lambda *_: "#### 1"), config=config()).run(live.tasks())
    assert live.closed
    assert others() == []


async def test_an_async_generator_that_is_never_asked_is_closed(held):
    class Closing:
        closed = False

        def __aiter__(self):
            return self

        async def __anext__(self):
            raise AssertionError("asked")

        async def aclose(self):
            self.closed = True

    source = Closing()
    scheduler = Runner(Envs(), held(lambda *_: "#### 1"), config=config()).schedule(source)
    await scheduler.close()
    assert source.closed
    assert others() == []


# ---------------------------------------------------------------------- whole groups


async def test_a_group_comes_when_its_last_member_has_finished(held):
    gate = asyncio.Event()
    engine = held(lambda asked, member: ("#### 1", gate) if (asked, member) == ("a", 1) else "#### 1")
    runner = Runner(Envs(), engine, config=config(group_size=2))
    stream = runner.stream_groups(tasks("a", "b", "c"))
    groups = [await anext(stream), await anext(stream)]
    gate.set()
    groups += [group async for group in stream]
    assert [[(one.task_id, one.sample_index) for one in group] for group in groups] == [
        [("b", 0), ("b", 1)], [("c", 0), ("c", 1)], [("a", 0), ("a", 1)],
    ]  # fmt: skip
    assert all(isinstance(group, tuple) and len({one.group_id for one in group}) == 1 for group in groups)


async def test_with_a_plan_the_trajectories_of_a_group_come_together(held):
    """Also where the last members of two groups finish at the same time, and the stream is too full for a group."""
    gate = asyncio.Event()
    engine = held(lambda asked, member: ("#### 1", gate) if member == 3 else "#### 1")
    runner = Runner(Envs(), engine, config=config(group_size=4, max_concurrent=2))
    stream = runner.stream(tasks("a", "b"), plan=GroupPlan())
    first = asyncio.create_task(anext(stream))
    await until(lambda: len(engine.running) == 2)
    gate.set()
    await first
    await quiet(engine)
    done = [(await first).task_id]
    async for one in stream:
        done.append(one.task_id)
        await asyncio.sleep(0)
    assert done in ([*"aaaabbbb"], [*"bbbbaaaa"])


async def test_a_group_with_a_failed_member_is_whole(held):
    failing = held(lambda asked, member: EngineFault() if member == 1 else "#### 1")
    [group] = [group async for group in Runner(Envs(), failing, config=config(group_size=3)).stream_groups(tasks("a"))]
    assert [one.failed for one in group] == [False, True, False]


class EngineFault(Exception):
    pass


class Custom(Scheduler):
    async def next(self):
        return None

    def finished(self, job, trajectory):
        return (trajectory,)


async def test_what_cannot_give_groups_is_refused(held):
    runner = Runner(Envs(), held(lambda *_: ""))
    with pytest.raises(ConfigError, match="a scheduler of whole groups, got"):
        await anext(runner.stream_groups(Custom()))
    with pytest.raises(ConfigError, match="go with tasks; a scheduler knows its own"):
        await runner.run(Custom(), group_size=2)
    with pytest.raises(ConfigError, match="plan must be a GroupPlan, got 8"):
        await runner.run(tasks("a"), plan=8)
    with pytest.raises(ConfigError, match="group_size must be a whole number"):
        await runner.run(tasks("a"), group_size=0)


# ---------------------------------------------------------------------- slow consumers, early ends


async def quiet(engine):
    """Wait until the engine has got no further request for many turns of the event loop."""
    seen, still = -1, 0
    while still < 200:
        await asyncio.sleep(0)
        seen, still = (seen, still + 1) if seen == len(engine.seen) else (len(engine.seen), 0)
    return seen


@pytest.mark.parametrize("group_size", [1, 4])
async def test_what_has_finished_and_waits_for_the_consumer_is_bounded(held, group_size):
    """At most what fits into the stream, what ran when it got full, and the members of groups that are not whole."""
    concurrent, engine = 4, held(lambda *_: "#### 1")
    runner = Runner(Envs(), engine, config=config(max_concurrent=concurrent, group_size=group_size))
    consumed = 0
    async with aclosing(runner.stream_groups(endless())) as stream:
        for _ in range(6):
            consumed += len(await anext(stream))
            assert await quiet(engine) - consumed <= 2 * concurrent + group_size
    assert others() == []


async def test_closing_early_cancels_what_runs_and_frees_it(held):
    never, envs = asyncio.Event(), Envs()
    engine = held(lambda asked, member: "#### 1" if asked == "a" else ("#### 1", never))
    runner = Runner(envs, engine, config=config(group_size=2))
    async with aclosing(runner.stream_groups(tasks("a", "b", "c"))) as stream:
        assert {one.task_id for one in await anext(stream)} == {"a"}
        await until(lambda: len(engine.running) == 4)
    assert engine.running == {}
    assert envs.all_closed
    assert others() == []
