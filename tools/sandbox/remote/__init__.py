"""Sandboxes on other machines, over HTTP: our own server with its sessions, and servers with SandboxFusion's API."""

from toolgym.tools.sandbox.remote.caller import ServerKind
from toolgym.tools.sandbox.remote.sandbox import RemoteSandbox
from toolgym.tools.sandbox.remote.session import RemoteSession

__all__ = ["RemoteSandbox", "RemoteSession", "ServerKind"]
