"""What the engines that speak HTTP share: how often a request is sent again, and the text of an error's body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from toolgym.tools.errors import ConfigError, EngineError, shorten
from toolgym.tools.http.retries import AttemptError, Retries, repeat

T = TypeVar("T")

RETRIES = Retries(attempts=4, max_delay=2.0)
"""How often a request is sent that its server refuses for the moment. The engines have deadlines of their own."""


class RefusedError(AttemptError):
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
        EngineError, ConfigError: the last attempt's `RefusedError.final`, or what an attempt raised itself.
    """
    try:
        return await repeat(attempt, RETRIES, repeatable=True)
    except RefusedError as error:
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
