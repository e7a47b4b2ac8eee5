"""`SandboxFacts`: what a sandbox gives to programs, for the descriptions and results that a model reads."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from toolgym.tools.sandbox.limits import Limits
from toolgym.tools.sandbox.options import Network

PACKAGES = {
    "numpy": "numpy", "pandas": "pandas", "scipy": "scipy", "sympy": "sympy", "matplotlib": "matplotlib",
    "sklearn": "scikit-learn", "networkx": "networkx", "torch": "torch", "requests": "requests",
}  # fmt: skip
"""Packages that descriptions name if programs can import them: from their module to their name."""

ProcessRule = Literal["all", "no pools", "none"]

FACTS_KEY = "x-toolgym-sandbox"
"""Key of a server's facts in the description of its API."""

PROBE_TIMEOUT = 30.0
"""Seconds that an interpreter may take to say which packages it has."""

_PROBE = (
    "import importlib.util, json, sys\n"
    "names = [name for name in sys.argv[1:] if importlib.util.find_spec(name)]\n"
    "print(json.dumps([list(sys.version_info[:2]), names]))"
)


@dataclass(frozen=True)
class SandboxFacts:
    """Facts about a sandbox, as far as they are known without asking a server.

    Attributes:
        network: what programs reach by default. None if unknown.
        limits: limits of one run or session. None if unknown.
        python: version of the interpreter that programs run with, such as `"3.12"`. Empty if unknown.
        packages: those of `PACKAGES` that programs can import. Empty if unknown.
        processes: which processes programs can start: `all`, all but those that share locks and memory, as pools do
            (`no pools`), or `none`. None if unknown.
    """

    network: Network | None = None
    limits: Limits | None = None
    python: str = ""
    packages: tuple[str, ...] = ()
    processes: ProcessRule | None = None


@functools.cache
def probe_python(python: str) -> tuple[str, tuple[str, ...]]:
    """Return an interpreter's version and its `PACKAGES`; nothing for an interpreter that cannot be run."""
    if python == sys.executable:
        modules = [module for module in PACKAGES if _is_installed(module)]
        version = list(sys.version_info[:2])
    else:
        command = [python, "-s", "-c", _PROBE, *PACKAGES]
        try:
            done = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT, check=True, cwd="/")
            version, modules = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return "", ()
    return ".".join(map(str, version)), tuple(PACKAGES[module] for module in modules)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # an import hook refuses it, or a stub without a spec stands for it
        return False
