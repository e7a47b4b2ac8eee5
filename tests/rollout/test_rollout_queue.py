"""The queue between a rollout and a trainer: what begins when, what is too stale, and updates in mid-episode."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random

import pytest

from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout import GroupPlan, RolloutQueue, RunConfig, RunFailedError, Runner, SamplingParams
from toolgym.rollout.engines.base import Engine, FinishReason, Generation, PauseMode
from toolgym.rollout.runner.weight_versions import WeightVersions
from toolgym.tools.errors import ConfigError, EngineError


def tasks(count):
    return [Task(({"role": "user", "content": f"question {n} end"},), id=str(n)) for n in range(count)]


class Held(Engine):
    """Answers with one word; the questions that are held, or one's number of its askings, get a first word at once, and
    the rest when they are let go and the engine is not paused. What is aborted gives back the first word."""

    vocab_size, context_length, weight_version = 10_000, 4096, "first"

    def __init__(self, tokenizer, held=()):
        self.tokenizer, self.held, self.asked, self.paused = tokenizer, set(held), [], False
        self.changed, self.log, self.running = asyncio.Condition(), [], set()

    async def _generate(self, request):
        number = int(self.tokenizer.decode(request.prompt_ids).rpartition("question ")[2].split()[0])
        names = {number, (number, self.asked.count(number))}
        self.asked.append(number)
        self.running.add(request.request_id)
        ids, versions = self.tokenizer.encode("done")[:1], [self.weight_version]
        async with self.changed:
            self.changed.notify_all()
            await self.changed.wait_for(
                lambda: request.request_id not in self.running or not (names & self.held or self.paused)
            )
        if request.request_id not in self.running:
            return Generation(tuple(ids), (-0.5,), FinishReason.ABORT, tuple(versions))
        ids, versions = [*ids, self.tokenizer.eos_token_id], [*versions, self.weight_version]
        return Generation(tuple(ids), (-0.5, -0.5), FinishReason.STOP, tuple(versions))

    async def abort(self, request_id):
        self.running.discard(request_id)
        await self._note("abort")

    async def _note(self, what):
        async with self.changed:
            self.log.append(what)
            self.changed.notify_all()

    async def pause(self, mode=PauseMode.IN_PLACE):
        self.paused = True
        if mode is PauseMode.ABORT:
            self.running.clear()
        await self._note(f"pause {mode}")

    async def resume(self):
        self.paused = False
        await self._note("resume")

    async def update_weights(self, source, *, version):
        if isinstance(source, Exception):
            raise source
        self.weight_version = version
        await self._note(f"update {version}")

    async def let_go(self, *numbers):
        self.held -= set(numbers)
        await self._note("let go")

    async def until_asked(self, numbers):
        """Wait until exactly these questions have been asked, and a little longer: no further one may come."""
        async with asyncio.timeout(50):
            async with self.changed:
                await self.changed.wait_for(lambda: set(self.asked) >= set(numbers))
            for _ in range(20):
                await asyncio.sleep(0)
        assert sorted(set(self.asked)) == sorted(numbers)


def queue_of(played, count=12, group_size=1, **kwargs):
    config = RunConfig(group_size=group_size, seed=1, sampling=SamplingParams(max_new_tokens=20))
    made = Runner(lambda: ToolEnv([], tasks(1)), played, config=config)
    given = tasks(count) if isinstance(count, int) else count
    return RolloutQueue(made, given, **{"batch_size": 2, **kwargs})


def taken(batch):
    return [(one.task_index, one.sample_index) for one in batch]


# ---------------------------------------------------------------------- versions


async def test_staleness_is_counted_from_the_oldest_token_in_the_order_of_publishing(tokenizer):
    versions = WeightVersions("first")
    async with queue_of(Held(tokenizer, held=[0]), batch_size=1) as queue:
        await queue._engine.until_asked([0, 1])
        await queue._engine.let_go(0)
        [one] = await anext(queue)
        assert (versions.staleness(one), queue.staleness(one)) == (0, 0)
        for name in ("z", "a", "m"):
            versions.publish(name)
        assert (versions.newest, versions.staleness(one)) == ("m", 3)
    with pytest.raises(ConfigError, match="'a' was published before, the newest is 'm'"):
        versions.publish("a")
    with pytest.raises(ConfigError, match="must be a string"):
        versions.require_new(3)
    with pytest.raises(EngineError, match=r"weight version 'first', which was not published.* are 'other': change"):
        WeightVersions("other").staleness(one)


# ---------------------------------------------------------------------- what begins when


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_no_group_begins_that_could_only_come_out_too_stale(tokenizer, max_staleness):
    engine = Held(tokenizer, held=range(20))
    async with queue_of(engine, 20, group_size=2, max_staleness=max_staleness) as queue:
        most = 2 * (max_staleness + 1)
        await engine.until_asked(range(most))  # a batch for each version
        waiting = asyncio.create_task(anext(queue))
        await engine.let_go(0, 1)
        assert taken(await waiting) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        await engine.until_asked(range(most))  # an update is to come, so what begins now would be a version older
        await queue.update_weights({}, version="second")
        await engine.until_asked(range(most + 2))
        waiting = asyncio.create_task(anext(queue))
        await engine.let_go(*range(most + 2))
        await waiting
        waiting = asyncio.create_task(anext(queue))  # a batch without an update before it: it waits for none
        await engine.let_go(*range(20))
        assert len(await waiting) == 4
        assert queue.metrics()["queue/groups_dropped"] == 0


async def test_the_queue_plays_ahead_as_far_as_the_limit_and_hands_out_the_groups_that_began_first(tokenizer):
    engine = Held(tokenizer, held=[0])
    async with queue_of(engine, 12, max_staleness=2) as queue:
        await engine.until_asked(range(6))
        assert taken(await anext(queue)) == [(1, 0), (2, 0)]  # the first one is slow, and holds up no other
        await engine.let_go(0)
        await queue.update_weights({}, version="second")
        await engine.until_asked(range(8))
        assert taken(await anext(queue)) == [(0, 0), (3, 0)]
        figures = queue.metrics()
        assert (figures["queue/staleness_max"], figures["queue/groups_taken"], figures["queue/updates"]) == (1, 4, 1)


async def test_what_has_become_too_stale_is_dropped_counted_and_said(tokenizer, caplog):
    engine = Held(tokenizer, held=[0])
    async with queue_of(engine, 12) as queue:
        seen = []
        for step in range(3):
            seen += [(one.task_index, queue.staleness(one)) for one in await anext(queue)]
            await queue.update_weights({}, version=str(step))
        await engine.let_go(0)  # its first word is of the first version
        async for batch in queue:
            seen += [(one.task_index, queue.staleness(one)) for one in batch]
        assert sorted(number for number, _ in seen) == list(range(1, 12))
        assert {age for _, age in seen} == {0, 1}
        assert queue.metrics()["queue/groups_dropped"] == queue.metrics()["queue/tasks_skipped"] == 1
        assert queue.skipped_tasks == {0: "0"}
    [line] = [one.message for one in caplog.records if "dropped" in one.message]
    assert line.startswith("1 of 12 groups were dropped and their tasks skipped (0), because their oldest tokens were")


async def test_a_group_that_is_too_stale_already_is_given_up_while_it_is_played(tokenizer):
    engine = Held(tokenizer, held=[(0, 0)])
    async with queue_of(engine, 8, group_size=2) as queue:
        batches = []
        for step in range(3):
            async with asyncio.timeout(50):
                while queue.metrics()["queue/groups_ready"] < 3:  # or a late one of them would be too stale as well
                    await asyncio.sleep(0)
            batches.append([trajectory.task_index for trajectory in await anext(queue)])
            await queue.update_weights({}, version=str(step))
        async for batch in queue:
            batches.append([trajectory.task_index for trajectory in batch])
        # All but the first, and the run has ended, though that one never answered.
        assert batches == [[1, 1, 2, 2], [3, 3, 4, 4], [5, 5, 6, 6], [7, 7]]
        assert queue.metrics()["queue/groups_dropped"] == 1
        assert queue.skipped_tasks == {0: "0"}
        assert "abort" in engine.log


async def test_groups_that_the_plan_does_not_want_take_no_place(tokenizer):
    plan = GroupPlan(keep=lambda group: group[0].task_index % 3 == 0)
    async with queue_of(Held(tokenizer), (one for one in tasks(24)), plan=plan, max_staleness=0) as queue:
        batches = []
        async for batch in queue:
            batches.append([one.task_index for one in batch])
            await queue.update_weights({}, version=str(len(batches)))
        assert batches == [[0, 3], [6, 9], [12, 15], [18, 21]]
        figures = queue.metrics()
        assert (figures["queue/groups_filtered"], figures["queue/groups_playing"]) == (16, 0)


async def test_tasks_are_drawn_when_their_groups_may_begin(tokenizer):
    drawn = []

    async def endless():
        for number in itertools.count():
            drawn.append(number)
            yield tasks(number + 1)[number]

    async with queue_of(Held(tokenizer), endless(), max_staleness=0) as queue:
        for step in range(3):
            await anext(queue)
            assert drawn == list(range(2 * step + 2))
            await queue.update_weights({}, version=str(step))


# ---------------------------------------------------------------------- updates


@pytest.mark.parametrize("mode", PauseMode)
async def test_an_episode_goes_on_with_new_weights_in_mid_turn(tokenizer, mode):
    engine = Held(tokenizer, held=range(2))
    async with queue_of(engine, 2, pause_mode=mode) as queue:
        await engine.until_asked([0, 1])
        await queue.update_weights({}, version="second")
        await engine.let_go(0, 1)
        batch = await anext(queue)
        assert engine.log[:3] == [f"pause {mode}", "update second", "resume"]
        for one in batch:
            assert one.weight_versions[0] == "first"
            assert set(one.weight_versions[1:]) == {"second"}
            assert one.turns[0].resumes == (mode is PauseMode.ABORT)
            assert queue.staleness(one) == 1
        with pytest.raises(StopAsyncIteration):
            await anext(queue)


@pytest.mark.parametrize("error", [EngineError("out of memory"), ConfigError("no such weight")])
async def test_a_failed_update_changes_nothing_and_the_rollout_goes_on(tokenizer, error):
    engine = Held(tokenizer)
    async with queue_of(engine) as queue:
        with pytest.raises(type(error), match=str(error)):
            await queue.update_weights(error, version="second")
        assert engine.log == ["pause retract", "resume"]
        with pytest.raises(ConfigError, match="'first' was published before"):
            await queue.update_weights({}, version="first")
        assert len(engine.log) == 2
        await queue.update_weights({}, version="second")  # the name is still free
        async with queue.updating("third"):
            assert engine.paused
            engine.weight_version = "third"
        assert not engine.paused
        assert [queue.staleness(one) for one in await anext(queue)] <= [1, 1]


class Hung(Held):
    async def pause(self, mode=PauseMode.IN_PLACE):
        await super().pause(mode)
        await asyncio.Event().wait()


async def test_an_engine_that_does_not_pause_in_time_goes_on(tokenizer):
    engine = Hung(tokenizer)
    async with queue_of(engine, update_timeout=0.05) as queue:
        with pytest.raises(EngineError, match=r"did not pause within 0\.05 seconds"):
            await queue.update_weights({}, version="second")
        assert engine.log == ["pause retract", "resume"]
        assert queue.metrics()["queue/updates"] == 0
        assert len(await anext(queue)) == 2


async def test_a_cancelled_update_leaves_no_paused_engine_behind(tokenizer):
    engine = Held(tokenizer)
    async with queue_of(engine) as queue:
        begun = asyncio.Event()

        async def update():
            async with queue.updating("second"):
                begun.set()
                await asyncio.Event().wait()

        updating = asyncio.create_task(update())
        await begun.wait()
        updating.cancel()
        await asyncio.gather(updating, return_exceptions=True)
        assert engine.log == ["pause retract", "resume"]


# ---------------------------------------------------------------------- ends


async def test_the_last_batch_has_what_is_left(tokenizer):
    async with queue_of(Held(tokenizer), 5, group_size=2) as queue:
        assert [len(batch) async for batch in queue] == [4, 4, 2]


def broken():
    yield from tasks(4)
    raise RuntimeError("a bug")


async def test_an_error_of_the_rollout_reaches_the_trainer_behind_the_whole_batches(tokenizer):
    async with queue_of(Held(tokenizer, held=[3]), broken()) as queue:
        assert taken(await anext(queue)) == [(0, 0), (1, 0)]
        with pytest.raises(RuntimeError, match="a bug"):
            await anext(queue)
        assert [taken(batch) async for batch in queue] == [[(2, 0)]]  # had finished before it


async def test_an_error_that_the_trainer_never_met_is_logged(tokenizer, caplog):
    with caplog.at_level(logging.WARNING):
        async with queue_of(Held(tokenizer), broken()) as queue:
            await anext(queue)
            await queue.update_weights({}, version="second")
            await asyncio.wait({queue._producer}, timeout=50)
    assert "the rollout had failed before its queue was closed: RuntimeError: a bug" in caplog.text


class Dead(Held):
    async def _generate(self, request):
        raise EngineError("the server is gone")


@pytest.mark.parametrize("plan", [None, GroupPlan(keep=lambda group: not group[0].failed)])
async def test_an_engine_that_is_gone_ends_the_rollout_and_keeps_no_trainer_waiting(tokenizer, plan):
    endless = (task for number in itertools.count() for task in tasks(1))
    async with queue_of(Dead(tokenizer), endless, group_size=4, plan=plan) as queue:
        with pytest.raises(RunFailedError, match="all 8 episodes failed in the same way .* the server is gone"):
            await asyncio.wait_for(anext(queue), 50)


class Jittery(Held):
    """Takes some turns of the event loop for a request, and fails now and then."""

    def __init__(self, tokenizer, seed):
        super().__init__(tokenizer)
        self.random = random.Random(seed)

    async def _generate(self, request):
        for _ in range(self.random.choice([0, 1, 5, 40])):
            await asyncio.sleep(0)
        if self.random.random() < 0.05:
            raise EngineError("gone for a moment")
        return await super()._generate(request)


@pytest.mark.parametrize("seed", range(4))
async def test_at_random_speeds_every_group_comes_once_and_fresh_or_is_counted(tokenizer, seed):
    draws = random.Random(seed)
    limit, mode = draws.randrange(4), draws.choice(list(PauseMode))
    engine = Jittery(tokenizer, seed)
    plan = GroupPlan(keep=lambda group: group[0].task_index % 5 > 0) if seed % 2 else None
    given = {"group_size": 3, "batch_size": 3, "max_staleness": limit, "pause_mode": mode, "plan": plan}
    async with asyncio.timeout(120), queue_of(engine, 60, **given) as queue:
        seen, updates = [], 0
        async for batch in queue:
            assert all(queue.staleness(one) <= limit for one in batch)
            seen += [one.task_index for one in batch]
            for _ in range(draws.choice([0, 1, 1, 1, 2])):  # more or fewer than the gate reckons with
                for _ in range(draws.randrange(30)):
                    await asyncio.sleep(0)
                updates += 1
                await queue.update_weights({}, version=str(updates))
        figures = queue.metrics()
        assert all(seen.count(task) == 3 for task in set(seen))
        gone = figures["queue/groups_dropped"] + figures["queue/groups_filtered"]
        assert len(set(seen)) + gone == 60
        assert (figures["queue/groups_playing"], figures["queue/groups_ready"]) == (0, 0)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_closing_ends_the_episodes_and_leaves_no_task(tokenizer):
    engine = Held(tokenizer, held=range(12))
    queue = queue_of(engine)
    async with queue:
        await engine.until_asked(range(4))
        waiting = asyncio.create_task(anext(queue))
        await asyncio.sleep(0)
    with pytest.raises(EngineError, match="cancelled"):
        await waiting
    await queue.close()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    with pytest.raises(ConfigError, match="the queue is not open"):
        await anext(queue)
    with pytest.raises(ConfigError, match="the queue is not open"):
        await queue.update_weights({}, version="second")
    with pytest.raises(ConfigError, match="a queue serves one run"):
        await queue.__aenter__()


async def test_weights_that_change_elsewhere_are_published_by_hand(tokenizer):
    engine = Held(tokenizer)
    async with queue_of(engine, 8) as queue:
        await anext(queue)
        queue.publish("second")
        engine.weight_version = "second"
        assert {queue.staleness(one) for one in await anext(queue)} <= {0, 1}  # by when each was sampled
        engine.weight_version = "third"  # past the queue
        with pytest.raises(EngineError, match="weight version 'third', which was not published"):
            async for _ in queue:
                pass


async def test_an_engine_that_has_not_started_is_the_callers_error(tokenizer):
    class Cold(Held):
        @property
        def weight_version(self):
            raise EngineError("not started")

    with pytest.raises(EngineError, match="not started"):
        async with queue_of(Cold(tokenizer)):
            pass


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"batch_size": 0}, "batch_size must be"),
        ({"max_staleness": -1}, "max_staleness must be"),
        ({"pause_mode": "sleep"}, "a pause mode must be one of"),
        ({"engine": "tiny"}, "engine must be the Engine whose weights are updated, got 'tiny'"),
        ({"update_timeout": 0}, "update_timeout must be"),
    ],
)
async def test_mistakes(tokenizer, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        queue_of(Held(tokenizer), **kwargs)
