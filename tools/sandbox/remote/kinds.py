"""Whether a server is ours or SandboxFusion's, by its description of itself."""

from __future__ import annotations

import enum
import json

from toolgym.tools.errors import ConfigError
from toolgym.tools.http.session import HttpResponse

DESCRIPTION = "/openapi.json"
"""Where both kinds of server describe themselves."""

HEALTH = "/v1/ping"
"""Path that both kinds of server answer at once, without a token."""


class ServerKind(enum.StrEnum):
    """The API that a server has."""

    TOOLGYM = "toolgym"
    """`toolgym serve sandbox`: SandboxFusion's API and sessions."""
    SANDBOXFUSION = "sandboxfusion"
    """SandboxFusion's API alone: every call is a clean start."""


def read_kind(url: str, reply: HttpResponse) -> ServerKind:
    """Return which kind a server is, from its answer to `DESCRIPTION`.

    Raises:
        ConfigError: it is neither, or refuses the token.
    """
    if reply.status in (401, 403):
        raise ConfigError(
            f"the sandbox server {url} answers {reply.status}: it wants a bearer token, and got none or a wrong one"
        )
    paths: object = None
    if reply.status == 200:
        try:
            description = json.loads(reply.body)
            paths = description.get("paths") if isinstance(description, dict) else None
        except (ValueError, RecursionError):
            paths = None
    if isinstance(paths, dict) and "/run_code" in paths:
        return ServerKind.TOOLGYM if "/sessions/{id}/cells" in paths else ServerKind.SANDBOXFUSION
    raise ConfigError(
        f"{url} is no sandbox server: {url}{DESCRIPTION} should describe one with /run_code (it answered "
        f"{reply.status}). Where only /run_code can be reached, behind a gateway for example, give the address as "
        "sandbox_fusion_url, or kind='sandboxfusion'"
    )
