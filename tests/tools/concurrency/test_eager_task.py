"""A task that takes its first step at once, and is otherwise like any other."""

import asyncio
from contextvars import ContextVar

import pytest

from toolgym.tools.concurrency.deadline import DeadlineError, SelfCancelledError, with_deadline
from toolgym.tools.concurrency.eager_task import ExitError, begin

pytestmark = pytest.mark.asyncio

variable: ContextVar[str] = ContextVar("variable", default="outside")


async def test_code_that_never_waits_has_ended_when_the_task_is_made():
    async def code():
        return 7

    step, _ = begin(code())
    assert step.ended
    assert step.result() == 7


async def test_the_task_is_the_same_in_every_step_and_the_caller_is_itself_again():
    caller, seen = asyncio.current_task(), []

    async def code():
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    _, task = begin(code())
    assert asyncio.current_task() is caller
    await task
    assert seen == [task, task]


async def test_its_context_is_its_own():
    async def code():
        variable.set("inside")
        await asyncio.sleep(0)
        return variable.get()

    _, task = begin(code())
    assert variable.get() == "outside"
    await task
    assert variable.get() == "outside"


@pytest.mark.parametrize("first", ["timeout", "group"])
async def test_what_the_first_step_enters_belongs_to_the_task_and_not_to_the_caller(first):
    async def fails():
        raise ValueError("child")

    async def code():
        if first == "timeout":
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await asyncio.Event().wait()

    expected = TimeoutError if first == "timeout" else ExceptionGroup
    with pytest.raises(expected):
        await with_deadline(code(), 30.0)
    assert asyncio.current_task().cancelling() == 0


async def test_a_cancellation_before_the_second_step_reaches_what_the_first_one_waits_for():
    inner = asyncio.create_task(asyncio.Event().wait())

    async def code():
        await inner

    _, task = begin(code())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inner.cancelled()


async def test_several_may_wait_for_one_future():
    shared = asyncio.get_running_loop().create_future()

    async def code():
        return await shared

    async def later():
        await asyncio.sleep(0.01)
        shared.set_result("for all")

    waiting = [with_deadline(code(), 30.0) for _ in range(3)]
    assert await asyncio.gather(*waiting, code(), later()) == ["for all"] * 4 + [None]


async def test_a_first_step_that_raises_or_cancels_itself_says_so():
    async def raises():
        raise ValueError("at once")

    async def cancels():
        raise asyncio.CancelledError

    with pytest.raises(ValueError, match="at once"):
        await with_deadline(raises(), 30.0)
    with pytest.raises(SelfCancelledError):
        await with_deadline(cancels(), 30.0)


async def test_code_that_waits_still_has_its_deadline():
    ended = []

    async def code():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(DeadlineError):
        await with_deadline(code(), 0.01)
    assert ended == [True]


async def test_quick_calls_leave_the_event_loop_to_others():
    ran = asyncio.Event()

    async def quick():
        return 1

    async def other():
        ran.set()

    task = asyncio.create_task(other())
    for _ in range(3):
        await with_deadline(quick(), 30.0)
    assert ran.is_set()
    await task


@pytest.mark.parametrize("when", ["first", "later", "cancelled"])
async def test_code_that_exits_does_not_end_the_event_loop(when):
    async def code():
        try:
            if when != "first":
                await asyncio.sleep(0 if when == "later" else 30)
        finally:
            raise SystemExit(3)

    if when == "cancelled":
        with pytest.raises(DeadlineError, match="did not finish"):
            await with_deadline(code(), 0.05)
    else:
        with pytest.raises(ExitError, match="SystemExit: 3") as caught:
            await with_deadline(code(), 30.0)
        assert isinstance(caught.value.__cause__, SystemExit)
