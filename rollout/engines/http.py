"""What the engines that speak HTTP share: addresses, the pool of connections, and what `Retry-After` asks for."""

from __future__ import annotations

import math
from urllib.parse import urlsplit

import aiohttp

IDLE_CONNECTION = 3.0
"""Seconds that an idle connection is kept: less than the servers' 5, or a request meets a closing connection."""
RETRY_AFTER_LIMIT = 30.0
"""Most seconds that a server's `Retry-After` is followed."""


def is_address(url: object) -> bool:
    """Whether this is the url of an HTTP server."""
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or too large, an open bracket
        return False


def new_session(api_key: str | None) -> aiohttp.ClientSession:
    """Make the pool of connections that all requests share. The caller closes it; it belongs to the running loop."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
    )


def retry_after(header: str, otherwise: float) -> float:
    """Return the seconds that a `Retry-After` header asks for; `otherwise` where it is a date or no number."""
    try:
        seconds = float(header)
    except ValueError:
        return otherwise
    return otherwise if math.isnan(seconds) else min(max(seconds, 0.0), RETRY_AFTER_LIMIT)
