"""Files of a sandbox over HTTP: whole bodies, parts of them, forms, and addresses that carry a signature."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from email.message import Message
from typing import Any
from urllib.parse import quote

from aiohttp import web

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.e2b.config import E2bServerConfig
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, answered, same
from toolgym.tools.sandbox.e2b.envd import Finder, check_user, user_of
from toolgym.tools.sandbox.e2b.file_agent import PART
from toolgym.tools.sandbox.e2b.sandboxes import E2bSandbox, Sandboxes
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import answer, within

_METADATA = "x-metadata-"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class FilesOverHttp:
    """Answers `/files`."""

    def __init__(self, boxes: Sandboxes, finder: Finder, config: E2bServerConfig) -> None:
        self._boxes, self._finder, self._config = boxes, finder, config

    def routes(self) -> list[Route]:
        operations = {"GET": Operation(answered(self.read)), "POST": Operation(answered(self.write))}
        return [Route("/files", operations, public=True)]

    async def read(self, call: Call) -> web.StreamResponse:
        """Send a file, or the part of it that the header `Range` names, a piece at a time."""
        request, box = call.request, await self._box(call, "read")
        path = request.query.get("path", "")
        meta, data = await self._part(box, path, 0, PART)
        size = int(meta["size"])
        start, end = _range(request.headers.get("Range", ""), size)
        whole = (start, end) == (0, size)
        name = str(meta.get("path", path)).rpartition("/")[2]
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f"inline; filename*=utf-8''{quote(name)}",
            "Accept-Ranges": "bytes",
        }
        if not whole:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        if start or not size:  # files of /proc have no size, and are as long as what comes
            _, data = await self._part(box, path, start, PART)
        if not size or end - start <= len(data):
            body = data if not size else data[: end - start]
            return web.Response(body=body, status=200 if whole else 206, headers=headers)
        response = web.StreamResponse(status=200 if whole else 206, headers=headers)
        response.content_length = end - start
        await response.prepare(request)
        while start < end and data:
            await within(self._config.write_timeout, response.write(data[: end - start]))
            start += len(data)
            if start < end:
                try:
                    _, data = await self._part(box, path, start, PART)
                except (E2bRefusedError, SandboxError) as error:  # the answer has begun: it can only be cut
                    raise ConnectionResetError(str(error)) from None
        if start < end:
            raise ConnectionResetError("the file became shorter while it was sent")
        await response.write_eof()
        return response

    async def write(self, call: Call) -> web.Response:
        """Write the file of a body, or the files of a form, and make the folders that they lie in."""
        request, box = call.request, await self._box(call, "write")
        path, metadata = request.query.get("path", ""), _metadata(request)
        if request.content_type == "multipart/form-data":
            files = [(path or name, data) for name, data in _form(request, call.body)]
        else:
            files = [(path, call.body)]
        rows: list[dict[str, Any]] = []
        for name, data in files:
            if not name:
                raise E2bRefusedError("invalid_argument", "path is missing: name the file to write")
            written = await self._written(box, name, data, metadata)
            row = {"name": written.get("name"), "type": "file", "path": written.get("path")}
            rows.append(row | ({"metadata": dict(metadata)} if metadata else {}))
        body: Any = rows
        return answer(body)

    async def _written(self, box: E2bSandbox, name: str, data: bytes, metadata: Mapping[str, str]) -> dict[str, Any]:
        most = self._config.limits.file_mb << 20
        if len(data) > most:
            raise E2bRefusedError("resource_exhausted", f"a file has at most {most} bytes here", status=507)
        try:
            return await box.files.write(name, data, metadata)
        except E2bRefusedError as error:
            if error.code == "resource_exhausted":
                raise E2bRefusedError(error.code, str(error), status=507) from None
            raise

    async def _part(self, box: E2bSandbox, path: str, at: int, most: int) -> tuple[dict[str, Any], bytes]:
        try:
            return await box.files.read(path, at, most)
        except E2bRefusedError as error:
            if error.code == "not_found":
                raise E2bRefusedError("not_found", f"path '{path}' does not exist") from None
            raise

    async def _box(self, call: Call, operation: str) -> E2bSandbox:
        """Return the sandbox: that of the token, or that whose token makes the signature."""
        request = call.request
        shown, expires = request.query.get("signature"), request.query.get("signature_expiration")
        user = request.query.get("username", "")
        check_user(user or user_of(request))
        if shown is None:
            return await self._finder.find(call)
        path = request.query.get("path", "")

        def fits(token: str) -> bool:
            return same(shown, signature(path, operation, user, token, expires))

        if self._finder.names_one(call):
            box: E2bSandbox | None = await self._finder.find(call, token=False)
            if box is not None and (box.token is None or not fits(box.token)):
                box = None
        else:
            box = self._boxes.signed(fits)
        if box is None:
            raise E2bRefusedError("unauthenticated", "invalid signature")
        if expires is not None and not (expires.isdigit() and int(expires) >= time.time()):
            raise E2bRefusedError("unauthenticated", "signature is already expired")
        box.check_running()
        return box


def signature(path: str, operation: str, user: str, token: str, expires: str | None) -> str:
    """Return the signature that lets a client use one file; `operation` is `read` or `write`."""
    text = ":".join([path, operation, user, token, *([] if expires is None else [expires])])
    return "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def _range(header: str, size: int) -> tuple[int, int]:
    """Return the first byte and the one behind the last that are asked for. Raises E2bRefusedError (416)."""
    match = _RANGE.fullmatch(header.strip())
    if match is None or match[0] == "bytes=-":
        return 0, size
    first, last = match[1], match[2]
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
    if start >= end:
        raise E2bRefusedError("invalid_argument", f"the file has {size} bytes, asked was for {header}", status=416)
    return start, end


def _metadata(request: web.BaseRequest) -> dict[str, str]:
    return {
        name.lower().removeprefix(_METADATA): value
        for name, value in request.headers.items()
        if name.lower().startswith(_METADATA)
    }


def _form(request: web.BaseRequest, body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a form: their names and contents."""
    boundary = _parameter("content-type", request.headers.get("Content-Type", ""), "boundary")
    if not boundary:
        raise E2bRefusedError("invalid_argument", "the form has no boundary")
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode())[1:]:
        if part.startswith(b"--"):
            return
        head, _, content = part.partition(b"\r\n\r\n")
        for line in head.decode("utf-8", "replace").split("\r\n"):
            name, _, value = line.partition(":")
            if name.strip().lower() == "content-disposition":
                yield _parameter("content-disposition", value.strip(), "filename"), content
    raise E2bRefusedError("invalid_argument", "the form ends before its last boundary")


def _parameter(header: str, value: str, name: str) -> str:
    message = Message()
    message[header] = value
    text = message.get_param(name, "", header)
    return text[2] if isinstance(text, tuple) else str(text or "")
