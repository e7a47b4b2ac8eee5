"""Requests to an actor, sharing calls: those that begin within `GATHER` seconds go in one call.

Most of a turn whose engine is a Ray actor is Ray's work for a call, so there are few. An *exchange* is a call that
brings requests and takes whatever answers are there for its client, as soon as there is one; none waits for a slower
one. While a client waits for answers it has an exchange under way, or begins one within `GATHER` seconds. So an actor
that hears nothing from it for `CLIENT_LOST` seconds ends its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from toolgym.rollout.runner.ray.packing import portable
from toolgym.tools.concurrency.deadline import wake_up

GATHER = 0.005
"""Least seconds from one exchange of a client to the next: what comes meanwhile goes with that."""

LONGEST = 60.0
"""Seconds after which an exchange without an answer ends, and another one begins."""

CLIENT_LOST = 600.0
"""Seconds without an exchange after which a client that waits for answers counts as gone."""

END_TIMEOUT = 10.0
"""Seconds that requests which were cancelled have to end before others with their ids begin."""

Request = tuple[tuple[Any, ...], dict[str, Any]]
Outcome = tuple[int, bool, Any]
"""The number of a request, whether it succeeded, and its answer or error."""


class ExchangeClient:
    """One event loop's requests to one actor, whose method `exchange` calls an `Exchange`."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._loop = actor, asyncio.get_running_loop()
        self._name = uuid.uuid4().hex
        self._lost: list[str] = []  # its names in exchanges that failed
        self._begun = self._under_way = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._unsent: dict[int, Request] = {}
        self._given_up: list[int] = []
        self._scheduled = False
        self._sent = -GATHER

    async def ask(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request, and return its answer or raise its error. Raises Ray's error if the actor cannot be reached.
        Cancelling the call cancels the request."""
        self._begun += 1
        number, answer = self._begun, self._loop.create_future()
        self._waiting[number], self._unsent[number] = answer, (args, kwargs)
        self._send_soon()
        try:
            return await answer
        except asyncio.CancelledError:
            if self._unsent.pop(number, None) is None:
                self._given_up.append(number)
                self._send_soon()
            raise
        finally:
            del self._waiting[number]

    def _send_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_at(self._sent + GATHER, self._send)

    def _send(self) -> None:
        self._scheduled, self._sent = False, self._loop.time()
        if not self._unsent and not self._given_up and (self._under_way or not self._waiting):
            return
        requests, self._unsent = self._unsent, {}
        given_up, self._given_up = self._given_up, []
        self._under_way += 1
        reply = self._actor.exchange.remote(self._name, self._lost, requests, given_up).future()
        reply.add_done_callback(partial(self._hand_over, self._name))

    def _hand_over(self, name: str, reply: Any) -> None:
        """Called in a thread of Ray's."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits any more
            self._loop.call_soon_threadsafe(self._take, name, reply)

    def _take(self, name: str, reply: Any) -> None:
        error = reply.exception()
        if name != self._name:  # another exchange of this name has failed, and all that was sent with it
            return
        if error is not None:
            self._fail(error)
            return
        self._under_way -= 1
        self._lost = []
        for number, succeeded, value in reply.result():
            answer = self._waiting.get(number)
            if answer is not None and not answer.done():
                answer.set_result(value) if succeeded else answer.set_exception(value)
        self._send_soon()

    def _fail(self, error: BaseException) -> None:
        """End all that was sent: its answers may be lost. Under a new name nothing of it is mistaken for what follows,
        and the actor, if it lives, ends it first."""
        self._lost = [*self._lost, self._name]
        self._name, self._under_way = uuid.uuid4().hex, 0
        for number, answer in self._waiting.items():
            if number not in self._unsent and not answer.done():
                answer.set_exception(error)


class Exchange:
    """The actor's side: answers the requests of any number of clients by awaiting `answer` with their arguments."""

    def __init__(self, answer: Callable[..., Awaitable[Any]]) -> None:
        self._answer = answer
        self._clients: dict[str, _Client] = {}

    async def __call__(
        self, name: str, lost: Sequence[str], requests: Mapping[int, Request], given_up: Sequence[int]
    ) -> list[Outcome]:
        """Begin requests, cancel those `given_up`, and return what answers there are for this client, once there is
        one or nothing to wait for. Requests of the `lost` names end before others begin, which may have their ids."""
        now = time.monotonic()
        gone = [old for old, client in self._clients.items() if not client.takers and now - client.heard > CLIENT_LOST]
        ended = [task for old in {*lost, *gone} for task in self._clients.pop(old, _Client()).end()]
        if ended:
            await asyncio.wait(ended, timeout=END_TIMEOUT)
        client = self._clients.setdefault(name, _Client())
        for number in given_up:
            if number in client.running:
                client.running[number].cancel()
        for number, (args, kwargs) in requests.items():
            client.begin(number, self._answer(*args, **kwargs))
        answers = await client.take()
        if not client.running and not client.takers and self._clients.get(name) is client:
            del self._clients[name]
        return answers


class _Client:
    def __init__(self) -> None:
        self.running: dict[int, asyncio.Task[None]] = {}
        self.takers: list[asyncio.Future[None]] = []
        self.heard = time.monotonic()
        self._answers: list[Outcome] = []

    def begin(self, number: int, request: Awaitable[Any]) -> None:
        self.running[number] = asyncio.create_task(self._run(number, request))

    def end(self) -> list[asyncio.Task[None]]:
        """Cancel all, and return the tasks that end."""
        for task in (tasks := [*self.running.values()]):
            task.cancel()
        return tasks

    async def _run(self, number: int, request: Awaitable[Any]) -> None:
        try:
            answer = await request
            self._answers.append((number, True, answer))
        except Exception as error:  # noqa: BLE001  sent to the client
            self._answers.append((number, False, portable(error)))
        finally:
            del self.running[number]
            for taker in self.takers[:1] if self.running else self.takers:
                wake_up(taker)

    async def take(self) -> list[Outcome]:
        if self.running and not self._answers:
            loop = asyncio.get_running_loop()
            taker = loop.create_future()
            timer = loop.call_later(LONGEST, wake_up, taker)
            self.takers.append(taker)
            try:
                await taker
            finally:
                timer.cancel()
                self.takers.remove(taker)
        self.heard = time.monotonic()
        answers, self._answers = self._answers, []
        return answers
