"""The table of sessions that every server has: turns, room, idle time and ends."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.tools.errors import NoSessionError
from toolgym.tools.serving.admission import BusyError
from toolgym.tools.serving.session_table import SessionTable, TableSession


class Counter(TableSession):
    """A session that remembers what was done to it."""

    def __init__(self, name, *, patience=60.0, max_waiting=2, slow=None):
        super().__init__(name, patience=patience, max_waiting=max_waiting)
        self.ends = []
        self.places = 1
        self.dead = False
        self.slow = slow

    @property
    def size(self):
        return self.places

    @property
    def over(self):
        return self.dead

    async def close(self):
        if self.slow is not None:
            await self.slow.wait()
        self.ends.append("closed")
        if self.name == "broken":
            raise ZeroDivisionError

    async def delete(self):
        await self.close()
        self.ends.append("deleted")


async def test_calls_take_turns_and_a_bounded_number_waits():
    table = SessionTable(10, 600.0)
    table.add(Counter("a"))
    order, go = [], asyncio.Event()

    async def call(number):
        async with table.use("a"):
            order.append(number)
            await go.wait()

    calls = [asyncio.create_task(call(number)) for number in range(3)]
    await asyncio.sleep(0.01)
    assert (order, table.find("a").busy) == ([0], True)
    with pytest.raises(BusyError, match="2 calls wait"):
        await call(3)
    go.set()
    await asyncio.gather(*calls)
    assert (order, table.find("a").busy) == ([0, 1, 2], False)


async def test_a_call_waits_no_longer_than_its_patience():
    table = SessionTable(10, 600.0)
    table.add(Counter("a", patience=0.01))
    async with table.use("a"):
        with pytest.raises(BusyError, match="busy for 0.01 s"):
            async with table.use("a"):
                pass


async def test_a_removed_session_refuses_the_calls_that_wait():
    table = SessionTable(10, 600.0)
    session = table.add(Counter("a"))
    with pytest.raises(NoSessionError, match="no session 'b'"):
        table.find("b")

    async def wait():
        async with table.use("a"):
            raise AssertionError("the session is gone")

    async with table.use("a"):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        await table.remove("a")
    with pytest.raises(NoSessionError):
        await waiting
    with pytest.raises(NoSessionError), session.attached():
        pass
    await table.discard("a")
    assert session.ends == ["closed", "deleted"]


async def test_calls_beside_are_bounded_and_wait_for_none():
    table = SessionTable(10, 600.0)
    table.add(Counter("a"))
    async with table.use("a"), table.use_beside("a", 1):
        with pytest.raises(BusyError, match="1 calls beside"):
            async with table.use_beside("a", 1):
                pass


async def test_room_counts_what_opens_what_is_open_and_what_still_closes():
    table = SessionTable(3, 600.0)
    slow = asyncio.Event()
    with table.room(2):
        assert len(table) == 2
        with pytest.raises(BusyError, match="2 of at most 3 sessions") as refused, table.room(2):
            pass
    assert refused.value.retry_after > 0
    session = table.add(Counter("a", slow=slow))
    session.places = 3
    with pytest.raises(BusyError), table.room():
        pass
    ending = asyncio.create_task(table.remove("a"))
    await asyncio.sleep(0.01)
    assert (len(table), "a" in table) == (3, False)
    slow.set()
    await ending
    assert len(table) == 0


async def test_an_end_is_carried_out_though_its_caller_goes_away():
    table = SessionTable(3, 600.0)
    slow = asyncio.Event()
    session = table.add(Counter("a", slow=slow))
    ending = asyncio.create_task(table.remove("a"))
    await asyncio.sleep(0.01)
    ending.cancel()
    await asyncio.sleep(0.01)
    slow.set()
    await asyncio.gather(ending, return_exceptions=True)
    assert (session.ends, ending.cancelled()) == (["closed", "deleted"], True)


@pytest.mark.parametrize("beside", [False, True])
async def test_a_session_that_is_over_after_a_call_is_removed(beside):
    table = SessionTable(3, 600.0)
    table.add(Counter("a"))
    async with (table.use_beside if beside else table.use)("a") as session:
        session.dead = True
    assert (session.ends, list(table)) == (["closed", "deleted"], [])


async def test_idle_sessions_are_deleted_and_busy_ones_are_not():
    table = SessionTable(10, 0.1)
    idle, busy, touched, patient = (table.add(Counter(name)) for name in ("broken", "busy", "touched", "patient"))
    patient.idle_timeout = 600.0
    table.start()
    with busy.attached():
        async with asyncio.timeout(60):
            while "broken" in table:
                touched.touch()
                await asyncio.sleep(0.005)
        assert idle.ends == ["closed"]  # its end failed, and the others are looked after all the same
        assert {session.name for session in table} == {"busy", "touched", "patient"}
    await table.close()
    assert [session.ends for session in (busy, touched, patient)] == [["closed"]] * 3
    assert len(table) == 0
