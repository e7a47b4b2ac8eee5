"""A rate limit of a Ray cluster: one for all processes, whatever becomes of them."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.ray_cluster import cluster, on_node, until
from toolgym.tools import CodeInterpreterTool
from toolgym.tools.errors import ConfigError

pytestmark = pytest.mark.ray


class Holder:
    """A process that uses limits."""

    def __init__(self):
        self.limiters, self.leases = {}, []

    def limiter(self, name, limit, lease_seconds=10.0):
        if name not in self.limiters:
            self.limiters[name] = limiter_of(name, limit, lease_seconds=lease_seconds)
        return self.limiters[name]

    async def take(self, *limit, note=None, log=None):
        self.leases.append(await self.limiter(*limit).acquire())
        if log is not None:
            await log.add.remote(note)

    async def give(self):
        self.leases.pop().release()

    async def use(self, limiter, times, log):
        async def once():
            async with self.limiter(*limiter).permit():
                await log.enter.remote()
                await asyncio.sleep(0.001)
                await log.exit.remote()

        await asyncio.gather(*(once() for _ in range(times)))

    async def tool(self, config):
        return [type(one).__name__ for one in CodeInterpreterTool(config).limiters]

    async def pid(self):
        return os.getpid()


class Log:
    """Counts what is inside, and keeps notes."""

    def __init__(self):
        self.inside = self.peak = self.entered = 0
        self.notes = []

    def enter(self):
        self.inside += 1
        self.entered += 1
        self.peak = max(self.peak, self.inside)

    def exit(self):
        self.inside -= 1

    def add(self, note):
        self.notes.append(note)

    def read(self):
        return self.entered, self.peak, self.notes


@pytest.fixture(scope="module")
def nodes():
    with cluster(1, 1) as made:
        yield [made.head_node, *made.worker_nodes]


@pytest.fixture(scope="module")
def holders(nodes):
    """Two processes, one on each node."""
    return [actor(Holder, node) for node in nodes]


def get(refs):
    import ray

    return ray.get(refs, timeout=60)


def actor(kind, node, *args):
    import ray

    return ray.remote(kind).options(**on_node(node)).remote(*args)


def status(limiter):
    import ray

    return ray.get(limiter._membership.client._actor.status.remote(), timeout=60)


def limiter_of(name, limit, **options):
    from toolgym.tools.concurrency.cluster.rate_limit import RayRateLimiter

    return RayRateLimiter(name, limit, **options)


def test_basic_multi_process_init(holders):
    """The named limiter is one across processes; limits of other names are others."""
    mine, other = limiter_of("one", 3), limiter_of("another", 7)
    get([holders[0].take.remote("one", 3), holders[0].take.remote("one", 3), holders[1].take.remote("one", 3)])
    fourth = holders[1].take.remote("one", 3)
    until(lambda: status(mine)["waiting"] == 1)
    assert status(mine) == {"limit": 3, "in_use": 3, "waiting": 1, "clients": 3}
    assert status(other) == {"limit": 7, "in_use": 0, "waiting": 0, "clients": 1}
    get(holders[0].give.remote())
    get(fourth)
    get([holders[0].give.remote(), holders[1].give.remote(), holders[1].give.remote()])
    assert until(lambda: status(mine)["in_use"] == 0)
    with pytest.raises(ConfigError, match="'one' of this cluster is already 3, and 4 was asked for"):
        limiter_of("one", 4)
    with pytest.raises(ConfigError, match="'another' of this cluster is already 7, and 5 was asked for"):
        get(holders[1].take.remote("another", 5))


class TestMultiNodeRateLimiterCase:
    def test_no_more_run_at_once_than_the_limit_on_all_nodes_together(self, nodes, holders):
        log = actor(Log, nodes[0])
        get([one.use.remote(("together", 4), 150, log) for one in holders])
        entered, peak, _ = get(log.read.remote())
        assert entered == 300
        assert 2 <= peak <= 4

    def test_first_come_first_served_on_all_nodes(self, nodes, holders):
        log, mine = actor(Log, nodes[0]), limiter_of("order", 1)
        get(holders[1].take.remote("order", 1))
        for place in range(8):
            holders[place % 2].take.remote("order", 1, note=place, log=log)
            until(lambda place=place: status(mine)["waiting"] == place + 1)
        for place in range(8):
            get(holders[(place + 1) % 2].give.remote())  # that one holds it
            until(lambda place=place: len(get(log.read.remote())[2]) == place + 1)
        assert get(log.read.remote())[2] == list(range(8))
        get(holders[1].give.remote())

    def test_what_a_killed_process_held_is_free_again(self, nodes):
        mine, holder = limiter_of("killed", 2, lease_seconds=2.0), actor(Holder, nodes[1])
        get([holder.take.remote("killed", 2, 2.0), holder.take.remote("killed", 2, 2.0)])

        async def acquire_twice():
            waiting = asyncio.gather(mine.acquire(), mine.acquire())
            async with asyncio.timeout(60):
                while (await _status(mine)).get("waiting") != 2:
                    await asyncio.sleep(0.02)
            assert not waiting.done()
            os.kill(await holder.pid.remote(), signal.SIGKILL)
            async with asyncio.timeout(60):
                for lease in await waiting:
                    lease.release()

        asyncio.run(acquire_twice())
        assert until(lambda: status(mine)["in_use"] == 0)

    def test_the_limit_holds_when_its_own_process_is_killed(self, holders):
        import ray

        mine = limiter_of("restarted", 1)
        get(holders[1].take.remote("restarted", 1))
        ray.kill(mine._membership.client._actor, no_restart=False)

        async def acquire():
            waiting = asyncio.ensure_future(mine.acquire())
            deadline = time.monotonic() + 60
            while (await _status(mine)).get("in_use") != 1:  # the holder has reported what it holds
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            assert not waiting.done()
            await holders[1].give.remote()
            async with asyncio.timeout(60):
                (await waiting).release()

        asyncio.run(acquire())


async def _status(limiter):
    from ray.exceptions import RayError

    try:
        return await limiter._membership.client._actor.status.remote()
    except RayError:
        return {}


def test_a_waiter_that_is_cancelled_gives_up_its_place(nodes):
    mine = limiter_of("cancelled", 1)

    async def play():
        first = await mine.acquire()
        waiting = [asyncio.ensure_future(mine.acquire()) for _ in range(3)]
        await asyncio.sleep(0.05)
        for one in waiting[:2]:
            one.cancel()
        first.release()
        first.release()
        (await waiting[2]).release()

    asyncio.run(play())
    assert until(lambda: status(mine)["in_use"] == 0)
    assert status(mine)["waiting"] == 0


def test_a_tool_has_a_limit_of_the_cluster_where_its_file_says_so(holders):
    from toolgym.tools.concurrency.cluster.rate_limit import RayRateLimiter

    config = {"rate_limit": 3, "rate_limit_scope": "cluster"}
    [limiter] = CodeInterpreterTool(config).limiters
    assert isinstance(limiter, RayRateLimiter)
    assert get(holders[1].tool.remote({**config, "num_workers": 2})) == ["LocalRateLimiter", "RayRateLimiter"]
    with pytest.raises(ConfigError, match="'code_interpreter' of this cluster is already 3"):
        get(holders[1].tool.remote({**config, "rate_limit": 5}))


async def test_those_that_wait_hear_of_an_error_that_ray_does_not_know(monkeypatch):
    """A background task that died of it would have left them waiting for ever."""
    client = pytest.importorskip("toolgym.tools.concurrency.cluster.rate_limit")

    async def sync(patience):
        if joined:
            raise ValueError("and cannot be joined")
        joined.append(True)

    joined = []
    monkeypatch.setattr(client, "UNREACHABLE", 0.2)
    monkeypatch.setattr(client.ray, "is_initialized", lambda: True)
    limiter = client.LimiterClient("x", "y", 1, 10.0)
    monkeypatch.setattr(limiter, "_sync", sync)  # of this one alone: those of other tests may still be at work
    limiter.start()
    try:
        async with asyncio.timeout(50):
            with pytest.raises(client.ClusterError, match="cannot be joined"):
                await limiter.acquire()
    finally:
        limiter.stop()
