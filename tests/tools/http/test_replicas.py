"""The pool: the least loaded server, health, backoff, probes and affinity."""

from __future__ import annotations

import asyncio

import pytest

from tests.actors import until
from toolgym.tools.http import replicas
from toolgym.tools.http.replicas import Replica, ReplicaPool, ReplicaState
from toolgym.tools.http.retries import AttemptError

HEALTHY, UNHEALTHY, SUSPENDED = ReplicaState


@pytest.fixture
async def make():
    """Makes pools of replicas, whose probes give what `outcome` says of them."""
    pools = []

    def one(count, **options):
        async def probe(replica):
            found = outcome[replica.url]
            if isinstance(found, Exception):
                raise found
            if isinstance(found, str) and not isinstance(found, ReplicaState):
                raise AttemptError(found, sent=False)
            return found

        outcome = {f"http://{n}": HEALTHY for n in range(count)}
        pool = ReplicaPool([Replica(url) for url in outcome], probe, **options)
        pools.append(pool)
        return pool, outcome

    yield one
    for pool in pools:
        await pool.close()


async def test_the_least_loaded_one_is_chosen(make):
    pool, _ = make(3)
    first, second, third = pool.all
    with first.working(), second.working(10), third.working(5):
        assert pool.choose() is first
        with first.working():
            assert pool.choose() is third, "as many calls as the second, and they weigh less"
    assert [(one.in_flight, one.weight) for one in pool.all] == [(0, 0)] * 3


async def test_one_that_was_not_tried_and_is_not_busy_comes_first(make):
    pool, _ = make(3)
    first, second, third = pool.all
    second.full(60)
    with third.working():
        assert pool.choose(tried={first}) is third
        assert pool.has_room({first})
        assert not pool.has_room({first, third})
        assert pool.choose(tried=pool.all) in (first, third)
    assert pool.choose(among=[second]) is second


async def test_one_that_failed_is_left_alone_until_a_probe_finds_it_well(make, monkeypatch):
    monkeypatch.setattr(replicas, "FIRST_OUT", 60.0)
    pool, outcome = make(2)
    first, second = pool.all
    outcome[first.url] = "no answer"
    left = first.left
    first.failed("it broke off")
    first.failed("it broke off")
    assert (first.failures, left.is_set(), first.left.is_set()) == (1, True, False), "failures together count once"
    assert await pool.take() is second
    assert first.probe is None, "none is due yet"
    first.probe_at = 0.0  # as after that time
    assert await pool.take() is second
    await first.probe
    assert (first.state, first.failures, first.trouble) == (UNHEALTHY, 2, "no answer")
    outcome[first.url] = HEALTHY
    await pool.begin_probe(first)
    assert first.healthy
    first.answered()
    assert first.failures == 0


async def test_where_none_is_healthy_the_call_waits_for_a_probe(make):
    pool, outcome = make(2)
    for one in pool.all:
        one.failed("gone")
    outcome |= dict.fromkeys(outcome, "connection refused")
    with pytest.raises(AttemptError, match="does not answer properly: connection refused") as found:
        await pool.take()
    assert not found.value.sent
    outcome |= dict.fromkeys(outcome, HEALTHY)
    assert (await pool.take()).healthy


async def test_the_time_out_of_use_grows(make):
    pool, _ = make(1)
    [one] = pool.all
    loop = asyncio.get_running_loop()
    for pause in (0.5, 1, 2, 4, 8, 16, 30, 30, 30):
        one.probe_at = 0.0
        before = loop.time()
        one.failed("gone")
        assert before + pause <= one.probe_at <= loop.time() + pause


async def test_a_suspended_one_answers_and_takes_no_calls(make):
    pool, outcome = make(2)
    first, second = pool.all
    first.failed("gone")
    outcome[first.url] = SUSPENDED
    await pool.begin_probe(first)
    assert first.state is SUSPENDED
    assert {pool.choose() for _ in range(20)} == {second}
    first.answered()
    assert first.state is SUSPENDED, "an answer to an earlier call does not end it"
    assert pool.reachable == pool.all
    second.suspend("it has old weights")
    assert pool.choose() is None
    outcome[first.url] = HEALTHY
    await pool.begin_probe(first)
    assert pool.choose() is first


async def test_calls_of_one_affinity_stay_together(make):
    pool, _ = make(3)
    chosen = {key: pool.choose(affinity=key) for key in "abcdef"}
    with chosen["a"].working():
        for key, replica in chosen.items():
            assert pool.choose(affinity=key) is replica
    chosen["a"].failed("gone")
    moved = pool.choose(affinity="a")
    assert moved is not chosen["a"]
    chosen["a"].answered()
    assert pool.choose(affinity="a") is moved, "it does not move back"
    assert sum(one.assigned for one in pool.all) == 7


