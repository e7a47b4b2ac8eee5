"""Deadlines stand still while code queues for a permit, and leave cancelled code the time to clean up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.tools import BaseTool, ToolResult, ToolSchema
from toolgym.tools.concurrency import deadline
from toolgym.tools.concurrency.deadline import (
    DeadlineError,
    SelfCancelledError,
    own_deadline,
    queueing,
    together,
    watch_own_deadline,
    with_deadline,
)
from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.concurrency.rate_limit import Lease, LocalRateLimiter, RateLimiter


class Limited(BaseTool):
    """Sleeps while it holds the only permit."""

    default_schema = ToolSchema("limited", "", {"type": "object", "properties": {"seconds": {"type": "number"}}})

    def __init__(self, limiter=None):
        super().__init__()
        self.limiter = limiter or LocalRateLimiter(1)

    async def execute(self, instance_id, parameters, **kwargs):
        async with self.limiter.permit():
            await asyncio.sleep(parameters["seconds"])
        return ToolResult("done")


def turn(count, seconds):
    return f'<tool_call>{{"name": "limited", "arguments": {{"seconds": {seconds}}}}}</tool_call>' * count


def env_of(limited, **kwargs):
    return ToolEnv([limited], [Task(({"role": "user", "content": "go"},))], **kwargs)


def statuses(result):
    return [record.status for record in result.info["tool_calls"]]


async def test_a_call_that_waits_for_others_keeps_its_time():
    async with env_of(Limited(), tool_timeout=1.7, max_parallel_calls=20) as env:
        await env.reset()
        assert statuses(await env.step(turn(20, 0.1))) == ["ok"] * 20  # the last waited for 1.9 s


async def test_a_call_that_overruns_after_it_waited_is_stopped():
    async with env_of(Limited(), tool_timeout=1.0) as env:
        await env.reset()
        result = await env.step(turn(1, 0.1) + turn(1, 60) + turn(1, 0))
        assert statuses(result) == ["ok", "timeout", "ok"]
        assert "did not finish within 1 seconds" in result.obs[1]["content"]


@pytest.mark.parametrize("tool_timeout", [0.4, 60])
async def test_waiting_has_a_deadline_of_its_own(tool_timeout):
    limiter = LocalRateLimiter(1)
    await limiter.acquire()
    async with env_of(Limited(limiter), tool_timeout=tool_timeout, queue_timeout=0.5) as env:
        await env.reset()
        result = await env.step(turn(1, 0))
        [record] = result.info["tool_calls"]
        assert (record.status, record.infra_failure) == ("timeout", True)
        assert "did not get its turn within 0.5 seconds" in record.metrics["error"]
    assert limiter.waiting == 0


async def test_limiters_of_others_count_their_waiting_as_queueing_too():
    class Own(RateLimiter):
        async def acquire(self):
            await asyncio.sleep(0.8)
            return Lease(lambda: None)

    async with env_of(Limited(Own()), tool_timeout=0.6) as env:
        await env.reset()
        assert statuses(await env.step(turn(1, 0))) == ["ok"]


async def test_deadlines_inside_of_each_other_all_stand_still():
    async def inner(seconds):
        with queueing(), queueing():
            await asyncio.sleep(seconds)
        return 3

    async def outer(seconds):
        return await with_deadline(inner(seconds), 0.6, queue=60)

    assert await with_deadline(outer(0.8), 0.6, queue=60) == 3
    with pytest.raises(DeadlineError) as error:
        await with_deadline(outer(60), 0.6)  # without a time for the queue, it has the same
    assert error.value.queued


async def test_waiting_on_another_event_loop_is_queueing_too():
    """As the sandbox that all event loops of a process share does it, which has one of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    limiter = LocalRateLimiter(1)
    lease = await limiter.acquire()
    asyncio.get_running_loop().call_later(0.9, lease.release)

    async def there():
        async with limiter.permit():
            return 5

    async def here():
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), loop))

    try:
        assert await with_deadline(here(), 0.8, queue=60) == 5
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def test_queueing_outside_of_a_deadline_is_nothing():
    with queueing():
        assert await with_deadline(asyncio.sleep(0, 7), 1) == 7


# ---------------------------------------------------------------------- blocks with a deadline of their own


async def test_a_block_with_a_deadline_of_its_own_counts_towards_no_other_one():
    async def inner():
        with own_deadline():
            await with_deadline(asyncio.sleep(0.5), 60)
            with queueing():  # counts for the deadline inside alone
                await asyncio.sleep(0.1)
        return 3

    async def outer():
        return await with_deadline(inner(), 0.5)

    assert await with_deadline(outer(), 0.5) == 3


async def test_the_deadline_inside_of_such_a_block_holds():
    async def inner():
        with own_deadline():
            await with_deadline(asyncio.sleep(60), 0.1)

    with pytest.raises(DeadlineError, match=r"0\.1 seconds"):
        await with_deadline(inner(), 60)


