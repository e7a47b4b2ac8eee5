"""`toolgym serve sandbox`: the sandbox server with all its workers."""

from __future__ import annotations

from collections.abc import Callable

from toolgym.tools.sandbox.server.config import TOKEN_VARIABLE, ServerConfig
from toolgym.tools.serving.supervisor import supervise

WORKER = "toolgym.tools.sandbox.server.worker"
"""The module that is run as a worker process."""


async def serve(config: ServerConfig, announce: Callable[[str], None]) -> None:
    """Run the server until it is stopped, see `supervise`. Its workers do not see the token's environment variable."""
    await supervise(config, WORKER, "sandbox server", announce, hidden_variables=[TOKEN_VARIABLE])
