"""`toolgym serve openenv`: the env server."""

from __future__ import annotations

from collections.abc import Callable

from toolgym.envs.served.environments.config import TOKEN_VARIABLE, EnvServerConfig
from toolgym.tools.serving.supervisor import supervise

WORKER = "toolgym.envs.served.environments.worker"
"""The module that is run as the worker process."""


async def serve(config: EnvServerConfig, announce: Callable[[str], None]) -> None:
    """Run the server until it is stopped, see `supervise`. Its worker does not see the token's environment variable."""
    await supervise(config, WORKER, "env server", announce, hidden_variables=[TOKEN_VARIABLE])
