"""The user's own code on a command line: envs as `module:Id`, their arguments, tools that a tool file names."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any

from toolgym.tools.errors import ConfigError, ToolgymError

if TYPE_CHECKING:
    from toolgym.envs.registry import EnvSpec


def env_ids(incomplete: str) -> list[str]:
    """Return the ids that begin like that, for the shell's completion."""
    from toolgym.envs.registry import registered

    return [id for id in sorted(registered()) if id.startswith(incomplete)]


def load_env(name: str) -> EnvSpec:
    """Return what an env id stands for, importing what registers it.

    Args:
        name: an id, or `module:Id`.

    Raises:
        ConfigError: there is no such id or module, or importing the module failed.
    """
    from toolgym.envs.registry import spec

    try:
        return spec(name)
    except ToolgymError:
        raise
    except Exception as error:
        raise _broken(name.rpartition(":")[0], error) from error


def read_env_kwargs(text: str | None, option: str = "--env-kwargs") -> dict[str, Any]:
    """Read the arguments of an env, or of something else, given as an option.

    Raises:
        ConfigError: it is no JSON object.
    """
    try:
        read = json.loads(text) if text is not None else {}
    except ValueError as error:
        raise ConfigError(f"{option}: not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ConfigError(f"{option}: expected a JSON object such as '{{\"max_turns\": 4}}', got {text}")
    return read


def import_module(name: str) -> None:
    """Import a module that registers envs.

    Raises:
        ConfigError: there is no such module, or importing it failed.
    """
    from toolgym.envs.entry_points import import_module as load

    try:
        load(name, "--env asks for it")
    except ToolgymError:
        raise
    except Exception as error:
        raise _broken(name, error) from error


def _broken(module: str, error: Exception) -> ConfigError:
    where = ""
    if not isinstance(error, SyntaxError):  # that says where it is
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f" ({last.filename}, line {last.lineno})"
    return ConfigError(f"importing the module {module!r} failed: {type(error).__name__}: {error}{where}")
