"""The Connect protocol as E2B's SDKs speak it: JSON, streams of frames, and errors by their names.

A frame is a flag byte, the length in four bytes (big endian) and JSON. The last frame of a stream has the flag 2, and
`{}` or an error in it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import struct
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from aiohttp import web

from toolgym.tools.errors import (
    ConfigError,
    NoSessionError,
    SandboxBusyError,
    SandboxClosedError,
    SandboxError,
    SandboxFileError,
    SandboxUnsupportedError,
    SessionLostError,
    ToolgymError,
)
from toolgym.tools.sandbox.files import reason_of
from toolgym.tools.serving.admission import BusyError
from toolgym.tools.serving.json_bodies import InvalidRequestError, encode
from toolgym.tools.serving.routes import Call, Handler, Operation, Route
from toolgym.tools.serving.transport import RequestRefusedError, answer, within

STATUS: Mapping[str, int] = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "aborted": 409,
    "resource_exhausted": 429,
    "internal": 500,
    "unimplemented": 501,
    "unavailable": 502,
    "deadline_exceeded": 504,
}
"""The HTTP statuses of the protocol's errors."""

_OF_FILES = {
    "no_file": "not_found",
    "exists": "already_exists",
    "is_folder": "invalid_argument",
    "no_folder": "invalid_argument",
    "no_permission": "permission_denied",
}

_HEAD = struct.Struct(">BI")
END = 2

_log = logging.getLogger("toolgym.tools.sandbox.e2b")


class E2bRefusedError(ToolgymError):
    """A request is answered with an error of the protocol; `code` is a name of `STATUS`."""

    def __init__(self, code: str, message: str, *, status: int | None = None, body: Mapping[str, Any] | None = None):
        super().__init__(message)
        self.code, self.status = code, status or STATUS[code]
        self.body = dict(body or {})


def gone(name: str) -> E2bRefusedError:
    """Make the answer for a sandbox that does not run: SDKs know it by 502 and this text."""
    message = "The sandbox was not found"
    return E2bRefusedError("unavailable", message, body={"sandboxId": name, "message": message, "code": 502})


def refusal_of(error: Exception) -> E2bRefusedError | None:
    """Return the answer for an error of the sandbox or of a request; None for one that is not expected."""
    text = str(error) or type(error).__name__
    if isinstance(error, E2bRefusedError):
        return error
    if isinstance(error, SandboxFileError):
        return E2bRefusedError(_OF_FILES.get(reason_of(error), "internal"), text)
    if isinstance(error, RequestRefusedError):
        name = next((name for name, status in STATUS.items() if status == error.status), "internal")
        return E2bRefusedError(name, text, status=error.status)
    codes: list[tuple[type[Exception] | tuple[type[Exception], ...], str]] = [
        (SandboxUnsupportedError, "unimplemented"),
        ((BusyError, SandboxBusyError), "resource_exhausted"),
        ((SessionLostError, SandboxClosedError), "unavailable"),
        (NoSessionError, "not_found"),
        ((ConfigError, InvalidRequestError), "invalid_argument"),
        (TimeoutError, "deadline_exceeded"),
        (SandboxError, "internal"),
    ]
    return next((E2bRefusedError(code, text) for kind, code in codes if isinstance(error, kind)), None)


def route(path: str, **methods: Handler) -> Route:
    """Make a route whose errors are answers in E2B's form."""
    code = _rpc_code if "." in path else _status  # such as /process.Process/Start
    operations = {method: Operation(answered(handler, code)) for method, handler in methods.items()}
    return Route(path, operations, public=True)


def _status(refused: E2bRefusedError) -> int | str:
    return refused.status


def _rpc_code(refused: E2bRefusedError) -> int | str:
    """Return the code of an error of a remote procedure call: its name, but for a sandbox that is gone."""
    return refused.code if refused.status != 502 else refused.status


def answered(handler: Handler, code: Callable[[E2bRefusedError], int | str] = _status) -> Handler:
    """Make a handler whose errors are answers of JSON with a `code` and a message."""

    async def answering(call: Call) -> web.StreamResponse:
        try:
            return await handler(call)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001  clients read JSON, also where the server is to blame
            refused = refusal_of(error) or _internal(call, error)
            headers = {"Retry-After": "1"} if refused.status == 429 else None
            return answer({"code": code(refused), "message": str(refused)} | refused.body, refused.status, headers)

    return answering


def _internal(call: Call, error: Exception) -> E2bRefusedError:
    _log.error("error while answering %s %s", call.request.method, call.request.path, exc_info=error)
    return E2bRefusedError("internal", "internal error; see the server's log")


def same(shown: str, secret: str) -> bool:
    """Whether a client shows a secret; a wrong one takes the same time wherever it differs."""
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), secret.encode("utf-8", "surrogateescape"))


def owner_of(call: Call, header: str, keys: Sequence[str] | None, variable: str) -> str:
    """Return the API key that a client shows; with `keys`, one of these, else any.

    Raises E2bRefusedError (401), and takes the same time for every wrong key.
    """
    key = call.request.headers.get(header, "")
    if not key:
        raise E2bRefusedError("unauthenticated", f"no API key: set {variable}, which is sent as {header}")
    if keys is not None and not any([same(key, each) for each in keys]):  # noqa: C419
        raise E2bRefusedError("unauthenticated", "the API key is not one of this server's")
    return key


def read_json(body: bytes) -> dict[str, Any]:
    """Return the object of a body; an empty one is an empty object. Raises E2bRefusedError."""
    try:
        message = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise E2bRefusedError("invalid_argument", f"the body should be JSON: {error}"[:300]) from None
    if not isinstance(message, dict):
        raise E2bRefusedError("invalid_argument", f"the body should be a JSON object, got {type(message).__name__}")
    return message


