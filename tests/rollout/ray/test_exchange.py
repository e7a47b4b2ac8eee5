"""Requests to an actor that share calls. The actor is an object of this process here, its calls are tasks, so each test
sees every call; `test_ray_runner.py` has real actors, which are killed and restarted."""

import asyncio
import concurrent.futures

import pytest

pytest.importorskip("ray")

from ray.exceptions import ActorUnavailableError

from toolgym.rollout.runner.ray import exchange
from toolgym.rollout.runner.ray.exchange import Exchange, ExchangeClient
from toolgym.tools.errors import EngineError


class Actor:
    """An actor that answers a request, its seconds of work, with their double. `calls` counts the requests of each
    call, `ended` are those that were cancelled. A `broken` one does its work, and no reply arrives."""

    def __init__(self):
        self.calls, self.ended, self.broken, self._tasks = [], [], False, set()
        self.side = Exchange(self._answer)
        self.exchange = self

    async def _answer(self, seconds, *, fails=False):
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.ended.append(seconds)
            raise
        if fails:
            raise EngineError(f"no answer after {seconds}")
        return 2 * seconds

    def remote(self, name, lost, requests, given_up):
        self.calls.append(len(requests))
        reply = concurrent.futures.Future()

        async def work():
            call = asyncio.ensure_future(self.side(name, lost, requests, given_up))
            if self.broken:
                self._tasks.add(call)
                reply.set_exception(ActorUnavailableError("away", None))
            else:
                reply.set_result(await call)

        self._tasks.add(asyncio.ensure_future(work()))
        reply.future = lambda: reply
        return reply

    @property
    def is_idle(self):
        return not self.side._clients


def play(steps):
    async def played():
        actor = Actor()
        async with asyncio.timeout(30):
            await steps(actor, ExchangeClient(actor))
            while not actor.is_idle:
                await asyncio.sleep(0.01)
        return actor

    return asyncio.run(played())


def test_requests_of_one_round_go_in_one_call():
    async def steps(actor, client):
        answers = await asyncio.gather(*(client.ask(at / 1e6) for at in range(100)))
        assert answers == [2 * at / 1e6 for at in range(100)]

    actor = play(steps)
    assert actor.calls[0] == 100
    assert sum(actor.calls) == 100, "and what begins later asks for the rest alone"


def test_a_slow_request_holds_up_no_other():
    async def steps(actor, client):
        slow = asyncio.create_task(client.ask(10))
        for _ in range(3):
            assert await client.ask(0.01) == 0.02
        assert not slow.done()
        slow.cancel()

    assert play(steps).ended == [10]


def test_an_error_is_raised_for_its_own_request_alone():
    async def steps(actor, client):
        wrong, right = await asyncio.gather(client.ask(0, fails=True), client.ask(0), return_exceptions=True)
        assert right == 0
        assert isinstance(wrong, EngineError)
        assert str(wrong) == "no answer after 0"

    play(steps)


def test_a_cancelled_request_is_cancelled_in_the_actor():
    async def steps(actor, client):
        kept, first, second = (asyncio.create_task(client.ask(seconds)) for seconds in (0.2, 11, 12))
        await asyncio.sleep(0.05)
        third = asyncio.create_task(client.ask(13))
        await asyncio.sleep(0)
        for task in (first, second, third):
            task.cancel()
        assert await kept == 0.4

    actor = play(steps)
    assert {11, 12} <= set(actor.ended) <= {11, 12, 13}, "the third had hardly begun"


def test_what_was_sent_to_an_actor_out_of_reach_ends_before_it_is_sent_again():
    async def steps(actor, client):
        actor.broken = True
        with pytest.raises(ActorUnavailableError):
            await client.ask(15)
        assert actor.ended == []
        actor.broken = False
        assert await client.ask(0.01) == 0.02
        assert actor.ended == [15]

    play(steps)


def test_what_takes_longer_than_an_exchange_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(exchange, "LONGEST", 0.05)

    async def steps(actor, client):
        assert await client.ask(0.3) == 0.6

    actor = play(steps)
    assert len(actor.calls) > 3
    assert sum(actor.calls) == 1


def test_the_requests_of_a_client_that_is_gone_end(monkeypatch):
    monkeypatch.setattr(exchange, "LONGEST", 0.02)
    monkeypatch.setattr(exchange, "CLIENT_LOST", 0.1)

    async def steps(actor, client):
        assert await actor.side("gone", [], {1: ((16,), {})}, []) == []
        assert await client.ask(0.01) == 0.02
        assert actor.ended == [], "it may be heard of again"
        await asyncio.sleep(0.15)
        assert await client.ask(0.01) == 0.02
        assert actor.ended == [16]

    play(steps)
