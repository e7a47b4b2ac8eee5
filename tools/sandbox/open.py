"""`open_sandbox`: the sandbox that a tool's options name, on this machine or behind an address."""

from __future__ import annotations

import logging
import os

import pydantic

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.base import Limits, Sandbox
from toolgym.tools.sandbox.local.host import languages
from toolgym.tools.sandbox.local.host.isolation import offered
from toolgym.tools.sandbox.process import ProcessSandbox
from toolgym.tools.sandbox.remote.sandbox import MAX_CONNECTIONS, RemoteSandbox
from toolgym.tools.sandbox.shared import SharedSandbox

_log = logging.getLogger("toolgym.tools")

TOKEN_VARIABLE = "TOOLGYM_SANDBOX_TOKEN"
"""Environment variable with the token, for clients without one and for servers."""

URLS_VARIABLE = "TOOLGYM_SANDBOX_URLS"
"""Environment variable with addresses of servers and commas between, for configurations that name none."""


class SandboxTarget(pydantic.BaseModel):
    """The sandbox of a tool: this machine or servers, and what each episode may use."""

    model_config = pydantic.ConfigDict(extra="forbid")

    sandbox_url: str | None = None
    """Run on this server instead of on this machine: `toolgym serve sandbox`, or one with SandboxFusion's API. The tool
    asks it at the first episode which of the two it is."""
    sandbox_urls: list[str] | None = None
    """Run on these servers; each episode stays on one if it has a session. If no address is given, those of the
    environment variable `TOOLGYM_SANDBOX_URLS`, with commas between."""
    sandbox_token: pydantic.SecretStr | None = None
    """Bearer token for these servers. Default: the environment variable `TOOLGYM_SANDBOX_TOKEN`."""
    memory_limit_mb: int = -1
    """Memory limit of one episode's programs in MiB; -1 leaves it to the sandbox."""
    isolation: str | None = None
    """Weakest isolation level of the local sandbox that is acceptable: `namespaces`, `uid` or `landlock` (without
    programs beside the interpreter). Default: the strongest that the machine offers, and on machines that offer none a
    plain process, which the log tells. A server's is set there."""


class SandboxOptions(SandboxTarget):
    """Options of the tools that run programs. The names are those of verl's sandbox tool."""

    num_workers: int | None = pydantic.Field(default=None, ge=1)
    """Executions that this tool object runs at once. Default: as many as the sandbox takes, see `LocalSandbox`
    (`max_running`) and `RemoteSandbox` (`max_connections`)."""
    default_language: str = "python"
    """Language of the code."""
    sandbox_fusion_url: str | None = None
    """Run on this server by SandboxFusion's `/run_code` only, so without sessions. For verl's files, and for gateways
    that let nothing else through."""


def open_sandbox(options: SandboxOptions, what: str) -> Sandbox:
    """Return the sandbox that options name, which is the caller's to close; `what` is the tool's name in errors.

    Raises ConfigError if the options do not fit together, or the local sandbox lacks the language.
    """
    remote = _remote(options, what)
    if remote is not None:
        return remote
    if options.isolation is None and not offered():
        _log.warning(
            "this machine offers no isolation that the sandbox knows: code runs in plain processes of this user, with "
            "access to its files and network; set isolation='landlock' to refuse that"
        )
        ProcessSandbox.check_language(options.default_language)
        return ProcessSandbox()
    languages.find(options.default_language)
    limits = Limits(memory_mb=options.memory_limit_mb) if options.memory_limit_mb > 0 else Limits()
    return SharedSandbox(require=options.isolation, limits=limits)


def _remote(options: SandboxOptions, what: str) -> Sandbox | None:
    named = ("sandbox_fusion_url", "sandbox_url", "sandbox_urls")
    sources = [name for name in named if getattr(options, name) is not None]
    usual = [url.strip() for url in os.environ.get(URLS_VARIABLE, "").split(",") if url.strip()]
    if not sources and usual:
        sources = [f"the environment variable {URLS_VARIABLE}"]
    if not sources:
        if options.sandbox_token is not None:
            raise ConfigError(f"{what}: sandbox_token is for servers; give sandbox_url, or leave it out")
        return None
    if len(sources) > 1:
        raise ConfigError(f"{what}: give one of {' and '.join(sources)}, not both")
    if options.isolation is not None:
        raise ConfigError(f"{what}: isolation is set where the server runs; leave it out beside {sources[0]}")
    token = options.sandbox_token.get_secret_value() if options.sandbox_token else None
    memory = options.memory_limit_mb if options.memory_limit_mb > 0 else None
    if options.sandbox_fusion_url is not None:
        # The token of the environment is meant for our own server, which this may not be.
        return RemoteSandbox(options.sandbox_fusion_url, kind="sandboxfusion", memory_mb=memory, token=token)
    urls = [options.sandbox_url] if options.sandbox_url is not None else options.sandbox_urls
    return RemoteSandbox(
        usual if urls is None else urls,
        token=token or os.environ.get(TOKEN_VARIABLE) or None,
        memory_mb=memory,
        max_connections=max(MAX_CONNECTIONS, (options.num_workers or 0) + 1),
    )
