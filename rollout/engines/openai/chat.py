"""`ChatClient`: messages in, a turn with its tool calls out, over `/v1/chat/completions`.

No token passes here: it is for servers that keep the tokens themselves, as the gateways of trainers do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolgym.rollout.engines.http import NotTakenError, decoded, error_text, refusal, repeat_request
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError, shorten
from toolgym.tools.http.addresses import check_address
from toolgym.tools.http.retries import retry_after
from toolgym.tools.http.session import BrokenError, HttpResponse, HttpSession, NotSentError
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError

CONNECT_TIMEOUT = 5.0

KEPT = ("role", "content", "reasoning_content", "reasoning", "tool_calls", "refusal")
"""Parts of a server's message that go back to it; `null` stands for what it left out."""


class ContextFullError(EngineError):
    pass


class ChatTurn(NamedTuple):
    """One turn of the model: its message, to be sent back unchanged, the action for the env, and the server's finish
    reason."""

    message: dict[str, Any]
    action: ParsedTurn
    finish_reason: str


class ChatClient:
    """Asks one server. `close` ends what is under way, and leaves a client that was given open. `base_url` is the
    address that an OpenAI client would be given: with `/v1`, or with whatever path a gateway has. `http_client` is
    an `httpx.AsyncClient`, or one like it, to send with. A request is sent again only if it is safe, at most 4
    times: when the server was not reached, and when it says 429, or 503 with `Retry-After`. A 429 with
    `Retry-After`, as gateways answer while weights change, does not count: the caller's deadline bounds it."""

    def __init__(self, base_url: str, api_key: str | None = None, http_client: Any = None) -> None:
        self.url = f"{check_address(base_url, 'a chat server')}/chat/completions"
        if http_client is not None and not callable(getattr(http_client, "post", None)):
            raise ConfigError(f"http_client must be an httpx.AsyncClient or one like it, got {http_client!r}")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._theirs = http_client
        self._session = HttpSession(None, 0, CONNECT_TIMEOUT) if http_client is None else None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def turn(self, body: Mapping[str, Any], limit: float) -> ChatTurn:
        """Have the model say its next turn.

        Raises:
            ConfigError: the server refused the request's content.
            ContextFullError: the conversation is too long for the model.
            EngineUnavailableError: nothing answers.
            EngineError: it answered something else, or broke off.
        """
        sent = json.dumps(body).encode()
        return await repeat_request(lambda: self._send(sent, limit))

    async def _send(self, body: bytes, limit: float) -> ChatTurn:
        try:
            reply = await self._exchange(body, limit)
        except NotSentError as error:
            raise NotTakenError(EngineUnavailableError(f"nothing answers at {self.url} ({error})")) from error
        except BrokenError as error:
            raise EngineError(f"{self.url} broke off: {error}") from error
        answer = decoded(reply.body.decode("utf-8", "replace"))
        if reply.status == 200:
            return self._read(answer)
        refused = refusal(self.url, reply.status, answer)
        if isinstance(refused, ConfigError) and _is_too_long(answer):
            refused = ContextFullError(f"{self.url} answered {reply.status}: {error_text(answer)}")
        after = retry_after(reply.headers.get("Retry-After"))
        if reply.status == 429 or (reply.status == 503 and after is not None):
            raise NotTakenError(refused, after, counts=reply.status != 429 or after is None)
        raise refused

    async def _exchange(self, body: bytes, limit: float) -> HttpResponse:
        if self._session is not None:
            return await self._session.exchange("POST", self.url, body, limit, headers=self._headers)
        headers = {**self._headers, "Content-Type": "application/json"}
        try:
            response = await self._theirs.post(self.url, content=body, headers=headers, timeout=limit)
        except Exception as error:
            # The names of httpx, which is not imported for their sake.
            failed = NotSentError if type(error).__name__ in ("ConnectError", "ConnectTimeout") else BrokenError
            raise failed(f"{type(error).__name__}: {error}") from error
        return HttpResponse(response.status_code, response.headers, response.content)

    def _read(self, answer: Any) -> ChatTurn:
        try:
            choice = answer["choices"][0]
            reply = choice["message"]
            reason = str(choice.get("finish_reason") or "stop")
            content = reply.get("content") or ""
            calls = reply.get("tool_calls") or []
        except (AttributeError, IndexError, KeyError, TypeError):
            raise EngineError(f"{self.url} must answer with a chat completion, got {shorten(answer)!r}") from None
        if not isinstance(content, str) or not isinstance(calls, list):
            raise EngineError(f"{self.url} must answer with a text and a list of calls, got {shorten(repr(reply))}")
        message = {key: reply[key] for key in KEPT if reply.get(key) is not None}
        message = {"role": "assistant", "content": reply.get("content"), **message}
        return ChatTurn(message, self._action(content, calls, reply), reason)

    def _action(self, content: str, calls: Sequence[Any], reply: Mapping[str, Any]) -> ParsedTurn:
        requests = [self._call(index, call) for index, call in enumerate(calls)]
        reasoning = reply.get("reasoning_content") or reply.get("reasoning")
        return ParsedTurn(
            content,
            content,
            [request for request in requests if isinstance(request, ToolCall)],
            [request for request in requests if isinstance(request, ToolCallError)],
            reasoning if isinstance(reasoning, str) else None,
        )

    def _call(self, index: int, call: Any) -> ToolCall | ToolCallError:
        """One of a turn's calls. Their shape is the server's doing; the name and the arguments are the model's."""
        try:
            function = call["function"]
            call_id, name, written = str(call["id"]), str(function["name"]), function.get("arguments")
        except (AttributeError, KeyError, TypeError):
            raise EngineError(
                f"{self.url} must give each call an id and a function, got {shorten(repr(call))}"
            ) from None
        try:
            arguments = json.loads(written or "{}") if isinstance(written, str | None) else written
        except ValueError as error:
            message = f"The arguments of your call of {name!r} are not valid JSON ({error}). Write one JSON object."
            return ToolCallError(CallProblem.MALFORMED_JSON, message, str(written), call_id, index, name)
        if not isinstance(arguments, dict):
            message = f"The arguments of your call of {name!r} must be one JSON object, got {shorten(str(written))}"
            return ToolCallError(CallProblem.NOT_A_CALL, message, str(written), call_id, index, name)
        return ToolCall(call_id, name, arguments, index)


def _is_too_long(answer: Any) -> bool:
    error = answer.get("error") if isinstance(answer, Mapping) else None
    message = error_text(answer)
    return (
        (isinstance(error, Mapping) and error.get("code") == "context_length_exceeded")
        or "context length" in message.lower()
        or "context_length" in message
    )
