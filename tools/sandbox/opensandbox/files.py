"""Files, folders and metrics of a sandbox."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from toolgym.tools.sandbox.e2b.api import measured
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, read_json
from toolgym.tools.sandbox.e2b.files_http import form_files, send_file
from toolgym.tools.sandbox.opensandbox.execd import ExecdPart, OpenSandbox, bad
from toolgym.tools.serving.routes import Call, Route
from toolgym.tools.serving.transport import answer


class Files(ExecdPart):
    """Answers `/files`, `/directories`, `/metrics` and `/ping`."""

    def routes(self) -> list[Route]:
        return [
            self.route("/ping", GET=self.ping),
            self.route("/metrics", GET=self.metrics),
            self.route("/files", DELETE=self.remove),
            self.route("/files/info", GET=self.info),
            self.route("/files/permissions", POST=self.permit),
            self.route("/files/mv", POST=self.move),
            self.route("/files/search", GET=self.search),
            self.route("/files/replace", POST=self.replace),
            self.route("/files/upload", POST=self.upload),
            self.route("/files/download", GET=self.download),
            self.route("/directories", POST=self.make_folders, DELETE=self.remove_folders),
            self.route("/directories/list", GET=self.list_folder),
        ]

    async def ping(self, box: OpenSandbox, call: Call) -> web.Response:
        return web.Response()

    async def metrics(self, box: OpenSandbox, call: Call) -> web.Response:
        point = await measured(box, self.config.limits)
        row = {"cpu_count": point["cpuCount"], "cpu_used_pct": min(100.0, point["cpuUsedPct"])}
        memory = {"mem_total_mib": point["memTotal"] / 2**20, "mem_used_mib": point["memUsed"] / 2**20}
        return answer(row | memory | {"timestamp": int(time.time() * 1000)})

    async def info(self, box: OpenSandbox, call: Call) -> web.Response:
        return answer({path: _about(await _entry(box, path)) for path in _paths(call)})

    async def remove(self, box: OpenSandbox, call: Call) -> web.Response:
        for path in _paths(call):
            if (await _entry(box, path)).get("type") == "FILE_TYPE_DIRECTORY":
                raise bad(f"{path} is a folder: DELETE /directories removes it")
            await box.files.ask("Remove", path=path)
        return web.Response()

    async def remove_folders(self, box: OpenSandbox, call: Call) -> web.Response:
        for path in _paths(call):
            await box.files.ask("Remove", path=path)
        return web.Response()

    async def permit(self, box: OpenSandbox, call: Call) -> web.Response:
        for path, permission in _items(call):
            await _permit(box, path, permission)
        return web.Response()

    async def make_folders(self, box: OpenSandbox, call: Call) -> web.Response:
        for path, permission in _items(call):
            await box.files.ask("MakeDir", path=path, exist_ok=True)
            await _permit(box, path, permission)
        return web.Response()

    async def move(self, box: OpenSandbox, call: Call) -> web.Response:
        try:
            moves = [(str(row["src"]), str(row["dest"])) for row in json.loads(call.body)]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise bad("the body should be a list of objects with src, dest") from None
        for source, destination in moves:
            await box.files.ask("Move", source=source, destination=destination)
        return web.Response()

    async def search(self, box: OpenSandbox, call: Call) -> web.Response:
        path, pattern = _paths(call)[0], call.request.query.get("pattern") or "**"
        return answer(await _entries(box, "search", path=path, pattern=pattern))

    async def list_folder(self, box: OpenSandbox, call: Call) -> web.Response:
        path, depth = _paths(call)[0], call.request.query.get("depth") or "1"
        if not depth.isascii() or not depth.isdigit():
            raise bad(f"depth should be a whole number, got {depth[:100]!r}")
        if (await _entry(box, path)).get("symlinkTarget"):
            raise bad(f"path is a symbolic link, which is not followed: {path}")
        return answer(await _entries(box, "ListDir", path=path, depth=int(depth)) if int(depth) else [])

    async def replace(self, box: OpenSandbox, call: Call) -> web.Response:
        counts = {}
        for path, item in _items(call):
            if not isinstance(item.get("old"), str) or not isinstance(item.get("new"), str):
                raise bad(f"{path}: old and new should be texts")
            done = await box.files.ask("replace", path=path, old=item["old"], new=item["new"])
            counts[path] = {"replacedCount": box.files.numbers(done, "count")[0]}
        return answer(counts) if call.request.query.get("verbose") == "true" else web.Response()

    async def upload(self, box: OpenSandbox, call: Call) -> web.Response:
        """Write the files of a form, in which each follows a part with its metadata."""
        parts = [content for _, content in form_files(call.request, call.body)]
        if len(parts) % 2:
            raise bad("the form should have a part with metadata before each file")
        for head, content in zip(parts[::2], parts[1::2], strict=True):
            metadata = read_json(head)
            path = metadata.get("path")
            if not isinstance(path, str) or not path:
                raise bad(f"path of the metadata should be a file's, got {path!r}")
            await box.files.write(path, content, {})
            await _permit(box, path, metadata)
        return web.Response()

    async def download(self, box: OpenSandbox, call: Call) -> web.StreamResponse:
        if {"offset", "limit"} & {*call.request.query}:
            raise E2bRefusedError("unimplemented", "offset, limit: lines of a file cannot be asked for; use Range")
        return await send_file(call.request, box.files, self.config.write_timeout)


async def _entry(box: OpenSandbox, path: str) -> Mapping[str, Any]:
    entry = (await box.files.ask("Stat", path=path)).get("entry")
    return entry if isinstance(entry, dict) else {}


async def _entries(box: OpenSandbox, op: str, **fields: Any) -> list[Mapping[str, Any]]:
    return [_about(entry) for entry in (await box.files.ask(op, **fields)).get("entries") or ()]


async def _permit(box: OpenSandbox, path: str, permission: Mapping[str, Any]) -> None:
    """Set a file's mode, of which 755 is the octal number; an owner can only be the sandbox's user."""
    mode = permission.get("mode")
    try:
        bits = None if mode is None else int(str(mode), 8)
    except ValueError:
        raise bad(f"mode should be octal digits such as 755, got {mode!r}") from None
    await box.files.ask("chmod", path=path, mode=bits, owner=permission.get("owner"), group=permission.get("group"))


def _about(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an entry of E2B's as OpenSandbox has it; as the time when it was created, that of its last change."""
    try:
        kind = "symlink" if entry.get("symlinkTarget") else str(entry.get("type")).removeprefix("FILE_TYPE_").lower()
        numbers = {"size": int(entry["size"]), "mode": int(f"{entry['mode']:o}")}
    except (AttributeError, KeyError, ValueError, TypeError):
        raise E2bRefusedError("internal", "what the sandbox says about its files makes no sense") from None
    changed = entry.get("modifiedTime")
    names = {name: entry.get(name) for name in ("path", "owner", "group")}
    return names | numbers | {"type": kind, "modified_at": changed, "created_at": changed}


def _paths(call: Call) -> list[str]:
    paths = call.request.query.getall("path", [])
    if not paths or not all(paths):
        raise bad("the query should name a path")
    return paths


def _items(call: Call) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects that a body has by paths."""
    items = [*read_json(call.body).items()]
    if not all(path and isinstance(item, dict) for path, item in items):
        raise bad("the body should have an object for each path")
    return items
