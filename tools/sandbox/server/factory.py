"""The sandbox of the server's settings."""

from __future__ import annotations

from toolgym.tools.sandbox.local import LocalSandbox
from toolgym.tools.sandbox.local.host.isolation import Level
from toolgym.tools.sandbox.local.host.languages import LANGUAGES
from toolgym.tools.sandbox.local.host.resources import available_processors
from toolgym.tools.sandbox.server.config import ServerConfig


def make_sandbox(config: ServerConfig) -> LocalSandbox:
    """Return the sandbox of one worker. The server's `Gate` bounds how many executions there are.

    Raises:
        SandboxError: the machine cannot give the isolation that is asked for.
    """
    return LocalSandbox(
        require=config.isolation,
        limits=config.sandbox_limits,
        network=config.network,
        allow_host_network=config.max_network == "host",
        preload=config.preload,
        python=config.python,
        packages=config.packages,
        max_running="unlimited",
        max_computing=config.share(config.max_computing),
        templates=max(1, available_processors() // 2 // config.workers),
    )


def offered_languages(config: ServerConfig, level: Level) -> frozenset[str]:
    """Return the languages that requests can use: installed, possible at that isolation level, and not left out."""
    able = {"python"}
    for name, language in LANGUAGES.items():
        if language.available and language.possible(level):
            able.add(name)
    return frozenset(able if config.languages is None else able & set(config.languages))
