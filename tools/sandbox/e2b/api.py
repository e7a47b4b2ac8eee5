"""E2B's control plane: sandboxes and snapshots of the owner of an API key."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from toolgym.tools.sandbox.e2b.config import E2bServerConfig
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, gone, owner_of, read_json, route, section, texts
from toolgym.tools.sandbox.e2b.sandboxes import E2bSandbox, Sandboxes, SandboxState, stamp
from toolgym.tools.sandbox.local.host.resources import available_processors
from toolgym.tools.sandbox.server.config import LimitsConfig
from toolgym.tools.serving.routes import Call, Handler, Route
from toolgym.tools.serving.transport import answer

ENVD_VERSION = "0.6.4"
"""The version whose features are all served: SDKs use a feature from a version on."""

DEFAULT_SECONDS = 15.0
"""Seconds that a sandbox lives if its client names none, as E2B's control plane has it."""

PAGE = 100
MOST_FORKS = 1000

_UNSUPPORTED = {
    "network": "rules for the network",
    "volumeMounts": "volumes",
    "mcp": "MCP servers",
    "iam": "identities",
}
"""Parts of a request to create a sandbox that cannot be served, unless they are empty."""


OfBox = Callable[[E2bSandbox, Mapping[str, Any]], Awaitable[web.Response | None]]
"""Carries out a request about a sandbox, with the parameters of its query and its body; None is answered with 204."""


class ControlPlane:
    """Answers the paths of the control plane. `keys` are the API keys that are let in; None: all."""

    def __init__(self, boxes: Sandboxes[E2bSandbox], config: E2bServerConfig) -> None:
        self._boxes, self._config, self._keys = boxes, config, config.api_keys()

    def routes(self) -> list[Route]:
        def of_box(path: str, **methods: OfBox) -> Route:
            return route(path, **{method: self._of_box(work) for method, work in methods.items()})

        box = "/sandboxes/{id}"
        return [
            route("/sandboxes", POST=self.create),
            route("/v2/sandboxes", POST=self.create, GET=self.list),
            of_box(box, GET=self.info, DELETE=self.kill),
            *(of_box(f"{prefix}{box}/connect", POST=self.connect) for prefix in ("", "/v2")),
            of_box(f"{box}/timeout", POST=self.set_timeout),
            of_box(f"{box}/pause", POST=self.pause),
            of_box(f"{box}/fork", POST=self.fork),
            of_box(f"{box}/snapshots", POST=self.snapshot),
            of_box(f"{box}/metrics", GET=self.metrics),
            route("/snapshots", GET=self.snapshots),
            route("/templates/{id}", DELETE=self.delete_snapshot),
        ]

    def _of_box(self, work: OfBox) -> Handler:
        async def handler(call: Call) -> web.Response:
            box = self._boxes.get(self.owner(call), call.params["id"])
            done = await work(box, {**call.request.query, **read_json(call.body)})
            return web.Response(status=204) if done is None else done

        return handler

    def owner(self, call: Call) -> str:
        """Return the key that a client shows. Raises E2bRefusedError (401); takes the same time for every wrong key."""
        return owner_of(call, "X-API-KEY", self._keys, "E2B_API_KEY")

    # ------------------------------------------------------------------ handlers

    async def create(self, call: Call) -> web.Response:
        owner, asked = self.owner(call), read_json(call.body)
        rules = section(asked, "network")  # nothing of a sandbox is public here
        asked["network"] = {name: rule for name, rule in rules.items() if rule and name != "allowPublicTraffic"}
        for name, what in _UNSUPPORTED.items():
            if asked.get(name):
                raise E2bRefusedError("unimplemented", f"{name}: sandboxes of this server have no {what}")
        is_closed = asked.get("allow_internet_access") is False and self._config.network == "host"
        about = {
            "templateID": asked.get("templateID") or "base",
            "metadata": texts(asked, "metadata"),
            "envVars": texts(asked, "envVars"),
            "secure": asked.get("secure", True) is not False,
            "network": "off" if is_closed else self._config.network,
            "autoPause": bool(asked.get("autoPause")),
            "autoResume": bool(section(asked, "autoResume").get("enabled")),
        }
        box = await self._boxes.create(owner, about, self._seconds(asked, DEFAULT_SECONDS))
        return self._boxes.made(answer(_short(box), 201), box)

    async def list(self, call: Call) -> web.Response:
        query = call.request.query
        states = {state for text in query.getall("state", []) for state in text.split(",") if state}
        wanted = dict(parse_qsl(query.get("metadata", "")))
        boxes = [
            box
            for box in self._boxes.of(self.owner(call))
            if (not states or box.state.value in states) and wanted.items() <= box.about["metadata"].items()
        ]
        if query.get("order") == "asc":
            boxes.reverse()
        return _page([self._full(box) for box in boxes], query)

    async def info(self, box: E2bSandbox, _: Mapping[str, Any]) -> web.Response:
        return answer(self._full(box))

    async def kill(self, box: E2bSandbox, _: Mapping[str, Any]) -> None:
        await self._boxes.kill(box)

    async def connect(self, box: E2bSandbox, asked: Mapping[str, Any]) -> web.Response:
        """Resume a paused sandbox. One that runs may live longer by it, and never shorter."""
        was_paused = box.state is SandboxState.PAUSED
        if was_paused:
            await box.resume()
        box.prolong(self._seconds(asked, DEFAULT_SECONDS), shorten=was_paused)
        return answer(_short(box), 201 if was_paused else 200)

    async def set_timeout(self, box: E2bSandbox, asked: Mapping[str, Any]) -> None:
        box.prolong(self._seconds(asked, None), shorten=True)

    async def pause(self, box: E2bSandbox, asked: Mapping[str, Any]) -> None:
        if asked.get("memory") is False:
            raise E2bRefusedError("unimplemented", "memory: a sandbox is paused with its memory here, or not at all")
        if box.state is SandboxState.PAUSED:
            raise E2bRefusedError("aborted", f"sandbox {box.name} is paused already")
        await box.pause()

    async def fork(self, box: E2bSandbox, asked: Mapping[str, Any]) -> web.Response:
        count = asked.get("count") or 1
        if type(count) is not int or not 1 <= count <= MOST_FORKS:
            raise E2bRefusedError("invalid_argument", f"count should be 1 to {MOST_FORKS}, got {count!r}")
        self._check_running(box)
        forks = await self._boxes.fork(box, count, self._seconds(asked, DEFAULT_SECONDS))
        return self._boxes.made(answer([{"sandbox": _short(fork)} for fork in forks], 201), *forks)

    async def snapshot(self, box: E2bSandbox, asked: Mapping[str, Any]) -> web.Response:
        name = asked.get("name")
        names = [name if ":" in name else f"{name}:default"] if isinstance(name, str) and name else []
        self._check_running(box)
        kept = await self._boxes.snapshot(box, names)
        return self._boxes.made(answer({"snapshotID": kept.name, "names": kept.names}, 201), kept)

    async def snapshots(self, call: Call) -> web.Response:
        query, owner = call.request.query, self.owner(call)
        name = query.get("name")
        rows = [
            {"snapshotID": kept.name, "names": kept.names}
            for kept in self._boxes.snapshots_of(owner)
            if query.get("sandboxID") in (None, "", kept.origin)
            and (not name or any(name in (each, each.partition(":")[0]) for each in kept.names))
        ]
        return _page(rows, query)

    async def delete_snapshot(self, call: Call) -> web.Response:
        await self._boxes.delete_snapshot(self.owner(call), unquote(call.params["id"]))
        return web.Response(status=204)

    async def metrics(self, box: E2bSandbox, asked: Mapping[str, Any]) -> web.Response:
        """Measure now, and return the points of the time that is asked for: those that were measured when asked."""
        if box.state is SandboxState.RUNNING:
            box.points.append(await measured(box, self._config.limits))
        start, end = (_number(asked.get(name)) for name in ("start", "end"))
        points = [
            point
            for point in box.points
            if (start is None or point["timestampUnix"] >= start) and (end is None or point["timestampUnix"] <= end)
        ]
        return answer(points)

    # ------------------------------------------------------------------ parts of answers

    def _check_running(self, box: E2bSandbox) -> None:
        if box.state is SandboxState.PAUSED:
            raise E2bRefusedError("aborted", f"sandbox {box.name} is paused; connect to it first")
        if not box.session.alive:
            raise gone(box.name)

    def _seconds(self, asked: Mapping[str, Any], default: float | None) -> float:
        seconds = asked.get("timeout")
        return self._boxes.lifetime(default if seconds is None else seconds)

    def _full(self, box: E2bSandbox) -> dict[str, Any]:
        limits, about = self._config.limits, box.about
        return _short(box) | {
            "startedAt": stamp(box.started),
            "endAt": stamp(box.ends),
            "state": box.state.value,
            "cpuCount": _processors(limits.cores),
            "memoryMB": limits.memory_mb,
            "diskSizeMB": limits.disk_mb,
            "metadata": about["metadata"],
            "allowInternetAccess": about["network"] == "host",
            "lifecycle": {
                "autoResume": about["autoResume"],
                "onTimeout": "pause" if about["autoPause"] else "kill",
            },
        }


