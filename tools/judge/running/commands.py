"""Commands of other languages: how the process of the tests compiles a program and starts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.tools.sandbox.base import Sandbox
from toolgym.tools.sandbox.local.host import languages
from toolgym.tools.sandbox.local.host.sandbox import LocalSandbox
from toolgym.tools.sandbox.process import ProcessSandbox
from toolgym.tools.sandbox.shared import SharedSandbox

MAIN_MEMORY_MB = 1024
"""MiB that a program's own settings (the heap of Java, for example) assume if neither judge nor sandbox has a limit."""


def command_of(sandbox: Sandbox, language: str, code: str, memory_mb: int | None) -> dict[str, Any] | None:
    """Return the command for a program of a language; None for Python.

    Raises UnknownNameError for an unknown language, and ConfigError if this machine runs the programs and the language
    is not installed.
    """
    if isinstance(sandbox, ProcessSandbox):
        sandbox.check_language(language)
    local = _local(sandbox)
    try:
        entry = languages.find(language) if local is None else languages.find(language, local.python)
    except UnknownNameError:
        raise
    except ConfigError:
        if local is not None or isinstance(sandbox, ProcessSandbox):
            raise
        entry = languages.LANGUAGES[language]  # the machine of the sandbox may have it
    if entry is None:
        return None
    memory = memory_mb or (MAIN_MEMORY_MB if local is None else local.limits.memory_mb)
    packages = None if local is None else local.packages
    program = entry.request(code, memory, "namespaces", folder=packages, limits_stack=True)
    return {
        "source": program["source"],
        "argv": program["argv"],
        "compile": program["compile"],
        "memory_mb": program["compile_memory_mb"],
        "code": program["code"],
        "env": dict(program["env"]),
        "needs": list(entry.needs),
        "modules": list(entry.modules),
        "native": entry.native,
    }


def runs_in_place(sandbox: Sandbox, command: Mapping[str, Any] | None) -> bool:
    """Whether the process of the tests can run a command: packages of a server are known only to the server."""
    return command is None or _local(sandbox) is not None or not _uses_packages(command)


def _uses_packages(command: Mapping[str, Any]) -> bool:
    return any(need in ("go", "java", "javac", "jest", "scala", "kotlin") for need in command["needs"])


def _local(sandbox: Sandbox) -> LocalSandbox | None:
    if isinstance(sandbox, SharedSandbox):
        return sandbox.local
    return sandbox if isinstance(sandbox, LocalSandbox) else None
