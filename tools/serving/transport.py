"""HTTP with deadlines and limits: a client that is slow, or sends too much, cannot keep resources."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from toolgym.tools.errors import ToolgymError
from toolgym.tools.serving.admission import BusyError
from toolgym.tools.serving.config import ServingConfig
from toolgym.tools.serving.json_bodies import encode

LINGER = 2.0
"""Seconds that the rest of a refused body is read: a client may read the answer only after sending the body."""

MIB = 1024 * 1024
_log = logging.getLogger("toolgym.tools.serving.http")


def _is_ours(record: logging.LogRecord) -> bool:
    """Keep out lines about clients that disconnect or send no HTTP, and about connections cut at the end of a drain."""
    error = record.exc_info[1] if record.exc_info else None
    expected = ConnectionError | web.RequestPayloadError | aiohttp.http.HttpProcessingError | asyncio.InvalidStateError
    return not isinstance(error, expected)


_log.addFilter(_is_ours)


class RequestRefusedError(ToolgymError):
    """A request is answered with an error. Its `reason` is a word for clients."""

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, *, reason: str | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = dict(headers or {})
        self.body = {"detail": detail} | ({"reason": reason} if reason else {})


def answer(message: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    content_type = {"Content-Type": "application/json"}
    return web.Response(
        body=encode(message), status=status, headers=content_type | dict(headers) if headers else content_type
    )


class Listener(web.Server):
    """An HTTP server that closes connections which send no request in time; `internal`: for the other workers. With
    `unpacks=False`, a compressed body stays as it came.

    The handler is cancelled when the client goes away.
    """

    def __init__(
        self,
        handler: Callable[[Listener, web.BaseRequest], Awaitable[web.StreamResponse]],
        config: ServingConfig,
        *,
        internal: bool,
        unpacks: bool = True,
    ) -> None:
        super().__init__(
            functools.partial(handler, self),
            handler_cancellation=True,
            auto_decompress=unpacks,
            access_log=None,
            logger=_log,
            keepalive_timeout=config.keepalive_timeout,
            lingering_time=LINGER,
        )
        self.internal = internal
        self._max_connections = config.max_connections
        self._head_timeout = config.read_timeout
        self._expected: dict[RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) > self._max_connections:
            transport.abort()
            return
        # Writing then waits until the client has read everything, and so the deadline for writing holds for the client.
        transport.set_write_buffer_limits(0)
        loop = asyncio.get_running_loop()
        self._expected[handler] = loop.call_later(self._head_timeout, transport.abort)

    def connection_lost(self, handler: RequestHandler, error: BaseException | None = None) -> None:
        self.head_arrived(handler)
        super().connection_lost(handler, error)

    def head_arrived(self, handler: RequestHandler) -> None:
        """Stop the timer of the first head. Later heads are under the deadline of idle connections."""
        timer = self._expected.pop(handler, None)
        if timer is not None:
            timer.cancel()


class Bodies:
    """Receives bodies, each within a deadline and a size, and all of them together within a size."""

    def __init__(self, config: ServingConfig) -> None:
        self._limit = int(config.body_limit_mb * MIB)
        self._total_limit = int(config.bodies_limit_mb * MIB)
        self._timeout = config.read_timeout
        self._held = 0

    async def receive(self, request: web.BaseRequest) -> bytes:
        """Return a request's body, which counts as held until `release`.

        Raises RequestRefusedError if it is too long (413), comes too slowly (408) or breaks HTTP (400), and BusyError
        if there is no memory for it now.
        """
        length = request.content_length
        if length is not None and length > self._limit:
            raise self._too_long()
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts: list[bytes] = []
        size = 0
        try:
            whole = request.content.is_eof()  # as most are that came with the head
            async with contextlib.nullcontext() if whole else asyncio.timeout(self._timeout):
                while part := await request.content.readany():
                    parts.append(part)
                    size += len(part)
                    self._held += len(part)
                    if size > self._limit:
                        raise self._too_long()
                    if self._held > self._total_limit:
                        raise BusyError("the server holds as many bytes of requests as it may", 1)
        except BaseException as error:
            self._held -= size
            if isinstance(error, TimeoutError):
                raise RequestRefusedError(
                    408, f"the body did not come within {self._timeout:g} s", {"Connection": "close"}
                ) from None
            if isinstance(
                error, web.RequestPayloadError | aiohttp.ClientPayloadError | aiohttp.http.HttpProcessingError
            ):
                raise RequestRefusedError(400, "the body is garbled", {"Connection": "close"}) from None
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self, body: bytes) -> None:
        self._held -= len(body)

    def _too_long(self) -> RequestRefusedError:
        return RequestRefusedError(413, f"a body has at most {self._limit / MIB:g} MiB here", {"Connection": "close"})


async def send(request: web.BaseRequest, response: web.Response, timeout: float) -> None:
    """Send an answer; cut the connection to a client that does not take it in time. Raises ConnectionError."""
    try:
        await within(timeout, _whole(request, response))
    except ConnectionError:
        if request.transport is not None:
            request.transport.abort()
        raise


async def _whole(request: web.BaseRequest, response: web.Response) -> None:
    await response.prepare(request)
    await response.write_eof()


async def within(seconds: float, writing: Coroutine[Any, Any, Any]) -> None:
    """Await a write to a client. Raises ConnectionError if that is gone, or does not read."""
    try:
        async with asyncio.timeout(seconds):
            await writing
    except TimeoutError:
        raise ConnectionResetError("the client did not read its answer in time") from None


class Token:
    """The secret that clients must show, unless it is None.

    The header `key_header` may hold it without `Bearer`, instead of `Authorization: Bearer ...`.
    """

    def __init__(self, secret: str | None, key_header: str | None = None) -> None:
        self._expected = f"Bearer {secret}".encode() if secret is not None else None
        self._key_header = key_header

    def check(self, request: web.BaseRequest) -> None:
        """Raise RequestRefusedError (401) for a client without it. Takes the same time for every client."""
        if self._expected is None:
            return
        shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not shown and self._key_header is not None:
            shown = b"Bearer " + request.headers.get(self._key_header, "").encode("utf-8", "surrogateescape")
        scheme, _, secret = shown.partition(b" ")
        if not hmac.compare_digest(b"Bearer " + secret.strip(), self._expected) or scheme.lower() != b"bearer":
            raise RequestRefusedError(401, "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})
