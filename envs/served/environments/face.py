"""`Face`: one API of the env server, over the sessions that all of them share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from urllib.parse import unquote

from aiohttp import web

from toolgym.envs.served.catalog import Catalog, ServedEnv
from toolgym.envs.served.env_session import EnvSessions
from toolgym.envs.served.environments.config import EnvServerConfig
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import RequestRefusedError

SESSION_HEADER = "X-Session-ID"

DEPLOYMENT_HEADER = "X-Deployment"
"""Header in which clients name the env, if their paths name none."""

JSON = "application/json"


class Face(ABC):
    """One API: its paths, and the answers to them. `version` is the library's."""

    def __init__(self, catalog: Catalog, sessions: EnvSessions, config: EnvServerConfig, version: str) -> None:
        self.catalog, self.sessions, self.config = catalog, sessions, config
        self.library_version = version

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

    def env_of(self, call: Call) -> ServedEnv:
        """Return the env that a call is about: the one of its path, else of the header, else the default."""
        if "env" in call.params:
            return self.catalog.find(unquote(call.params["env"]))
        return self.env_named(call.request.headers.get(DEPLOYMENT_HEADER, "env"))

    def env_named(self, name: str) -> ServedEnv:
        """Return the env of a name. Clients that know only a URL make one up (TRL's is "env"): then the default."""
        return self.catalog.envs[0] if len(self.catalog.envs) == 1 or name == "env" else self.catalog.find(name)


def session_name(call: Call) -> str | None:
    """Return the session's name in a call's header, if it has one."""
    name = call.request.headers.get(SESSION_HEADER, "").strip()
    if name and not re.fullmatch(r"[\w.:/-]{8,200}", name):
        raise RequestRefusedError(400, f"{SESSION_HEADER} must have 8 to 200 letters, digits or any of . : / _ -")
    return name or None
