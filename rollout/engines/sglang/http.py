"""One address over HTTP: sends to an SGLang server or router, and says what went wrong on the way."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp

from toolgym.rollout.engines.http import error_text
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError
from toolgym.tools.http.addresses import is_address
from toolgym.tools.http.retries import retry_pause

LARGE_PROMPT = 50_000
"""Tokens of a prompt from which its request is sent in pieces."""


class ServerLostError(EngineUnavailableError):
    """An address does not answer, or stopped answering.

    Attributes:
        sent: whether the request may have reached it.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class WorkerLostError(ServerLostError):
    """A router answered that its worker did not."""


class NoAnswerError(EngineError):
    """An address took a request and gave no answer in time."""


class HttpReply(NamedTuple):
    """One answer: its status, its decoded body (JSON or text), and its headers with lower-case names."""

    status: int
    body: Any
    headers: Mapping[str, str]


def check_url(url: str) -> str:
    """Return a usable url without its final slash.

    Raises:
        ConfigError: it is not the address of an HTTP server.
    """
    if not is_address(url):
        raise ConfigError(f"the url of an SGLang server must look like http://host:30000, got {url!r}")
    return url.rstrip("/")


class HttpAddress:
    """Sends requests to one address.

    Args:
        url: as `check_url` returns it.
        connect_timeout: seconds to connect.
    """

    def __init__(self, url: str, connect_timeout: float) -> None:
        self.url = url
        self._connect_timeout = connect_timeout
        self._session: aiohttp.ClientSession | None = None

    def open(self, session: aiohttp.ClientSession | None) -> None:
        """Use these connections from here on; None takes them away."""
        self._session = session

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """Send one request and wait for its whole answer.

        Raises:
            ServerLostError: nothing answers there, or the connection broke off.
            NoAnswerError: there was no answer within `timeout` seconds.
            EngineError: a generation was answered with something that is not JSON.
        """
        if self._session is None:
            raise EngineError("the engine was not started: await engine.start() first")
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=self._connect_timeout)
        sent: dict[str, Any] = {"json": body}
        if body is not None and _is_large(body):  # encoded in a thread and sent in pieces: the loop goes on meanwhile
            sent = {"data": io.BytesIO(await asyncio.to_thread(lambda: json.dumps(body).encode()))}
            headers = {"Content-Type": "application/json", **(headers or {})}
        try:
            async with self._session.request(
                method, f"{self.url}{path}", timeout=limit, headers=headers, **sent
            ) as response:
                text = await response.text(errors="replace")
                status = response.status
                answered = {name.lower(): value for name, value in response.headers.items()}
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ServerLostError(
                f"nothing answers at {self.url} ({error}). Start a server there with: python -m sglang.launch_server "
                f"--model-path MODEL --host HOST --port PORT, wait until it is ready, or correct the url",
                sent=False,
            ) from error
        except TimeoutError as error:
            raise NoAnswerError(f"{self.url}{path} gave no answer within {timeout:g} seconds") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerLostError(f"{self.url}{path} broke off: {type(error).__name__}: {error}", sent=True) from error
        try:
            return HttpReply(status, json.loads(text) if text else None, answered)
        except ValueError as error:
            if status == 200 and path == "/generate":
                raise EngineError(f"{self.url}{path} must answer with JSON, got {text[:200]!r}") from error
            return HttpReply(status, text, answered)


def _is_large(body: Mapping[str, Any]) -> bool:
    return len(body.get("serialized_named_tensors", ())) > 0 or len(body.get("input_ids", ())) > LARGE_PROMPT


def refusal(name: str, path: str, status: int, body: Any) -> ConfigError | EngineError:
    """The error for an answer that is not 200."""
    text = error_text(body)
    if path == "/generate" and status == 400:
        return ConfigError(f"SGLang refused the request: {text}")
    if status in (401, 403):
        return EngineError(f"{name}{path} answered {status}: {text}. Pass the server's api_key")
    return EngineError(f"{name}{path} answered {status}: {text}")


def retry_delay(reply: HttpReply, delay: float) -> float | None:
    """Return the seconds after which the same request may be sent again; None when it may not."""
    if reply.status not in (429, 503):
        return None
    named = reply.headers.get("retry-after")
    if named is None:
        # SGLang sends no Retry-After. Its other 503s (a running request timed out) would only do the same again.
        return delay if "queue is full" in error_text(reply.body) else None
    return retry_pause(named, delay)
