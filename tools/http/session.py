"""Pooled connections, and one exchange with a deadline that tells whether a failed one may have arrived."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from toolgym.tools.errors import ToolgymError

KEEPALIVE = 3.0
"""Seconds that an idle connection is kept: less than servers do (uvicorn 5, ours 75), so that a request seldom meets a
connection that is being closed."""

LONG_BODY = 256 * 1024
"""Bytes beyond which a body is sent in pieces, so that others are not held up."""

MAX_ANSWER = 256 * 1024 * 1024
"""Bytes of one answer, unless the session says something else."""


class NotSentError(ToolgymError):
    """The server was not reached: it has not seen the request."""


class BrokenError(ToolgymError):
    """There was no answer, or not all of it: the server may have carried the request out, or not."""


class OverdueError(BrokenError):
    pass


class HttpResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def new_session(token: str | None, max_connections: int = 0) -> aiohttp.ClientSession:
    """Return a pool of connections of the running event loop, which the caller closes. With 0 it has no limit of
    connections."""
    # Identity: an answer's size is then what travels, and no server can send a bomb that unpacks here.
    headers = {"Accept-Encoding": "identity"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=KEEPALIVE),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
    )


class HttpSession:
    """Exchanges whole requests for whole answers. Belongs to the event loop that it is made on."""

    def __init__(
        self, token: str | None, max_connections: int, connect_timeout: float, max_answer: int = MAX_ANSWER
    ) -> None:
        self._connect_timeout = connect_timeout
        self._max_answer = max_answer
        self._session = new_session(token, max_connections)

    async def exchange(
        self,
        method: str,
        url: str,
        body: bytes | None,
        limit: float,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request to a percent-encoded URL and read the answer whole, within `limit` seconds.

        Raises:
            NotSentError: the server was not reached.
            BrokenError: it was reached, and did not answer properly; `OverdueError` if the time was up.
        """
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=self._connect_timeout)
        headers = {**(headers or {}), **({"Content-Type": content_type} if body is not None else {})}
        # A long body is sent piece by piece, so that others are not held up.
        data = io.BytesIO(body) if body is not None and len(body) > LONG_BODY else body
        try:
            async with self._session.request(
                method, URL(url, encoded=True), data=data, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                parts = []
                size = 0
                while part := await response.content.readany():
                    parts.append(part)
                    size += len(part)
                    if size > self._max_answer:
                        raise BrokenError(f"the answer has more than {self._max_answer} bytes")
                return HttpResponse(response.status, response.headers, b"".join(parts))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise NotSentError(_text(error)) from None
        except TimeoutError:
            raise OverdueError(f"no answer within {limit:.3g} s") from None
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError, RuntimeError, zlib.error) as error:
            raise BrokenError(_text(error)) from None  # RuntimeError: the session was closed meanwhile

    async def close(self) -> None:
        await self._session.close()


def _text(error: BaseException) -> str:
    text = str(error)[:500]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
