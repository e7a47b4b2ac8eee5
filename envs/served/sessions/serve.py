"""`toolgym serve sessions`: the session server."""

from __future__ import annotations

from collections.abc import Callable

from toolgym.envs.served.sessions.config import TOKEN_VARIABLE, SessionServerConfig
from toolgym.tools.serving.supervisor import supervise

WORKER = "toolgym.envs.served.sessions.worker"
"""The module that is run as the worker process."""


async def serve(config: SessionServerConfig, announce: Callable[[str], None]) -> None:
    """Run the server until it is stopped, see `supervise`. Its worker does not see the token's environment variable."""
    await supervise(config, WORKER, "session server", announce, hidden_variables=[TOKEN_VARIABLE])
