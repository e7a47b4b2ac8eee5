"""Headers for agents in a browser, at the addresses of the wires only: the control API never has them."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from toolgym.rollout.capture.gateway.config import CaptureConfig

MAX_AGE = "600"
"""Seconds for which a browser may keep the answer to a preflight."""


class Cors:
    """Allows the origins of `CaptureConfig.cors_origins`. A call needs the session's key all the same, which no browser
    sends by itself. Where any key opens a session, no origin is allowed unless it is named."""

    def __init__(self, config: CaptureConfig) -> None:
        self._origins = config.cors_origins
        self._any = "*" in self._origins and not (config.open_by == "agents" and config.agents_secret is None)

    def headers(self, request: web.BaseRequest) -> Mapping[str, str]:
        """Return the headers for an answer; none for a request without an origin, or with another origin."""
        origin = request.headers.get("Origin")
        if origin is None or not (self._any or origin in self._origins):
            return {}
        headers = {"Access-Control-Allow-Origin": "*" if self._any else origin, "Vary": "Origin"}
        headers["Access-Control-Expose-Headers"] = "x-request-id, request-id, retry-after, x-should-retry"
        if request.method == "OPTIONS":
            headers["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
            headers["Access-Control-Allow-Headers"] = request.headers.get("Access-Control-Request-Headers", "*")
            headers["Access-Control-Max-Age"] = MAX_AGE
        return headers
