"""OpenSandbox's API as a part of the sandbox server: its routes, and the lifecycle of a client's sandboxes."""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, owner_of, read_json, section, texts
from toolgym.tools.sandbox.e2b.programs import E2bProgram
from toolgym.tools.sandbox.e2b.sandboxes import Sandboxes, SandboxState, stamp
from toolgym.tools.sandbox.e2b.service import METHODS, open_sandboxes
from toolgym.tools.sandbox.local.images.by_name import image_file
from toolgym.tools.sandbox.opensandbox.config import OpenSandboxServerConfig
from toolgym.tools.sandbox.opensandbox.execd import EXECD, PROXY, TOKEN, OpenSandbox, bad, spoken
from toolgym.tools.sandbox.opensandbox.execution import Execution
from toolgym.tools.sandbox.opensandbox.files import Files
from toolgym.tools.sandbox.server.app import SandboxApp
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import answer

DEFAULT_IMAGE = re.compile(r"(.*/)?opensandbox/code-interpreter(:[^/]*)?")
"""Names of the image that is no image here: this machine's programs and the preloaded libraries."""

FOLDERS = ("/workspace", "/var")
"""Folders to write to beside the home: clients of containers count on them."""

IDLE = ["tail", "-f", "/dev/null"]
"""The first program of a sandbox that needs none: it is not started."""

INTERPRETER = ["/opt/code-interpreter/code-interpreter.sh"]
"""The first program of the default image. SDKs know by its port that code can be run."""

_LISTENER = """import os, socket
server = socket.create_server(("127.0.0.1", int(os.environ.get("JUPYTER_PORT", 44771))))
while True: server.accept()[0].close()
"""

_UNSUPPORTED = ("snapshotId", "volumes", "networkPolicy", "credentialProxy", "platform", "templateId", "lifecycle",
                "extensions")  # fmt: skip
"""Parts of a request to create a sandbox that cannot be served, unless they are empty."""

_MEMORY = re.compile(r"(\d+)([MG])i?")


@contextlib.asynccontextmanager
async def opensandbox_routes(app: SandboxApp, config: OpenSandboxServerConfig) -> AsyncIterator[None]:
    """Add OpenSandbox's API to an app, if its settings say so; inside of the block it has sandboxes."""
    if config.opensandbox == "none":
        yield
        return
    limit, world = config.opensandbox_sandboxes, _world(config)
    async with open_sandboxes(OpenSandbox, app, config, limit, "opensandbox", world) as boxes:
        parts = (Lifecycle(boxes, config), Execution(boxes, config), Files(boxes, config))
        unknown = Route("/v1/{rest:path}", {method: Operation(spoken(_unknown)) for method in METHODS}, public=True)
        app.add_routes([*(route for part in parts for route in part.routes()), unknown])
        yield


