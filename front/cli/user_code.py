"""The user's own code on a command line: envs as `module:Id`, their arguments, tools that a tool file names."""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toolgym.tools.errors import ConfigError, ToolgymError

if TYPE_CHECKING:
    from toolgym.envs.registry import EnvSpec


def env_ids(incomplete: str) -> list[str]:
    from toolgym.envs.registry import registered

    return [id for id in sorted(registered()) if id.startswith(incomplete)]


def load_env(name: str) -> EnvSpec:
    """Return the spec of an id or `module:Id`, importing what registers it."""
    from toolgym.envs.registry import spec

    with _importing(name.rpartition(":")[0]):
        return spec(name)


def read_env_kwargs(text: str | None, option: str = "--env-kwargs") -> dict[str, Any]:
    """Read an option that takes a JSON object; None is an empty one."""
    try:
        read = json.loads(text) if text is not None else {}
    except ValueError as error:
        raise ConfigError(f"{option}: not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ConfigError(f"{option}: expected a JSON object such as '{{\"name\": 1}}', got {text}")
    return read


def import_module(name: str) -> None:
    from toolgym.envs.entry_points import import_module as load

    with _importing(name):
        load(name, "--env asks for it")


@contextlib.contextmanager
def _importing(module: str) -> Iterator[None]:
    try:
        yield
    except ToolgymError:
        raise
    except Exception as error:
        where = ""
        if not isinstance(error, SyntaxError):  # that says where it is
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f" ({last.filename}, line {last.lineno})"
        raise ConfigError(f"importing the module {module!r} failed: {type(error).__name__}: {error}{where}") from error
