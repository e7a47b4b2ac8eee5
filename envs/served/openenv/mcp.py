"""JSON-RPC for OpenEnv's MCP clients: `tools/list`, `tools/call`, and the life of a session.

The methods, codes and shapes are those of `openenv.core.env_server` 0.10 (`http_server.py`, `mcp_types.py`), of which
`openenv/session/create` and `openenv/session/close` are extensions of MCP.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import pydantic
from pydantic import BaseModel, Field

from toolgym.envs.served.catalog import ServedEnv, listed
from toolgym.envs.served.env_session import EnvSession, EnvSessions
from toolgym.envs.types import EpisodeFailedError
from toolgym.tools.errors import EpisodeError, NoSessionError
from toolgym.tools.serving.admission import BusyError

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR, SERVER_ERROR = -32602, -32603, -32000


class RpcRequest(BaseModel, extra="forbid"):
    """A JSON-RPC request."""

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class _RefusedError(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


class Mcp:
    def __init__(self, sessions: EnvSessions) -> None:
        self._sessions = sessions

    async def answer_text(self, text: str | bytes, served: ServedEnv, session: EnvSession | None) -> dict[str, Any]:
        try:
            decoded = json.loads(text)
        except (ValueError, RecursionError) as error:
            return _error(None, PARSE_ERROR, f"Parse error: {error}")
        return await self.answer(decoded, served, session)

    async def answer(self, decoded: Any, served: ServedEnv, session: EnvSession | None) -> dict[str, Any]:
        """Answer a request. One that came over HTTP names its session, over a WebSocket it has `session`."""
        try:
            request = RpcRequest.model_validate(decoded)
        except pydantic.ValidationError as error:
            return _error(None, INVALID_REQUEST, f"Invalid request: {error.errors(include_url=False)[0]['msg']}")
        try:
            result = await self._result(request, served, session)
        except _RefusedError as error:
            return _error(request.id, error.code, str(error), error.data)
        except BusyError as error:
            about = {"active_sessions": len(self._sessions), "max_sessions": self._sessions.limit}
            return _error(request.id, SERVER_ERROR, str(error), about)
        except EpisodeFailedError as error:
            return _error(request.id, INTERNAL_ERROR, str(error), {"stop_reason": error.stop_reason})
        except NoSessionError as error:
            return _error(request.id, INVALID_PARAMS, str(error))
        except EpisodeError as error:
            return _error(request.id, INVALID_REQUEST, str(error))
        return {"jsonrpc": "2.0", "id": request.id, "result": result}

    async def _result(self, request: RpcRequest, served: ServedEnv, session: EnvSession | None) -> dict[str, Any]:
        params = request.params
        match request.method:
            case "openenv/session/create":
                return {"session_id": (session or self._sessions.open(served)).name}
            case "openenv/session/close":
                return await self._close(params, session)
            case "tools/list":
                named = session if session is not None else self._named(params)
                tools = named.tools if named is not None else served.with_answer(served.tools)
                return {"tools": listed(tools, "inputSchema")}
            case "tools/call":
                session = session if session is not None else self._named(params)
                if session is None:
                    raise _RefusedError(INVALID_PARAMS, "a call needs the 'session_id' of an episode that was reset")
                return await _call(session, params)
            case method:
                raise _RefusedError(METHOD_NOT_FOUND, f"Method not found: {method[:80]}")

    async def _close(self, params: dict[str, Any], session: EnvSession | None) -> dict[str, Any]:
        name = params.get("session_id")
        if not isinstance(name, str):
            raise _RefusedError(INVALID_PARAMS, "Invalid params: 'session_id' is required")
        if session is not None and session.name == name:
            raise _RefusedError(INVALID_REQUEST, "the session of this WebSocket ends with it")
        await self._sessions.remove(name)
        return {"session_id": name, "closed": True}

    def _named(self, params: dict[str, Any]) -> EnvSession | None:
        name = params.get("session_id")
        return self._sessions.find(name) if isinstance(name, str) else None


async def _call(session: EnvSession, params: dict[str, Any]) -> dict[str, Any]:
    """Call a tool. Reward and end stand in `_meta`, which MCP leaves to servers."""
    name, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise _RefusedError(INVALID_PARAMS, "Invalid params: a call has a 'name' and an object of 'arguments'")
    turn = await session.call_tool(name, arguments)
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": turn.text}],
        "isError": turn.is_error,
        "data": turn.text,
    }
    if turn.result is not None:
        step = turn.result
        result["_meta"] = {"reward": float(step.reward), "done": step.done, **session.metadata(step)}
    return result


def _error(id: str | int | None, code: int, message: str, data: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, "data": data}}