async def test_the_outer_deadline_goes_on_after_such_a_block():
    async def inner():
        with own_deadline():
            await asyncio.sleep(0.1)
        await asyncio.sleep(60)

    with pytest.raises(DeadlineError, match=r"0\.3 seconds"):
        await with_deadline(inner(), 0.3)


async def test_whether_code_is_in_such_a_block_can_be_watched():
    async def inner():
        with own_deadline():
            return inside()

    with watch_own_deadline() as inside:
        assert not inside()
        assert await with_deadline(inner(), 60)
        assert not inside()


# ---------------------------------------------------------------------- cancelled code and its grace


class Endless:
    """Sleeps until it is cancelled; then it takes some turns of the event loop to clean up, or never ends."""

    def __init__(self, turns):
        self.turns, self.ended = turns, False

    async def run(self):
        try:
            await asyncio.sleep(3600)
        finally:
            while self.turns > 0:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                    self.turns -= 1
            self.ended = True


@pytest.fixture
def stuck_log(monkeypatch):
    monkeypatch.setattr(deadline, "_overruns", LogThrottle(10.0))
    monkeypatch.setattr(deadline, "CANCEL_GRACE", 0.1)


@pytest.mark.usefixtures("stuck_log")
async def test_a_loop_that_is_busy_takes_nothing_from_the_grace_of_cancelled_code(caplog):
    """As when thousands of episodes are cancelled: each turn of the loop takes longer than the whole grace."""

    async def busy():
        while True:
            time.sleep(0.15)
            await asyncio.sleep(0)

    code = Endless(turns=3)
    hog = asyncio.create_task(busy())
    with pytest.raises(DeadlineError) as error:
        await with_deadline(code.run(), 0.01)
    hog.cancel()
    assert (error.value.stuck, code.ended) == (False, True)
    assert caplog.records == []


@pytest.mark.usefixtures("stuck_log")
async def test_code_that_ignores_its_cancellation_is_left_behind_and_said_once(caplog, monkeypatch):
    codes = [Endless(turns=10**9) for _ in range(50)]
    done = await asyncio.gather(*[with_deadline(code.run(), 0.01) for code in codes], return_exceptions=True)
    assert {error.stuck for error in done} == {True}
    [line] = caplog.messages
    assert "was left behind" in line
    monkeypatch.setattr(deadline._overruns, "interval", 0.0)  # as some seconds later
    codes.append(Endless(turns=10**9))
    with pytest.raises(DeadlineError):
        await with_deadline(codes[-1].run(), 0.01)
    assert caplog.messages[1].endswith("(and 49 more since the last such line)")
    for code in codes:
        code.turns = 0


async def instant():
    return "done"


async def test_quick_calls_inside_of_a_call_wait_for_nothing(monkeypatch):
    """The outer one lets others go on, once for all of them."""
    monkeypatch.setattr(deadline, "_UNINTERRUPTED", 60.0)  # on a busy machine no call is quick
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def many():
        return [await with_deadline(instant(), 1.0) for _ in range(3)]

    counting = asyncio.create_task(count())
    assert await with_deadline(many(), 1.0) == ["done"] * 3
    assert turns == 1
    counting.cancel()


async def test_quick_calls_without_an_end_let_others_go_on_and_are_stopped():
    async def forever():
        while True:
            await with_deadline(instant(), 1.0)

    with pytest.raises(DeadlineError):
        await with_deadline(forever(), 0.05)


async def test_things_that_run_together_give_their_results_in_order():
    all_here, turns = asyncio.Barrier(3), []

    async def meets(number):
        await all_here.wait()
        for _ in range(3 - number):
            await asyncio.sleep(0)
        turns.append(number)
        return number

    assert await with_deadline(together(map(meets, range(3))), 10.0) == [0, 1, 2]
    assert turns == [2, 1, 0]
    assert await together([]) == []


async def test_the_first_error_of_what_runs_together_ends_the_others_and_keeps_its_cause():
    cause, ended = OSError("the disk is full"), asyncio.Event()

    async def waits():
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def fails(error, because=None):
        raise error from because

    with pytest.raises(ValueError, match="broken") as caught:
        await together([waits(), fails(ValueError("broken"), cause), fails(KeyError("another"))])
    assert ended.is_set()
    assert caught.value.__cause__ is cause
    assert [type(error) for error in caught.value.__context__.exceptions] == [ValueError, KeyError]


async def test_what_cancels_itself_among_others_is_an_error_and_no_cancellation():
    async def cancels_itself():
        raise asyncio.CancelledError

    with pytest.raises(SelfCancelledError):
        await together([instant(), cancels_itself()])


async def test_a_cancellation_from_outside_ends_all_that_runs_together():
    ended, all_here = [], asyncio.Barrier(3)

    async def waits(timeout):
        try:
            await all_here.wait()
            timeout.reschedule(0)
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as timeout:
            await together(waits(timeout) for _ in range(3))
    assert ended == [True] * 3
