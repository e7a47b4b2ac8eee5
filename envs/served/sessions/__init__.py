"""veRL's multi-turn sandbox protocol, both ends: a session server, and the client, env and tool that use one.

| module | holds |
| --- | --- |
| `protocol` | the four calls' bodies, session ids, and how an answer is read as a reward |
| `client` | a client over several servers |
| `env`, `tool` | an env and a tool whose state is a session of a server |
| `backends` | the kinds of sessions: a task's repository, any env, a SandboxFusion server, or your own |
| `store` | the sessions in SQLite |
| `session` | one session and its calls in order; all of them, with limits and expiry |
| `config`, `app`, `worker` | the server |

See `docs/sessions.md`. What every server needs is in `toolgym.tools.serving`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.envs.served.sessions.backends.base import Instance as Instance
    from toolgym.envs.served.sessions.backends.base import SessionBackend as SessionBackend
    from toolgym.envs.served.sessions.client import SessionClient as SessionClient
    from toolgym.envs.served.sessions.env import RemoteSessionEnv as RemoteSessionEnv
    from toolgym.envs.served.sessions.tool import RemoteSessionTool as RemoteSessionTool
else:
    __getattr__, __dir__ = lazy_names(__name__)