async def measured(box: E2bSandbox, limits: LimitsConfig) -> dict[str, Any]:
    """Measure what the programs of a sandbox use, in bytes and per cent."""
    usage = await box.files.ask("usage")
    memory, ms, used, total = box.files.numbers(usage, "memory", "ms", "used", "total")
    now, (before, at) = time.time(), box.measured
    box.measured = (ms, now)
    share = max(0, ms - before) / 1e3 / max(0.001, now - at)
    return {
        "timestamp": stamp(now),
        "timestampUnix": int(now),
        "cpuCount": _processors(limits.cores),
        "cpuUsedPct": round(100 * share / _processors(limits.cores), 2),
        "memUsed": memory,
        "memTotal": (box.about.get("memory_mb") or limits.memory_mb) << 20,
        "memCache": 0,
        "diskUsed": used,
        "diskTotal": total,
    }


def _processors(cores: float | None) -> int:
    return available_processors() if cores is None else max(1, round(cores))


def _short(box: E2bSandbox) -> dict[str, Any]:
    token = {} if box.token is None else {"envdAccessToken": box.token}
    about = {"templateID": box.about["templateID"], "sandboxID": box.name, "clientID": "toolgym"}
    return about | token | {"envdVersion": ENVD_VERSION, "alias": box.about["templateID"]}


def _number(text: str | None) -> float | None:
    try:
        return None if not text else float(text)
    except ValueError:
        raise E2bRefusedError("invalid_argument", f"a time should be seconds since 1970, got {text!r}") from None


def _page(rows: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> web.Response:
    """Answer with a page of rows; the header of one that has a next names its place."""
    try:
        limit, at = int(query.get("limit") or PAGE), int(query.get("nextToken") or 0)
    except ValueError:
        raise E2bRefusedError("invalid_argument", "limit and nextToken should be whole numbers") from None
    if limit < 1 or at < 0:
        raise E2bRefusedError("invalid_argument", "limit should be at least 1 and nextToken a token of an answer")
    further = {"x-next-token": str(at + limit)} if at + limit < len(rows) else None
    return answer(rows[at : at + limit], headers=further)
