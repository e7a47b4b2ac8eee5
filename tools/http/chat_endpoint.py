"""`ChatEndpoint`: a text from a model behind an OpenAI-compatible chat address, for judges and simulated users."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.errors import ConfigError, check_seconds, require_whole_number
from toolgym.tools.http.addresses import check_address, check_addresses
from toolgym.tools.http.client import GarbledError, HttpRequest, LazyClient, excerpt, json_body
from toolgym.tools.http.retries import Retries
from toolgym.tools.http.session import HttpResponse
from toolgym.tools.message import Message, visible_text

MAX_REPLY = 4 * 1024 * 1024
"""Bytes of one reply."""

_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|max_model_len|maximum (?:model |sequence |input )?length|too (?:long|large)"
    r"|(?:input|prompt|tokens?)\b[^.]{0,80}\b(?:exceeds?|longer than|must be <=)",
    re.IGNORECASE,
)
"""What servers say of a prompt that is too long: OpenAI, vLLM, SGLang, TGI, llama.cpp, Anthropic and Gemini."""


class PromptTooLongError(ConfigError):
    """A chat server refused a request because its messages are too long for the model."""


class ChatReply(NamedTuple):
    """A message of a model behind a chat address.

    Attributes:
        text: the message without its thinking.
        thinking: the thinking, from the text or from a field of its own; empty if there is none.
        is_cut: whether the message reached the limit of its length (`finish_reason` is `length`).
    """

    text: str
    thinking: str
    is_cut: bool


class ChatEndpoint(AsyncCloseable):
    """Asks a model behind an OpenAI-compatible chat address for a text; for the event loop that first uses it.

    The addresses are those that an OpenAI client would be given, with `/v1`, of equal servers. `request` has further
    fields of each request, such as `max_tokens`; the temperature is 0 unless it stands there. `timeout` is the seconds
    for one attempt, `patience` those for one call with all its attempts.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        model: str,
        *,
        token: str | None = None,
        request: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
        patience: float = 100.0,
        max_connections: int = 120,
    ) -> None:
        self.urls = check_addresses(urls, "a chat endpoint", lambda url: check_address(url, "a chat server"))
        if not isinstance(model, str) or not model:
            raise ConfigError(f"a chat endpoint needs the model's name, got {model!r}")
        if not isinstance(request, Mapping | None):
            raise ConfigError(f"request must map fields of a chat request to values, got {request!r}")
        check_seconds(timeout=timeout, patience=patience)
        require_whole_number("max_connections", max_connections, at_least=1)
        self.timeout = timeout
        self._body = {"temperature": 0.0, **(request or {}), "model": model}
        # A health check asks the list of models, which every such server has.
        self._client = LazyClient(
            self,
            self.urls,
            Retries(attempt_margin=timeout, patience=patience),
            token=token,
            max_connections=max_connections,
            max_answer=MAX_REPLY,
            health_path="/models",
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._body['model']} at {', '.join(self.urls)}>"

    async def ask(self, messages: Sequence[Message]) -> ChatReply:
        """Return the model's next message.

        Raises:
            PromptTooLongError: a server refused the messages because they are too long for the model.
            ConfigError: a server refused the request for another reason.
            CallError: no server returned a completion in time.
            ClientClosedError: the endpoint is closed.
        """
        sent = [{name: value for name, value in message.items() if name != "reasoning_content"} for message in messages]
        body = json_body({**self._body, "messages": sent})
        reply, _ = await self._client.connected().call(HttpRequest("POST", "/chat/completions", body), _read)
        return reply

    async def close(self) -> None:
        await self._client.close()


def _read(reply: HttpResponse) -> ChatReply:
    if reply.status >= 500:
        raise GarbledError(f"it answered {reply.status}: {excerpt(reply.body)}")  # it may be better the next time
    if reply.status != 200:
        error = PromptTooLongError if _is_too_long(reply) else ConfigError
        raise error(f"the chat server refused the request with {reply.status}: {excerpt(reply.body)}")
    try:
        choice = json.loads(reply.body)["choices"][0]
        message = choice["message"]
        content = message["content"]
        thinking = message.get("reasoning_content") or message.get("reasoning") or ""
    except (ValueError, LookupError, TypeError, AttributeError):
        raise GarbledError(f"expected a chat completion, got {excerpt(reply.body)}") from None
    if not isinstance(content, str | None):
        raise GarbledError(f"expected a text as the content of a message, got {excerpt(reply.body)}")
    text = visible_text(content or "")
    if text != (content or ""):
        thinking = content
    return ChatReply(text, thinking if isinstance(thinking, str) else "", choice.get("finish_reason") == "length")


def _is_too_long(reply: HttpResponse) -> bool:
    if reply.status == 413:
        return True
    return reply.status in (400, 422) and _TOO_LONG.search(excerpt(reply.body)) is not None