class Lifecycle:
    """Answers the paths below `/v1`."""

    def __init__(self, boxes: Sandboxes[OpenSandbox], config: OpenSandboxServerConfig) -> None:
        self._boxes, self._config, self._keys = boxes, config, config.api_keys("opensandbox_keys")

    def routes(self) -> list[Route]:
        def route(path: str, **methods: Any) -> Route:
            operations = {method: Operation(spoken(handler)) for method, handler in methods.items()}
            return Route(f"/v1{path}", operations, public=True)

        box = "/sandboxes/{id}"
        return [
            route("/sandboxes", POST=self.create, GET=self.list),
            route(box, GET=self.info, DELETE=self.kill),
            route(f"{box}/metadata", PATCH=self.patch_metadata),
            route(f"{box}/pause", POST=self.pause),
            route(f"{box}/resume", POST=self.resume),
            route(f"{box}/renew-expiration", POST=self.renew),
            route(f"{box}/endpoints/{{port}}", GET=self.endpoint),
        ]

    async def create(self, call: Call) -> web.Response:
        """Make a sandbox, and start its first program."""
        owner, asked = self._owner(call), read_json(call.body)
        for name in _UNSUPPORTED:
            if asked.get(name) not in (None, [], {}, "", {"enabled": False}):
                raise E2bRefusedError("unimplemented", f"{name} is not served here; see docs/opensandbox.md")
        entrypoint, image = asked.get("entrypoint") or IDLE, section(asked, "image").get("uri")
        if not isinstance(entrypoint, list) or not all(isinstance(word, str) for word in entrypoint):
            raise bad("entrypoint should be a list of texts")
        about = {
            "templateID": "",
            "image": self._image_file(image),
            "name": image,
            "memory_mb": self._memory(section(asked, "resourceLimits")),
            "metadata": texts(asked, "metadata"),
            "envVars": texts(asked, "env"),
            "entrypoint": entrypoint,
            "secure": True,
            "autoPause": False,
            **_world(self._config),
        }
        seconds = asked.get("timeout")  # without one it lives until it is killed
        box = await self._boxes.create(owner, about, float("inf") if seconds is None else self._boxes.lifetime(seconds))
        if entrypoint != IDLE:
            argv = ["python3", "-S", "-E", "-c", _LISTENER] if entrypoint == INTERPRETER else entrypoint
            process = {"cmd": argv[0], "args": argv[1:]}
            try:
                box.add(await E2bProgram.start(box.session, {"process": process, "stdin": False}, box.env))
            except BaseException:
                await self._boxes.kill(box)
                raise
        return self._boxes.made(answer(_about(box), 202), box)

    async def list(self, call: Call) -> web.Response:
        query = call.request.query
        states = {state.lower() for state in query.getall("state", ["running", "paused"])}
        wanted = dict(parse_qsl(query.get("metadata", ""), keep_blank_values=True))
        boxes = (box for box in self._boxes.of(self._owner(call)) if box.state.value in states)
        return _page([_about(box) for box in boxes if wanted.items() <= box.about["metadata"].items()], query)

    async def info(self, call: Call) -> web.Response:
        return answer(_about(self._box(call)))

    async def kill(self, call: Call) -> web.Response:
        await self._boxes.kill(self._box(call))
        return web.Response(status=204)

    async def patch_metadata(self, call: Call) -> web.Response:
        """Change metadata; a null removes a key."""
        box, patch = self._box(call), read_json(call.body)
        merged = {key: text for key, text in {**box.about["metadata"], **patch}.items() if text is not None}
        box.about["metadata"] = texts({"metadata": merged}, "metadata")
        return answer(_about(box))

    async def pause(self, call: Call) -> web.Response:
        await self._box(call, SandboxState.RUNNING).pause()
        return web.Response(status=202)

    async def resume(self, call: Call) -> web.Response:
        await self._box(call, SandboxState.PAUSED).resume()
        return web.Response(status=202)

    async def renew(self, call: Call) -> web.Response:
        box, ends = self._box(call), read_json(call.body).get("expiresAt")
        try:
            seconds = datetime.datetime.fromisoformat(str(ends)).timestamp() - time.time()
        except ValueError:
            raise bad(f"expiresAt should be a time in RFC 3339, got {ends!r}") from None
        box.prolong(self._boxes.lifetime(seconds), shorten=True)
        return answer({"expiresAt": stamp(box.ends)})

    async def endpoint(self, call: Call) -> web.Response:
        """Say where a client calls a port: at this server, with the sandbox's token."""
        box, port = self._box(call), call.params["port"]
        if port not in (str(EXECD), "18080"):  # clients ask for the second when they make a sandbox
            raise E2bRefusedError("unimplemented", f"port {port[:10]}: programs of a sandbox have no address outside")
        place = f"{call.request.host}{PROXY.format(id=box.name)}/{port}"
        return answer({"endpoint": place, "headers": {TOKEN: box.token}})

    def _owner(self, call: Call) -> str:
        return owner_of(call, "OPEN-SANDBOX-API-KEY", self._keys, "OPEN_SANDBOX_API_KEY")

    def _box(self, call: Call, state: SandboxState | None = None) -> OpenSandbox:
        """Return the sandbox that a client means. Raises E2bRefusedError (409) for one in another state."""
        box = self._boxes.get(self._owner(call), call.params["id"])
        if state not in (None, box.state):
            raise E2bRefusedError("aborted", f"sandbox {box.name} is {box.state.value}")
        return box

    def _image_file(self, name: Any) -> str | None:
        """Return the file of the image that is asked for; None for the default."""
        if not isinstance(name, str) or not name:
            raise bad("image.uri is missing: name an image")
        if DEFAULT_IMAGE.fullmatch(name):
            return None
        folder = self._config.opensandbox_images
        with contextlib.suppress(ConfigError, OSError, ValueError):
            if folder is not None:
                return image_file(folder, name)
        there = "is not on this server's disk (setting opensandbox_images); there is opensandbox/code-interpreter"
        raise E2bRefusedError("not_found", f"image {name[:200]!r} {there}, which is this machine's own programs")

    def _memory(self, limits: Mapping[str, Any]) -> int | None:
        """Return the MiB that are asked for. The processors that are asked for are no limit here."""
        others = sorted({*limits} - {"cpu", "memory"})
        if others:
            raise E2bRefusedError("unimplemented", f"resourceLimits: {', '.join(others)[:200]} cannot be set here")
        if not limits.get("memory"):
            return None
        match, most = _MEMORY.fullmatch(str(limits["memory"])), self._config.max_memory_mb
        memory = 0 if match is None else int(match[1]) << (10 if match[2] == "G" else 0)
        if not 0 < memory <= most:
            text = f"memory should be such as 512Mi or 2Gi, and at most {most}Mi (setting max_memory_mb)"
            raise bad(f"{text}, got {str(limits['memory'])[:100]}")
        return memory


def _world(config: OpenSandboxServerConfig) -> Mapping[str, Any]:
    return {"network": "loopback" if config.network == "off" else config.network, "folders": FOLDERS}


def _about(box: OpenSandbox) -> dict[str, Any]:
    row = {
        "id": box.name,
        "image": {"uri": box.about["name"]},
        "status": {"state": box.state.value.capitalize()},
        "metadata": box.about["metadata"],
        "entrypoint": box.about["entrypoint"],
        "createdAt": stamp(box.started),
    }
    return row if box.ends == float("inf") else row | {"expiresAt": stamp(box.ends)}


def _page(rows: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> web.Response:
    numbers = (query.get("page") or "1", query.get("pageSize") or "20")
    page, size = (int(text) if text.isascii() and text.isdigit() else 0 for text in numbers)
    if not page or not size:
        raise bad("page and pageSize should be whole numbers of at least 1")
    pages = -(-len(rows) // size)
    about = {"page": page, "pageSize": size, "totalItems": len(rows), "totalPages": pages, "hasNextPage": page < pages}
    return answer({"items": [*rows[(page - 1) * size : page * size]], "pagination": about})


async def _unknown(call: Call) -> web.StreamResponse:
    """Answer an endpoint that is not served with its name."""
    name = f"{call.request.method} {call.request.path[:200]}"
    raise E2bRefusedError("unimplemented", f"{name} is not served here; see docs/opensandbox.md for what is")
