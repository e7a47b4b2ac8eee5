"""The worker process of the env server."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from toolgym.envs.served.environments.app import EnvApp
from toolgym.envs.served.environments.catalog import Catalog, load_env
from toolgym.envs.served.environments.config import EnvServerConfig
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.worker import run_worker


@contextlib.asynccontextmanager
async def open_app(config: EnvServerConfig, number: int, folder: Path | None) -> AsyncIterator[tuple[HttpApp, str]]:
    """Make each env once, and open the service over them.

    Args:
        config: settings.
        number: number of this worker: 0.
        folder: folder of the workers' sockets: None, it is the only one.

    Raises:
        ConfigError: an env cannot be made.
    """
    envs = [
        await load_env(
            name, kwargs, answer_tool=config.answer_tool, endless=config.num_tasks, fields=config.task_fields
        )
        for name, kwargs in config.envs.items()
    ]
    app = EnvApp(Catalog(envs), config, version=importlib.metadata.version("toolgym"))
    yield app, ", ".join(env.id for env in envs)


if __name__ == "__main__":
    if "" not in sys.path:  # for `module:Id`, as the command has it; behind all others
        sys.path.append("")
    run_worker(EnvServerConfig, open_app)
