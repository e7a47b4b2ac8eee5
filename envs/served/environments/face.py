"""`Face`: one API of the env server, over the sessions that all of them share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from aiohttp import web

from toolgym.envs.served.environments.catalog import Catalog, ServedEnv
from toolgym.envs.served.environments.config import EnvServerConfig
from toolgym.envs.served.environments.session import EnvSessions
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import RequestRefusedError

SESSION_HEADER = "X-Session-ID"
"""Header that names a session."""

DEPLOYMENT_HEADER = "X-Deployment"
"""Header in which clients name the env, if their paths name none."""

JSON = "application/json"


@dataclass(frozen=True)
class ServerParts:
    """The parts of an env server that its faces stand on.

    Attributes:
        catalog: the envs that are offered.
        sessions: the open sessions.
        config: settings.
        version: version of the library.
    """

    catalog: Catalog
    sessions: EnvSessions
    config: EnvServerConfig
    version: str

    def env_of(self, call: Call) -> ServedEnv:
        """Return the env that a call is about: the one of its path, else of the header, else the default."""
        if "env" in call.params:
            return self.catalog.find(unquote(call.params["env"]))
        return self.env_named(call.request.headers.get(DEPLOYMENT_HEADER, "env"))

    def env_named(self, name: str) -> ServedEnv:
        """Return the env of a name, which clients that know only a URL make up (TRL's is "env"): then the default."""
        return self.catalog.default if len(self.catalog.envs) == 1 or name == "env" else self.catalog.find(name)


class Face(ABC):
    """One API: its paths and what answers them.

    Args:
        parts: what it stands on.
    """

    def __init__(self, parts: ServerParts) -> None:
        self.parts, self.sessions = parts, parts.sessions

    @abstractmethod
    def env_operations(self) -> Mapping[str, Mapping[str, Operation]]:
        """Return the operations on an env by path; the path of another env than the default has its id in front."""

    def routes(self) -> list[Route]:
        """Return the paths that stand for themselves. Default: none."""
        return []

    def drain(self) -> None:
        """End what outlives a request, since the server is being stopped. Default: nothing."""

    async def undelivered(self, response: web.StreamResponse) -> None:
        """Undo a call whose client was gone before its answer. Default: nothing."""


def session_name(call: Call) -> str | None:
    """Return the session's name in a call's header; None if it has none.

    Raises:
        RequestRefusedError: 400, it is no name.
    """
    name = call.request.headers.get(SESSION_HEADER, "").strip()
    if name and not re.fullmatch(r"[\w.:/-]{8,200}", name):
        raise RequestRefusedError(400, f"{SESSION_HEADER} must have 8 to 200 letters, digits or any of . : / _ -")
    return name or None


def required_name(call: Call) -> str:
    """Return the session's name in a call's header.

    Raises:
        RequestRefusedError: 400, there is none.
    """
    name = session_name(call)
    if name is None:
        raise RequestRefusedError(400, f"{SESSION_HEADER} header is required")
    return name
