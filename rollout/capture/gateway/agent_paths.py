"""Spellings of an agent's address: double slashes, a slash at the end, `/v1/v1`, no `/v1`, Azure's deployments."""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolgym.tools.serving.routes import UNKNOWN, Route, Router

PREFIXES = ("/sessions/{session}/v1", "/v1")
"""Where agents find their wires."""

_SESSION = re.compile(r"(/sessions/[^/]+)?(/.*)?")
_AZURE = re.compile(r"(/v1)?/openai(/deployments/[^/]+|/v1)?(?=/)")


def usual_spelling(path: str) -> str:
    """Return how this gateway writes a percent-encoded path of an agent."""
    path = re.sub(r"/{2,}", "/", path)
    path = path[:-1] if len(path) > 1 and path.endswith("/") else path
    match = _SESSION.fullmatch(path)
    session, rest = (match[1] or "", match[2] or "") if match else ("", path)
    azure = _AZURE.match(rest)
    if azure is not None:
        rest = rest[azure.end() :]
    rest = re.sub(r"^(/v1)+(?=/|$)", "", rest)
    return f"{session}/v1{rest}"


class AgentRouter(Router):
    """Finds agents' routes under other spellings of their paths too. Control routes have one spelling."""

    def __init__(self, routes: Router, agents: frozenset[str]) -> None:
        super().__init__(routes.routes)
        self._agents = agents

    def find(self, path: str) -> tuple[Route, Mapping[str, str]]:
        route, params = super().find(path)
        if route is not UNKNOWN and not route.path.endswith("{rest:path}"):
            return route, params
        other, others = super().find(usual_spelling(path))
        is_agents = other.path in self._agents or (other is not UNKNOWN and re.search(r"/sessions/|/v1(/|$)", path))
        return (other, others) if is_agents and other.path.startswith(PREFIXES) else (route, params)
