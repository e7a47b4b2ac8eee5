"""Paths of a server: what answers each, and what the API's description says about it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from aiohttp import web
from pydantic import BaseModel


class Call(NamedTuple):
    """One request, as its handler gets it.

    Attributes:
        request: the request.
        body: its body.
        params: the values of the route's placeholders in its path, percent-encoded.
        internal: whether it came from another worker.
    """

    request: web.BaseRequest
    body: bytes
    params: Mapping[str, str]
    internal: bool


Handler = Callable[[Call], Awaitable[web.StreamResponse]]
"""Answers a call. What it has sent itself, a stream of events or the frames of a WebSocket, is not sent again."""


class Operation(NamedTuple):
    """One method of a path.

    Attributes:
        handler: answers a call.
        summary: one line for the API's description; empty: it is not described.
        request: the body: its model, a MIME type, or None for no body.
        response: the answer: its model, the name of a schema, a MIME type, or None for no body.
        status: HTTP status of success.
        conflict: what the status 409 means; empty: it does not occur.
    """

    handler: Handler
    summary: str = ""
    request: type[BaseModel] | str | None = None
    response: type[BaseModel] | str | None = None
    status: int = 200
    conflict: str = ""


class Route(NamedTuple):
    """A path and its methods.

    Attributes:
        path: the path. A placeholder `{name}` stands for what is between two slashes, `{name:path}` for all the rest.
        operations: by method.
        public: whether it is answered without a token.
        runs: whether it needs a slot to run something; a full server refuses it before it reads the body.
        while_draining: whether it is still answered while the server is being stopped.
    """

    path: str
    operations: Mapping[str, Operation]
    public: bool = False
    runs: bool = False
    while_draining: bool = False

    @property
    def name(self) -> str:
        """The path as metrics and the API's description call it."""
        return self.path.replace(":path}", "}")

    @property
    def placeholders(self) -> list[str]:
        """Names of the path's placeholders, in order."""
        return re.findall(r"{(\w+)}", self.name)


UNKNOWN = Route("other", {}, public=True, while_draining=True)
"""The route of paths that a server does not have."""


class Router:
    """Finds the route of a path.

    Args:
        routes: all of them.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = list(routes)
        self._fixed = {route.path: route for route in self.routes if "{" not in route.path}
        self._patterns = [(_pattern(route.path), route) for route in self.routes if "{" in route.path]

    def find(self, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return the route of a percent-encoded path, `UNKNOWN` where there is none, and its placeholders' values."""
        route = self._fixed.get(path)
        if route is not None:
            return route, {}
        for pattern, route in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return route, match.groupdict()
        return UNKNOWN, {}


def _pattern(path: str) -> re.Pattern[str]:
    rest = re.sub(r"{(\w+):path}", r"(?P<\1>.*)", path)
    return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]*)", rest), re.DOTALL)
