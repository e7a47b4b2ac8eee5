"""Retries and refusals of the engines that speak HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from toolgym.tools.errors import ConfigError, EngineError, shorten
from toolgym.tools.http.retries import AttemptError, Retries, repeat

T = TypeVar("T")

RETRIES = Retries(attempts=4, max_delay=2.0)
"""How often a request is sent that its server refuses for the moment. The engines have deadlines of their own."""


class NotTakenError(AttemptError):
    """A server did not take a request, which may be sent again.

    Args:
        final: what to raise where no attempt is left.
        after: as in `AttemptError`.
        counts: as in `AttemptError`.
    """

    def __init__(self, final: ConfigError | EngineError, after: float | None = None, *, counts: bool = True) -> None:
        super().__init__(str(final), sent=False, after=after)
        self.final = final
        self.counts = counts


async def repeat_request(attempt: Callable[[], Awaitable[T]]) -> T:
    """Make attempts at a request as `RETRIES` says, until one succeeds.

    Raises:
        EngineError, ConfigError: the last attempt's `NotTakenError.final`, or what an attempt raised itself.
    """
    try:
        return await repeat(attempt, RETRIES, repeatable=True)
    except NotTakenError as error:
        raise error.final from None


def error_text(answer: Any) -> str:
    """Find the message in the decoded body of an error.

    Shapes seen, of SGLang and vLLM: `{"error": {"message": ...}}`, `{"error": "..."}`, `{"message": ...}`,
    `{"detail": ...}`.
    """
    if isinstance(answer, Mapping):
        for name in ("error", "message", "detail"):
            inner = answer.get(name)
            if isinstance(inner, Mapping):
                inner = inner.get("message")
            if inner:
                return str(inner)
    return shorten(answer)


def decoded(text: str) -> Any:
    """Return JSON as what it holds, and another text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def refusal(
    url: str, status: int, body: Any, *, name: str = "", of_content: bool = True, hint: str = ""
) -> ConfigError | EngineError:
    """Make the error of an answer that is not 200.

    Args:
        url: the endpoint.
        status: of the answer.
        body: of the answer, decoded.
        name: of the server in the error that the request's content is wrong; the url if empty.
        of_content: whether such a status as 400 means that the request's content is wrong.
        hint: what to do about 404.
    """
    message = error_text(body)
    if of_content and status in (400, 413, 422):
        return ConfigError(f"{name or url} refused the request: {message}")
    if status in (401, 403):
        hint = "Pass the server's api_key"
    elif status != 404:
        hint = ""
    return EngineError(f"{url} answered {status}: {message}" + (f". {hint}" if hint else ""))