def read_frame(body: bytes) -> dict[str, Any]:
    """Return the message of a body with one frame, as the request of a stream of answers has it."""
    if len(body) < _HEAD.size:
        raise E2bRefusedError("invalid_argument", "the body should be a frame: a flag, a length and JSON")
    flag, size = _HEAD.unpack_from(body)
    if flag != 0 or size != len(body) - _HEAD.size:
        raise E2bRefusedError("invalid_argument", f"the body should be one frame, not compressed, got flag {flag}")
    return read_json(body[_HEAD.size :])


def section(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object that a message has by a name; an empty one if it has none. Raises E2bRefusedError."""
    value = message.get(name)
    if not isinstance(value, dict | None):
        raise E2bRefusedError("invalid_argument", f"{name} should be an object, got {type(value).__name__}")
    return value or {}


def texts(message: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the texts that a message has by a name, by theirs. Raises E2bRefusedError."""
    values = section(message, name)
    if not all(isinstance(text, str) for text in values.values()):
        raise E2bRefusedError("invalid_argument", f"{name} should be an object of texts")
    return values


async def read_frames(request: web.BaseRequest, most: int, patience: float) -> AsyncIterator[dict[str, Any]]:
    """Give the messages of a stream of requests while they come. Raises E2bRefusedError, also for a silent client."""
    while True:
        try:
            async with asyncio.timeout(patience):
                flag, size = _HEAD.unpack(await request.content.readexactly(_HEAD.size))
                if size > most:
                    raise E2bRefusedError("resource_exhausted", f"a message has at most {most} bytes here")
                data = await request.content.readexactly(size)
        except asyncio.IncompleteReadError:
            return
        except TimeoutError:
            raise E2bRefusedError("deadline_exceeded", f"no message came for {patience:g} s") from None
        if flag & END:
            return
        yield read_json(data)


def frame(message: Mapping[str, Any], flag: int = 0) -> bytes:
    data = encode(message)
    return _HEAD.pack(flag, len(data)) + data


class CutError(ToolgymError, ConnectionError):
    """The connection is to be cut without an end: the sandbox of a stream is gone."""


Emit = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Passes on one message of a stream."""


class Form(NamedTuple):
    """The form of a stream: `sign` says that it lives, and `end` makes the last bytes, for an error or none."""

    content_type: str
    pack: Callable[[Mapping[str, Any]], bytes]
    sign: Mapping[str, Any] | None
    end: Callable[[E2bRefusedError | None], bytes]


def _end(refused: E2bRefusedError | None) -> bytes:
    return frame({} if refused is None else {"error": {"code": refused.code, "message": str(refused)}}, END)


PROGRAM = Form("application/connect+json", frame, {"event": {"keepalive": {}}}, _end)
WATCH = PROGRAM._replace(sign={"keepalive": {}})
SILENT = PROGRAM._replace(sign=None)


async def stream(
    call: Call,
    form: Form,
    produce: Callable[[Emit], Awaitable[None]],
    cut: asyncio.Event,
    write_timeout: float,
    *,
    ping: float | None = None,
    headers_first: bool = False,
) -> web.StreamResponse:
    """Answer with the messages that `produce` emits, and with a sign of life after every `ping` seconds of silence.

    The client's deadline ends the stream. An error is reported in the last message.

    Args:
        cut: closes the connection when it is set, so that the SDKs notice that a sandbox is gone.
        headers_first: whether the headers are sent before the first message. The JavaScript SDK's time-out for a cell
            starts when it has the headers. It must be False while the request's body is still being sent, because
            clients may drop the rest of a request that is answered.

    Raises ConnectionError if the client or its sandbox is gone.
    """
    response = web.StreamResponse(headers={"Content-Type": form.content_type})
    lock, refused = asyncio.Lock(), None

    async def send(data: bytes) -> None:
        async with lock:
            if not response.prepared:
                await response.prepare(call.request)
            if data:
                await within(write_timeout, response.write(data))

    async def emit(message: Mapping[str, Any]) -> None:
        await send(form.pack(message))

    if headers_first:
        await send(b"")
    running, cutting = asyncio.ensure_future(produce(emit)), asyncio.create_task(cut.wait())
    try:
        async with asyncio.timeout(deadline_of(call)):
            while not running.done():
                silence = ping or _seconds(call, "Keepalive-Ping-Interval", 1.0) or 90.0
                done, _ = await asyncio.wait({running, cutting}, timeout=silence, return_when=FIRST_COMPLETED)
                if done == {cutting}:
                    raise CutError("the sandbox was paused or ended")
                if not done and form.sign is not None:
                    await emit(form.sign)
        await running
    except CutError:
        if call.request.transport is not None:
            call.request.transport.close()
        raise
    except ConnectionError:
        raise
    except TimeoutError:
        refused = E2bRefusedError("deadline_exceeded", "the request's deadline has passed")
    except Exception as error:  # noqa: BLE001  the answer has begun, so its end says it
        refused = refusal_of(error) or _internal(call, error)
    finally:
        for task in (running, cutting):
            task.cancel()
        await asyncio.gather(running, cutting, return_exceptions=True)
    await send(form.end(refused))
    await within(write_timeout, response.write_eof())
    return response


def deadline_of(call: Call) -> float | None:
    """Return the seconds that a client allows a call, if it says so."""
    return _seconds(call, "connect-timeout-ms", 1e-3)


def _seconds(call: Call, header: str, unit: float) -> float | None:
    text = call.request.headers.get(header, "")
    return int(text) * unit if text.isascii() and text.isdigit() and int(text) > 0 else None
