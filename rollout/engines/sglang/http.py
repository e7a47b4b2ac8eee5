"""One SGLang server or router over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from toolgym.rollout.engines.http import decoded, error_text
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError
from toolgym.tools.http.addresses import is_address
from toolgym.tools.http.client import json_body
from toolgym.tools.http.replicas import Replica
from toolgym.tools.http.retries import AttemptError
from toolgym.tools.http.session import BrokenError, HttpSession, NotSentError, OverdueError

LARGE_PROMPT = 50_000
"""A prompt of this many tokens or more is encoded in a thread."""


class ServerLostError(AttemptError, EngineUnavailableError):
    """A server does not answer, or stopped answering. Another one can take over: this uses up no attempt."""

    counts = False


class NoAnswerError(EngineError):
    pass


class HttpReply(NamedTuple):
    status: int
    body: Any
    headers: Mapping[str, str]


def check_url(url: str) -> str:
    if not is_address(url):
        raise ConfigError(f"the url of an SGLang server must look like http://host:30000, got {url!r}")
    return url.rstrip("/")


class SGLangReplica(Replica):
    def __init__(self, url: str, session: HttpSession) -> None:
        super().__init__(url)
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
        """Send one request and wait for its whole answer. Raises `ServerLostError` if another server can take over,
        and `NoAnswerError` after `timeout` seconds."""
        encoded = None
        if body is not None:  # a large one is encoded in a thread, so that the event loop goes on
            large = "serialized_named_tensors" in body or len(body.get("input_ids", ())) > LARGE_PROMPT
            encoded = await in_thread(json_body, body) if large else json_body(body)
        try:
            reply = await self._session.exchange(method, f"{self.url}{path}", encoded, timeout, headers=headers)
        except NotSentError as error:
            raise ServerLostError(
                f"nothing answers at {self.url} ({error}). Start a server there with: python -m sglang.launch_server "
                f"--model-path MODEL --host HOST --port PORT, wait until it is ready, or correct the url",
                sent=False,
            ) from error
        except OverdueError as error:
            raise NoAnswerError(f"{self.url}{path} gave no answer within {timeout:g} seconds") from error
        except BrokenError as error:
            raise ServerLostError(f"{self.url}{path} broke off: {error}", sent=True) from error
        answer = decoded(reply.body.decode("utf-8", "replace")) or None
        if isinstance(answer, str) and reply.status == 200 and path == "/generate":
            raise EngineError(f"{self.url}{path} must answer with JSON, got {answer[:200]!r}")
        return HttpReply(reply.status, answer, reply.headers)


def is_overloaded(reply: HttpReply) -> bool:
    if reply.status not in (429, 503):
        return False
    # SGLang sends no Retry-After. Its other 503s (a running request timed out) would only do the same again.
    return "Retry-After" in reply.headers or "queue is full" in error_text(reply.body)
