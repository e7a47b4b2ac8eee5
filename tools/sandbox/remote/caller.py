"""One call from beginning to end: choose a server, send, try again where that is safe, give up in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.remote.kinds import DESCRIPTION, HEALTH, ServerKind, read_kind
from toolgym.tools.sandbox.remote.replicas import Replica, choose
from toolgym.tools.sandbox.remote.retries import Retries, retry_after
from toolgym.tools.sandbox.remote.transport import BrokenError, NotSentError, Reply, Transport

T = TypeVar("T")

UNKNOWN = "unknown outcome: it may have run, wholly or in part, and is not sent again"
"""What a failed call's message says where nobody can know how far it came."""


class CallError(Exception):
    """A call that came to nothing, for which the program is not to blame.

    Args:
        message: what happened, for people and models.
        unreached: whether no server was reached in any attempt.
    """

    def __init__(self, message: str, *, unreached: bool = False) -> None:
        super().__init__(message)
        self.unreached = unreached


class GarbledError(Exception):
    """An answer that makes no sense."""


class Request(NamedTuple):
    """What to send.

    Attributes:
        method: HTTP method.
        path: path on the server, percent-encoded.
        body: what to send.
        own: seconds that the call itself may take once it runs.
        repeatable: whether it may be sent again though it may have been carried out.
        content_type: of the body.
        for_session: whether it opens a session, which only our own server has.
    """

    method: str
    path: str
    body: bytes | None = None
    own: float = 0.0
    repeatable: bool = True
    content_type: str = "application/json"
    for_session: bool = False


class _FailedError(Exception):
    """One attempt failed. `sent` tells whether it may have been carried out; `after` when the server wants another."""

    def __init__(self, message: str, *, sent: bool, after: float | None = None) -> None:
        super().__init__(message)
        self.sent = sent
        self.after = after


class _BusyError(Exception):
    """One attempt was refused: the server is full, and has not begun."""

    def __init__(self, message: str, after: float | None) -> None:
        super().__init__(message)
        self.after = after


