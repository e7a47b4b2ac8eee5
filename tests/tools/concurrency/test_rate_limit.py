"""The limiter: first come, first served, across tasks, loops and threads, whatever fails."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ConfigError


async def test_strictly_first_come_first_served():
    limiter = LocalRateLimiter(2)
    order, running, peak = [], 0, 0

    async def work(number):
        nonlocal running, peak
        async with limiter.permit():
            order.append(number)
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0.002 * (number % 3))
            running -= 1

    await asyncio.gather(*(work(n) for n in range(30)))
    assert order == list(range(30))
    assert peak == 2
    assert (limiter.in_use, limiter.waiting) == (0, 0)


async def test_a_failing_holder_gives_its_permit_back():
    limiter = LocalRateLimiter(1)
    with pytest.raises(ZeroDivisionError):
        async with limiter.permit():
            1 / 0  # noqa: B018
    async with asyncio.timeout(60), limiter.permit():
        pass


async def test_a_cancelled_waiter_gives_up_its_place():
    limiter = LocalRateLimiter(1)
    lease = await limiter.acquire()
    first, second = asyncio.create_task(limiter.acquire()), asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    lease.release()
    await asyncio.wait_for(second, 60)
    assert limiter.in_use == 1
    assert first.cancelled()


async def test_a_waiter_cancelled_while_the_permit_is_on_its_way_passes_it_on():
    limiter = LocalRateLimiter(1)
    lease = await limiter.acquire()
    first, second = asyncio.create_task(limiter.acquire()), asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)
    lease.release()  # hands the permit to the first, whose wake-up is still on its way
    first.cancel()
    await asyncio.wait_for(second, 60)
    assert limiter.in_use == 1


def test_it_holds_across_event_loops_in_threads():
    limiter = LocalRateLimiter(3)
    lock = threading.Lock()
    running = peak = total = 0

    async def work():
        nonlocal running, peak, total
        async with limiter.permit():
            with lock:
                running += 1
                peak = max(peak, running)
            await asyncio.sleep(0.001)
            with lock:
                running -= 1
                total += 1

    async def many():
        await asyncio.gather(*(work() for _ in range(25)))

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert total == 100
    assert peak == 3
    assert limiter.in_use == 0


async def test_a_lease_gives_back_once():
    limiter = LocalRateLimiter(2)
    first, second = await limiter.acquire(), await limiter.acquire()
    assert first.held
    first.release()
    first.release()
    assert (first.held, second.held, limiter.in_use) == (False, True, 1)
    second.release()
    assert limiter.in_use == 0


@pytest.mark.parametrize("limit", [0, -1, 1.5, "3", True])
def test_a_limit_is_a_positive_whole_number(limit):
    with pytest.raises(ConfigError):
        LocalRateLimiter(limit)
    limiter = LocalRateLimiter(2)
    with pytest.raises(ConfigError):
        limiter.resize(limit)
    assert (limiter.limit, limiter.in_use) == (2, 0)


async def test_more_permits_go_to_those_that_wait():
    limiter = LocalRateLimiter(1)
    first = await limiter.acquire()
    waiting = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    limiter.resize(3)
    leases = await asyncio.gather(*waiting[:2])
    assert (limiter.in_use, limiter.waiting, waiting[2].done()) == (3, 1, False)
    first.release()
    leases.append(await asyncio.wait_for(waiting[2], 60))
    for lease in leases:
        lease.release()
    assert limiter.in_use == 0


async def test_fewer_permits_take_none_away_and_hold_as_soon_as_they_can():
    limiter = LocalRateLimiter(4)
    leases = [await limiter.acquire() for _ in range(4)]
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)
    limiter.resize(2)
    assert (limiter.in_use, limiter.limit, limiter.full) == (4, 2, True)
    for lease in leases[:2]:
        lease.release()
        await asyncio.sleep(0)
        assert not waiting.done()
    leases[2].release()
    last = await asyncio.wait_for(waiting, 60)
    assert limiter.in_use == 2
    last.release()
    leases[3].release()
    assert (limiter.in_use, limiter.try_acquire() is not None) == (0, True)


def test_a_permit_on_its_way_to_a_loop_that_was_closed_is_not_lost():
    limiter = LocalRateLimiter(1)
    loop = asyncio.new_event_loop()

    async def hold_and_wait():
        lease = await limiter.acquire()
        waiter = asyncio.ensure_future(limiter.acquire())
        await asyncio.sleep(0)
        return lease, waiter

    lease, waiter = loop.run_until_complete(hold_and_wait())
    assert limiter.waiting == 1
    lease.release()  # handed to the waiter, which never runs again
    assert limiter.in_use == 1
    waiter._log_destroy_pending = False
    loop.close()
    del waiter
    gc.collect()
    assert limiter.in_use == 0


def test_a_loop_that_shuts_down_gives_every_permit_back():
    limiter = LocalRateLimiter(2)

    async def hold():
        async with limiter.permit():
            await asyncio.sleep(60)

    async def main():
        holders = [asyncio.ensure_future(hold()) for _ in range(5)]
        await asyncio.sleep(0.01)
        for holder in holders:
            holder.cancel()
        asyncio.get_running_loop().call_soon(holders[0].cancel)

    asyncio.run(main())
    assert (limiter.in_use, limiter.waiting) == (0, 0)
