"""The session server's settings, from a YAML file and from flags, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pydantic
from pydantic import Field

from toolgym.envs.entry_points import load
from toolgym.envs.served.sessions.backends.base import SessionBackend
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.keywords import check_keywords
from toolgym.tools.serving.config import ServerSpec, ServingConfig, flag
from toolgym.tools.yaml_file import read_yaml

BACKENDS = {
    "repository": "toolgym.envs.served.sessions.backends.repository:RepositoryBackend",
    "env": "toolgym.envs.served.sessions.backends.episodes:EnvBackend",
    "sandbox_fusion": "toolgym.envs.served.sessions.backends.sandbox_fusion:SandboxFusionBackend",
}


class SessionServerConfig(ServingConfig):
    """Settings of `toolgym serve sessions`: those of every server (`ServingConfig`), and its own.

    Attributes:
        port: TCP port; 0: any free one.
        workers: processes that share the port: one, since a session lives in the process that opened it.
        max_concurrency: calls that run at once; others wait.
        body_limit_mb: MiB of one request's body.
        backend: what sessions are made of: `repository`, `env`, `sandbox_fusion`, or `module:Class` of your own.
        backend_kwargs: arguments of the backend, by name.
        database: file that holds the sessions. A server that is started with it again continues them.
        max_sessions: sessions that are open at once; more are refused (429).
        max_sessions_per_client: sessions of one client that are open at once; more are refused (429).
        max_requests_per_client: requests of one client that are answered at once; more are refused (429).
        session_idle_timeout: seconds without a call after which an open session is deleted.
        reward_timeout_after_postprocess: seconds without a call after which a session is deleted whose /postprocess was
            called: until then its reward can be asked for.
        start_timeout: wall seconds for a session to open.
        action_timeout: wall seconds for an action. The backend's own deadlines for commands are shorter; this one holds
            when they fail to.
        reward_timeout: wall seconds to compute a reward.
        max_content_chars: characters of what the policy reads after an action; a longer text loses its middle.
        clients_file: YAML file with the names of further clients and their tokens. Each is a client of its own, whose
            sessions no other client can use. The bearers of `token` are one client, too; without any token
            each address is one.
    """

    spec = ServerSpec(
        command="sessions",
        name="session server",
        worker="toolgym.envs.served.sessions.app",
    )

    port: int = flag(5000, ge=0, le=65535)
    workers: int = Field(1, ge=1, le=1)
    max_concurrency: int = Field(256, ge=1)
    queue_timeout: pydantic.FiniteFloat = Field(600.0, gt=0)
    body_limit_mb: pydantic.FiniteFloat = Field(16.0, gt=0)
    backend: str = flag("repository")
    backend_kwargs: Mapping[str, Any] = flag(default_factory=dict)
    database: Path = flag(Path("sessions.db"))
    max_sessions: int = flag(1024, ge=1)
    max_sessions_per_client: int = flag(1024, ge=1)
    max_requests_per_client: int = Field(2048, ge=1)
    session_idle_timeout: pydantic.FiniteFloat = flag(3600.0, gt=0)
    reward_timeout_after_postprocess: pydantic.FiniteFloat = Field(86_400.0, gt=0)
    start_timeout: pydantic.FiniteFloat = Field(300.0, gt=0)
    action_timeout: pydantic.FiniteFloat = Field(300.0, gt=0)
    reward_timeout: pydantic.FiniteFloat = Field(240.0, gt=0)
    max_content_chars: int = Field(50_000, ge=1)
    clients_file: Path | None = flag(None)

    @classmethod
    def load(cls, path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Self:
        config = super().load(path, flags)
        read_clients(config)
        return config


def read_clients(config: SessionServerConfig) -> dict[str, str]:
    """Return the clients' names by their tokens; `token` is `default`. Raises ConfigError: `clients_file` is wrong."""
    clients = {config.secret: "default"} if config.secret is not None else {}
    if config.clients_file is None:
        return clients
    if not clients:
        raise ConfigError("clients_file: set a token too, or every client without one would be let in")
    names = read_yaml("clients_file", config.clients_file)
    if not isinstance(names, dict) or not all(
        isinstance(text, str) and text for pair in names.items() for text in pair
    ):
        raise ConfigError(f"{config.clients_file}: expected names of clients and their tokens, as texts")
    for name, token in names.items():
        if clients.setdefault(token, name) != name:
            raise ConfigError(f"{config.clients_file}: the clients {clients[token]!r} and {name!r} have the same token")
    return clients


def make_backend(name: str, kwargs: Mapping[str, Any]) -> SessionBackend:
    """Return the backend of a name. Raises ConfigError: there is none, or an argument cannot be used."""
    entry_point = BACKENDS.get(name, name)
    if ":" not in entry_point:
        raise UnknownNameError(
            f"backend: there is no {name!r}{nearest(name, BACKENDS)}: expected {', '.join(BACKENDS)} or module:Class"
        )
    kind = load(entry_point, f"the backend {name!r}")
    check_keywords(kind, kwargs)
    backend = kind(**kwargs)
    if not isinstance(backend, SessionBackend):
        raise ConfigError(f"backend: {name!r} must give a SessionBackend, got {backend!r}")
    return backend
