"""The HTTP side of `OpenAICompatible`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aiohttp

from toolgym.rollout.engines.http import NotTakenError, decoded, refusal, repeat_request
from toolgym.rollout.engines.openai.messages import Answer, EventReader
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError, shorten
from toolgym.tools.http.retries import retry_after
from toolgym.tools.http.session import new_session

DRAIN_DEADLINE = 1.0
"""Seconds that a server gets to end an answer after its last event."""


class CompletionsClient:
    def __init__(self, url: str, api_key: str | None, connect_timeout: float, control_timeout: float) -> None:
        self.url = url
        self._api_key = api_key
        self._connect_timeout, self._control_timeout = connect_timeout, control_timeout
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Make the session, which belongs to the running event loop."""
        self._session = new_session(self._api_key)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def complete(
        self,
        body: dict[str, Any],
        answer: Answer,
        *,
        headers: dict[str, str] | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Send a request until the server takes it, and read the answer to its end. Cancelling closes the
        connection."""
        await repeat_request(lambda: self._send(body, answer, headers or {}, progress))

    async def _send(
        self, body: dict[str, Any], answer: Answer, headers: dict[str, str], progress: Callable[[], None]
    ) -> None:
        assert self._session is not None
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout)
        url = f"{self.url}/v1/completions"
        try:
            with self._answering(url, answer.token_ids):
                async with self._session.post(url, json=body, headers=headers, timeout=limit) as response:
                    if response.status == 200:
                        await self._read(response, answer, progress)
                        return
                    refused = _refusal(url, response.status, await response.text(errors="replace"))
                    named = response.headers.get("Retry-After")
                    if response.status in (429, 503) and named is not None:
                        raise NotTakenError(refused, retry_after(named))
                    raise refused
        except EngineUnavailableError as error:
            raise NotTakenError(error) from error

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer, progress: Callable[[], None]) -> None:
        reader = EventReader()
        drained = False
        try:
            async for chunk in response.content.iter_any():
                for event in reader.feed(chunk):
                    answer.take(event)
                progress()
                if reader.done:
                    break
            if reader.done:
                drained = await _drain(response)
            elif answer.finish is None and "event-stream" not in response.headers.get("Content-Type", ""):
                raise EngineError(
                    f"{self.url} must stream its answer (stream: true), it answered with "
                    f"{response.headers.get('Content-Type') or 'no content'}"
                )
        finally:
            if not drained:
                response.close()  # the server must stop generating, and the connection is not reused

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        assert self._session is not None
        limit = aiohttp.ClientTimeout(total=self._control_timeout, sock_connect=self._connect_timeout)
        method, url = "GET" if body is None else "POST", f"{self.url}{path}"
        with self._answering(url):
            async with self._session.request(method, url, json=body, timeout=limit) as response:
                text = await response.text(errors="replace")
        if response.status != 200:
            raise _refusal(url, response.status, text)
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineError(f"{url} must answer with JSON, got {shorten(text)!r}") from error

    @contextlib.contextmanager
    def _answering(self, url: str, token_ids: Sequence[int] = ()) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EngineUnavailableError(
                f"nothing answers at {self.url} ({error}). Start a server there (vllm serve MODEL, or python -m "
                "sglang.launch_server --model-path MODEL), wait until it is ready, or correct the url"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            got = f" after {len(token_ids)} tokens" if token_ids else ""
            raise EngineError(f"{url} broke off{got}: {type(error).__name__}: {error}") from error


async def _drain(response: aiohttp.ClientResponse) -> bool:
    """Read behind the last event, so that the connection can be used again. Returns whether it can."""
    try:
        async with asyncio.timeout(DRAIN_DEADLINE):
            await response.content.read()
    except TimeoutError:
        return False
    return True


def _refusal(url: str, status: int, text: str) -> ConfigError | EngineError:
    return refusal(url, status, decoded(text), hint="The url must be that of a server with /v1/completions")
