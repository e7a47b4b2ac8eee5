"""Files of a sandbox over HTTP: whole bodies, parts of them, forms, and addresses that carry a signature."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import time
from collections.abc import Iterator
from email import message_from_string
from urllib.parse import quote

from aiohttp import web

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.e2b.config import E2bServerConfig
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, route, same
from toolgym.tools.sandbox.e2b.envd import Finder, check_user
from toolgym.tools.sandbox.e2b.file_agent import FileAgent
from toolgym.tools.sandbox.e2b.sandboxes import E2bSandbox, Sandboxes
from toolgym.tools.serving.routes import Call, Route
from toolgym.tools.serving.transport import answer, within

_METADATA = "x-metadata-"


class FilesOverHttp:
    """Answers `/files`."""

    def __init__(self, boxes: Sandboxes[E2bSandbox], finder: Finder, config: E2bServerConfig) -> None:
        self._boxes, self._finder, self._config = boxes, finder, config

    def routes(self) -> list[Route]:
        return [route("/files", GET=self.read, POST=self.write)]

    async def read(self, call: Call) -> web.StreamResponse:
        box = await self._box(call, "read")
        return await send_file(call.request, box.files, self._config.write_timeout)

    async def write(self, call: Call) -> web.Response:
        """Write the file of a body, or the files of a form, and make the folders that they lie in."""
        request, box = call.request, await self._box(call, "write")
        path, metadata = request.query.get("path", ""), _metadata(request)
        if request.content_type == "multipart/form-data":
            files = [(path or name, data) for name, data in form_files(request, call.body)]
        else:
            files = [(path, call.body)]
        return answer([await box.files.write(name, data, metadata) for name, data in files])

    async def _box(self, call: Call, operation: str) -> E2bSandbox:
        """Return the sandbox: that of the token, or that whose token makes the signature."""
        request = call.request
        shown, expires = request.query.get("signature"), request.query.get("signature_expiration")
        user = request.query.get("username", "")
        check_user(user)
        if shown is None:
            return await self._finder.find(call)
        path = request.query.get("path", "")

        def fits(token: str) -> bool:
            return same(shown, signature(path, operation, user, token, expires))

        named = self._finder.names_one(call)
        box = await self._finder.find(call, token=False) if named else self._boxes.signed(fits)
        if box is None or box.token is None or not fits(box.token):
            raise E2bRefusedError("unauthenticated", "invalid signature")
        if expires is not None and not (expires.isdigit() and int(expires) >= time.time()):
            raise E2bRefusedError("unauthenticated", "signature is already expired")
        box.check_running()
        return box


async def send_file(request: web.BaseRequest, files: FileAgent, write_timeout: float) -> web.StreamResponse:
    """Send the file that a request's `path` names, or the part of it that the header `Range` names, piece by piece."""
    path = request.query.get("path", "")
    size, data = await files.read(path)
    size = size or len(data)  # files of /proc say that they have none
    at, end = _range(request, size)
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f"inline; filename*=utf-8''{quote(posixpath.basename(path))}",
        "Accept-Ranges": "bytes",
    }
    whole = (at, end) == (0, size)
    if not whole:
        headers["Content-Range"] = f"bytes {at}-{end - 1}/{size}"
    response = web.StreamResponse(status=200 if whole else 206, headers=headers)
    response.content_length = end - at
    await response.prepare(request)
    try:
        while at < end:
            data = data if not at else (await files.read(path, at))[1]
            if not data:
                raise ConnectionResetError("the file became shorter while it was sent")
            await within(write_timeout, response.write(data[: end - at]))
            at += len(data)
    except (E2bRefusedError, SandboxError) as error:  # the answer has begun: it can only be cut
        raise ConnectionResetError(str(error)) from None
    await response.write_eof()
    return response


def signature(path: str, operation: str, user: str, token: str, expires: str | None) -> str:
    """Return the signature that lets a client use one file; `operation` is `read` or `write`."""
    text = ":".join([path, operation, user, token, *([] if expires is None else [expires])])
    return "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def _range(request: web.BaseRequest, size: int) -> tuple[int, int]:
    """Return the first byte and the one behind the last that are asked for. Raises E2bRefusedError (416)."""
    try:
        start, end, _ = request.http_range.indices(size)
    except ValueError:  # one that makes no sense counts as none
        return 0, size
    if start >= end and size:
        header = request.headers["Range"]
        raise E2bRefusedError("invalid_argument", f"the file has {size} bytes, asked was for {header}", status=416)
    return start, end


def _metadata(request: web.BaseRequest) -> dict[str, str]:
    return {
        name.lower().removeprefix(_METADATA): value
        for name, value in request.headers.items()
        if name.lower().startswith(_METADATA)
    }


def form_files(request: web.BaseRequest, body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a form: their names and contents."""
    boundary = message_from_string(f"Content-Type: {request.headers.get('Content-Type')}\n\n").get_boundary()
    if not boundary:
        raise E2bRefusedError("invalid_argument", "the form has no boundary")
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode())[1:]:
        if part.startswith(b"--"):
            return
        head, _, content = part.partition(b"\r\n\r\n")
        yield message_from_string(head.decode("utf-8", "replace").strip()).get_filename(""), content
    raise E2bRefusedError("invalid_argument", "the form ends before its last boundary")
