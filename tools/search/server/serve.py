"""`toolgym serve search`: the search server with all its workers."""

from __future__ import annotations

from collections.abc import Callable

from toolgym.tools.search.server.config import TOKEN_VARIABLE, SearchServerConfig
from toolgym.tools.serving.supervisor import supervise

WORKER = "toolgym.tools.search.server.worker"
"""The module that is run as a worker process."""


async def serve(config: SearchServerConfig, announce: Callable[[str], None]) -> None:
    """Run the server until it is stopped, see `supervise`. Its workers do not see the token's environment variable."""
    await supervise(config, WORKER, "search server", announce, hidden_variables=[TOKEN_VARIABLE])
