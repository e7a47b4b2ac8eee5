"""The user's own code on a command line: envs as `module:Id`, their arguments, tools that a tool file names."""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolgym.tools.errors import ConfigError, ToolgymError, UnknownNameError, nearest

if TYPE_CHECKING:
    from toolgym.envs.registry import EnvSpec
    from toolgym.tools.base import BaseTool


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


def tool_files(text: str) -> dict[str, Path]:
    """Read `--tool-config`, a file or `ID=FILE,...`: a file by the id of its env; by "" that of every env.
    Raises ConfigError if an id comes twice."""
    parts = [part.partition("=") for part in text.split(",")]
    if Path(text).exists() or not all(file for _, _, file in parts):
        return {"": Path(text)}
    files = {id.strip(): Path(file.strip()) for id, _, file in parts}
    if len(files) < len(parts):
        raise ConfigError(f"--tool-config names each env once, as 'A-v0=a.yaml,B-v0=b.yaml'; got {text!r}")
    return files


def load_tools(option: Path | None, ids: Sequence[str], every_id: Sequence[str]) -> dict[str, list[BaseTool]]:
    """Make the tools that `--tool-config` has for these envs, by id; envs that share a file share its tools. Raises
    ConfigError if it names an env that is not among `every_id`."""
    from toolgym.tools.config import from_config

    files = {} if option is None else tool_files(str(option))
    for id in files.keys() - {"", *every_id}:
        names = ", ".join(every_id)
        raise UnknownNameError(f"--tool-config for {id!r}{nearest(id, every_id) or ','} which is none of {names}")
    wanted = {id: file for id in ids if (file := files.get(id, files.get(""))) is not None}
    tools = {file: from_config(file) for file in dict.fromkeys(wanted.values())}
    return {id: tools[file] for id, file in wanted.items()}


def tools_in(arguments: Mapping[str, Any]) -> list[BaseTool]:
    """Return the tools among the arguments of an env, or of several by id, each once."""
    from toolgym.tools.base import BaseTool

    several = [arguments, *(each for each in arguments.values() if isinstance(each, Mapping))]
    lists = [tools for each in several if isinstance(tools := each.get("tools"), list)]
    return list(dict.fromkeys(tool for tools in lists for tool in tools if isinstance(tool, BaseTool)))


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
