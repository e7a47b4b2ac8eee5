"""One call from beginning to end: choose a server, send, repeat where that is safe, give up in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from toolgym.tools.errors import ConfigError, ToolgymError
from toolgym.tools.http.replicas import R, Replica, ReplicaPool, ReplicaState, least_loaded
from toolgym.tools.http.retries import AttemptError, FullError, Retries, repeat, retry_after
from toolgym.tools.http.session import BrokenError, HttpResponse, HttpSession, NotSentError

T = TypeVar("T")

UNKNOWN = "unknown outcome: it may have run, wholly or in part, and is not sent again"


class CallError(ToolgymError):
    """A call failed, and what was called for is not to blame. No server was reached in any attempt, if `unreached`; the
    time was up while the servers were full, if `busy`. The message names hosts."""

    def __init__(self, message: str, *, unreached: bool = False, busy: bool = False) -> None:
        super().__init__(message)
        self.unreached = unreached
        self.busy = busy


class GarbledError(ToolgymError):
    pass


class ClientClosedError(ToolgymError):
    pass


class HttpRequest(NamedTuple):
    """A request to any of the servers: `path` is percent-encoded, `timeout` is the seconds that the work itself may
    take, and a `repeatable` request may be sent again though it may have been carried out."""

    method: str
    path: str
    body: bytes | None = None
    timeout: float = 0.0
    repeatable: bool = True
    content_type: str = "application/json"


class HttpClient(Generic[R]):
    """Calls equal servers from one event loop. They answer `health_path` below 500 when they are well, without being
    asked for a token. `prepare` is awaited with a server before each attempt, and raises as an attempt may."""

    def __init__(
        self,
        replicas: Sequence[R],
        retries: Retries,
        session: HttpSession,
        *,
        health_path: str,
        prepare: Callable[[R], Awaitable[object]] | None = None,
    ) -> None:
        self.pool: ReplicaPool[R] = ReplicaPool(replicas, self._probe)
        self._retries = retries
        self._session = session
        self._health_path = health_path
        self._prepare = prepare
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        await self.pool.close()
        await self._session.close()

    async def call(
        self,
        request: HttpRequest,
        read: Callable[[HttpResponse], T],
        at: R | None = None,
        *,
        attempts: int | None = None,
        among: Callable[[], Sequence[R]] | None = None,
        load: Callable[[R], tuple[Any, ...]] = least_loaded,
    ) -> tuple[T, R]:
        """Return what `read` makes of a server's answer, and the server; `at` is the only one that will do.

        `read` raises `GarbledError` for an answer that is worth another attempt; what else it raises ends the call.
        `among` returns the servers that would do, asked before each attempt, and `load` orders them. Raises `CallError`
        if no server answered properly, or the time is up.
        """
        tried: set[R] = set()
        progress = _Progress()

        async def attempt() -> tuple[T, R]:
            if self._closed:
                raise ClientClosedError("the client is closed")
            try:
                able = among() if among is not None else None
                replica = at if at is not None else await self.pool.take(among=able, tried=tried, load=load)
                tried.add(replica)
                return await self._attempt(replica, request, read, progress, sticky=at is not None), replica
            except AttemptError as error:
                progress.last, progress.full = str(error), isinstance(error, FullError)
                progress.reached |= error.sent or isinstance(error, FullError)
                if self._closed:
                    raise ClientClosedError("the client was closed during the call") from None
                raise

        limit = request.timeout + self._retries.patience
        most = attempts or self._retries.attempts
        try:
            async with asyncio.timeout(limit):
                return await repeat(
                    attempt,
                    self._retries,
                    repeatable=request.repeatable,
                    attempts=most,
                    elsewhere=lambda: at is None and self.pool.has_room(tried),
                )
        except AttemptError as error:
            if error.sent and not request.repeatable:
                raise CallError(f"{error}; {UNKNOWN}") from None
            times = f" ({most} attempts)" if most > 1 else ""
            raise CallError(f"{error}{times}", unreached=not progress.reached) from None
        except TimeoutError:
            unknown = f"; {UNKNOWN}" if progress.sending and not request.repeatable else ""
            last = f" (at last: {progress.last})" if progress.last else ""
            unreached = not (progress.reached or progress.sending or progress.full)
            message = f"no server answered within {limit:g} s{last}{unknown}"
            raise CallError(message, unreached=unreached, busy=progress.full) from None

    async def exchange(self, replica: R, request: HttpRequest, limit: float) -> HttpResponse:
        """Send a request once, within `limit` seconds. A failure counts against the server."""
        url = replica.url + request.path
        try:
            reply = await self._session.exchange(request.method, url, request.body, limit, request.content_type)
        except NotSentError as error:
            replica.failed(str(error))
            raise AttemptError(f"{replica.url} cannot be reached: {error}", sent=False) from None
        except BrokenError as error:
            replica.failed(str(error))
            raise AttemptError(f"{replica.url} broke off: {error}", sent=True) from None
        after = retry_after(reply.headers.get("Retry-After"))
        if reply.status == 429:
            replica.full(min(after or self._retries.first_delay, self._retries.max_retry_after))
            raise FullError(f"{replica.url} is full", after)
        if reply.status in (502, 503, 504):
            # One that says when to come back has not begun; a proxy that lost its server cannot say.
            promised = reply.status == 503 and after is not None
            answered = f"{replica.url} answered {reply.status}: {excerpt(reply.body)}"
            replica.failed(answered)
            raise AttemptError(answered, sent=not promised, after=after)
        if 300 <= reply.status < 400:
            where = reply.headers.get("Location", "nowhere")
            raise CallError(f"{replica.url} redirects to {where[:200]!r}: give the final address")
        return reply

    async def _attempt(
        self, replica: R, request: HttpRequest, read: Callable[[HttpResponse], T], progress: _Progress, *, sticky: bool
    ) -> T:
        with replica.working():
            if self._prepare is not None:
                await self._prepare(replica)
            progress.sending = True
            try:
                reply = await self.exchange(replica, request, request.timeout + self._retries.attempt_margin)
            except AttemptError:
                progress.sending = False
                raise
            progress.sending = False
        try:
            value = read(reply)
        except GarbledError as error:
            replica.failed(str(error))
            raise AttemptError(f"{replica.url}: {error}", sent=True) from None
        except Exception as error:
            # A server that fails at once has the least load and would get every call. A pinned call is different: what
            # a session cannot do says nothing about its server.
            if reply.status >= 500 and not sticky:
                replica.failed(str(error))
            raise
        replica.answered()
        return value

    async def _probe(self, replica: R) -> ReplicaState:
        try:
            url = replica.url + self._health_path
            reply = await self._session.exchange("GET", url, None, self._retries.connect_timeout)
        except (NotSentError, BrokenError) as error:
            raise AttemptError(str(error), sent=False) from None
        if reply.status >= 500:
            raise AttemptError(f"it answered {reply.status}: {excerpt(reply.body)}", sent=False)
        return ReplicaState.HEALTHY


class LazyClient:
    """Gives an object (`owner`, which errors name) its `HttpClient`, so that it can be made without an event loop."""

    def __init__(
        self,
        owner: object,
        urls: Sequence[str],
        retries: Retries,
        *,
        token: str | None,
        max_connections: int,
        max_answer: int,
        health_path: str,
    ) -> None:
        self._owner, self._urls, self._retries = owner, urls, retries
        self._token, self._max_connections, self._max_answer = token, max_connections, max_answer
        self._health_path = health_path
        self._client: HttpClient[Replica] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def connected(self) -> HttpClient[Replica]:
        here = asyncio.get_running_loop()
        if self._closed:
            raise ClientClosedError(f"{self._owner!r} is closed")
        if self._client is None or self._loop is None or self._loop.is_closed():
            session = HttpSession(self._token, self._max_connections, self._retries.connect_timeout, self._max_answer)
            replicas = [Replica(url) for url in self._urls]
            self._client = HttpClient(replicas, self._retries, session, health_path=self._health_path)
            self._loop = here
        if self._loop is not here:
            raise ConfigError(f"{self._owner!r} belongs to another event loop: make one for each")
        return self._client

    async def close(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()


class _Progress:
    last = ""
    full = False
    sending = False
    reached = False


def json_body(message: Mapping[str, Any]) -> bytes:
    """Return a request's body. Lone surrogates go as escapes, so that a Python server can report them."""
    return json.dumps(message).encode()


def excerpt(body: bytes) -> str:
    return body[:300].decode("utf-8", "replace").strip() or "nothing"
