"""Sandboxes on other machines, over HTTP: our own server with its sessions, and servers that speak SandboxFusion's API.

| module | what it does |
| --- | --- |
| `caller` | which kind a server is, and calls of both kinds, on the HTTP client of `toolgym.tools.http` |
| `response_parsing` | results from servers' answers, which may hold any bytes |
| `sandbox`, `session` | the `Sandbox` and `Session` that callers see |
"""

from toolgym.tools.sandbox.remote.caller import ServerKind
from toolgym.tools.sandbox.remote.response_parsing import CellsResult
from toolgym.tools.sandbox.remote.sandbox import RemoteSandbox
from toolgym.tools.sandbox.remote.session import RemoteSession

__all__ = ["CellsResult", "RemoteSandbox", "RemoteSession", "ServerKind"]
