"""Paths of a server, with their handlers and their part of the API's description."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from aiohttp import web
from pydantic import BaseModel


class Call(NamedTuple):
    """One request. The values of its path's placeholders are percent-encoded; `internal`: another worker sent it."""

    request: web.BaseRequest
    body: bytes
    params: Mapping[str, str]
    internal: bool


Handler = Callable[[Call], Awaitable[web.StreamResponse]]
"""Answers a call. An answer that it has sent itself, such as a stream of events, is not sent again."""


class Operation(NamedTuple):
    """One method of a path. The API's description leaves out one without a `summary`.

    `request` and `response` are models or MIME types, `status` is that of success, and `conflict` is the
    meaning of 409.
    """

    handler: Handler
    summary: str = ""
    request: type[BaseModel] | str | None = None
    response: type[BaseModel] | str | None = None
    status: int = 200
    conflict: str = ""


class Route(NamedTuple):
    """A path and its methods; a `public` one is answered without a token.

    In `path`, `{name}` stands for all between two slashes, and `{name:path}` for all the rest. One that `runs`
    something needs a slot: a full server refuses it before it reads the body. One that is `streamed` reads the body
    itself.
    """

    path: str
    operations: Mapping[str, Operation]
    public: bool = False
    runs: bool = False
    while_draining: bool = False
    streamed: bool = False

    @property
    def name(self) -> str:
        """The path as metrics and the API's description call it."""
        return self.path.replace(":path}", "}")

    @property
    def placeholders(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.name)


UNKNOWN = Route("other", {}, public=True, while_draining=True)
"""The route of paths that a server does not have."""


class Router:
    """Finds the route of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = list(routes)
        self._fixed = {route.path: route for route in self.routes if "{" not in route.path}
        self._patterns = [(_pattern(route.path), route) for route in self.routes if "{" in route.path]

    def find(self, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return the route of a percent-encoded path, or else `UNKNOWN`, and its placeholders' values."""
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