class Caller:
    """Calls servers from one event loop.

    Args:
        replicas: the servers.
        retries: how patient to be.
        transport: sends.
    """

    def __init__(self, replicas: Sequence[Replica], retries: Retries, transport: Transport) -> None:
        self.replicas = list(replicas)
        self._retries = retries
        self._transport = transport
        self._closed = False

    async def close(self) -> None:
        """Break off what is under way, and close all connections."""
        self._closed = True
        tasks = [task for one in self.replicas for task in (one.check, one.question) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.close()

    async def call(
        self, request: Request, read: Callable[[Reply], T], at: Replica | None = None, *, attempts: int | None = None
    ) -> tuple[T, Replica]:
        """Have a server answer.

        Args:
            request: what to send.
            read: what the answer says; raises `GarbledError` for one that makes no sense, `CallError` for one that
                tells of a failure that another attempt would not mend, `ConfigError` for a mistake of the caller.
            at: the only server that will do; None: any.
            attempts: instead of the retries'.

        Returns:
            What `read` returned, and the server that answered.

        Raises:
            CallError: no server answered properly, or the time is up.
            ConfigError: the mistake is the caller's.
            SandboxError: the sandbox is closed.
        """
        limit = request.own + self._retries.patience
        state = _Progress()
        try:
            async with asyncio.timeout(limit):
                return await self._until_answered(request, read, at, attempts or self._retries.attempts, state)
        except TimeoutError:
            unknown = f"; {UNKNOWN}" if state.sending and not request.repeatable else ""
            last = f" (at last: {state.last})" if state.last else ""
            raise CallError(f"no server answered within {limit:g} s{last}{unknown}") from None

    async def kind(self, replica: Replica) -> ServerKind:
        """Which API a server has; asked once.

        Raises:
            CallError: it cannot be asked now.
            ConfigError: it is no sandbox server, or does not let us in.
        """
        try:
            async with asyncio.timeout(self._retries.connect_timeout * 2):
                return await self._kind(replica)
        except (_FailedError, _BusyError) as error:
            raise CallError(str(error), unreached=True) from None
        except TimeoutError:
            raise CallError(f"{replica.url} did not tell in time what it is", unreached=True) from None

    # ------------------------------------------------------------------ attempts

    async def _until_answered(
        self, request: Request, read: Callable[[Reply], T], at: Replica | None, attempts: int, state: _Progress
    ) -> tuple[T, Replica]:
        tried: set[Replica] = set()
        failures = refusals = 0
        reached = False
        while True:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            try:
                replica = at if at is not None else await self._pick(tried, request)
                tried.add(replica)
                found = await self._attempt(replica, request, read, state, sticky=at is not None)
            except _BusyError as error:
                state.last = str(error)
                refusals, reached = refusals + 1, True
                pause = 0.0 if at is None and self._has_room(tried) else self._retries.obeyed(error.after, refusals)
            except _FailedError as error:
                state.last = str(error)
                failures, reached = failures + 1, reached or error.sent
                if self._closed:
                    raise SandboxError("the sandbox was closed while this ran") from None
                if error.sent and not request.repeatable:
                    raise CallError(f"{error}; {UNKNOWN}") from None
                if failures >= attempts:
                    times = f" ({attempts} attempts)" if attempts > 1 else ""
                    raise CallError(f"{error}{times}", unreached=not reached) from None
                pause = self._retries.delay(failures)
                if error.after is not None and (at is not None or not self._has_room(tried)):
                    pause = max(pause, self._retries.obeyed(error.after, failures))
            else:
                return found, replica
            await asyncio.sleep(pause)

    async def _attempt(
        self, replica: Replica, request: Request, read: Callable[[Reply], T], state: _Progress, *, sticky: bool
    ) -> T:
        clock = asyncio.get_running_loop().time
        with replica.working():
            await self._kind(replica)
            state.sending = True
            try:
                limit = request.own + self._retries.attempt_margin
                reply = await self._exchange(replica, request, limit, replica.url + request.path)
            except (_BusyError, _FailedError):
                state.sending = False
                raise
            state.sending = False
        try:
            found = read(reply)
        except GarbledError as error:
            replica.failed(clock())
            raise _FailedError(f"{replica.url}: {error}", sent=True) from None
        except Exception:
            # One that fails at once does least, and would get every call; what a session cannot do is no such failure.
            if reply.status >= 500 and not sticky:
                replica.failed(clock())
            raise
        replica.answered()
        return found

    async def _exchange(self, replica: Replica, request: Request, limit: float, url: str) -> Reply:
        """One request and its answer; what went wrong counts against the server."""
        clock = asyncio.get_running_loop().time
        try:
            reply = await self._transport.exchange(request.method, url, request.body, limit, request.content_type)
        except NotSentError as error:
            replica.failed(clock())
            raise _FailedError(f"{replica.url} cannot be reached: {error}", sent=False) from None
        except BrokenError as error:
            replica.failed(clock())
            raise _FailedError(f"{replica.url} broke off: {error}", sent=True) from None
        after = retry_after(reply.headers.get("Retry-After"))
        if reply.status == 429:
            replica.busy_until = clock() + min(after or self._retries.first_delay, self._retries.max_retry_after)
            raise _BusyError(f"{replica.url} is full", after)
        if reply.status in (502, 503, 504):
            # One that says when to come back has not begun; a proxy that lost its server cannot say.
            replica.failed(clock())
            promised = reply.status == 503 and after is not None
            said = f"{replica.url} answered {reply.status}: {excerpt(reply.body)}"
            raise _FailedError(said, sent=not promised, after=after)
        if 300 <= reply.status < 400:
            where = reply.headers.get("Location", "nowhere")
            raise CallError(f"{replica.url} redirects to {where[:200]!r}: give the final address")
        return reply

    def _has_room(self, tried: set[Replica]) -> bool:
        """Whether another server could take the call at once."""
        now = asyncio.get_running_loop().time()
        return any(not one.out and one.busy_until <= now and one not in tried for one in self.replicas)

    # ------------------------------------------------------------------ servers

    async def _pick(self, tried: set[Replica], request: Request) -> Replica:
        """A server for a call. Those that failed come back when a health check finds them well."""
        now = asyncio.get_running_loop().time()
        able = self.replicas
        if request.for_session:
            able = [one for one in able if one.kind is not ServerKind.SANDBOXFUSION]
            if not able:
                raise CallError("SandboxFusion's API has no sessions")
        found = choose(able, now, tried, for_session=request.for_session)
        due = [one for one in able if one.out and one.check_after <= now]
        if found is not None:
            for one in due:
                self._begin_check(one)
            return found
        one = min(able, key=lambda one: one.check_after)
        await asyncio.wait({self._begin_check(one)})
        if one.out:
            raise _FailedError(f"{one.url} does not answer properly: {one.trouble}", sent=False)
        return one

    def _begin_check(self, replica: Replica) -> asyncio.Task[None]:
        """A health check; the one under way, if there is one. `close` ends it."""
        if replica.check is None or replica.check.done():
            replica.check = asyncio.create_task(self._check(replica))
        return replica.check

    async def _check(self, replica: Replica) -> None:
        """Put a server back into use if it answers. Whatever it says but that it fails will do."""
        try:
            reply = await self._transport.exchange("GET", replica.url + HEALTH, None, self._retries.connect_timeout)
            well = reply.status < 500
            replica.trouble = f"it answered {reply.status}: {excerpt(reply.body)}"
        except (NotSentError, BrokenError) as error:
            well, replica.trouble = False, str(error)
        if well:
            replica.out = False
        else:
            replica.check_after = 0.0
            replica.failed(asyncio.get_running_loop().time())

    async def _kind(self, replica: Replica) -> ServerKind:
        """As `kind`; however many calls want to know, the server is asked once."""
        if replica.kind is None:
            if replica.question is None or replica.question.done():
                replica.question = asyncio.create_task(self._ask_kind(replica))
                replica.question.add_done_callback(_seen)
            question = replica.question
            await asyncio.wait({question})
            if question.cancelled():
                raise _FailedError("the sandbox was closed", sent=False)
            replica.kind = question.result()
        return replica.kind

    async def _ask_kind(self, replica: Replica) -> ServerKind:
        request = Request("GET", DESCRIPTION)
        try:
            reply = await self._exchange(replica, request, self._retries.connect_timeout, replica.url + DESCRIPTION)
        except _FailedError as error:
            raise _FailedError(str(error), sent=False, after=error.after) from None  # the call itself was not sent
        if reply.status >= 500:
            replica.failed(asyncio.get_running_loop().time())
            raise _FailedError(f"{replica.url} answered {reply.status}: {excerpt(reply.body)}", sent=False)
        return read_kind(replica.url, reply)


def _seen(task: asyncio.Task[ServerKind]) -> None:
    """Whoever asked may be gone; then nobody looks at what went wrong."""
    if not task.cancelled():
        task.exception()


class _Progress:
    """How far a call has come, for the message when its time is up."""

    last = ""
    sending = False


def json_body(message: Mapping[str, Any]) -> bytes:
    """A request's body. Lone surrogates go as escapes, so that the server's Python can report them."""
    return json.dumps(message).encode()


def excerpt(body: bytes) -> str:
    """The beginning of an answer, for a message."""
    return body[:300].decode("utf-8", "replace").strip() or "nothing"
