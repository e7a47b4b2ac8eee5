"""Server-sent events, and the marks in them by which an answer is found again in what the agent sends back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolgym.rollout.capture.agent_call import CallRefusedError, Reply, SampledToken

PIECE = 256
"""Characters of a text or of arguments in one event."""

COMMENT = b": alive\n\n"
"""An event of no kind, which clients do not see."""

_MARK = re.compile(r"(?:msg|rs|enc|sig)_(.+)", re.DOTALL)


def marked(value: Any) -> frozenset[str]:
    """The id of a reply in the id of a part of it, which is `KIND_ID`, as a set. Empty for no text."""
    if not isinstance(value, str) or not value:
        return frozenset()
    match = _MARK.fullmatch(value)
    return frozenset({match[1] if match else value})


def pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def event(data: Mapping[str, Any], kind: str = "") -> bytes:
    """An event with a JSON object. It is ASCII: some clients end a line at any line end of Unicode."""
    head = f"event: {kind}\n" if kind else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def token_logprobs(reply: Reply) -> list[dict[str, Any]]:
    """The log-probabilities of a turn's tokens, in OpenAI's shape. Alternatives are not known."""

    def entry(token: SampledToken) -> dict[str, Any]:
        utf8 = list(token.text.encode("utf-8", "replace"))
        return {"token": token.text, "logprob": token.logprob, "bytes": utf8, "top_logprobs": []}

    return [entry(token) for token in reply.tokens]


def error_body(error: CallRefusedError) -> dict[str, Any]:
    """An error in OpenAI's envelope."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}
