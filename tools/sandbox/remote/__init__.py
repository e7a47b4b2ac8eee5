"""Sandboxes on other machines, over HTTP: our own server with its sessions, and servers that speak SandboxFusion's API.

| room | what it does |
| --- | --- |
| `retries` | when a call is sent again, and how long to wait before |
| `transport` | one HTTP exchange; says whether a failed one may have arrived |
| `replicas` | which server a call goes to; which ones are left alone for a while |
| `kinds` | whether a server is ours or SandboxFusion's |
| `caller` | one call from beginning to end: choose, send, try again, give up |
| `answers` | what servers' answers say, whatever bytes they are |
| `sandbox`, `session` | the `Sandbox` and `Session` that callers see |
"""

from toolgym.tools.sandbox.remote.answers import CellsResult
from toolgym.tools.sandbox.remote.kinds import ServerKind
from toolgym.tools.sandbox.remote.retries import Retries
from toolgym.tools.sandbox.remote.sandbox import RemoteSandbox
from toolgym.tools.sandbox.remote.session import RemoteSession

__all__ = ["CellsResult", "RemoteSandbox", "RemoteSession", "Retries", "ServerKind"]
