"""veRL's multi-turn sandbox protocol, both ends: a session server, and the client, env and tool that use one.

See `docs/sessions.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.envs.served.sessions.backends.base import Instance as Instance
    from toolgym.envs.served.sessions.backends.base import SessionBackend as SessionBackend
    from toolgym.envs.served.sessions.client import SessionClient as SessionClient
    from toolgym.envs.served.sessions.env import RemoteSessionEnv as RemoteSessionEnv
    from toolgym.envs.served.sessions.env import RemoteSessionTool as RemoteSessionTool
else:
    __getattr__, __dir__ = lazy_names(__name__)
