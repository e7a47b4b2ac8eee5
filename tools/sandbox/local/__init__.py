"""The local sandbox: a template process forks a hardened child per execution and per session."""

from toolgym.tools.sandbox.local.probe import Isolation, probe
from toolgym.tools.sandbox.local.sandbox import LocalSandbox

__all__ = ["Isolation", "LocalSandbox", "probe"]