async def test_an_affinity_leaves_a_server_that_is_overloaded(make):
    pool, _ = make(2, balance_abs_threshold=2, balance_rel_threshold=1.5)
    home = pool.choose(affinity="a")
    with home.working(), home.working():
        assert pool.choose(affinity="a") is home
        with home.working():
            assert pool.choose(affinity="a") is not home


async def test_affinities_are_spread_evenly(make):
    pool, _ = make(2)
    for number in range(1000):
        pool.choose(affinity=f"t{number}")
    assert [one.assigned for one in pool.all] == [500, 500]


async def test_the_oldest_affinity_is_forgotten(make, monkeypatch):
    monkeypatch.setattr(replicas, "MAX_AFFINITIES", 2)
    pool, _ = make(2)
    first = pool.choose(affinity="a")
    for key in "bc":
        pool.choose(affinity=key)
    with first.working():
        assert pool.choose(affinity="a") is not first


async def test_closing_ends_probes():
    async def probe(replica):
        await asyncio.sleep(60)

    pool = ReplicaPool([Replica("http://0")], probe)
    task = pool.begin_probe(pool.all[0])
    assert pool.begin_probe(pool.all[0]) is task, "one probe at a time"
    await pool.close()
    assert task.cancelled()


async def test_a_watched_server_leaves_when_it_cannot_be_reached_and_comes_back(make, monkeypatch):
    monkeypatch.setattr(replicas, "FIRST_OUT", 0.01)
    pool, outcome = make(2)
    first, _ = pool.all
    pool.watch(0.02)
    outcome[first.url] = AttemptError("connection refused", sent=False)
    await until(lambda: first.state is UNHEALTHY)
    assert first.trouble == "connection refused"
    await until(lambda: first.failures >= 3)
    outcome[first.url] = HEALTHY
    await until(lambda: first.healthy)
    await until(lambda: first.failures == 0)


async def test_a_server_that_left_is_checked_sooner_than_the_others(make, monkeypatch):
    monkeypatch.setattr(replicas, "FIRST_OUT", 0.01)
    pool, _ = make(2)
    pool.watch(600)
    await asyncio.sleep(0)
    first, second = pool.all
    first.failed("it broke off")
    await until(lambda: first.healthy)
    assert second.probe is None


async def test_a_slow_server_leaves_after_three_bad_checks_but_never_the_last_one(make, monkeypatch):
    monkeypatch.setattr(replicas, "LONGEST_OUT", 0.01)
    pool, outcome = make(2)
    first, second = pool.all
    slow = AttemptError("no answer within 1 s", sent=True)
    for bad in (1, 2):
        outcome[first.url] = slow
        await pool.begin_probe(first)
        assert (first.healthy, first.bad_checks) == (True, bad)
    outcome[first.url] = HEALTHY
    await pool.begin_probe(first)
    assert first.bad_checks == 0, "only checks in a row count"
    pool.watch(0.005)
    outcome |= dict.fromkeys(outcome, slow)
    await until(lambda: second.bad_checks >= 6 and first.bad_checks >= 6)
    assert [one.state for one in pool.all].count(HEALTHY) == 1
    left = next(one for one in pool.all if not one.healthy)
    assert left.trouble == "no answer within 1 s"


async def test_a_call_waits_for_a_watched_server_until_its_time_is_up(make, monkeypatch):
    monkeypatch.setattr(replicas, "FIRST_OUT", 0.01)
    pool, outcome = make(2)
    second = pool.all[1]
    gone = AttemptError("connection refused", sent=False)
    outcome |= dict.fromkeys(outcome, gone)
    pool.watch(0.02)
    await until(lambda: not pool.reachable)
    with pytest.raises(AttemptError, match=r"within 0\.05 seconds: connection refused; connection refused"):
        await pool.wait(0.05)
    waiting = asyncio.create_task(pool.wait(60, affinity="a"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    outcome[second.url] = HEALTHY
    assert await waiting is second
    assert second.assigned == 1


async def test_closing_ends_the_watch(make):
    pool, _ = make(2)
    pool.watch(0.01)
    before = asyncio.all_tasks()
    await asyncio.sleep(0.03)
    await pool.close()
    assert all(task.done() for task in before - {asyncio.current_task()})


async def test_a_probe_that_fails_by_mistake_is_logged_and_the_watch_goes_on(make, caplog):
    pool, outcome = make(1)
    [one] = pool.all
    outcome[one.url] = ZeroDivisionError()
    pool.watch(0.01)
    await until(lambda: "ZeroDivisionError" in caplog.text)
    outcome[one.url] = SUSPENDED
    await until(lambda: one.state is SUSPENDED)
